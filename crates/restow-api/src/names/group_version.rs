//! A group and one of its versions, as in `apiVersion`.

use super::{InvalidName, check_group, check_version, serialise_as_text};
use crate::compare_versions;
use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

/// A group and a version: "v1" in the core group, "apps/v1" in another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupVersion {
    group: String,
    version: String,
}

impl GroupVersion {
    /// Checks both parts. An empty group is the core group.
    pub fn new(group: impl Into<String>, version: impl Into<String>) -> Result<Self, InvalidName> {
        let (group, version) = (group.into(), version.into());
        check_group(&group)?;
        check_version(&version)?;
        Ok(GroupVersion { group, version })
    }

    /// The group; empty for the core group.
    pub fn group(&self) -> &str {
        &self.group
    }

    /// The version.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Orders by group, and within a group by priority, the preferred version first. (The derived order is
    /// alphabetical, for sets.)
    pub fn compare_by_priority(&self, other: &GroupVersion) -> Ordering {
        self.group.cmp(&other.group).then_with(|| compare_versions(&self.version, &other.version))
    }
}

impl fmt::Display for GroupVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.group.is_empty() {
            write!(f, "{}/", self.group)?;
        }
        f.write_str(&self.version)
    }
}

impl FromStr for GroupVersion {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        match text.split_once('/') {
            None => GroupVersion::new("", text),
            Some((group, version)) if !group.is_empty() && !version.contains('/') => GroupVersion::new(group, version),
            Some(_) => Err(InvalidName::Form { text: text.to_owned(), form: "<version> or <group>/<version>" }),
        }
    }
}

serialise_as_text!(GroupVersion);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsing_and_formatting_are_inverse() {
        for (text, group, version) in
            [("v1", "", "v1"), ("apps/v1beta2", "apps", "v1beta2"), ("a.b.io/v2", "a.b.io", "v2")]
        {
            let parsed: GroupVersion = text.parse().unwrap();
            assert_eq!((parsed.group(), parsed.version()), (group, version));
            assert_eq!(parsed.to_string(), text);
            assert_eq!(serde_json::to_string(&parsed).unwrap(), format!("{text:?}"));
        }
    }

    #[test]
    fn invalid_api_versions_are_refused() {
        for text in ["", "/", "/v1", "apps/", "apps/v1/pods", "Apps/v1", "apps/V1", "apps/1", "a_b/v1", "v1 "] {
            assert!(text.parse::<GroupVersion>().is_err(), "{text:?} was accepted");
            assert!(serde_json::from_str::<GroupVersion>(&format!("{text:?}")).is_err(), "{text:?} was read");
        }
    }

    #[test]
    fn priority_puts_the_preferred_version_first() {
        let mut versions: Vec<GroupVersion> =
            ["apps/v1beta1", "apps/v1", "apps/v2alpha1", "v1"].iter().map(|text| text.parse().unwrap()).collect();
        versions.sort_by(GroupVersion::compare_by_priority);
        let texts: Vec<String> = versions.iter().map(GroupVersion::to_string).collect();
        assert_eq!(texts, ["v1", "apps/v1", "apps/v1beta1", "apps/v2alpha1"]);
    }
}
