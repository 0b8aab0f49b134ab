//! Revisions: the logical clock of a store.

use std::fmt;

/// A point in the history of the whole store. Later changes have greater revisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(u64);

impl Revision {
    /// Before every change: no key was ever created or modified at this revision.
    pub const ZERO: Revision = Revision(0);

    /// The revision with this number.
    pub const fn new(number: u64) -> Self {
        Revision(number)
    }

    /// The number of this revision, as Kubernetes shows it in `resourceVersion`.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The revision after this one.
    pub const fn next(self) -> Self {
        Revision(self.0.saturating_add(1))
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
