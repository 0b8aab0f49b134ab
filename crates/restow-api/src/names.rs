//! The names of versions, kinds and resources, checked at construction.
//!
//! The empty group is the core group. It is written as an empty text ("v1", "pods"), except in the names of
//! StorageVersion objects, where it is "core" (see [`crate::internal_apiserver`]).

mod group_resource;
mod group_version;
mod group_version_kind;
mod group_version_resource;

pub use group_resource::GroupResource;
pub use group_version::GroupVersion;
pub use group_version_kind::GroupVersionKind;
pub use group_version_resource::GroupVersionResource;

use crate::validation::{is_dns1035_label, is_dns1123_subdomain};
use thiserror::Error;

/// Why a text is not a valid name.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum InvalidName {
    /// The text has too few or too many parts.
    #[error("{text:?} is not of the form {form}")]
    Form {
        /// The refused text.
        text: String,
        /// The expected form.
        form: &'static str,
    },
    /// A part is invalid.
    #[error("invalid {part} {text:?}: {reason}")]
    Part {
        /// Which part: group, version, kind or resource.
        part: &'static str,
        /// The refused part.
        text: String,
        /// The violated rule.
        reason: String,
    },
}

/// Checks a group. The empty group is the core group.
fn check_group(group: &str) -> Result<(), InvalidName> {
    if group.is_empty() { Ok(()) } else { check("group", group, is_dns1123_subdomain(group)) }
}

/// Checks a version such as "v1" or "v1beta2".
fn check_version(version: &str) -> Result<(), InvalidName> {
    check("version", version, is_dns1035_label(version))
}

/// Checks a kind such as "Pod". Kubernetes checks kinds like labels, except for their case.
fn check_kind(kind: &str) -> Result<(), InvalidName> {
    check("kind", kind, is_dns1035_label(&kind.to_ascii_lowercase()))
}

/// Checks a plural resource name such as "pods".
fn check_resource(resource: &str) -> Result<(), InvalidName> {
    check("resource", resource, is_dns1035_label(resource))
}

fn check(part: &'static str, text: &str, problems: Vec<String>) -> Result<(), InvalidName> {
    match problems.into_iter().next() {
        None => Ok(()),
        Some(reason) => Err(InvalidName::Part { part, text: text.to_owned(), reason }),
    }
}

/// Implements serialization of a checked name as text; deserialization refuses invalid text.
macro_rules! serialise_as_text {
    ($name:ty) => {
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <String as serde::Deserialize>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
pub(crate) use serialise_as_text;
