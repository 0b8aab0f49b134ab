//! Output formats: tables for people, JSON or YAML for programs; colours and columns.

use clap::ValueEnum;
use serde::Serialize;
use std::io::{IsTerminal, Write};

/// An output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// Columns.
    #[default]
    Table,
    /// More columns.
    Wide,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

impl Output {
    /// Whether it is a table for people.
    pub(crate) fn is_for_people(self) -> bool {
        matches!(self, Output::Table | Output::Wide)
    }

    /// Prints a value; `table` formats it as a table.
    pub(crate) fn print<T: Serialize>(self, value: &T, table: impl FnOnce() -> String) -> anyhow::Result<()> {
        // A closed pipe, such as that of `head`, is no error.
        let _ = std::io::stdout().write_all(self.text(value, table)?.as_bytes());
        Ok(())
    }

    /// A value as text; `table` formats it as a table.
    pub(crate) fn text<T: Serialize>(self, value: &T, table: impl FnOnce() -> String) -> anyhow::Result<String> {
        Ok(match self {
            Output::Table | Output::Wide => table(),
            Output::Json => serde_json::to_string_pretty(value)? + "\n",
            Output::Yaml => serde_saphyr::to_string(value)?,
        })
    }
}

/// A colour, for a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colour {
    /// Errors.
    Red,
    /// Warnings.
    Yellow,
    /// Work in progress.
    Cyan,
}

impl Colour {
    /// Text in this colour.
    pub(crate) fn paint(self, text: &str) -> String {
        let code = match self {
            Colour::Red => 31,
            Colour::Yellow => 33,
            Colour::Cyan => 36,
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

/// Whether to use colours: on a terminal, unless NO_COLOR is set.
pub(crate) fn has_colour(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// The columns and lines of the terminal of standard output; nothing where it is no terminal.
pub(crate) fn terminal_size() -> Option<(usize, usize)> {
    let (width, height) = terminal_size::terminal_size_of(std::io::stdout())?;
    Some((width.0.into(), height.0.into()))
}

/// The rows of a table below its heading in these colours, where colours are used.
pub(crate) fn paint_rows(table: &str, colours: &[Option<Colour>]) -> String {
    if !has_colour(&std::io::stdout()) {
        return table.to_owned();
    }
    let colours = std::iter::once(None).chain(colours.iter().copied()).chain(std::iter::repeat(None));
    let paint = |(line, colour): (&str, Option<Colour>)| match colour {
        Some(colour) => colour.paint(line) + "\n",
        None => format!("{line}\n"),
    };
    table.lines().zip(colours).map(paint).collect()
}

/// Lines of cells in aligned columns, the first line being the heading.
pub(crate) fn columns(lines: &[Vec<String>]) -> String {
    let count = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..count).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for line in lines {
        let cells = line.iter().enumerate().map(|(column, cell)| format!("{cell:<width$}", width = widths[column]));
        text.push_str(cells.collect::<Vec<_>>().join("   ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_nothing_trails() {
        let lines = [vec!["A".to_string(), "LONG".into()], vec!["bbb".into(), String::new()]];
        assert_eq!(columns(&lines), "A     LONG\nbbb\n");
    }
}
