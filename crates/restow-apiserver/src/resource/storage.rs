//! How the objects of a resource are stored: their keys, the version in which they are written, and the conditions of a
//! write.
//!
//! The component that defines a resource (built-in table or CRD) sets its version and fences. Whether this server may
//! write at all is its [`Membership`], which only the agreement between servers sets.

use crate::resource::write_gate::WriteGate;
use restow_api::{GroupResource, GroupVersion};
use restow_rules::ServerReport;
use restow_store::{Compare, InvalidKey, Key, KeyRange};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// How the objects of a resource are stored.
pub struct Storage {
    /// The group and resource in the keys of the objects. Two resources that share objects have the same one.
    pub location: GroupResource,
    /// The versions in which stored objects can be decoded.
    pub decodable: Vec<GroupVersion>,
    /// The version that this release prefers.
    pub preferred: GroupVersion,
    /// The encoding in force, and the gate that changes it.
    write_gate: Arc<WriteGate>,
    /// Whether an object was found that cannot be decoded.
    has_undecodable: AtomicBool,
}

/// The version in which objects are written, and all conditions of a write in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoding {
    /// The version.
    pub version: GroupVersion,
    /// Conditions on the store for a write in this version, besides the membership of this server.
    pub fences: Vec<Fence>,
    /// Whether this server may write.
    pub membership: Membership,
}

/// A condition on the store for a write. The variant determines what happens if it fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fence {
    /// The in-force key of the CRD has the storage version that this server uses. If not, the reflector of this server
    /// will see another one soon.
    InForce(Compare),
    /// The version that was selected by vote is still this one. If not, this server reads the selection again.
    Selected(Compare),
    /// The identity lease is the one that this server reported under. If not, it has to report again.
    Lease(Compare),
}

/// Whether a server may write a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Membership {
    /// It may. Storage versions are not reported, so other servers do not know its version.
    Unmanaged,
    /// It may not, until it has reported its storage version. The report is in progress, so writes wait for it.
    Pending,
    /// It may, while this condition holds: the identity lease is the one that the server reported under.
    Registered(Compare),
    /// It may not, for this reason. Writes do not wait.
    Refused(String),
}

impl Storage {
    /// Objects at `location`, written in `encoding` and decoded from any of `decodable`. Writes have no fences.
    pub fn new(location: GroupResource, encoding: GroupVersion, decodable: Vec<GroupVersion>) -> Self {
        let preferred = encoding.clone();
        let encoding = Encoding { version: encoding, fences: Vec::new(), membership: Membership::Unmanaged };
        Storage {
            location,
            decodable,
            preferred,
            write_gate: Arc::new(WriteGate::new(encoding)),
            has_undecodable: false.into(),
        }
    }

    /// The same objects with another preferred version and other decodable versions. They share the write gate.
    pub(crate) fn redefined(&self, preferred: GroupVersion, decodable: Vec<GroupVersion>) -> Self {
        let (location, write_gate) = (self.location.clone(), self.write_gate.clone());
        Storage { location, decodable, preferred, write_gate, has_undecodable: false.into() }
    }

    /// The gate of all writes of these objects.
    pub(crate) fn write_gate(&self) -> &WriteGate {
        &self.write_gate
    }

    /// Whether an object was found that cannot be decoded, and no complete list has succeeded since.
    pub(crate) fn has_undecodable(&self) -> bool {
        self.has_undecodable.load(Ordering::Relaxed)
    }

    /// Records whether an object was found that cannot be decoded.
    pub(crate) fn set_has_undecodable(&self, has_undecodable: bool) {
        self.has_undecodable.store(has_undecodable, Ordering::Relaxed);
    }

    /// The encoding in force now.
    pub fn encoding(&self) -> Arc<Encoding> {
        self.write_gate.encoding()
    }

    /// Sets another version with its fences for new writes. The grant for an earlier version does not apply to it:
    /// writes wait until the new version was reported.
    pub fn set_encoding(&self, version: GroupVersion, fences: Vec<Fence>) {
        self.write_gate.replace(|encoding| {
            let membership = match &encoding.membership {
                Membership::Registered(_) if encoding.version != version => Membership::Pending,
                other => other.clone(),
            };
            Encoding { version, fences, membership }
        });
    }

    /// Allows this server to write in the version that it has reported, while `lease` holds. If another version came
    /// into force during the report, writes wait until that one was reported. Returns whether this server may write.
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

    /// Makes writes wait for the report of a new resource.
    pub(crate) fn await_report(&self) {
        self.write_gate.replace(|encoding| match encoding.membership {
            Membership::Unmanaged => Encoding { membership: Membership::Pending, ..encoding.clone() },
            _ => encoding.clone(),
        });
    }

    /// Sets whether this server may write, for new writes.
    pub(crate) fn set_membership(&self, membership: Membership) {
        self.write_gate.replace(|encoding| Encoding { membership, ..encoding.clone() });
    }

    /// Completes when the encoding is not `known` any more.
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

    /// The common prefix of the keys, with a slash at its end.
    pub fn folder(&self) -> String {
        let group = match self.location.group() {
            "" => "core",
            group => group,
        };
        format!("/{group}/{}/", self.location.resource())
    }
}

impl Encoding {
    /// All fences of a write in this version.
    pub fn comparisons(&self) -> Vec<Fence> {
        let mut comparisons = self.fences.clone();
        if let Membership::Registered(lease) = &self.membership {
            comparisons.push(Fence::Lease(lease.clone()));
        }
        comparisons
    }
}

impl Fence {
    /// The comparison in the transaction.
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
    fn a_grant_applies_only_to_the_reported_version() {
        let storage = Storage::new("widgets.example.com".parse().unwrap(), version("v1"), Vec::new());
        let lease = Compare::absent(&Key::try_from("/lease").unwrap());
        storage.await_report();
        let reported = report("v1");
        storage.set_encoding(version("v2"), Vec::new());
        assert!(!storage.grant(&reported, &lease), "the version changed during the report");
        assert_eq!(storage.encoding().membership, Membership::Pending);
        assert!(storage.grant(&report("v2"), &lease));
        assert_eq!(storage.encoding().membership, Membership::Registered(lease.clone()));
        storage.set_encoding(version("v2"), vec![Fence::InForce(lease.clone())]);
        assert_eq!(
            storage.encoding().membership,
            Membership::Registered(lease),
            "a new fence does not change the version"
        );
        storage.set_encoding(version("v1"), Vec::new());
        assert_eq!(storage.encoding().membership, Membership::Pending, "the grant was for v2");
        storage.await_report();
        assert_eq!(storage.encoding().membership, Membership::Pending);
    }
}
