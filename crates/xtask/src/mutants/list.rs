//! The mutants that `cargo mutants --list` knows. Which changes are mutants is its decision.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One small change of the code that a test should notice.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Mutant {
    /// Its number, which turns it on. Numbers begin with 1.
    #[serde(skip)]
    pub(crate) number: u32,
    pub(crate) name: String,
    pub(crate) package: String,
    pub(crate) file: PathBuf,
    pub(crate) genre: Genre,
    pub(crate) replacement: String,
    pub(crate) span: Span,
}

/// The kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) enum Genre {
    FnValue,
    BinaryOperator,
    UnaryOperator,
    MatchArm,
    MatchArmGuard,
    StructField,
}

/// What is replaced.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Span {
    pub(crate) start: Position,
}

/// A position in a file. Both numbers begin with 1; a column is a character.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Position {
    pub(crate) line: usize,
    pub(crate) column: usize,
}

/// Which mutants are wanted.
pub(crate) struct Wanted<'a> {
    pub(crate) packages: &'a [String],
    pub(crate) files: &'a [String],
    pub(crate) sample: Option<usize>,
}

/// The mutants of these packages and files, in the order of the sources.
pub(crate) fn read(root: &Path, wanted: &Wanted<'_>) -> Result<Vec<Mutant>> {
    let mut command = Command::new("cargo-mutants");
    command.args(["mutants", "--list", "--json"]).current_dir(root);
    command.args(wanted.packages.iter().flat_map(|package| ["--package", package.as_str()]));
    command.args(wanted.files.iter().flat_map(|file| ["--file", file.as_str()]));
    let listed = command.output().context("cannot run cargo-mutants; cargo install cargo-mutants --locked")?;
    ensure!(listed.status.success(), "cargo mutants --list: {}", String::from_utf8_lossy(&listed.stderr));
    let mut mutants: Vec<Mutant> = serde_json::from_slice(&listed.stdout)?;
    if let Some(size) = wanted.sample {
        mutants = sample(mutants, size);
    }
    for (number, mutant) in (1..).zip(&mut mutants) {
        mutant.number = number;
    }
    Ok(mutants)
}

/// This many of them, as if by chance, and always the same.
fn sample(mut mutants: Vec<Mutant>, size: usize) -> Vec<Mutant> {
    mutants.sort_by_key(Mutant::place);
    mutants.truncate(size);
    mutants.sort_by(|one, other| (&one.file, one.span.start.line).cmp(&(&other.file, other.span.start.line)));
    mutants
}

/// FNV-1a: the same in every release of Rust.
fn digest(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |digest, byte| (digest ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

impl Mutant {
    /// Its place in an order that is as if by chance, and always the same.
    pub(crate) fn place(&self) -> u64 {
        digest(&self.name)
    }
}

impl Position {
    /// The byte offset in this text.
    pub(crate) fn offset(self, text: &str) -> Option<usize> {
        let line_start: usize = text.split_inclusive('\n').take(self.line.checked_sub(1)?).map(str::len).sum();
        let line = text.get(line_start..)?;
        let column = line.char_indices().nth(self.column.checked_sub(1)?).map_or(line.len(), |(offset, _)| offset);
        Some(line_start + column)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_counts_lines_and_characters() {
        let text = "ab\nä€c\n";
        let offset = |line, column| Position { line, column }.offset(text);
        assert_eq!(offset(1, 1), Some(0));
        assert_eq!(offset(2, 1), Some(3));
        assert_eq!(offset(2, 3), Some(8));
        assert_eq!(offset(0, 1), None);
    }

    #[test]
    fn a_sample_is_always_the_same() {
        let mutant = |number: usize| Mutant {
            number: 0,
            name: format!("mutant {number}"),
            package: "p".to_owned(),
            file: PathBuf::from("f"),
            genre: Genre::FnValue,
            replacement: String::new(),
            span: Span { start: Position { line: number, column: 1 } },
        };
        let names = |mutants: Vec<Mutant>| mutants.into_iter().map(|mutant| mutant.name).collect::<Vec<_>>();
        let once = names(sample((1..100).map(mutant).collect(), 5));
        assert_eq!(once.len(), 5);
        assert_eq!(once, names(sample((1..100).rev().map(mutant).collect(), 5)));
    }
}
