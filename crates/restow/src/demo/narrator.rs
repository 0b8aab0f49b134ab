//! Telling the story: headings, sentences, tables. Colour only on a terminal; plain lines elsewhere.

use crate::output::columns;
use std::fmt::Display;
use std::io::IsTerminal;
use std::time::Duration;

/// Tells what happens.
pub(super) struct Narrator {
    is_fast: bool,
    has_colour: bool,
}

impl Narrator {
    pub(super) fn new(is_fast: bool) -> Self {
        let has_colour = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        Narrator { is_fast, has_colour }
    }

    /// Begins a chapter.
    pub(super) fn chapter(&self, number: u8, title: &str) {
        println!("\n{}", self.paint("1;36", &format!("── {number} ── {title}")));
    }

    /// Says a sentence, and leaves time to read it.
    pub(super) async fn say(&self, sentence: impl Display) {
        let sentence = sentence.to_string();
        for line in wrap(&sentence, 96) {
            println!("   {line}");
        }
        self.pause(sentence.len() as u64 * 22).await;
    }

    /// States something that was checked and is true.
    pub(super) async fn fact(&self, fact: impl Display) {
        println!("   {} {fact}", self.paint("1;32", "✔"));
        self.pause(700).await;
    }

    /// Draws a table whose first line is its heading. Cells of the versions are coloured, so that a difference is seen.
    pub(super) async fn table(&self, lines: &[Vec<String>], old: &str, new: &str) {
        println!();
        for line in columns(lines).lines() {
            let painted = line.split(' ').map(|word| match word {
                word if word == old => self.paint("33", word),
                word if word == new => self.paint("32", word),
                word => word.to_string(),
            });
            println!("     {}", painted.collect::<Vec<_>>().join(" "));
        }
        println!();
        self.pause(1500).await;
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
