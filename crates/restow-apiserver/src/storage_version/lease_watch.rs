//! The leases in `kube-system`: which servers take part, and which leases have expired.

use super::{AgreementError, keys};
use crate::storage::key_pages::name_of;
use restow_api::{MicroTime, ObjectMeta, ResourceVersion, ServerId};
use restow_host::since_boot;
use restow_rules::collect::{CONTROL_PLANE_LABEL, IdentityLease, OwnLeases};
use restow_rules::{LeaseWatch, Participants, ReadTime, SeenLease};
use restow_store::{Compare, Entry, RangeRequest, Revision, Store, StoreExt};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// The label of identity leases. Its value names the control plane of the server, unless [`CONTROL_PLANE_LABEL`] does.
pub(super) const IDENTITY_LABEL: &str = "apiserver.kubernetes.io/identity";

/// The label value of the servers on this store.
pub(super) const COMPONENT: &str = "kube-apiserver";
/// The annotation with the address at which other servers reach this one.
pub(super) const ADDRESS_ANNOTATION: &str = "kubernetes.io/peer-advertise-address";

/// The fields of a lease that are used here.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ObservedLease {
    pub(super) metadata: ObjectMeta,
    pub(super) spec: LeaseSpec,
}

/// Who holds a lease, since when and for how long. The renew time is not used: it is from another machine's clock.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct LeaseSpec {
    pub(super) holder_identity: Option<String>,
    pub(super) lease_duration_seconds: Option<i64>,
    pub(super) acquire_time: Option<MicroTime>,
    pub(super) lease_transitions: Option<i64>,
}

/// All leases in `kube-system`, by name.
#[derive(Clone, Debug)]
pub(super) struct Leases {
    /// `None` for a lease that exists but cannot be decoded.
    by_name: BTreeMap<ServerId, Option<(ObservedLease, ResourceVersion)>>,
    read: ReadTime,
}

/// A lease with its stored entry and whether it has expired.
#[derive(Clone, Debug)]
pub(super) struct Watched {
    /// The decoded lease; empty if it cannot be decoded.
    pub(super) lease: ObservedLease,
    pub(super) entry: Entry,
    /// Whether it was observed unchanged for longer than its duration.
    pub(super) expired: bool,
}

impl ObservedLease {
    /// The control plane of the API server that has this identity lease; `None` for other leases.
    pub(super) fn control_plane(&self) -> Option<&str> {
        let labels = &self.metadata.labels;
        let identity = labels.get(IDENTITY_LABEL)?;
        Some(labels.get(CONTROL_PLANE_LABEL).unwrap_or(identity))
    }

    pub(super) fn is_held_by(&self, holder: &str) -> bool {
        self.spec.holder_identity.as_deref() == Some(holder)
    }
}

/// Reads one lease, and records it in `watch`.
pub(super) async fn watch_one(
    store: &dyn Store,
    name: &str,
    watch: &mut LeaseWatch,
) -> Result<Option<Watched>, AgreementError> {
    let asked = since_boot();
    let entry = store.get(&keys::lease_key(name)?).await?;
    let read = ReadTime { asked, answered: since_boot() };
    let Some(entry) = entry else {
        watch.saw([], read);
        return Ok(None);
    };
    let lease = keys::read::<ObservedLease>(&entry).unwrap_or_default();
    let revision = ResourceVersion::new(entry.mod_revision.to_string());
    let seen = SeenLease { name, revision: &revision, duration_seconds: lease.spec.lease_duration_seconds };
    watch.saw([seen], read);
    let expired = watch.is_expired(seen);
    Ok(Some(Watched { lease, entry, expired }))
}

impl Leases {
    /// Reads all leases.
    pub(super) async fn read(store: &dyn Store) -> Result<Self, AgreementError> {
        let asked = since_boot();
        let listed = store.range(RangeRequest::prefix(keys::LEASES)).await?;
        Ok(Self::of(&listed.entries, ReadTime { asked, answered: since_boot() }))
    }

    fn of(entries: &[Entry], read: ReadTime) -> Self {
        let lease = |entry: &Entry| {
            // An invalid lease name is no server id either.
            let id = ServerId::new(name_of(&entry.key)).ok()?;
            let revision = ResourceVersion::new(entry.mod_revision.to_string());
            Some((id, keys::read::<ObservedLease>(entry).ok().map(|lease| (lease, revision))))
        };
        Leases { by_name: entries.iter().filter_map(lease).collect(), read }
    }

    /// Records what was read in `watch`.
    pub(super) fn record_in(&self, watch: &mut LeaseWatch) {
        let known = self.by_name.iter().filter_map(|(id, lease)| lease.as_ref().map(|lease| (id, lease)));
        watch.saw(known.map(|(id, (lease, revision))| seen(id, lease, revision)), self.read);
    }

    /// The participating servers: every server whose lease exists, expired or not. An unreadable lease may be of any server.
    pub(super) fn participants(&self) -> Participants {
        self.by_name.iter().fold(Participants::listed([]), |list, (id, lease)| match lease {
            None => list.with_unread(id.clone()),
            Some((lease, _)) => match lease.control_plane() {
                Some(control_plane) => list.with_server(id.clone(), control_plane),
                None => list.with_lease(id.clone()),
            },
        })
    }

    /// The servers that vote: every API server on this store whose lease exists. An aggregated server has its own store.
    pub(super) fn voters(&self) -> Participants {
        let known = self.by_name.iter().filter(|(_, lease)| lease.as_ref().is_some_and(is_server_here));
        let unread = self.by_name.iter().filter(|(_, lease)| lease.is_none());
        let listed = Participants::listed(known.map(|(id, _)| id.clone()));
        unread.fold(listed, |participants, (id, _)| participants.with_unread(id.clone()))
    }

    /// The addresses of the servers on this store that published one.
    pub(super) fn addresses(&self) -> BTreeSet<SocketAddr> {
        let known = self.by_name.values().flatten().filter(|lease| is_server_here(lease));
        known.filter_map(|(lease, _)| lease.metadata.annotations.get(ADDRESS_ANNOTATION)?.parse().ok()).collect()
    }

    /// The leases as input for the collector, with expiry as `watch` observed it, and the names of unreadable ones.
    pub(super) fn to_collect(&self, watch: &LeaseWatch) -> (Vec<IdentityLease>, Vec<ServerId>) {
        let mut leases = Vec::new();
        let mut unread = Vec::new();
        for (id, lease) in &self.by_name {
            match lease {
                Some((lease, revision)) => {
                    let control_plane = lease.control_plane().map(str::to_owned);
                    // Leases that are no identity leases are never collected.
                    let expired = control_plane.is_some() && watch.is_expired(seen(id, lease, revision));
                    leases.push(IdentityLease { id: id.clone(), control_plane, revision: revision.clone(), expired });
                }
                None => unread.push(id.clone()),
            }
        }
        (leases, unread)
    }

    /// The leases that fence the writes of the servers on this store.
    pub(super) fn own_leases(&self) -> OwnLeases {
        let uids = self.by_name.values().flatten().map(|(lease, _)| lease.metadata.uid.clone()).collect();
        let unread = self.by_name.iter().filter(|(_, lease)| lease.is_none());
        OwnLeases { uids, unread: unread.map(|(id, _)| id.to_string()).collect() }
    }

    /// The names of all leases. They change when servers come or go, not when leases are renewed.
    pub(super) fn names(&self) -> Vec<ServerId> {
        self.by_name.keys().cloned().collect()
    }
}

/// A lease as `LeaseWatch` takes it.
fn seen<'a>(id: &'a ServerId, lease: &ObservedLease, revision: &'a ResourceVersion) -> SeenLease<'a> {
    SeenLease { name: id.as_str(), revision, duration_seconds: lease.spec.lease_duration_seconds }
}

/// Whether a lease is the identity lease of a server on this store.
fn is_server_here((lease, _): &(ObservedLease, ResourceVersion)) -> bool {
    lease.control_plane() == Some(COMPONENT)
}

/// The participating servers, and the comparison that holds until another server joins.
#[derive(Clone, Debug)]
pub(super) struct ServerList {
    pub(super) participants: Participants,
    pub(super) no_server_joined: Option<Compare>,
}

impl ServerList {
    /// The participating servers are not known.
    pub(super) fn unknown() -> Self {
        ServerList { participants: Participants::unreadable(), no_server_joined: None }
    }

    /// The participating servers; unknown if they cannot be read. A failed read never means that a server is gone.
    pub(super) async fn read_or_unknown(store: &dyn Store) -> Self {
        Self::read(store).await.unwrap_or_else(|_| Self::unknown())
    }

    /// Reads the key before the leases, so that the comparison fails if a server joins in between.
    pub(super) async fn read(store: &dyn Store) -> Result<Self, AgreementError> {
        let no_server_joined = Some(no_server_joined(store).await?);
        Ok(ServerList { participants: Leases::read(store).await?.participants(), no_server_joined })
    }
}

/// The comparison that holds until another server joins.
pub(super) async fn no_server_joined(store: &dyn Store) -> Result<Compare, AgreementError> {
    let key = keys::key(keys::JOINED.to_string())?;
    let revision = store.get(&key).await?.map_or(Revision::ZERO, |entry| entry.mod_revision);
    Ok(Compare::mod_revision(&key, revision))
}

#[cfg(test)]
mod tests {
    use super::*;
    use restow_api::internal_apiserver::ServerStorageVersion;
    use restow_store::Key;
    use serde_json::{Value, json};
    use std::time::Duration;

    fn entry(name: &str, value: &str) -> Entry {
        Entry {
            key: Key::try_from(format!("{}{name}", keys::LEASES)).unwrap(),
            value: value.to_string().into(),
            create_revision: Revision::new(3),
            mod_revision: Revision::new(7),
            version: 2,
        }
    }

    fn leases_of(entries: &[Entry], second: u64) -> Leases {
        let time = Duration::from_secs(second);
        Leases::of(entries, ReadTime { asked: time, answered: time })
    }

    fn lease(labels: Value) -> String {
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "x", "labels": labels},
            "spec": {"holderIdentity": "h", "leaseDurationSeconds": 10, "renewTime": "2026-01-01T00:00:00.000000Z"},
        })
        .to_string()
    }

    #[test]
    fn aggregated_servers_participate_but_do_not_vote() {
        let identity = lease(json!({IDENTITY_LABEL: COMPONENT}));
        let aggregated = lease(json!({IDENTITY_LABEL: "garden"}));
        let at = |lease: &str, address: &str| {
            let mut lease: Value = serde_json::from_str(lease).unwrap();
            lease["metadata"]["annotations"] = json!({ADDRESS_ANNOTATION: address});
            lease.to_string()
        };
        let leases =
            leases_of(&[entry("a", &at(&identity, "10.0.0.1:6443")), entry("g", &at(&aggregated, "10.0.0.9:1"))], 0);
        assert_eq!(leases.addresses(), BTreeSet::from(["10.0.0.1:6443".parse().unwrap()]));
        assert_eq!(leases.voters().all().unwrap().len(), 1);
        assert_eq!(leases.participants().all().unwrap().len(), 2);
        let entry = |id: &str| ServerStorageVersion { api_server_id: id.into(), ..ServerStorageVersion::default() };
        assert_eq!(
            leases.participants().without_entry(&[entry("a")]),
            Some(vec![]),
            "each server reports its own resources"
        );
    }

    #[test]
    fn identity_leases_expire_others_do_not_and_unreadable_ones_are_unknown() {
        let identity = lease(json!({IDENTITY_LABEL: "kube-apiserver"}));
        let other = lease(json!({}));
        let entries = [entry("a", &identity), entry("leader", &other), entry("broken", "{")];
        let mut watch = LeaseWatch::default();
        // The renew time in the lease is long past, which does not count.
        let leases = leases_of(&entries, 0);
        leases.record_in(&mut watch);
        assert!(leases.to_collect(&watch).0.iter().all(|lease| !lease.expired));
        (1..=11).for_each(|second| leases_of(&entries, second).record_in(&mut watch));
        let (known, unread) = leases.to_collect(&watch);
        let expired: Vec<(&str, bool)> = known.iter().map(|lease| (lease.id.as_str(), lease.expired)).collect();
        assert_eq!(expired, [("a", true), ("leader", false)]);
        assert_eq!(known[0].revision.as_str(), "7");
        assert_eq!(unread, ["broken".parse().unwrap()]);
        for id in ["a", "leader", "broken"] {
            assert!(!leases.participants().is_gone(id), "{id} takes part as long as its key exists");
        }
    }
}
