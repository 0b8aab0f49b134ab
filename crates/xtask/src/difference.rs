//! The differences between two texts of a table, block by block.
//!
//! A block is a line that is not indented with the indented lines below it. In the table of types it belongs to the
//! `package` above it.

use std::collections::{BTreeMap, BTreeSet};

/// The lines by their block, in order. Comments and empty lines are left out.
type Blocks<'a> = BTreeMap<String, Vec<&'a str>>;

/// One line for each difference: `-` is only in the first text, `+` only in the second. Each block is named once.
pub(crate) fn differences(before: &str, after: &str) -> Vec<String> {
    let (before, after) = (blocks(before), blocks(after));
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let nothing = Vec::new();
    let mut report = Vec::new();
    for name in names {
        let (old, new) = (before.get(name).unwrap_or(&nothing), after.get(name).unwrap_or(&nothing));
        if old == new {
            continue;
        }
        report.push(format!("{name}:"));
        let gone: Vec<String> =
            old.iter().filter(|line| !new.contains(line)).map(|line| format!("  - {line}")).collect();
        let come: Vec<String> =
            new.iter().filter(|line| !old.contains(line)).map(|line| format!("  + {line}")).collect();
        if gone.is_empty() && come.is_empty() {
            report.push("  the same lines in another order, or another number of times".to_owned());
        }
        report.extend(gone);
        report.extend(come);
    }
    report
}

fn blocks(text: &str) -> Blocks<'_> {
    let mut blocks = Blocks::new();
    let mut package = String::new();
    let mut name = String::new();
    for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        if line.starts_with(' ') {
            blocks.entry(name.clone()).or_default().push(line.trim());
            continue;
        }
        let mut words = line.split(' ');
        let (what, second) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        name = match what {
            "package" => {
                package = second.to_owned();
                line.split(' ').take(2).collect::<Vec<_>>().join(" ")
            }
            "role" | "rolebinding" => line.split(' ').take(3).collect::<Vec<_>>().join(" "),
            _ if package.is_empty() => format!("{what} {second}"),
            _ => format!("{package}.{second}"),
        };
        blocks.entry(name.clone()).or_default().push(line);
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_only_blocks_that_differ() {
        let before = "# head\n\npackage a openapi=x\nstruct A\n 1 b string\n 2 c string\nstruct Same\n";
        let after =
            "# other head\npackage a openapi=x\nstruct A union\n 1 b string\n 3 c string\nstruct Same\nstruct New\n";
        let expected = [
            "a.A:",
            "  - struct A",
            "  - 2 c string",
            "  + struct A union",
            "  + 3 c string",
            "a.New:",
            "  + struct New",
        ];
        assert_eq!(differences(before, after), expected);
        assert!(differences(before, before).is_empty());
    }

    #[test]
    fn another_order_is_a_difference() {
        let report = differences("role n a\n  x\n  y\n", "role n a\n  y\n  x\n");
        assert_eq!(report, ["role n a:", "  the same lines in another order, or another number of times"]);
    }
}
