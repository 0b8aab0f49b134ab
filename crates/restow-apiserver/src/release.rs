//! Which Kubernetes release a server behaves as.

use restow_tables::resources::{NEWEST_MINOR, OLDEST_MINOR};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// A Kubernetes release, as in 1.37. It decides which versions are served and which one each resource is stored in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Release {
    minor: u16,
}

/// A release that is not known.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("unknown release {0:?}: releases {oldest} to {newest} are known", oldest = Release::OLDEST, newest = Release::NEWEST)]
pub struct UnknownRelease(String);

impl Release {
    /// The oldest release whose versions are known.
    pub const OLDEST: Release = Release { minor: OLDEST_MINOR };
    /// The newest release whose versions are known.
    pub const NEWEST: Release = Release { minor: NEWEST_MINOR };
    /// The first release in which the name of a service may begin with a digit.
    pub(crate) const RELAXED_SERVICE_NAMES: Release = Release { minor: 36 };

    /// The number after "1.".
    pub fn minor(self) -> u16 {
        self.minor
    }
}

impl FromStr for Release {
    type Err = UnknownRelease;

    fn from_str(text: &str) -> Result<Self, UnknownRelease> {
        let unknown = || UnknownRelease(text.to_string());
        let number = text.strip_prefix('v').unwrap_or(text).strip_prefix("1.").ok_or_else(unknown)?;
        let minor = number.split('.').next().and_then(|minor| minor.parse().ok()).ok_or_else(unknown)?;
        let release = Release { minor };
        if release < Release::OLDEST || release > Release::NEWEST {
            return Err(unknown());
        }
        Ok(release)
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1.{}", self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_releases_are_accepted() {
        assert_eq!("1.30".parse::<Release>().unwrap().to_string(), "1.30");
        assert_eq!("v1.37.2".parse::<Release>().unwrap(), Release::NEWEST);
        for unknown in ["1.27", "1.99", "2.0", "", "1.x"] {
            assert!(unknown.parse::<Release>().is_err(), "{unknown}");
        }
        assert!("1.5".parse::<Release>().unwrap_err().to_string().contains("1.28 to 1.37"));
    }
}
