//! A kind in a version of a group.

use super::{GroupVersion, InvalidName, check_kind, serialise_as_text};
use std::fmt;
use std::str::FromStr;

/// A group, a version and a kind, written "Kind.version.group": "Deployment.v1.apps", "Pod.v1".
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupVersionKind {
    group_version: GroupVersion,
    kind: String,
}

impl GroupVersionKind {
    /// Checks the kind.
    pub fn new(group_version: GroupVersion, kind: impl Into<String>) -> Result<Self, InvalidName> {
        let kind = kind.into();
        check_kind(&kind)?;
        Ok(GroupVersionKind { group_version, kind })
    }

    /// The group and version, as in `apiVersion`.
    pub fn group_version(&self) -> &GroupVersion {
        &self.group_version
    }

    /// The group; empty for the core group.
    pub fn group(&self) -> &str {
        self.group_version.group()
    }

    /// The version.
    pub fn version(&self) -> &str {
        self.group_version.version()
    }

    /// The kind.
    pub fn kind(&self) -> &str {
        &self.kind
    }
}

impl fmt::Display for GroupVersionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.kind, self.version())?;
        if !self.group().is_empty() {
            write!(f, ".{}", self.group())?;
        }
        Ok(())
    }
}

impl FromStr for GroupVersionKind {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let mut parts = text.splitn(3, '.');
        match (parts.next(), parts.next(), parts.next()) {
            (Some(kind), Some(version), group) => {
                GroupVersionKind::new(GroupVersion::new(group.unwrap_or_default(), version)?, kind)
            }
            _ => Err(InvalidName::Form { text: text.to_owned(), form: "<kind>.<version>[.<group>]" }),
        }
    }
}

serialise_as_text!(GroupVersionKind);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsing_and_formatting_are_inverse() {
        for (text, group, version, kind) in
            [("Pod.v1", "", "v1", "Pod"), ("Ingress.v1.networking.k8s.io", "networking.k8s.io", "v1", "Ingress")]
        {
            let parsed: GroupVersionKind = text.parse().unwrap();
            assert_eq!((parsed.group(), parsed.version(), parsed.kind()), (group, version, kind));
            assert_eq!(parsed.to_string(), text);
        }
    }

    #[test]
    fn invalid_kinds_are_refused() {
        for text in ["", "Pod", ".v1", "Pod.", "My_Kind.v1", "Pod.v1.-apps"] {
            assert!(text.parse::<GroupVersionKind>().is_err(), "{text:?} was accepted");
        }
    }
}
