//! Telling the story: headings, sentences, tables, and that something is waited for. Colour and motion only on a terminal; plain
//! lines elsewhere.

use crate::output::{has_colour, terminal_size};
use indicatif::{ProgressBar, ProgressStyle};
use std::fmt::Display;
use std::io::Write;
use std::time::Duration;

/// The widest lines that are pleasant to read.
const WIDEST: usize = 100;

/// Tells what happens.
pub(super) struct Narrator {
    is_fast: bool,
    has_colour: bool,
    width: usize,
}

/// One cell of a table.
pub(super) struct Cell {
    text: String,
    colour: Option<&'static str>,
}

impl Cell {
    /// Text without colour.
    pub(super) fn plain(text: impl Display) -> Self {
        Cell { text: text.to_string(), colour: None }
    }

    /// What is as it shall be.
    pub(super) fn good(text: impl Display) -> Self {
        Cell { text: text.to_string(), colour: Some("32") }
    }

    /// What is on its way out.
    pub(super) fn old(text: impl Display) -> Self {
        Cell { text: text.to_string(), colour: Some("33") }
    }

    /// What has to change before anything goes on.
    pub(super) fn bad(text: impl Display) -> Self {
        Cell { text: text.to_string(), colour: Some("31") }
    }
}

impl Narrator {
    pub(super) fn new(is_fast: bool) -> Self {
        let width = terminal_size().map_or(WIDEST, |(columns, _)| columns.min(WIDEST));
        Narrator { is_fast, has_colour: has_colour(&std::io::stdout()), width }
    }

    /// Begins a chapter.
    pub(super) fn chapter(&self, number: u8, title: &str) {
        let title = format!("── {number} ── {title} ");
        let line = "─".repeat(self.width.saturating_sub(title.chars().count()));
        tell(&format!("\n{}", self.paint("1;36", &format!("{title}{line}"))));
    }

    /// Says a sentence, and leaves time to read it.
    pub(super) async fn say(&self, sentence: impl Display) {
        let sentence = sentence.to_string();
        for line in wrap(&sentence, self.width.saturating_sub(3)) {
            tell(&format!("   {line}"));
        }
        self.pause(sentence.len() as u64 * 22).await;
    }

    /// States something that was checked and is true.
    pub(super) async fn fact(&self, fact: impl Display) {
        let fact = fact.to_string();
        for (number, line) in wrap(&fact, self.width.saturating_sub(5)).iter().enumerate() {
            let mark = if number == 0 { self.paint("1;32", "✔") } else { " ".to_string() };
            tell(&format!("   {mark} {line}"));
        }
        self.pause(700 + fact.len() as u64 * 10).await;
    }

    /// Says that somebody wants it to end.
    pub(super) fn interrupted(&self) {
        tell("\n   Stopping the servers and cleaning up.");
    }

    /// Draws a table whose first line is its heading.
    pub(super) async fn table(&self, lines: &[Vec<Cell>]) {
        let width = |column: usize| lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.text.len()).max();
        tell("");
        for line in lines {
            let mut text = String::from("    ");
            for (column, cell) in line.iter().enumerate() {
                let gap = width(column).unwrap_or(0) - cell.text.len();
                text.push_str(&match cell.colour {
                    Some(colour) => self.paint(colour, &cell.text),
                    None => cell.text.clone(),
                });
                text.push_str(&" ".repeat(gap + 3));
            }
            tell(text.trim_end());
        }
        tell("");
        self.pause(1500).await;
    }

    /// Shows, on a terminal, that something is waited for, until it is cleared.
    pub(super) fn spinner(&self, what: &str) -> ProgressBar {
        let spinner = ProgressBar::new_spinner().with_message(what.to_string());
        if let Ok(style) = ProgressStyle::with_template("   {spinner:.cyan} {wide_msg} {elapsed:>4}") {
            spinner.set_style(style.tick_strings(&["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏", " "]));
        }
        spinner.enable_steady_tick(Duration::from_millis(100));
        spinner
    }

    /// Shows, on a terminal, how far something is.
    pub(super) fn bar(&self, what: &str) -> ProgressBar {
        let bar = ProgressBar::new(0).with_message(what.to_string());
        match ProgressStyle::with_template("   {msg} {bar:40.green/dim} {pos}/{len}") {
            Ok(style) => bar.with_style(style.progress_chars("━╸─")),
            Err(_) => bar,
        }
    }

    async fn pause(&self, milliseconds: u64) {
        if !self.is_fast {
            tokio::time::sleep(Duration::from_millis(milliseconds.min(3500))).await;
        }
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.has_colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
    }
}

/// Prints a line. A listener that has heard enough, such as `head`, is no reason to leave servers behind.
fn tell(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Breaks a sentence into lines.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().filter(|line| line.is_empty() || line.len() + 1 + word.len() <= width);
        match last {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) => {
                line.push(' ');
                line.push_str(word);
            }
            None => lines.push(word.to_string()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::wrap;

    #[test]
    fn sentences_are_broken_between_words() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("extraordinary", 3), ["extraordinary"]);
    }
}
