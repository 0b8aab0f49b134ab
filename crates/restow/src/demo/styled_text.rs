//! Text with meaning: what a terminal shows in colour, and a picture draws in colour.

use std::fmt::Display;

/// What a piece of text stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    Plain,
    /// The title of a chapter.
    Heading,
    /// The mark before something that was checked.
    Checked,
    /// What is as it should be.
    Good,
    /// What is about to be replaced.
    Old,
    /// What must change before anything goes on.
    Bad,
}

/// A piece of text in one style.
#[derive(Clone, Debug)]
pub(super) struct Span {
    pub(super) text: String,
    pub(super) style: Style,
}

impl Span {
    pub(super) fn new(style: Style, text: impl Display) -> Self {
        Span { text: text.to_string(), style }
    }

    pub(super) fn plain(text: impl Display) -> Self {
        Span::new(Style::Plain, text)
    }

    /// For a terminal with colours.
    pub(super) fn ansi(&self) -> String {
        let code = match self.style {
            Style::Plain => return self.text.clone(),
            Style::Heading => "1;36",
            Style::Checked => "1;32",
            Style::Good => "32",
            Style::Old => "33",
            Style::Bad => "31",
        };
        format!("\x1b[{code}m{}\x1b[0m", self.text)
    }
}
