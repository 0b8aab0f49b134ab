//! What a server may write, given the selected version.

use restow_api::{GroupResource, GroupVersion};
use std::collections::BTreeSet;
use std::fmt;

/// The versions of one resource that a server can encode and decode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Codec {
    /// The versions that it can store.
    pub encodable: BTreeSet<GroupVersion>,
    /// The versions that it can read from the store.
    pub decodable: BTreeSet<GroupVersion>,
}

/// What a server does with a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Writing {
    /// Store this version, and compare in the transaction that it is still the selected one.
    Encode(GroupVersion),
    /// Store nothing. Reads continue, as far as objects can be decoded.
    RefuseWrites(Refusal),
}

/// Why a server refuses writes to a resource. Its `Display` is the message to the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The resource.
    pub resource: GroupResource,
    /// The selected version, as it is written in the election.
    pub selected: String,
    /// The versions that this server can both store and read.
    pub supported: Vec<GroupVersion>,
}

/// What this server may write. It must be able to decode what it stores.
pub fn writing(resource: &GroupResource, selected: &str, codec: &Codec) -> Writing {
    let mut supported: Vec<GroupVersion> = codec.encodable.intersection(&codec.decodable).cloned().collect();
    match supported.iter().find(|version| version.to_string() == selected) {
        Some(version) => Writing::Encode(version.clone()),
        None => {
            supported.sort_by(GroupVersion::compare_by_priority);
            Writing::RefuseWrites(Refusal { resource: resource.clone(), selected: selected.to_owned(), supported })
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let supported: Vec<String> = self.supported.iter().map(GroupVersion::to_string).collect();
        let supported = if supported.is_empty() { "no version".to_owned() } else { supported.join(", ") };
        write!(
            f,
            "cannot write {}: the API servers store it in {}, and this server supports {supported}; upgrade one release at a \
             time, or finish the upgrade of all API servers",
            self.resource, self.selected
        )
    }
}
