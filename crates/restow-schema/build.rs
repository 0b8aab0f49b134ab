//! Checks `src/cel/signatures.txt`, and generates assertions that each of its functions is implemented.

use std::collections::BTreeSet;
use std::path::Path;
use std::{env, fs, io};

use restow_tables::signatures;

const TABLE: &str = "src/cel/signatures.txt";
/// The operators that the evaluation implements itself.
const BUILT_IN: [&str; 3] = ["_&&_", "_||_", "_?_:_"];

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed={TABLE}");
    let text = fs::read_to_string(TABLE)?;
    let checked = signatures::parse(&text).and_then(|rows| signatures::check(&rows).map(|()| rows));
    let rows = checked.unwrap_or_else(|error| {
        println!("cargo::error={}", error.at(&format!("crates/restow-schema/{TABLE}")));
        Vec::new()
    });
    let mut seen = BTreeSet::from(BUILT_IN);
    let mut source = String::new();
    for row in rows.iter().filter(|row| seen.insert(row.name)) {
        let name = row.name;
        let message = format!("crates/restow-schema/{TABLE}:{}: the function {name} is not implemented", row.line);
        source.push_str(&format!("const _: () = assert!(is_implemented({name:?}), {message:?});\n"));
    }
    let folder = env::var_os("OUT_DIR").unwrap_or_default();
    fs::write(Path::new(&folder).join("implemented.rs"), source)
}
