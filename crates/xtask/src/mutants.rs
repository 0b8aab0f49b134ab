//! Lets tests and the simulation look for the mutants of cargo-mutants. All of them are in one build; an environment variable
//! turns one on. What was found out is kept, so that a run can be continued.

mod build;
mod edits;
mod list;
mod report;
mod switches;
mod trials;

use anyhow::{Result, ensure};
use list::Mutant;
use report::{Line, Outcome};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;
use trials::Trial;

/// Look for mutants with the tests and the simulation
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The packages with the mutants, whose tests are run
    #[arg(long, short, default_value = "restow-rules")]
    package: Vec<String>,
    /// Only mutants in files that match this glob
    #[arg(long, short)]
    file: Vec<String>,
    /// Look for mutants in this file, or below this folder, before all others
    #[arg(long)]
    first: Vec<String>,
    /// Only this many mutants, taken as if by chance
    #[arg(long)]
    sample: Option<usize>,
    /// How many seeds of the simulation look for mutants that no test finds
    #[arg(long, default_value_t = 0)]
    seeds: u64,
    /// Leave out tests and seeds that take more seconds than this without a mutant
    #[arg(long, default_value_t = 60)]
    slow: u64,
    /// How many tests run, and how many mutants are looked for, at the same time
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Look again for mutants that were missed
    #[arg(long)]
    again: bool,
    /// Take other crates from the release build, if that is there already
    #[arg(long)]
    release: bool,
    /// Only build
    #[arg(long)]
    build: bool,
    /// Only print what is known
    #[arg(long)]
    report: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    let wanted = list::Wanted { packages: &args.package, files: &args.file, sample: args.sample };
    let mutants = list::read(&root, &wanted)?;
    ensure!(!mutants.is_empty(), "there are no such mutants");
    let results = root.join("target/mutants.jsonl");
    let mut known = report::read(&results)?;
    if args.again {
        known.retain(|_, outcome| !matches!(outcome, Outcome::Missed));
    }
    if !args.report {
        look(args, &root, &mutants, &mut known, &results)?;
    }
    print!("{}", report::table(&mutants, &known));
    Ok(())
}

fn look(
    args: &Args,
    root: &Path,
    mutants: &[Mutant],
    known: &mut BTreeMap<String, Outcome>,
    results: &Path,
) -> Result<()> {
    let copy = root.join("target/mutants").join(args.package.join("+"));
    fs::create_dir_all(&copy)?;
    let mut file = OpenOptions::new().append(true).create(true).open(results)?;
    let mut note = |mutant: &Mutant, outcome: Outcome, known: &mut BTreeMap<String, Outcome>| -> Result<()> {
        let line = Line { name: mutant.name.clone(), outcome };
        writeln!(file, "{}", serde_json::to_string(&line)?)?;
        known.insert(line.name, line.outcome);
        Ok(())
    };
    let unviable: BTreeSet<u32> = mutants
        .iter()
        .filter(|mutant| matches!(known.get(&mutant.name), Some(Outcome::Unviable)))
        .map(|mutant| mutant.number)
        .collect();
    let simulation = args.seeds > 0;
    let build = build::Build { root, copy: &copy, packages: &args.package, mutants, simulation, release: args.release };
    let built = build.run(unviable, |blamed| {
        let blamed = mutants.iter().filter(|mutant| blamed.contains(&mutant.number));
        blamed.into_iter().try_for_each(|mutant| note(mutant, Outcome::Unviable, known))
    })?;
    if args.build {
        return Ok(());
    }
    let (slow, traces) = (Duration::from_secs(args.slow), copy.join("reached"));
    let wanted = trials::Wanted { seeds: args.seeds, slow, traces: &traces, jobs: args.jobs };
    let trials = trials::all(&built, &wanted)?;
    eprintln!("{} tests and seeds", trials.len());
    // A run that is stopped has looked for a sample.
    let is_first = |mutant: &Mutant| args.first.iter().any(|path| mutant.file.starts_with(path));
    let mut in_order: Vec<&Mutant> = mutants.iter().filter(|mutant| !known.contains_key(&mutant.name)).collect();
    in_order.sort_by_key(|mutant| (!is_first(mutant), mutant.place()));
    look_for_all(&in_order, &trials, args.jobs, |mutant, outcome| {
        eprintln!("{}: {outcome:?}", mutant.name);
        note(mutant, outcome, known)
    })
}

/// Looks for these mutants, so many at the same time.
fn look_for_all(
    mutants: &[&Mutant],
    trials: &[Trial],
    jobs: usize,
    mut note: impl FnMut(&Mutant, Outcome) -> Result<()>,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        // A run that cannot go on drops `told`, so that no job begins with another mutant.
        let told = told;
        for tell in std::iter::repeat_n(tell, jobs) {
            scope.spawn(|| {
                let tell = tell;
                while let Some(mutant) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = trials::look_for(mutant.number, trials);
                    if tell.send((*mutant, found)).is_err() {
                        return;
                    }
                }
            });
        }
        told.iter().try_for_each(|(mutant, found)| note(mutant, found?.map_or(Outcome::Missed, Outcome::Found)))
    })
}
