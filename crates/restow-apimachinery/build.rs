//! Checks `src/types/kubernetes.types`: a typo fails the build with file and line.

use std::{fs, io};

use restow_tables::kubernetes_types::Types;

const TABLE: &str = "src/types/kubernetes.types";

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed={TABLE}");
    let text: &'static str = fs::read_to_string(TABLE)?.leak();
    let checked = Types::parse(text).and_then(|types| types.check(text));
    if let Err(error) = checked {
        println!("cargo::error={}", error.at(&format!("crates/restow-apimachinery/{TABLE}")));
    }
    Ok(())
}
