//! The mark on a CRD whose objects are being migrated: its holder, and when it is stale.
//!
//! The mark and its holder are annotations. The holder renews its annotation while it works. Whether it is alive is judged
//! by watching for changes: no clocks of two machines are compared.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The annotation that names the holder of the mark.
pub const HOLDER_ANNOTATION: &str = "restow.dev/migrating-by";
/// The annotation with what the last manual migration could not rewrite; absent if it rewrote everything.
pub const REFUSALS_ANNOTATION: &str = "restow.dev/refused";

/// How often a holder renews its mark.
pub const RENEW_INTERVAL: Duration = Duration::from_secs(10);
/// For how long a mark has to be unchanged before its holder is considered gone. Six renewals have failed by then.
pub const MARK_TIMEOUT: Duration = Duration::from_secs(60);

/// Who holds a mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// What it is.
    pub kind: HolderKind,
    /// Its identity.
    pub name: String,
    /// How often it has renewed the mark.
    pub renewals: u64,
}

/// What a holder is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HolderKind {
    /// A controller. All controllers are one holder: the leader knows which migrations are running.
    Controller,
    /// A command that a user runs.
    Command,
}

/// Not a holder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} names no holder of a mark")]
pub struct InvalidHolder(String);

/// What to do about the mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkAction {
    /// Write it: there is none, or it is invalid or our own.
    Write,
    /// Leave it: another holder has it.
    Leave,
}

/// The mark on a CRD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MigrationMark {
    /// None.
    None,
    /// A mark, with the annotation of its holder.
    By(String),
}

impl Holder {
    /// A holder that has not renewed the mark yet.
    pub fn new(kind: HolderKind, name: &str) -> Self {
        // A slash is the separator.
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

    /// What this holder does about a mark that is unchanged for this time. A mark that nobody renews is stale.
    pub fn action_after(&self, found: &MigrationMark, unchanged_for: Duration) -> MarkAction {
        match unchanged_for >= MARK_TIMEOUT {
            true => MarkAction::Write,
            false => self.action(found),
        }
    }

    /// Whether this holder may remove a mark that is unchanged for this time.
    pub fn may_remove(&self, found: &MigrationMark, unchanged_for: Duration) -> bool {
        *found != MigrationMark::None && self.action_after(found, unchanged_for) == MarkAction::Write
    }

    fn is_same(&self, other: &Holder) -> bool {
        self.kind == other.kind && (self.kind == HolderKind::Controller || self.name == other.name)
    }
}

/// Whether the leading controller removes a mark from a resource without a migration. A controller's mark was left behind
/// by an interrupted migration. Any other mark is removed if it was not renewed for long enough.
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
    fn a_migration_takes_a_mark_that_is_free_or_its_own() {
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
