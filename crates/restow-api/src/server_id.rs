//! The identity of one API server instance.

use crate::InvalidName;
use crate::names::serialise_as_text;
use crate::validation::is_dns1123_subdomain;
use std::fmt;
use std::str::FromStr;

/// The name of an API server's identity lease, which is also the `apiServerID` of its entries. It stays the same when
/// the instance restarts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerId(String);

impl ServerId {
    /// Checks that a lease can have this name.
    pub fn new(text: impl Into<String>) -> Result<Self, InvalidName> {
        let text = text.into();
        match is_dns1123_subdomain(&text).into_iter().next() {
            None => Ok(ServerId(text)),
            Some(reason) => Err(InvalidName::Part { part: "API server id", text, reason }),
        }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::borrow::Borrow<str> for ServerId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for ServerId {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        ServerId::new(text)
    }
}

serialise_as_text!(ServerId);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_the_name_of_a_lease() {
        assert!(ServerId::new("apiserver-07a5ea9b9b072c4a5f3d1c3702").is_ok());
        for text in ["", "-a", "A", "a_b", "a/b"] {
            assert!(ServerId::new(text).is_err(), "{text:?} was accepted");
        }
    }
}
