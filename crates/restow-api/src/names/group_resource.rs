//! A resource without its version. It has one storage, one storage version and one migration at a time.

use super::{GroupVersionResource, InvalidName, check_group, check_resource, serialise_as_text};
use std::fmt;
use std::str::FromStr;

/// A group and a resource: "pods" in the core group, "deployments.apps" in another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupResource {
    group: String,
    resource: String,
}

impl GroupResource {
    /// Checks both parts. An empty group is the core group.
    pub fn new(group: impl Into<String>, resource: impl Into<String>) -> Result<Self, InvalidName> {
        let (group, resource) = (group.into(), resource.into());
        check_group(&group)?;
        check_resource(&resource)?;
        Ok(GroupResource { group, resource })
    }

    /// A versioned resource without its version.
    pub(super) fn of(versioned: &GroupVersionResource) -> Self {
        GroupResource { group: versioned.group().to_owned(), resource: versioned.resource().to_owned() }
    }

    /// The group; empty for the core group.
    pub fn group(&self) -> &str {
        &self.group
    }

    /// The resource.
    pub fn resource(&self) -> &str {
        &self.resource
    }
}

impl fmt::Display for GroupResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.resource)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        Ok(())
    }
}

impl FromStr for GroupResource {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        match text.split_once('.') {
            None => GroupResource::new("", text),
            Some((resource, group)) if !group.is_empty() => GroupResource::new(group, resource),
            Some(_) => Err(InvalidName::Form { text: text.to_owned(), form: "<resource>[.<group>]" }),
        }
    }
}

serialise_as_text!(GroupResource);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsing_and_formatting_are_inverse() {
        for (text, group, resource) in
            [("pods", "", "pods"), ("ingresses.networking.k8s.io", "networking.k8s.io", "ingresses")]
        {
            let parsed: GroupResource = text.parse().unwrap();
            assert_eq!((parsed.group(), parsed.resource()), (group, resource));
            assert_eq!(parsed.to_string(), text);
        }
    }

    #[test]
    fn invalid_resources_are_refused() {
        for text in ["", ".", "pods.", ".apps", "Pods", "pods/status", "pods.Apps"] {
            assert!(text.parse::<GroupResource>().is_err(), "{text:?} was accepted");
        }
    }
}
