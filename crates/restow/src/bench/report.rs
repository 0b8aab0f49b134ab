//! A table of measurements in columns, with the ratio between two of them.

use serde::Serialize;

/// Measurements by row.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// What was measured, and with which settings.
    pub(crate) title: String,
    /// The names of the columns.
    pub(crate) columns: Vec<String>,
    /// The two columns, ours first, that the ratio is between; `None` where nothing is compared.
    pub(crate) compared: Option<[usize; 2]>,
    pub(crate) rows: Vec<Row>,
}

/// One measurement.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) unit: Unit,
    /// One for each column; `None` where it could not be measured.
    pub(crate) values: Vec<Option<f64>>,
    /// How many times better ours is.
    pub(crate) ratio: Option<f64>,
}

/// What is counted, and whether more is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unit {
    PerSecond,
    Bytes,
    Milliseconds,
    /// A percentage, which is not compared.
    Percent,
    /// A count, which is not compared.
    Count,
}

impl Report {
    pub(crate) fn add(&mut self, what: impl Into<String>, unit: Unit, values: Vec<Option<f64>>) {
        let compared = self.compared.map(|columns| columns.map(|column| values.get(column).copied().flatten()));
        let ratio = match (compared, unit) {
            (Some([Some(ours), Some(theirs)]), Unit::PerSecond) if theirs > 0.0 => Some(ours / theirs),
            (Some([Some(ours), Some(theirs)]), Unit::Bytes | Unit::Milliseconds) if ours > 0.0 => Some(theirs / ours),
            _ => None,
        };
        self.rows.push(Row { what: what.into(), unit, values, ratio });
    }

    /// The report as a Markdown table, aligned so that it reads well as it is.
    pub(crate) fn table(&self) -> String {
        let mut header = vec![String::new()];
        header.extend(self.columns.iter().cloned());
        header.extend(self.compared.map(|_| "ratio".to_string()));
        let mut lines = vec![header];
        for row in &self.rows {
            let mut line = vec![row.what.clone()];
            line.extend(row.values.iter().map(|value| value.map_or("-".into(), |value| row.unit.show(value))));
            line.extend(self.compared.map(|_| row.ratio.map_or("-".into(), |ratio| format!("{ratio:.1} x"))));
            lines.push(line);
        }
        let columns = self.columns.len() + 1 + usize::from(self.compared.is_some());
        let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut table = format!("{}\n\n", self.title);
        for (number, line) in lines.iter().enumerate() {
            for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
                match column {
                    0 => table.push_str(&format!("| {cell:<width$} |")),
                    _ => table.push_str(&format!(" {cell:>width$} |")),
                }
            }
            table.push('\n');
            if number == 0 {
                for (column, width) in widths.iter().enumerate() {
                    let dashes = "-".repeat(*width);
                    table.push_str(&if column == 0 { format!("|:{dashes}-|") } else { format!("-{dashes}:|") });
                }
                table.push('\n');
            }
        }
        table
    }
}

impl Unit {
    fn show(self, value: f64) -> String {
        match self {
            Unit::PerSecond => format!("{}/s", grouped(value)),
            Unit::Bytes if value < 1e6 => format!("{:.1} kB", value / 1e3),
            Unit::Bytes => format!("{:.1} MB", value / 1e6),
            Unit::Percent => format!("{value:.1} %"),
            Unit::Count => grouped(value),
            Unit::Milliseconds if value < 1.0 => format!("{value:.3} ms"),
            Unit::Milliseconds => format!("{value:.1} ms"),
        }
    }
}

/// A whole number with commas between thousands.
fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_above_one_is_always_better() {
        let columns = vec!["a".into(), "b".into()];
        let mut report = Report { title: "t".into(), columns, compared: Some([0, 1]), rows: Vec::new() };
        report.add("rate", Unit::PerSecond, vec![Some(3000.0), Some(1000.0)]);
        report.add("size", Unit::Bytes, vec![Some(1e6), Some(4e6)]);
        report.add("gone", Unit::Bytes, vec![Some(1e6), None]);
        let ratios: Vec<Option<f64>> = report.rows.iter().map(|row| row.ratio).collect();
        assert_eq!(ratios, [Some(3.0), Some(4.0), None]);
        let table = report.table();
        assert!(table.contains("| rate | 3,000/s | 1,000/s | 3.0 x |"), "{table}");
    }

    #[test]
    fn thousands_are_separated_by_commas() {
        for (value, text) in [(0.0, "0"), (999.4, "999"), (1000.0, "1,000"), (1234567.0, "1,234,567")] {
            assert_eq!(grouped(value), text);
        }
    }
}
