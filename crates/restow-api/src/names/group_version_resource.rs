//! A resource in a version of a group, as in a request path.

use super::{GroupResource, GroupVersion, InvalidName, check_resource, serialise_as_text};
use std::fmt;
use std::str::FromStr;

/// A group, a version and a resource, written "resource.version.group": "deployments.v1.apps", "pods.v1".
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupVersionResource {
    group_version: GroupVersion,
    resource: String,
}

impl GroupVersionResource {
    /// Checks the resource.
    pub fn new(group_version: GroupVersion, resource: impl Into<String>) -> Result<Self, InvalidName> {
        let resource = resource.into();
        check_resource(&resource)?;
        Ok(GroupVersionResource { group_version, resource })
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

    /// The resource.
    pub fn resource(&self) -> &str {
        &self.resource
    }

    /// The same resource without its version.
    pub fn group_resource(&self) -> GroupResource {
        GroupResource::of(self)
    }
}

impl fmt::Display for GroupVersionResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.resource, self.version())?;
        if !self.group().is_empty() {
            write!(f, ".{}", self.group())?;
        }
        Ok(())
    }
}

impl FromStr for GroupVersionResource {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let mut parts = text.splitn(3, '.');
        match (parts.next(), parts.next(), parts.next()) {
            (Some(resource), Some(version), group) => {
                GroupVersionResource::new(GroupVersion::new(group.unwrap_or_default(), version)?, resource)
            }
            _ => Err(InvalidName::Form { text: text.to_owned(), form: "<resource>.<version>[.<group>]" }),
        }
    }
}

serialise_as_text!(GroupVersionResource);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsing_and_formatting_are_inverse() {
        for (text, group, version, resource) in
            [("pods.v1", "", "v1", "pods"), ("leases.v1.coordination.k8s.io", "coordination.k8s.io", "v1", "leases")]
        {
            let parsed: GroupVersionResource = text.parse().unwrap();
            assert_eq!((parsed.group(), parsed.version(), parsed.resource()), (group, version, resource));
            assert_eq!(parsed.to_string(), text);
        }
        // kubectl writes the core group as a trailing dot.
        assert_eq!("pods.v1.".parse::<GroupVersionResource>().unwrap().to_string(), "pods.v1");
    }

    #[test]
    fn the_version_can_be_left_out() {
        let parsed: GroupVersionResource = "leases.v1.coordination.k8s.io".parse().unwrap();
        assert_eq!(parsed.group_resource().to_string(), "leases.coordination.k8s.io");
    }

    #[test]
    fn invalid_resources_are_refused() {
        for text in ["", "pods", "Pods.v1", "pods/status.v1", "pods.1.apps"] {
            assert!(text.parse::<GroupVersionResource>().is_err(), "{text:?} was accepted");
        }
    }
}
