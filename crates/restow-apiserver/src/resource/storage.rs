//! How the objects of a resource are stored: where they lie, in which version they are written, and what must hold in the
//! store for such a write to be allowed.
//!
//! Whoever defines a resource sets its version and the fences that belong to it. Whether this server may write at all is
//! another matter, its [`Membership`], and is set by the agreement between servers alone.

use crate::resource::write_gate::WriteGate;
use restow_api::{GroupResource, GroupVersion};
use restow_rules::ServerReport;
use restow_store::{Compare, InvalidKey, Key, KeyRange};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// How the objects of a resource are stored.
pub struct Storage {
    /// The group and resource under which the objects lie; another resource's where two share one storage.
    pub location: GroupResource,
    /// The versions that stored objects can be read in.
    pub decodable: Vec<GroupVersion>,
    /// The version that this release would write if it were alone.
    pub preferred: GroupVersion,
    /// The version that objects are written in now, what must hold for a write in it, and how it is changed.
    write_gate: Arc<WriteGate>,
    /// Whether an object was met that cannot be read.
    troubled: AtomicBool,
}

/// The version that objects are written in, with everything that a write in it depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoding {
    /// The version.
    pub version: GroupVersion,
    /// What must hold in the store for a write in this version, besides the membership of this server.
    pub fences: Vec<Fence>,
    /// Whether this server may write.
    pub membership: Membership,
}

/// Something that must hold in the store for a write, and what it means when it does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fence {
    /// The definition of the resource has the storage version that its handler was made from. Else another one is in force,
    /// which this server is about to hear of.
    InForce(Compare),
    /// The version that was selected by vote is still this one. Else this server has to look again.
    Selected(Compare),
    /// The identity lease is the one that this server reported under. Else it has to report again.
    Lease(Compare),
}

/// Whether a server may write a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Membership {
    /// Storage versions are not reported: it may, and nobody will know in which version.
    Unmanaged,
    /// It may not, until it has reported its storage version. That is under way, so writes wait for it.
    Pending,
    /// It may, as long as this holds: that the server's identity lease is the one that it reported under.
    Registered(Compare),
    /// It may not, for this reason, and waiting does not help.
    Refused(String),
}

impl Storage {
    /// Objects at `location`, written in `encoding` and read in any of `decodable`. Nothing is compared on writing.
    pub fn new(location: GroupResource, encoding: GroupVersion, decodable: Vec<GroupVersion>) -> Self {
        let preferred = encoding.clone();
        let encoding = Encoding { version: encoding, fences: Vec::new(), membership: Membership::Unmanaged };
        Storage {
            location,
            decodable,
            preferred,
            write_gate: Arc::new(WriteGate::new(encoding)),
            troubled: false.into(),
        }
    }

    /// The same objects, with another preferred version and read in other versions; their writes go the same way.
    pub(crate) fn redefined(&self, preferred: GroupVersion, decodable: Vec<GroupVersion>) -> Self {
        let (location, write_gate) = (self.location.clone(), self.write_gate.clone());
        Storage { location, decodable, preferred, write_gate, troubled: false.into() }
    }

    /// The way that writes of these objects go.
    pub(crate) fn write_gate(&self) -> &WriteGate {
        &self.write_gate
    }

    /// Whether an object was met that cannot be read, and all of them have not been read since.
    pub(crate) fn is_troubled(&self) -> bool {
        self.troubled.load(Ordering::Relaxed)
    }

    /// An object was met that cannot be read, or all of them were read.
    pub(crate) fn set_troubled(&self, troubled: bool) {
        self.troubled.store(troubled, Ordering::Relaxed);
    }

    /// The encoding in force now.
    pub fn encoding(&self) -> Arc<Encoding> {
        self.write_gate.encoding()
    }

    /// Puts another version with its fences in force, for the writes that begin from now on. What was granted for another
    /// version does not count for this one: it has to be reported first, and whoever writes waits for that.
    pub fn set_encoding(&self, version: GroupVersion, fences: Vec<Fence>) {
        self.write_gate.replace(|encoding| {
            let membership = match &encoding.membership {
                Membership::Registered(_) if encoding.version != version => Membership::Pending,
                other => other.clone(),
            };
            Encoding { version, fences, membership }
        });
    }

    /// Lets this server write in the version that it has reported, as long as `lease` holds. Where another version came into
    /// force while the report was under way, writes wait: that one has yet to be reported. Tells whether it may write.
    pub(crate) fn grant(&self, report: &ServerReport, lease: &Compare) -> bool {
        let mut granted = false;
        self.write_gate.replace(|encoding| {
            granted = report.lets_write(&encoding.version);
            let membership = match &encoding.membership {
                _ if granted => Membership::Registered(lease.clone()),
                Membership::Registered(_) => Membership::Pending,
                other => other.clone(),
            };
            Encoding { membership, ..encoding.clone() }
        });
        granted
    }

    /// Lets writes wait for the report of a resource that is new.
    pub(crate) fn await_report(&self) {
        self.write_gate.replace(|encoding| match encoding.membership {
            Membership::Unmanaged => Encoding { membership: Membership::Pending, ..encoding.clone() },
            _ => encoding.clone(),
        });
    }

    /// Says whether this server may write, for the writes that begin from now on.
    pub(crate) fn set_membership(&self, membership: Membership) {
        self.write_gate.replace(|encoding| Encoding { membership, ..encoding.clone() });
    }

    /// Completes when another encoding than `known` is in force.
    pub(crate) async fn changed_from(&self, known: &Arc<Encoding>) {
        self.write_gate.changed_from(known).await;
    }

    /// The key of one object.
    pub fn key(&self, namespace: &str, name: &str) -> Result<Key, InvalidKey> {
        match namespace {
            "" => Key::try_from(format!("{}{name}", self.folder())),
            namespace => Key::try_from(format!("{}{namespace}/{name}", self.folder())),
        }
    }

    /// The keys of all objects, or of those in one namespace.
    pub fn range(&self, namespace: &str) -> KeyRange {
        match namespace {
            "" => KeyRange::prefix(self.folder()),
            namespace => KeyRange::prefix(format!("{}{namespace}/", self.folder())),
        }
    }

    /// The start of every key, with a slash at its end.
    pub fn folder(&self) -> String {
        let group = match self.location.group() {
            "" => "core",
            group => group,
        };
        format!("/{group}/{}/", self.location.resource())
    }
}

impl Encoding {
    /// Everything that a write in this version compares.
    pub fn comparisons(&self) -> Vec<Fence> {
        let mut comparisons = self.fences.clone();
        if let Membership::Registered(lease) = &self.membership {
            comparisons.push(Fence::Lease(lease.clone()));
        }
        comparisons
    }
}

impl Fence {
    /// What is compared.
    pub fn compare(&self) -> &Compare {
        match self {
            Fence::InForce(compare) | Fence::Selected(compare) | Fence::Lease(compare) => compare,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> GroupVersion {
        GroupVersion::new("example.com", text).unwrap()
    }

    fn report(encoding: &str) -> ServerReport {
        let both = [version("v1"), version("v2")];
        ServerReport::new("a".parse().unwrap(), version(encoding), both, []).unwrap()
    }

    #[test]
    fn a_grant_belongs_to_the_version_that_was_reported() {
        let storage = Storage::new("widgets.example.com".parse().unwrap(), version("v1"), Vec::new());
        let lease = Compare::absent(&Key::try_from("/lease").unwrap());
        storage.await_report();
        let reported = report("v1");
        storage.set_encoding(version("v2"), Vec::new());
        assert!(!storage.grant(&reported, &lease), "the version changed while the report was under way");
        assert_eq!(storage.encoding().membership, Membership::Pending);
        assert!(storage.grant(&report("v2"), &lease));
        assert_eq!(storage.encoding().membership, Membership::Registered(lease.clone()));
        storage.set_encoding(version("v2"), vec![Fence::InForce(lease.clone())]);
        assert_eq!(storage.encoding().membership, Membership::Registered(lease), "another fence is no other version");
        storage.set_encoding(version("v1"), Vec::new());
        assert_eq!(storage.encoding().membership, Membership::Pending, "what was granted was granted for v2");
        storage.await_report();
        assert_eq!(storage.encoding().membership, Membership::Pending);
    }
}
