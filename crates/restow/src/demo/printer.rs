//! Prints the demo: headings, sentences, tables, and what it waits for. Colour and motion only on a terminal, plain lines
//! elsewhere. It also records what it prints, for the picture in the README.

use super::styled_text::{Span, Style};
use crate::output::{has_colour, terminal_size};
use indicatif::{ProgressBar, ProgressStyle};
use std::fmt::Display;
use std::io::Write;
use std::sync::Mutex;
use std::time::Duration;

/// The widest lines that are pleasant to read.
const WIDEST: usize = 100;

/// Prints what happens, and leaves time to read it.
pub(super) struct Printer {
    is_fast: bool,
    has_colour: bool,
    width: usize,
    /// The lines of each chapter so far.
    chapters: Mutex<Vec<Vec<Vec<Span>>>>,
}

impl Printer {
    pub(super) fn new(is_fast: bool) -> Self {
        let width = terminal_size().map_or(WIDEST, |(columns, _)| columns.min(WIDEST));
        Printer { is_fast, has_colour: has_colour(&std::io::stdout()), width, chapters: Mutex::default() }
    }

    /// Begins a chapter.
    pub(super) fn chapter(&self, number: u8, title: &str) {
        if let Ok(mut chapters) = self.chapters.lock() {
            chapters.push(Vec::new());
        }
        let title = format!("── {number} ── {title} ");
        let line = "─".repeat(self.width.saturating_sub(title.chars().count()));
        self.print(Vec::new());
        self.print(vec![Span::new(Style::Heading, format!("{title}{line}"))]);
    }

    /// Prints a sentence, and leaves time to read it.
    pub(super) async fn say(&self, sentence: impl Display) {
        let sentence = sentence.to_string();
        for line in wrap(&sentence, self.width.saturating_sub(3)) {
            self.print(vec![Span::plain(format!("   {line}"))]);
        }
        self.pause(sentence.len() as u64 * 22).await;
    }

    /// States something that was checked and is true.
    pub(super) async fn fact(&self, fact: impl Display) {
        let fact = fact.to_string();
        for (number, line) in wrap(&fact, self.width.saturating_sub(5)).iter().enumerate() {
            self.print(match number {
                0 => vec![Span::plain("   "), Span::new(Style::Checked, "✔"), Span::plain(format!(" {line}"))],
                _ => vec![Span::plain(format!("     {line}"))],
            });
        }
        self.pause(700 + fact.len() as u64 * 10).await;
    }

    /// Says that the demo was interrupted.
    pub(super) fn interrupted(&self) {
        self.print(Vec::new());
        self.print(vec![Span::plain("   Stopping the servers and cleaning up.")]);
    }

    /// Prints a table whose first line is its heading.
    pub(super) async fn table(&self, lines: &[Vec<Span>]) {
        let width = |column: usize| lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.text.len()).max();
        self.print(Vec::new());
        for line in lines {
            let mut spans = vec![Span::plain("    ")];
            for (column, cell) in line.iter().enumerate() {
                spans.push(cell.clone());
                if column + 1 < line.len() {
                    let gap = width(column).unwrap_or(0) - cell.text.len();
                    spans.push(Span::plain(" ".repeat(gap + 3)));
                }
            }
            self.print(spans);
        }
        self.print(Vec::new());
        self.pause(1500).await;
    }

    /// Shows, on a terminal, what the demo waits for, until it is cleared.
    pub(super) fn spinner(&self, what: &str) -> ProgressBar {
        let spinner = ProgressBar::new_spinner().with_message(what.to_string());
        if let Ok(style) = ProgressStyle::with_template("   {spinner:.cyan} {wide_msg} {elapsed:>4}") {
            spinner.set_style(style.tick_strings(&["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏", " "]));
        }
        spinner.enable_steady_tick(Duration::from_millis(100));
        spinner
    }

    /// Shows, on a terminal, the progress of something.
    pub(super) fn bar(&self, what: &str) -> ProgressBar {
        let bar = ProgressBar::new(0).with_message(what.to_string());
        match ProgressStyle::with_template("   {msg} {bar:40.green/dim} {pos}/{len}") {
            Ok(style) => bar.with_style(style.progress_chars("━╸─")),
            Err(_) => bar,
        }
    }

    /// What was printed in these chapters, counted from 1, without the empty line before the first.
    pub(super) fn recorded(&self, chapters: std::ops::RangeInclusive<usize>) -> Vec<Vec<Span>> {
        let recorded = self.chapters.lock().map(|chapters| chapters.clone()).unwrap_or_default();
        let wanted = recorded.into_iter().skip(chapters.start() - 1).take(chapters.count());
        wanted.flatten().skip(1).collect()
    }

    async fn pause(&self, milliseconds: u64) {
        if !self.is_fast {
            tokio::time::sleep(Duration::from_millis(milliseconds.min(3500))).await;
        }
    }

    /// Prints a line. A reader that has seen enough, such as `head`, is no reason to leave servers behind.
    fn print(&self, line: Vec<Span>) {
        let text: String = match self.has_colour {
            true => line.iter().map(Span::ansi).collect(),
            false => line.iter().map(|span| span.text.as_str()).collect(),
        };
        let _ = writeln!(std::io::stdout(), "{}", text.trim_end());
        if let Some(chapter) = self.chapters.lock().ok().as_mut().and_then(|chapters| chapters.last_mut()) {
            chapter.push(line);
        }
    }
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
    use super::*;

    #[test]
    fn sentences_are_broken_between_words() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("extraordinary", 3), ["extraordinary"]);
    }

    #[tokio::test]
    async fn what_is_printed_is_recorded_by_chapter() {
        let printer = Printer::new(true);
        for (number, title) in [(1, "one"), (2, "two"), (3, "three")] {
            printer.chapter(number, title);
            printer.say("words").await;
        }
        let recorded = printer.recorded(2..=3);
        let texts: Vec<String> =
            recorded.iter().map(|line| line.iter().map(|span| span.text.as_str()).collect()).collect();
        assert!(texts[0].starts_with("── 2 ── two ") && texts[3].starts_with("── 3 ── three "), "{texts:?}");
        assert_eq!((texts.len(), texts[1].as_str(), texts[2].as_str()), (5, "   words", ""));
    }
}
