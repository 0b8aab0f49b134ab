//! The text of an expression and how faults in it are shown.

/// The text of an expression.
pub(crate) struct Source<'a> {
    pub(crate) text: &'a str,
}

/// A fault at a place in an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) at: usize,
    pub(crate) message: String,
}

impl Fault {
    /// A fault at a byte of the text.
    pub(crate) fn new(at: usize, message: impl Into<String>) -> Fault {
        Fault { at, message: message.into() }
    }
}

impl Source<'_> {
    /// Every fault, with the line that it is in and a mark below the place.
    pub(crate) fn show(&self, faults: &[Fault]) -> String {
        let shown: Vec<String> = faults.iter().map(|fault| self.show_one(fault)).collect();
        shown.join("\n")
    }

    fn show_one(&self, fault: &Fault) -> String {
        let before = self.text.get(..fault.at.min(self.text.len())).unwrap_or(self.text);
        let line_number = before.matches('\n').count() + 1;
        let line_start = before.rfind('\n').map_or(0, |end| end + 1);
        let column = before.get(line_start..).unwrap_or_default().chars().count();
        let line = self.text.get(line_start..).unwrap_or_default().lines().next().unwrap_or_default();
        let dots = ".".repeat(column);
        format!("ERROR: <input>:{line_number}:{}: {}\n | {line}\n | {dots}^", column + 1, fault.message)
    }
}
