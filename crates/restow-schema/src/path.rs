//! The path of a check in an object: a chain on the stack, so that no path is formatted unless a problem is reported.

use std::fmt::Write;

/// One step of a path, linked to the steps before it.
#[derive(Clone, Copy)]
pub(crate) struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    step: Step<'a>,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Root,
    Field(&'a str),
    Key(&'a str),
    Index(usize),
}

impl<'a> Path<'a> {
    /// The whole object.
    pub(crate) const ROOT: Path<'static> = Path { parent: None, step: Step::Root };

    /// A property of the schema.
    pub(crate) fn field(&'a self, name: &'a str) -> Path<'a> {
        Path { parent: Some(self), step: Step::Field(name) }
    }

    /// An entry of a map.
    pub(crate) fn key(&'a self, name: &'a str) -> Path<'a> {
        Path { parent: Some(self), step: Step::Key(name) }
    }

    /// An item of a list.
    pub(crate) fn index(&'a self, index: usize) -> Path<'a> {
        Path { parent: Some(self), step: Step::Index(index) }
    }

    /// Whether this is the whole object.
    pub(crate) fn is_root(&self) -> bool {
        self.parent.is_none()
    }

    /// `spec.labels[app]`; `<nil>` for the whole object.
    pub(crate) fn in_brackets(&self) -> String {
        let text = self.render(true);
        if text.is_empty() { "<nil>".to_string() } else { text }
    }

    /// `spec.labels.app`, as in the messages of the schema validator; empty for the whole object.
    pub(crate) fn dotted(&self) -> String {
        self.render(false)
    }

    fn render(&self, brackets: bool) -> String {
        let mut steps = Vec::new();
        let mut current = Some(self);
        while let Some(path) = current {
            steps.push(path.step);
            current = path.parent;
        }
        let mut text = String::new();
        for step in steps.into_iter().rev() {
            match step {
                Step::Root => {}
                Step::Field(name) => {
                    if !text.is_empty() {
                        text.push('.');
                    }
                    text.push_str(name);
                }
                Step::Key(name) if brackets => {
                    let _ = write!(text, "[{name}]");
                }
                Step::Key(name) => {
                    let _ = write!(text, ".{name}");
                }
                Step::Index(index) => {
                    let _ = write!(text, "[{index}]");
                }
            }
        }
        text
    }
}
