//! Checks `src/bootstrap/default_policy.txt`: a typo fails the build with file and line.

use std::{fs, io};

use restow_tables::default_policy;

const TABLE: &str = "src/bootstrap/default_policy.txt";

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed={TABLE}");
    let text: &'static str = fs::read_to_string(TABLE)?.leak();
    let checked = default_policy::parse(text).and_then(|entries| default_policy::check(&entries));
    if let Err(error) = checked {
        println!("cargo::error={}", error.at(&format!("crates/restow-auth/{TABLE}")));
    }
    Ok(())
}
