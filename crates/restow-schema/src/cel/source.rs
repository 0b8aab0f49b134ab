//! The text of an expression, and how errors in it are shown.

/// The text of an expression.
pub(crate) struct Source<'a> {
    pub(crate) text: &'a str,
}

/// An error at a position in an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExpressionError {
    pub(crate) at: usize,
    pub(crate) message: String,
}

impl ExpressionError {
    /// An error at a byte of the text.
    pub(crate) fn new(at: usize, message: impl Into<String>) -> ExpressionError {
        ExpressionError { at, message: message.into() }
    }
}

impl Source<'_> {
    /// All errors, each with its line and a mark below its position.
    pub(crate) fn show(&self, errors: &[ExpressionError]) -> String {
        let shown: Vec<String> = errors.iter().map(|error| self.show_one(error)).collect();
        shown.join("\n")
    }

    fn show_one(&self, error: &ExpressionError) -> String {
        let before = self.text.get(..error.at.min(self.text.len())).unwrap_or(self.text);
        let line_number = before.matches('\n').count() + 1;
        let line_start = before.rfind('\n').map_or(0, |end| end + 1);
        let column = before.get(line_start..).unwrap_or_default().chars().count();
        let line = self.text.get(line_start..).unwrap_or_default().lines().next().unwrap_or_default();
        let dots = ".".repeat(column);
        format!("ERROR: <input>:{line_number}:{}: {}\n | {line}\n | {dots}^", column + 1, error.message)
    }
}
