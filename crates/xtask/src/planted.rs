//! Builds Restow with planted bugs and lets `restow torture` look for each of them.

use crate::source_copy;
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The list of bugs, below the root of the repository.
const LIST: &str = "crates/restow-torture/planted.toml";
/// The environment variable that turns one bug on, in the copy.
const VARIABLE: &str = "RESTOW_PLANTED";

/// Look for planted bugs with the simulation
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many seeds may be needed to find a bug
    #[arg(long, default_value_t = 10_000)]
    seeds: u64,
    /// Only these bugs
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

/// Whether all bugs were found.
pub(crate) enum Outcome {
    /// They were.
    AllFound,
    /// Some were not.
    SomeNot,
}

/// The planted bugs, and the changes that plant them.
#[derive(Deserialize)]
struct List {
    #[serde(rename = "bug")]
    bugs: Vec<Bug>,
    #[serde(rename = "change")]
    changes: Vec<Change>,
}

#[derive(Deserialize)]
struct Bug {
    name: String,
    guard: String,
    /// The guard behind which this one is hidden, so that nothing breaks where only this one is missing.
    hidden_by: Option<String>,
}

#[derive(Deserialize)]
struct Change {
    file: PathBuf,
    old: String,
    new: String,
}

/// What `restow torture -o json` prints.
#[derive(Deserialize)]
struct Torture {
    seed: Option<u64>,
    violation: Option<Violation>,
}

#[derive(Deserialize)]
struct Violation {
    rule: String,
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    let list = read(&root)?;
    let copy = root.join("target/planted");
    plant(&root, &copy, &list)?;
    let program = build(&root, &copy)?;
    let mut outcome = Outcome::AllFound;
    println!("| guard that is taken away | found by | after seeds |\n|---|---|---|");
    let clean = torture(&program, "", 200)?;
    ensure!(clean.violation.is_none(), "the program breaks a rule without a planted bug");
    for bug in list.bugs.iter().filter(|bug| args.only.is_empty() || args.only.contains(&bug.name)) {
        if let Some(other) = &bug.hidden_by {
            println!("| {} (`{}`) | hidden by another guard: {other} | |", bug.guard, bug.name);
            continue;
        }
        let found = torture(&program, &bug.name, args.seeds)?;
        let (rule, seeds) = match (found.violation, found.seed) {
            (Some(violation), Some(seed)) => (violation.rule, (seed + 1).to_string()),
            _ => {
                outcome = Outcome::SomeNot;
                ("**nothing**".to_owned(), format!("more than {}", args.seeds))
            }
        };
        println!("| {} (`{}`) | {rule} | {seeds} |", bug.guard, bug.name);
    }
    Ok(outcome)
}

fn read(root: &Path) -> Result<List> {
    let text = fs::read_to_string(root.join(LIST)).with_context(|| format!("cannot read {LIST}"))?;
    Ok(toml::from_str(&text)?)
}

/// Copies the sources and makes all changes in the copy.
fn plant(root: &Path, copy: &Path, list: &List) -> Result<()> {
    let mut changed = BTreeMap::new();
    for change in &list.changes {
        let text = match changed.remove(&change.file) {
            Some(text) => text,
            None => fs::read_to_string(root.join(&change.file))?,
        };
        ensure!(text.matches(&change.old).count() == 1, "{}: not once: {}", change.file.display(), change.old);
        changed.insert(change.file.clone(), text.replace(&change.old, &switched(&change.new, list)?));
    }
    source_copy::write(root, copy, &changed)
}

/// The text with the condition that turns a bug on.
fn switched(text: &str, list: &List) -> Result<String> {
    let mut switched = String::new();
    let mut parts = text.split("PLANTED(\"");
    switched.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let (name, rest) = part.split_once("\")").context("PLANTED(\"name\")")?;
        if !list.bugs.iter().any(|bug| bug.name == name) {
            bail!("a change plants {name:?}, which is not in the list");
        }
        switched.push_str(&format!("std::env::var_os(\"{VARIABLE}\").is_some_and(|bug| bug == \"{name}\"){rest}"));
    }
    Ok(switched)
}

/// Builds the copy; what does not depend on it is taken from the usual build.
fn build(root: &Path, copy: &Path) -> Result<PathBuf> {
    let target = root.join("target");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--release", "--locked", "-p", "restow"])
        .env("CARGO_TARGET_DIR", &target)
        .current_dir(copy)
        .status()?;
    ensure!(built.success(), "the program with the planted bugs does not build");
    let program = copy.join("restow");
    fs::copy(target.join("release/restow"), &program)?;
    Ok(program)
}

fn torture(program: &Path, bug: &str, seeds: u64) -> Result<Torture> {
    let seeds = seeds.to_string();
    let ran = Command::new(program).args(["torture", "-o", "json", "--seeds", &seeds]).env(VARIABLE, bug).output()?;
    serde_json::from_slice(&ran.stdout)
        .with_context(|| format!("restow torture with {bug:?}: {}", String::from_utf8_lossy(&ran.stderr)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_planted_bug_still_fits_its_file() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let list = read(&root).unwrap();
        assert!(list.bugs.iter().filter(|bug| bug.hidden_by.is_none()).count() >= 20);
        let mut switches = String::new();
        for change in &list.changes {
            let text = fs::read_to_string(root.join(&change.file)).unwrap();
            assert_eq!(text.matches(&change.old).count(), 1, "{}: {}", change.file.display(), change.old);
            switches.push_str(&switched(&change.new, &list).unwrap());
        }
        for bug in &list.bugs {
            assert!(switches.contains(&format!("bug == \"{}\"", bug.name)), "nothing plants {}", bug.name);
        }
    }
}
