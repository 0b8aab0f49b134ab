//! Range reads: one key, or many in order, at one revision.

use crate::{Entry, Key, KeyRange, Revision};
use std::num::NonZeroUsize;

/// What to read. [`RangeRequest::new`] reads everything in the range at the latest revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeRequest {
    /// The keys to read.
    pub range: KeyRange,
    /// The revision to read at.
    pub at: At,
    /// The most entries to return; none for all.
    pub limit: Option<NonZeroUsize>,
    /// How much of each entry to return.
    pub content: Content,
}

/// The revision of a read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum At {
    /// The latest revision when the request is received, or a later one.
    #[default]
    Latest,
    /// Exactly this revision. It must not be compacted and must not be in the future.
    Revision(Revision),
}

/// How much of each entry a range returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Content {
    /// Keys, values and revisions.
    #[default]
    Full,
    /// Keys and revisions; values are empty.
    KeysOnly,
    /// No entries, only [`RangeResponse::count`].
    CountOnly,
}

/// A snapshot of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeResponse {
    /// The latest revision of the store when it responded. Later pages of the same list are read at the revision of the
    /// *first* page.
    pub revision: Revision,
    /// The entries in the order of their keys.
    pub entries: Vec<Entry>,
    /// Whether there are more entries than the limit.
    pub more: bool,
    /// The number of keys in the whole range at that revision, independent of the limit. It is always set for
    /// [`Content::CountOnly`]; for other reads only if the back end knows it without extra work.
    pub count: Option<u64>,
}

impl RangeRequest {
    /// Reads all entries of `range` at the latest revision.
    pub fn new(range: KeyRange) -> Self {
        RangeRequest { range, at: At::Latest, limit: None, content: Content::Full }
    }

    /// Reads one key.
    pub fn key(key: &Key) -> Self {
        Self::new(KeyRange::exactly(key))
    }

    /// Reads every key with this prefix.
    pub fn prefix(prefix: impl Into<bytes::Bytes>) -> Self {
        Self::new(KeyRange::prefix(prefix))
    }

    /// Reads at exactly this revision.
    pub fn at(self, revision: Revision) -> Self {
        RangeRequest { at: At::Revision(revision), ..self }
    }

    /// Returns at most `limit` entries; zero means all.
    pub fn limit(self, limit: usize) -> Self {
        RangeRequest { limit: NonZeroUsize::new(limit), ..self }
    }

    /// Returns this much of each entry.
    pub fn content(self, content: Content) -> Self {
        RangeRequest { content, ..self }
    }
}
