//! What is known about mutants, in a file with one line for each, and as a table.

use super::list::Mutant;
use super::trials::{Found, Stage};
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// One line of the file.
#[derive(Serialize, Deserialize)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) outcome: Outcome,
}

/// What happened to a mutant.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Outcome {
    /// It does not compile, or has no switch.
    Unviable,
    Found(Found),
    Missed,
}

#[derive(Default)]
struct Counts {
    tests: usize,
    simulation: usize,
    missed: usize,
    unviable: usize,
}

/// What is known, by the name of the mutant. The last line about a mutant counts.
pub(crate) fn read(path: &Path) -> Result<BTreeMap<String, Outcome>> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        text => text?,
    };
    let lines = text.lines().map(|line| Ok(serde_json::from_str(line)?));
    lines.map(|line: Result<Line>| line.map(|line| (line.name, line.outcome))).collect()
}

/// Counts for each file, and the mutants that were missed.
pub(crate) fn table(mutants: &[Mutant], known: &BTreeMap<String, Outcome>) -> String {
    let mut files: BTreeMap<String, Counts> = BTreeMap::new();
    let mut missed = String::new();
    for mutant in mutants {
        let Some(outcome) = known.get(&mutant.name) else { continue };
        for row in [mutant.file.display().to_string(), format!("{} in all", mutant.package)] {
            files.entry(row).or_default().add(outcome);
        }
        if matches!(outcome, Outcome::Missed) {
            let _ = writeln!(missed, "- {}", mutant.name);
        }
    }
    let mut text = "| file | found by tests | by the simulation | missed | found | unviable |\n".to_owned();
    text.push_str("|---|---|---|---|---|---|\n");
    for (file, counts) in &files {
        let Counts { tests, simulation, missed, unviable } = counts;
        let _ = writeln!(text, "| {file} | {tests} | {simulation} | {missed} | {} | {unviable} |", counts.share());
    }
    if !missed.is_empty() {
        let _ = write!(text, "\nMissed:\n\n{missed}");
    }
    text
}

impl Counts {
    fn add(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Unviable => self.unviable += 1,
            Outcome::Missed => self.missed += 1,
            Outcome::Found(Found { stage: Stage::Tests, .. }) => self.tests += 1,
            Outcome::Found(Found { stage: Stage::Simulation, .. }) => self.simulation += 1,
        }
    }

    /// How many of those that compile were found.
    fn share(&self) -> String {
        let found = self.tests + self.simulation;
        match found + self.missed {
            0 => String::new(),
            viable => format!("{:.1} %", found as f64 * 100.0 / viable as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unviable_mutants_do_not_count_as_found() {
        let found = |stage| Outcome::Found(Found { stage, by: "a test".to_owned() });
        let mut counts = Counts::default();
        for outcome in [Outcome::Unviable, Outcome::Missed, found(Stage::Tests), found(Stage::Simulation)] {
            counts.add(&outcome);
        }
        assert_eq!(counts.share(), "66.7 %");
        assert_eq!(Counts { unviable: 3, ..Counts::default() }.share(), "");
    }
}
