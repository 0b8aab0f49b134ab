//! Who marked a CRD as being migrated, and when its mark has to go.
//!
//! The mark is an annotation, and so is the name of its holder. A holder renews what stands there as long as it is at work.
//! Whether it still is, is judged by having watched for long enough that nothing changes: no times of two machines are
//! compared.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The annotation that names the holder of the mark.
pub const HOLDER_ANNOTATION: &str = "restow.dev/migrating-by";
/// The annotation with what the last migration by hand could not do; `None` where it could do everything.
pub const REFUSALS_ANNOTATION: &str = "restow.dev/refused";

/// How often a holder renews its mark.
pub const RENEW_INTERVAL: Duration = Duration::from_secs(10);
/// For how long a mark has to be seen unchanged before its holder is considered gone. Six renewals have failed then.
pub const MARK_TIMEOUT: Duration = Duration::from_secs(60);

/// Who holds a mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// What it is.
    pub kind: HolderKind,
    /// What tells it from others.
    pub name: String,
    /// How often it has renewed the mark.
    pub renewals: u64,
}

/// What a holder is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HolderKind {
    /// A controller. All of them are one party: the one that acts knows which migrations are under way.
    Controller,
    /// A command that somebody runs.
    Command,
}

/// A text that names no holder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} names no holder of a mark")]
pub struct InvalidHolder(String);

/// What one who migrates does about the mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkAction {
    /// Write one's own name: there is no mark, or one of nobody, or it is one's own and has to be renewed.
    Write,
    /// Leave it: somebody else holds it.
    Leave,
}

/// A mark as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MigrationMark {
    /// There is none.
    None,
    /// There is one, with what stands in the annotation of its holder.
    By(String),
}

impl Holder {
    /// A holder that has not renewed anything yet.
    pub fn new(kind: HolderKind, name: &str) -> Self {
        // A slash separates what is recorded.
        Holder { kind, name: name.replace('/', "-"), renewals: 0 }
    }

    /// What this holder does about a mark.
    pub fn action(&self, found: &MigrationMark) -> MarkAction {
        match found {
            MigrationMark::None => MarkAction::Write,
            MigrationMark::By(text) => match text.parse::<Holder>() {
                Ok(other) if !self.is_same(&other) => MarkAction::Leave,
                _ => MarkAction::Write,
            },
        }
    }

    /// What this holder does about a mark that it has seen unchanged for so long: one that nobody renews was left behind.
    pub fn action_after(&self, found: &MigrationMark, unchanged_for: Duration) -> MarkAction {
        match unchanged_for >= MARK_TIMEOUT {
            true => MarkAction::Write,
            false => self.action(found),
        }
    }

    /// Whether this holder may take a mark away that it has seen unchanged for so long: what it would renew, it may end.
    pub fn may_remove(&self, found: &MigrationMark, unchanged_for: Duration) -> bool {
        *found != MigrationMark::None && self.action_after(found, unchanged_for) == MarkAction::Write
    }

    fn is_same(&self, other: &Holder) -> bool {
        self.kind == other.kind && (self.kind == HolderKind::Controller || self.name == other.name)
    }
}

/// Whether the controller that acts takes a mark away from a resource of which it has no migration. One of a controller is
/// left from a crash. One of anybody else, or of nobody, goes when it was not renewed for long enough.
pub fn is_stale(holder: &str, unchanged_for: Duration) -> bool {
    match holder.parse::<Holder>() {
        Ok(holder) if holder.kind == HolderKind::Controller => true,
        _ => unchanged_for >= MARK_TIMEOUT,
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            HolderKind::Controller => "controller",
            HolderKind::Command => "command",
        };
        write!(f, "{kind}/{}/{}", self.name, self.renewals)
    }
}

impl FromStr for Holder {
    type Err = InvalidHolder;

    fn from_str(text: &str) -> Result<Self, InvalidHolder> {
        let none = || InvalidHolder(text.to_owned());
        let mut parts = text.splitn(3, '/');
        let kind = match parts.next() {
            Some("controller") => HolderKind::Controller,
            Some("command") => HolderKind::Command,
            _ => return Err(none()),
        };
        let name = parts.next().filter(|name| !name.is_empty()).ok_or_else(none)?.to_owned();
        let renewals = parts.next().and_then(|text| text.parse().ok()).ok_or_else(none)?;
        Ok(Holder { kind, name, renewals })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_read_as_it_is_written() {
        for holder in [
            Holder::new(HolderKind::Controller, "pod-1"),
            Holder { renewals: 7, ..Holder::new(HolderKind::Command, "somebody's laptop/12") },
        ] {
            assert_eq!(holder.to_string().parse::<Holder>(), Ok(holder));
        }
        for text in ["", "true", "controller", "controller//1", "command/x", "command/x/y", "other/x/1"] {
            assert!(text.parse::<Holder>().is_err(), "{text}");
        }
    }

    #[test]
    fn whoever_migrates_takes_what_is_free_or_its_own_and_leaves_what_is_not() {
        let (one, two) = (Holder::new(HolderKind::Controller, "one"), Holder::new(HolderKind::Controller, "two"));
        let (here, there) = (Holder::new(HolderKind::Command, "here"), Holder::new(HolderKind::Command, "there"));
        let by = |holder: &Holder| MigrationMark::By(Holder { renewals: 3, ..holder.clone() }.to_string());
        for (me, found, action, may_remove) in [
            (&one, MigrationMark::None, MarkAction::Write, false),
            (&one, MigrationMark::By(String::new()), MarkAction::Write, true),
            (&one, by(&two), MarkAction::Write, true),
            (&one, by(&here), MarkAction::Leave, false),
            (&here, by(&here), MarkAction::Write, true),
            (&here, by(&there), MarkAction::Leave, false),
            (&here, by(&one), MarkAction::Leave, false),
        ] {
            let lifts = me.may_remove(&found, Duration::ZERO);
            assert_eq!((me.action(&found), lifts), (action, may_remove), "{me} finds {found:?}");
        }
    }

    #[test]
    fn a_mark_that_nobody_renews_is_taken_over_by_whoever_watched_it() {
        let (here, there) = (Holder::new(HolderKind::Command, "here"), Holder::new(HolderKind::Command, "there"));
        let left = MigrationMark::By(there.to_string());
        assert_eq!(here.action_after(&left, MARK_TIMEOUT - Duration::from_secs(1)), MarkAction::Leave);
        assert_eq!(here.action_after(&left, MARK_TIMEOUT), MarkAction::Write);
        assert!(here.may_remove(&left, MARK_TIMEOUT) && !here.may_remove(&left, MARK_TIMEOUT - Duration::from_secs(1)));
        assert!(!here.may_remove(&MigrationMark::None, MARK_TIMEOUT));
        assert_eq!(here.action_after(&MigrationMark::None, Duration::ZERO), MarkAction::Write);
    }

    #[test]
    fn a_mark_goes_when_its_holder_is_known_or_was_seen_to_be_gone() {
        let command = Holder::new(HolderKind::Command, "here").to_string();
        for (holder, seconds, expected) in [
            ("controller/pod/3", 0, true),
            (command.as_str(), 0, false),
            (command.as_str(), 59, false),
            (command.as_str(), 60, true),
            ("", 59, false),
            ("", 60, true),
        ] {
            assert_eq!(is_stale(holder, Duration::from_secs(seconds)), expected, "{holder:?} for {seconds} s");
        }
    }
}
