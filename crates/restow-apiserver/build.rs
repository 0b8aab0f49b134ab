//! Checks the tables in `src/builtin/`: a typo fails the build with file and line.

use std::{fs, io};

use restow_tables::kubernetes_types::Types;
use restow_tables::{TableError, checks, columns, defaults, resources};

const TYPES: &str = "../restow-apimachinery/src/types/kubernetes.types";
const RESOURCES: &str = "src/builtin/resources.txt";
const COLUMNS: &str = "src/builtin/columns.txt";
const DEFAULTS: &str = "src/builtin/defaults.txt";
const CHECKS: &str = "src/builtin/checks.txt";

fn main() -> io::Result<()> {
    let Some(types) = report(TYPES, check_types(read(TYPES)?)) else { return Ok(()) };
    let text = read(RESOURCES)?;
    let rows = resources::parse(text).and_then(|rows| resources::check(&rows, &types).map(|()| rows));
    if let Some(resources) = report(RESOURCES, rows) {
        let rows = columns::parse(read(COLUMNS)?);
        report(COLUMNS, rows.and_then(|rows| columns::check(&rows, &resources, &types)));
    }
    let rows = defaults::parse(read(DEFAULTS)?);
    report(DEFAULTS, rows.and_then(|rows| defaults::check(&rows, &types)));
    let rows = checks::parse(read(CHECKS)?);
    report(CHECKS, rows.and_then(|rows| checks::check(&rows, &types)));
    Ok(())
}

fn check_types(text: &'static str) -> Result<Types, TableError> {
    let types = Types::parse(text)?;
    types.check(text).map(|()| types)
}

fn read(path: &str) -> io::Result<&'static str> {
    println!("cargo::rerun-if-changed={path}");
    Ok(fs::read_to_string(path)?.leak())
}

/// The build fails after this script when it has printed an error.
fn report<T>(path: &str, checked: Result<T, TableError>) -> Option<T> {
    checked.map_err(|error| println!("cargo::error={}", error.at(&format!("crates/restow-apiserver/{path}")))).ok()
}
