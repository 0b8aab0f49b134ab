//! A table of measurements of two things, with the ratio between them.

use serde::Serialize;

/// Measurements by row.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// What was measured, on what, with which settings.
    pub(crate) title: String,
    /// The names of the two columns.
    pub(crate) columns: [String; 2],
    pub(crate) rows: Vec<Row>,
}

/// One measurement.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) unit: Unit,
    /// Ours and the peer's; `None` where it could not be measured.
    pub(crate) values: [Option<f64>; 2],
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
}

impl Report {
    pub(crate) fn add(&mut self, what: impl Into<String>, unit: Unit, values: [Option<f64>; 2]) {
        let ratio = match (values, unit) {
            ([Some(ours), Some(theirs)], Unit::PerSecond) if theirs > 0.0 => Some(ours / theirs),
            ([Some(ours), Some(theirs)], Unit::Bytes | Unit::Milliseconds) if ours > 0.0 => Some(theirs / ours),
            _ => None,
        };
        self.rows.push(Row { what: what.into(), unit, values, ratio });
    }

    /// The report as a Markdown table, aligned so that it reads well as it is.
    pub(crate) fn table(&self) -> String {
        let mut lines = vec![[String::new(), self.columns[0].clone(), self.columns[1].clone(), "ratio".to_string()]];
        for row in &self.rows {
            let [ours, theirs] = row.values.map(|value| value.map_or("-".into(), |value| row.unit.show(value)));
            let ratio = row.ratio.map_or("-".into(), |ratio| format!("{ratio:.1} x"));
            lines.push([row.what.clone(), ours, theirs, ratio]);
        }
        let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
        let widths = [width(0), width(1), width(2), width(3)];
        let mut table = format!("{}\n\n", self.title);
        for (number, line) in lines.iter().enumerate() {
            let [what, ours, theirs, ratio] = line;
            let [a, b, c, d] = widths;
            table.push_str(&format!("| {what:<a$} | {ours:>b$} | {theirs:>c$} | {ratio:>d$} |\n"));
            if number == 0 {
                let dashes = |width: usize| "-".repeat(width);
                table.push_str(&format!("|:{}-|-{}:|-{}:|-{}:|\n", dashes(a), dashes(b), dashes(c), dashes(d)));
            }
        }
        table
    }
}

impl Unit {
    fn show(self, value: f64) -> String {
        match self {
            Unit::PerSecond => format!("{}/s", grouped(value)),
            Unit::Bytes => format!("{:.1} MB", value / 1e6),
            Unit::Milliseconds => format!("{value:.1} ms"),
        }
    }
}

/// A whole number with its thousands apart.
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
        let mut report = Report { title: "t".into(), columns: ["a".into(), "b".into()], rows: Vec::new() };
        report.add("rate", Unit::PerSecond, [Some(3000.0), Some(1000.0)]);
        report.add("size", Unit::Bytes, [Some(1e6), Some(4e6)]);
        report.add("gone", Unit::Bytes, [Some(1e6), None]);
        let ratios: Vec<Option<f64>> = report.rows.iter().map(|row| row.ratio).collect();
        assert_eq!(ratios, [Some(3.0), Some(4.0), None]);
        let table = report.table();
        assert!(table.contains("| rate | 3,000/s | 1,000/s | 3.0 x |"), "{table}");
    }

    #[test]
    fn thousands_are_set_apart() {
        for (value, text) in [(0.0, "0"), (999.4, "999"), (1000.0, "1,000"), (1234567.0, "1,234,567")] {
            assert_eq!(grouped(value), text);
        }
    }
}
