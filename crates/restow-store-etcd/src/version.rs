//! Server versions, and the bugs of older ones that matter to this crate.

use std::fmt;
use std::str::FromStr;

/// The version of an etcd server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerVersion {
    /// The 3 of 3.4.23.
    pub major: u32,
    /// The 4 of 3.4.23.
    pub minor: u32,
    /// The 23 of 3.4.23.
    pub patch: u32,
}

/// A feature with a bug in some supported servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Feature {
    /// A requested progress notification never overtakes an event.
    PromptProgress,
    /// A watch that falls behind a compaction is canceled.
    SlowWatches,
    /// A watch that starts at the compact revision gets the deletions of that revision.
    WatchFromCompactRevision,
}

impl ServerVersion {
    /// The oldest version that this crate works with.
    pub const OLDEST: ServerVersion = ServerVersion { major: 3, minor: 4, patch: 0 };

    pub(crate) fn has(self, feature: Feature) -> bool {
        let (in_3_4, in_3_5) = match feature {
            Feature::PromptProgress => (25, 8),
            Feature::SlowWatches => (31, 13),
            Feature::WatchFromCompactRevision => (36, 18),
        };
        match (self.major, self.minor) {
            (3, 4) => self.patch >= in_3_4,
            (3, 5) => self.patch >= in_3_5,
            _ => self >= ServerVersion { major: 3, minor: 6, patch: 0 },
        }
    }

    /// The known bugs of this version and their workarounds, for the log.
    pub(crate) fn known_bugs(self) -> impl Iterator<Item = &'static str> {
        let all = [
            (
                Feature::PromptProgress,
                "requested progress notifications can overtake events (fixed in 3.4.25 and 3.5.8); watches rely on \
                 the server's own notifications instead, every 10 minutes by default",
            ),
            (
                Feature::SlowWatches,
                "a watch that falls behind during a compaction can lose events (fixed in 3.4.31 and 3.5.13); watches \
                 with slow consumers are closed and resumed, but an upgrade is advised",
            ),
            (
                Feature::WatchFromCompactRevision,
                "a watch that starts at the compact revision can miss deletions (fixed in 3.4.36 and 3.5.18); such \
                 watches fail as compacted",
            ),
        ];
        all.into_iter().filter(move |(feature, _)| !self.has(*feature)).map(|(_, sentence)| sentence)
    }
}

impl fmt::Display for ServerVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl FromStr for ServerVersion {
    type Err = String;

    /// Reads "3.4.23" and, leaving out what follows the numbers, "3.6.0-rc.1" and "3.5.9+git".
    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split(['-', '+']).next().unwrap_or_default();
        let mut parts = numbers.split('.').map(str::parse);
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(Ok(major)), Some(Ok(minor)), Some(Ok(patch)), None) => Ok(ServerVersion { major, minor, patch }),
            _ => Err(format!("{text:?} is not a version of etcd")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> ServerVersion {
        text.parse().unwrap()
    }

    #[test]
    fn versions_are_read_and_ordered() {
        assert_eq!(version("3.4.23").to_string(), "3.4.23");
        assert_eq!(version("3.6.0-rc.1"), version("3.6.0"));
        assert!(version("3.3.27") < ServerVersion::OLDEST);
        assert!(version("3.10.0") > version("3.9.9"));
        for wrong in ["", "3", "3.4", "3.4.x", "3.4.5.6", "not_decided"] {
            assert!(wrong.parse::<ServerVersion>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn known_bugs_depend_on_the_release_line() {
        let check = |text: &str, expected: usize| assert_eq!(version(text).known_bugs().count(), expected, "{text}");
        check("3.4.23", 3);
        check("3.4.25", 2);
        check("3.4.36", 0);
        check("3.5.7", 3);
        check("3.5.8", 2);
        check("3.5.13", 1);
        check("3.5.18", 0);
        check("3.6.0", 0);
        check("4.0.0", 0);
    }
}
