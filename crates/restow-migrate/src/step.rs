//! The steps of a migration, and dying at one of them on purpose.
//!
//! A migration can be interrupted anywhere. To try that at every place, tests name the step at which everything ends.

use std::fmt;
use std::str::FromStr;

/// A step of a migration, named after what has just been done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is written down that more than one version may be stored.
    StateWritten,
    /// The migration exists.
    Created,
    /// The migration says that it runs.
    Running,
    /// The agreement is known, nothing has been written.
    Agreed,
    /// The definition is marked.
    Marked,
    /// About half of the objects are rewritten.
    HalfRewritten,
    /// All objects are rewritten.
    Rewritten,
    /// The agreement still holds.
    Confirmed,
    /// The stored versions are trimmed.
    Trimmed,
    /// The mark is gone.
    Unmarked,
    /// The migration says how it ended.
    Ended,
    /// It is written down that only one version is stored.
    Accounted,
}

/// A text that names no step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no step of a migration")]
pub struct UnknownStep(String);

impl Step {
    /// All steps, in order.
    pub const ALL: [Step; 12] = [
        Step::StateWritten,
        Step::Created,
        Step::Running,
        Step::Agreed,
        Step::Marked,
        Step::HalfRewritten,
        Step::Rewritten,
        Step::Confirmed,
        Step::Trimmed,
        Step::Unmarked,
        Step::Ended,
        Step::Accounted,
    ];

    /// The steps that are the same for the command and the controller, in order.
    pub const OF_BOTH: [Step; 7] = [
        Step::Agreed,
        Step::Marked,
        Step::HalfRewritten,
        Step::Rewritten,
        Step::Confirmed,
        Step::Trimmed,
        Step::Unmarked,
    ];

    /// Ends this process, as a crash would, if this is the step to die at.
    pub(crate) fn crash_if(self, dies_at: Option<Step>) {
        if dies_at == Some(self) {
            std::process::abort();
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl FromStr for Step {
    type Err = UnknownStep;

    fn from_str(text: &str) -> Result<Self, UnknownStep> {
        Step::ALL.into_iter().find(|step| step.to_string() == text).ok_or_else(|| UnknownStep(text.to_owned()))
    }
}
