//! Runs tests and seeds of the simulation with one mutant at a time, and only those that reach it.

use super::build::Built;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A test that takes longer without a mutant is left out.
const SLOW: Duration = Duration::from_secs(60);
/// The largest address space of a test, in KiB: some mutants allocate forever.
const MEMORY: u64 = 8 << 20;

/// What finds mutants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Stage {
    Tests,
    Simulation,
}

/// A test, or a seed of the simulation.
#[derive(Debug)]
pub(crate) struct Trial {
    stage: Stage,
    program: PathBuf,
    folder: PathBuf,
    /// The test's name, or the seed.
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

/// All trials that pass without a mutant, the quickest first, tests before seeds.
pub(crate) fn all(built: &Built, seeds: u64, trace: &Path) -> Result<Vec<Trial>> {
    let mut trials = Vec::new();
    for program in &built.tests {
        for name in names(&program.path, &program.folder)? {
            trials.extend(first_run(Stage::Tests, &program.path, &program.folder, name, trace)?);
        }
    }
    for seed in built.restow.iter().flat_map(|_| 0..seeds) {
        let program = built.restow.as_deref().context("restow was built")?;
        let folder = program.parent().context("a file has a folder")?;
        trials.extend(first_run(Stage::Simulation, program, folder, seed.to_string(), trace)?);
    }
    trials.sort_by_key(|trial| (trial.stage, trial.took));
    Ok(trials)
}

/// Lets the trials look for one mutant. More and more of them run in one process.
pub(crate) fn look_for(mutant: u32, trials: &[Trial]) -> Result<Option<Found>> {
    let reaching: Vec<&Trial> = trials.iter().filter(|trial| trial.reached.contains(&mutant)).collect();
    for stage in [Stage::Tests, Stage::Simulation] {
        let mut rest: Vec<&Trial> = reaching.iter().copied().filter(|trial| trial.stage == stage).collect();
        let mut size = if stage == Stage::Tests { 4 } else { 1 };
        while !rest.is_empty() {
            let later = rest.split_off(size.min(rest.len()));
            let mut together: BTreeMap<&Path, Vec<&Trial>> = BTreeMap::new();
            rest.iter().for_each(|trial| together.entry(&trial.program).or_default().push(trial));
            for trials in together.values() {
                if let Some(by) = run(trials, mutant)? {
                    return Ok(Some(Found { stage, by }));
                }
            }
            size *= if stage == Stage::Tests { 4 } else { 1 };
            rest = later;
        }
    }
    Ok(None)
}

/// The tests of a program.
fn names(program: &Path, folder: &Path) -> Result<Vec<String>> {
    let listed = Command::new(program).args(["--list", "--format", "terse"]).current_dir(folder).output()?;
    let lines = String::from_utf8(listed.stdout)?;
    Ok(lines.lines().filter_map(|line| line.strip_suffix(": test").map(str::to_owned)).collect())
}

/// Runs a trial without a mutant, and notes which mutants it reaches. `None` if it fails or is slow.
fn first_run(stage: Stage, program: &Path, folder: &Path, name: String, trace: &Path) -> Result<Option<Trial>> {
    let _ = fs::remove_file(trace);
    let (program, folder) = (program.to_owned(), folder.to_owned());
    let mut trial = Trial { stage, program, folder, name, took: Duration::ZERO, reached: BTreeSet::new() };
    let began = Instant::now();
    let failed = command(&[&trial], SLOW).env("RESTOW_MUTANTS_REACHED", trace).output()?;
    trial.took = began.elapsed();
    if !failed.status.success() {
        eprintln!("left out, because it fails or is slow without a mutant: {}", trial.name);
        return Ok(None);
    }
    let reached = fs::read_to_string(trace).unwrap_or_default();
    trial.reached = reached.lines().filter_map(|line| line.parse().ok()).collect();
    Ok(Some(trial))
}

/// Runs trials of one program in one process. What failed, if something did.
fn run(trials: &[&Trial], mutant: u32) -> Result<Option<String>> {
    let usual: Duration = trials.iter().map(|trial| trial.took).sum();
    let limit = Duration::from_secs(20) + usual * 10;
    let mut command = command(trials, limit);
    let ran = command.env("RESTOW_MUTANT", mutant.to_string()).output()?;
    if ran.status.success() {
        return Ok(None);
    }
    let printed = String::from_utf8_lossy(&ran.stdout);
    let failed = printed.lines().find_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
    Ok(Some(match (ran.status.code(), failed, trials) {
        (Some(124 | 137), _, _) => "a time-out".to_owned(),
        (_, Some(test), _) => test.to_owned(),
        (_, None, [trial, ..]) if trial.stage == Stage::Simulation => format!("seed {}", trial.name),
        _ => "a crash".to_owned(),
    }))
}

/// The command that runs these trials, which have the same program, for a limited time.
fn command(trials: &[&Trial], limit: Duration) -> Command {
    let mut command = Command::new("sh");
    let script = format!("ulimit -v {MEMORY}; exec timeout -k 1 {} \"$@\"", limit.as_secs());
    command.args(["-c", &script, "sh"]).stdin(Stdio::null());
    if let Some(first) = trials.first() {
        command.arg(&first.program).current_dir(&first.folder);
        match first.stage {
            Stage::Tests => {
                command.args(["--exact", "--test-threads", "1"]).args(trials.iter().map(|trial| &trial.name))
            }
            Stage::Simulation => command.args(["torture", "-o", "json", "--seed", &first.name]),
        };
    }
    command
}
