//! Markers: the lines of a comment that begin with `+` and are meant for Kubernetes' generators.

use std::collections::BTreeMap;

/// The markers of a declaration, in order. The rest of its comment is not kept: tables hold facts, not sentences.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Markers(Vec<(String, String)>);

impl Markers {
    /// The markers in the comment that ends on the line before `line`.
    pub(super) fn before(line: usize, comments: &BTreeMap<usize, String>) -> Markers {
        let mut lines: Vec<&String> = (1..line).rev().map_while(|line| comments.get(&line)).collect();
        lines.reverse();
        Markers::of(lines.into_iter().map(String::as_str))
    }

    /// The markers among these lines of comment.
    pub(super) fn of<'a>(lines: impl Iterator<Item = &'a str>) -> Markers {
        let markers = lines.filter_map(|line| line.trim().strip_prefix('+')).map(|marker| {
            let (key, value) = marker.split_once('=').unwrap_or((marker, ""));
            (key.trim().to_owned(), value.trim().to_owned())
        });
        Markers(markers.collect())
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.0.iter().any(|(known, _)| known == key)
    }

    /// The value of the last marker of this name.
    pub(crate) fn value(&self, key: &str) -> Option<&str> {
        self.0.iter().rev().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }

    pub(crate) fn values<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(known, _)| known == key).map(|(_, value)| value.as_str())
    }
}
