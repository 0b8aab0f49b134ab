//! Who marked a custom resource definition as being migrated, and when its mark has to go.
//!
//! The mark is an annotation, and so is the name of its holder. A holder renews what stands there as long as it is at work.
//! Whether it still is, is judged by having watched for long enough that nothing changes: no times of two machines are
//! compared.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The annotation that names the holder of the mark.
pub const HOLDER_ANNOTATION: &str = "restow.dev/migrating-by";
/// The annotation with what the last migration by hand could not do; nothing where it could do everything.
pub const REFUSALS_ANNOTATION: &str = "restow.dev/refused";

/// How often a holder renews its mark.
pub const RENEWAL: Duration = Duration::from_secs(10);
/// For how long a mark has to be seen unchanged before its holder is taken for gone. Six renewals have failed then.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Who holds a mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// What it is.
    pub party: Party,
    /// What tells it from others.
    pub name: String,
    /// How often it has renewed the mark.
    pub renewals: u64,
}

/// What a holder is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Party {
    /// A controller. All of them are one party: the one that acts knows which migrations are under way.
    Controller,
    /// A command that somebody runs.
    Command,
}

/// A text that names no holder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} names no holder of a mark")]
pub struct NoHolder(String);

/// What one who migrates does about the mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Write one's own name: there is no mark, or one of nobody, or it is one's own and has to be renewed.
    Write,
    /// Leave it: somebody else holds it.
    Leave,
}

/// A mark as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// There is none.
    None,
    /// There is one, with what stands in the annotation of its holder.
    By(String),
}

impl Holder {
    /// A holder that has not renewed anything yet.
    pub fn new(party: Party, name: &str) -> Self {
        // A slash separates what is written down.
        Holder { party, name: name.replace('/', "-"), renewals: 0 }
    }

    /// What this holder does about a mark.
    pub fn turn(&self, found: &Mark) -> Turn {
        match found {
            Mark::None => Turn::Write,
            Mark::By(text) => match text.parse::<Holder>() {
                Ok(other) if !self.is_same(&other) => Turn::Leave,
                _ => Turn::Write,
            },
        }
    }

    /// What this holder does about a mark that it has seen unchanged for so long: one that nobody renews was left behind.
    pub fn turn_after(&self, found: &Mark, unchanged_for: Duration) -> Turn {
        match unchanged_for >= PATIENCE {
            true => Turn::Write,
            false => self.turn(found),
        }
    }

    /// Whether this holder may take a mark away that it has seen unchanged for so long: what it would renew, it may end.
    pub fn may_lift(&self, found: &Mark, unchanged_for: Duration) -> bool {
        *found != Mark::None && self.turn_after(found, unchanged_for) == Turn::Write
    }

    fn is_same(&self, other: &Holder) -> bool {
        self.party == other.party && (self.party == Party::Controller || self.name == other.name)
    }
}

/// Whether the controller that acts takes a mark away from a resource of which it has no migration. One of a controller is
/// left from a crash. One of anybody else, or of nobody, goes when it was not renewed for long enough.
pub fn is_stale(holder: &str, unchanged_for: Duration) -> bool {
    match holder.parse::<Holder>() {
        Ok(holder) if holder.party == Party::Controller => true,
        _ => unchanged_for >= PATIENCE,
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let party = match self.party {
            Party::Controller => "controller",
            Party::Command => "command",
        };
        write!(f, "{party}/{}/{}", self.name, self.renewals)
    }
}

impl FromStr for Holder {
    type Err = NoHolder;

    fn from_str(text: &str) -> Result<Self, NoHolder> {
        let none = || NoHolder(text.to_owned());
        let mut parts = text.splitn(3, '/');
        let party = match parts.next() {
            Some("controller") => Party::Controller,
            Some("command") => Party::Command,
            _ => return Err(none()),
        };
        let name = parts.next().filter(|name| !name.is_empty()).ok_or_else(none)?.to_owned();
        let renewals = parts.next().and_then(|text| text.parse().ok()).ok_or_else(none)?;
        Ok(Holder { party, name, renewals })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_read_as_it_is_written() {
        for holder in [
            Holder::new(Party::Controller, "pod-1"),
            Holder { renewals: 7, ..Holder::new(Party::Command, "somebody's laptop/12") },
        ] {
            assert_eq!(holder.to_string().parse::<Holder>(), Ok(holder));
        }
        for text in ["", "true", "controller", "controller//1", "command/x", "command/x/y", "other/x/1"] {
            assert!(text.parse::<Holder>().is_err(), "{text}");
        }
    }

    #[test]
    fn whoever_migrates_takes_what_is_free_or_its_own_and_leaves_what_is_not() {
        let (one, two) = (Holder::new(Party::Controller, "one"), Holder::new(Party::Controller, "two"));
        let (here, there) = (Holder::new(Party::Command, "here"), Holder::new(Party::Command, "there"));
        let by = |holder: &Holder| Mark::By(Holder { renewals: 3, ..holder.clone() }.to_string());
        for (me, found, turn, may_lift) in [
            (&one, Mark::None, Turn::Write, false),
            (&one, Mark::By(String::new()), Turn::Write, true),
            (&one, by(&two), Turn::Write, true),
            (&one, by(&here), Turn::Leave, false),
            (&here, by(&here), Turn::Write, true),
            (&here, by(&there), Turn::Leave, false),
            (&here, by(&one), Turn::Leave, false),
        ] {
            let lifts = me.may_lift(&found, Duration::ZERO);
            assert_eq!((me.turn(&found), lifts), (turn, may_lift), "{me} finds {found:?}");
        }
    }

    #[test]
    fn a_mark_that_nobody_renews_is_taken_over_by_whoever_watched_it() {
        let (here, there) = (Holder::new(Party::Command, "here"), Holder::new(Party::Command, "there"));
        let left = Mark::By(there.to_string());
        assert_eq!(here.turn_after(&left, PATIENCE - Duration::from_secs(1)), Turn::Leave);
        assert_eq!(here.turn_after(&left, PATIENCE), Turn::Write);
        assert!(here.may_lift(&left, PATIENCE) && !here.may_lift(&left, PATIENCE - Duration::from_secs(1)));
        assert!(!here.may_lift(&Mark::None, PATIENCE));
        assert_eq!(here.turn_after(&Mark::None, Duration::ZERO), Turn::Write);
    }

    #[test]
    fn a_mark_goes_when_its_holder_is_known_or_was_seen_to_be_gone() {
        let command = Holder::new(Party::Command, "here").to_string();
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
