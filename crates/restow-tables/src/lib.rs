//! Parsers of the tables that are part of the program: one module per table, text in, typed rows out.
//!
//! The crate that has a table parses it twice with the same function. Its build script parses and cross-checks the file,
//! so that a typo fails the build with file and line; the program then parses the text that it includes, and passes the
//! result through [`checked`]. Every word of a table is an enum here, so code that reads rows matches all of them.
//!
//! This crate is pure: it reads no files, and it depends on nothing.

use std::fmt;

pub mod checks;
pub mod columns;
pub mod default_policy;
pub mod defaults;
pub mod json;
pub mod kubernetes_types;
pub mod resources;
pub mod signatures;
mod words;

/// Why a table is refused: a line, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableError {
    line: usize,
    problem: String,
}

impl TableError {
    pub(crate) fn new(line: usize, problem: impl Into<String>) -> TableError {
        TableError { line, problem: problem.into() }
    }

    /// The error as compilers write it: `path:line: problem`.
    pub fn at(&self, path: &str) -> String {
        format!("{path}:{}: {}", self.line, self.problem)
    }
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.problem)
    }
}

impl std::error::Error for TableError {}

/// The rows of a table that the build script has accepted with the same parser.
///
/// An error cannot happen here, because the crate would not have been built. There is no empty table to go on with.
pub fn checked<T, E: fmt::Display>(parsed: Result<T, E>) -> T {
    match parsed {
        Ok(rows) => rows,
        Err(error) => unreachable!("the build script accepted a table that cannot be read: {error}"),
    }
}

/// The lines that say something, with their numbers: no comments, no empty lines.
pub(crate) fn significant_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    lines.filter(|(_, line)| !line.starts_with('#') && !line.trim().is_empty())
}

/// Refuses a table without rows.
pub(crate) fn not_empty<T>(rows: Vec<T>) -> Result<Vec<T>, TableError> {
    if rows.is_empty() { Err(TableError::new(1, "the table has no rows")) } else { Ok(rows) }
}

/// The items of a list with commas, none of them empty.
pub(crate) fn list(text: &str) -> Result<Vec<&str>, String> {
    let items: Vec<&str> = text.split(',').collect();
    if items.iter().any(|item| item.is_empty()) {
        Err(format!("an empty item in the list {text:?}"))
    } else {
        Ok(items)
    }
}

/// The fields of a path such as `spec.replicas`.
pub(crate) fn path(text: &str) -> Result<Vec<&str>, String> {
    let steps: Vec<&str> = text.split('.').collect();
    let is_name = |step: &&str| !step.is_empty() && step.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if steps.iter().all(is_name) { Ok(steps) } else { Err(format!("{text:?} is not a path of field names")) }
}

/// `core` is how tables write the empty name of the core group.
pub(crate) fn group(text: &str) -> Result<&str, String> {
    let is_known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-".contains(&byte);
    let is_edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    match text {
        "core" => Ok(""),
        _ if text.bytes().all(is_known) && is_edge(text.bytes().next()) && is_edge(text.bytes().last()) => Ok(text),
        _ => Err(format!("{text:?} is not an API group")),
    }
}
