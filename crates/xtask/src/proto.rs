//! Reads `generated.proto`: the messages with the numbers of their fields.
//!
//! It knows the part of the language that Kubernetes' generator writes: messages with fields, nothing nested.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};

/// The messages of a file, each with its fields' numbers by name.
pub(crate) type Messages = BTreeMap<String, BTreeMap<String, u16>>;

pub(crate) fn parse(path: &Path, source: &str) -> Result<Messages> {
    let mut messages = Messages::new();
    let mut open: Option<(String, BTreeMap<String, u16>)> = None;
    let mut in_licence = false;
    for (index, line) in source.lines().enumerate() {
        if in_licence || line.starts_with("/*") {
            in_licence = !line.ends_with("*/");
            continue;
        }
        let here = || format!("{}:{}", path.display(), index + 1);
        let line = line.split("//").next().unwrap_or_default().trim();
        match (line, &mut open) {
            ("", _) => {}
            ("}", Some(_)) => messages.extend(open.take()),
            (line, Some((message, fields))) => {
                let (name, number) = field(line).with_context(here)?;
                if fields.insert(name.clone(), number).is_some() {
                    bail!("{}: {message}.{name} is there twice", here());
                }
            }
            (line, None) => match line.strip_prefix("message ").and_then(|rest| rest.strip_suffix('{')) {
                Some(name) => open = Some((name.trim().to_owned(), BTreeMap::new())),
                None if is_statement(line) => {}
                None => bail!("{}: `{line}` is not understood", here()),
            },
        }
    }
    match open {
        Some((message, _)) => bail!("{}: message {message} has no end", path.display()),
        None => Ok(messages),
    }
}

/// What stands between messages and says nothing about them.
fn is_statement(line: &str) -> bool {
    ["syntax ", "syntax=", "package ", "import ", "option "].iter().any(|word| line.starts_with(word))
}

/// `optional string name = 1;`, `repeated T items = 2;`, `map<string, string> labels = 3;`
fn field(line: &str) -> Result<(String, u16)> {
    let not_a_field = || anyhow!("`{line}` is not a field");
    let (declared, number) = line.strip_suffix(';').and_then(|line| line.split_once('=')).ok_or_else(not_a_field)?;
    let declared = declared.trim();
    let labelled = ["optional ", "repeated ", "map<"].iter().any(|label| declared.starts_with(label));
    let name = declared.rsplit(' ').next().filter(|_| labelled).ok_or_else(not_a_field)?;
    let number = number.trim().parse().map_err(|_| not_a_field())?;
    Ok((name.to_owned(), number))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = r#"
/*
A licence.
*/
// A made-up file.
syntax = "proto2";
package example.v1;

message Widget {
  // What it is called.
  optional string name = 1;
  repeated .example.v1.Part parts = 3; // trailing
  map<string, string> labels = 12;
}

message Empty {
}
"#;

    #[test]
    fn reads_the_numbers_of_fields() {
        let messages = parse(Path::new("generated.proto"), SOURCE).unwrap();
        let widget: Vec<_> = messages["Widget"].iter().map(|(name, number)| (name.as_str(), *number)).collect();
        assert_eq!(widget, [("labels", 12), ("name", 1), ("parts", 3)]);
        assert!(messages["Empty"].is_empty());
    }

    #[test]
    fn errors_name_file_and_line() {
        for (source, problem) in [
            ("enum Color {\n}", "a.proto:1: `enum Color {` is not understood"),
            ("message A {\n  oneof b {", "a.proto:2: `oneof b {` is not a field"),
            ("message A {\n  optional string b = x;\n}", "a.proto:2: `optional string b = x;` is not a field"),
            ("message A {\n  optional string b = 1;\n  optional string b = 2;\n}", "a.proto:3: A.b is there twice"),
            ("message A {", "a.proto: message A has no end"),
        ] {
            let error = parse(Path::new("a.proto"), source).unwrap_err();
            assert_eq!(format!("{error:#}"), problem);
        }
    }
}
