//! Runs tests and seeds of the simulation with one mutant at a time, and only those that reach it.

use super::build::{Built, TestProgram};
use anyhow::{Context, Result, anyhow};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How much longer than usual a trial may take, in any case.
const PATIENCE: Duration = Duration::from_secs(12);
/// The largest address space of a test, in KiB: some mutants allocate forever.
const MEMORY: u64 = 8 << 20;

/// What finds mutants. The simulation runs last: it takes longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Stage {
    Tests,
    Simulation,
}

/// A test, or all seeds of the simulation.
#[derive(Clone, Debug)]
pub(crate) struct Trial {
    stage: Stage,
    program: PathBuf,
    folder: PathBuf,
    /// The test's name, or the number of seeds.
    name: String,
    took: Duration,
    reached: BTreeSet<u32>,
}

/// How a mutant was found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Found {
    pub(crate) stage: Stage,
    pub(crate) by: String,
}

/// Which trials there are.
pub(crate) struct Wanted<'a> {
    /// How many seeds of the simulation.
    pub(crate) seeds: u64,
    /// A trial that takes longer without a mutant is left out.
    pub(crate) slow: Duration,
    /// A folder for what trials reach.
    pub(crate) traces: &'a Path,
    /// How many tests run at the same time.
    pub(crate) jobs: usize,
}

/// All trials that pass without a mutant, the quickest tests first, and the simulation last.
pub(crate) fn all(built: &Built, wanted: &Wanted<'_>) -> Result<Vec<Trial>> {
    fs::create_dir_all(wanted.traces)?;
    let mut tests: Vec<(&TestProgram, String)> = Vec::new();
    for program in &built.tests {
        tests.extend(names(&program.path, &program.folder)?.into_iter().map(|name| (program, name)));
    }
    let mut trials = first_runs(&tests, wanted)?;
    trials.sort_by_key(|trial| trial.took);
    if let Some(program) = &built.restow {
        let folder = program.parent().context("a file has a folder")?;
        let unlimited = Wanted { slow: Duration::MAX, ..*wanted };
        trials.extend(first_run(Stage::Simulation, program, folder, wanted.seeds.to_string(), &unlimited)?);
    }
    Ok(trials)
}

/// Lets the trials look for one mutant, the quickest first. More and more tests run in one process.
pub(crate) fn look_for(mutant: u32, trials: &[Trial]) -> Result<Option<Found>> {
    let mut rest: Vec<&Trial> = trials.iter().filter(|trial| trial.reached.contains(&mutant)).collect();
    let mut size = 4;
    while !rest.is_empty() {
        let later = rest.split_off(size.min(rest.len()));
        let mut together: BTreeMap<(Stage, &Path), Vec<&Trial>> = BTreeMap::new();
        rest.iter().for_each(|trial| together.entry((trial.stage, &trial.program)).or_default().push(trial));
        for trials in together.values() {
            if let Some(found) = run(trials, mutant)? {
                return Ok(Some(found));
            }
        }
        size *= 2;
        rest = later;
    }
    Ok(None)
}

/// The tests of a program.
fn names(program: &Path, folder: &Path) -> Result<Vec<String>> {
    let listed = Command::new(program).args(["--list", "--format", "terse"]).current_dir(folder).output()?;
    let lines = String::from_utf8(listed.stdout)?;
    Ok(lines.lines().filter_map(|line| line.strip_suffix(": test").map(str::to_owned)).collect())
}

/// The tests that pass without a mutant, several at the same time.
fn first_runs(tests: &[(&TestProgram, String)], wanted: &Wanted<'_>) -> Result<Vec<Trial>> {
    let next = AtomicUsize::new(0);
    let run_some = || -> Result<Vec<Trial>> {
        let mut passed = Vec::new();
        while let Some((program, name)) = tests.get(next.fetch_add(1, Ordering::Relaxed)) {
            passed.extend(first_run(Stage::Tests, &program.path, &program.folder, name.clone(), wanted)?);
        }
        Ok(passed)
    };
    std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..wanted.jobs).map(|_| scope.spawn(run_some)).collect();
        let passed = jobs.into_iter().map(|job| job.join().map_err(|_| anyhow!("a job panicked"))?);
        Ok(passed.collect::<Result<Vec<_>>>()?.concat())
    })
}

/// Runs a trial without a mutant, and notes which mutants it reaches. `None` if it fails or is slow.
fn first_run(stage: Stage, program: &Path, folder: &Path, name: String, wanted: &Wanted<'_>) -> Result<Option<Trial>> {
    let trace = wanted.traces.join(format!("{:?}", std::thread::current().id()));
    let _ = fs::remove_file(&trace);
    let (program, folder) = (program.to_owned(), folder.to_owned());
    let mut trial = Trial { stage, program, folder, name, took: Duration::ZERO, reached: BTreeSet::new() };
    let began = Instant::now();
    let failed = command(&[&trial], wanted.slow).env("RESTOW_MUTANTS_REACHED", &trace).output()?;
    trial.took = began.elapsed();
    if !failed.status.success() {
        eprintln!("left out, because it fails or is slow without a mutant: {}", trial.name);
        return Ok(None);
    }
    let reached = fs::read_to_string(&trace).unwrap_or_default();
    trial.reached = reached.lines().filter_map(|line| line.parse().ok()).collect();
    Ok(Some(trial))
}

/// Runs trials in one process. What failed, if something did.
fn run(trials: &[&Trial], mutant: u32) -> Result<Option<Found>> {
    let [first, ..] = trials else { return Ok(None) };
    let usual: Duration = trials.iter().map(|trial| trial.took).sum();
    let ran = command(trials, PATIENCE + usual * 4).env("RESTOW_MUTANT", mutant.to_string()).output()?;
    if ran.status.success() {
        return Ok(None);
    }
    let printed = String::from_utf8_lossy(&ran.stdout);
    let failed = printed.lines().find_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
    let by = match (ran.status.code(), failed, first.stage) {
        (Some(124 | 137), _, _) => "a time-out".to_owned(),
        (_, _, Stage::Simulation) => broken_rule(&printed),
        (_, Some(test), Stage::Tests) => test.to_owned(),
        (_, None, Stage::Tests) => "a crash".to_owned(),
    };
    Ok(Some(Found { stage: first.stage, by }))
}

/// Which rule a seed broke.
fn broken_rule(printed: &str) -> String {
    let report: serde_json::Value = serde_json::from_str(printed).unwrap_or_default();
    match (report["seed"].as_u64(), report["violation"]["rule"].as_str()) {
        (Some(seed), Some(rule)) => format!("{rule}, seed {seed}"),
        _ => "a crash".to_owned(),
    }
}

/// The command that runs these trials, which have the same program, for a limited time.
fn command(trials: &[&Trial], limit: Duration) -> Command {
    let mut command = Command::new("sh");
    let script = format!("ulimit -v {MEMORY}; exec timeout -k 1 {} \"$@\"", limit.as_secs().min(u64::from(u32::MAX)));
    command.args(["-c", &script, "sh"]).stdin(Stdio::null());
    if let Some(first) = trials.first() {
        command.arg(&first.program).current_dir(&first.folder);
        match first.stage {
            Stage::Tests => {
                command.args(["--exact", "--test-threads", "1"]).args(trials.iter().map(|trial| &trial.name))
            }
            // Which seed broke a rule is enough; the fewest events would cost hundreds of runs more.
            Stage::Simulation => {
                command.args(["torture", "-o", "json", "--threads", "1", "--shrink", "0", "--seeds", &first.name])
            }
        };
    }
    command
}
