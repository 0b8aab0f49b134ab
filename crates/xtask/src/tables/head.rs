//! The head of a table: the comments that explain its grammar, with the line that names the release.
//!
//! The grammar is explained in the table only, so a new table keeps the head of the one before.

use anyhow::{Result, bail};

const RELEASE: &str = "# release: ";

/// The lines of comment at the top of a table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Head<'a>(&'a str);

impl<'a> Head<'a> {
    /// Splits a text into its head and its rows. The empty line between them belongs to the rows.
    pub(crate) fn split(text: &'a str) -> (Head<'a>, &'a str) {
        let length = text.split_inclusive('\n').take_while(|line| line.starts_with('#')).map(str::len).sum();
        let (head, rows) = text.split_at(length);
        (Head(head), rows)
    }

    /// The head with another release.
    pub(crate) fn with_release(&self, release: &str) -> Result<String> {
        let named = self.0.lines().filter(|line| line.starts_with(RELEASE)).count();
        if named != 1 {
            bail!("the comments at its top name the release {named} times; write one line `{RELEASE}{release}`");
        }
        let lines = self.0.lines().map(|line| match line.starts_with(RELEASE) {
            true => format!("{RELEASE}{release}\n"),
            false => format!("{line}\n"),
        });
        Ok(lines.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_keeps_its_grammar_and_changes_its_release() {
        let (head, rows) = Head::split("# A table.\n# release: 1.36\n#\n# ROW\n\nrow\n# inside\n");
        assert_eq!(rows, "\nrow\n# inside\n");
        assert_eq!(head.with_release("1.37").unwrap(), "# A table.\n# release: 1.37\n#\n# ROW\n");
    }

    #[test]
    fn a_head_without_a_release_is_refused() {
        for text in ["# A table.\n\nrow\n", "row\n", "# release: 1\n# release: 2\n\nrow\n"] {
            assert!(Head::split(text).0.with_release("1.37").is_err(), "{text}");
        }
    }
}
