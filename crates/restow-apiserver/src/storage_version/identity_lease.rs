//! The identity lease of this server: take, renew and release it.
//!
//! Every write of this server compares the revision at which the lease's key was *created*. Taking the lease always deletes
//! and creates the key, so that writes in flight of an earlier process of this instance fail.

use super::lease_watch::{ADDRESS_ANNOTATION, COMPONENT, IDENTITY_LABEL, watch_one};
use super::{Agreement, AgreementError, keys};
use jiff::Timestamp;
use restow_api::{MicroTime, Time};
use restow_rules::LeaseWatch;
use restow_rules::migrate::api_servers::FENCED_WRITES_LABEL;
use restow_store::{Compare, Key, StoreExt, Txn, TxnOutcome};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// How many times taking the lease is tried when others write it at the same time.
const ATTEMPTS: usize = 10;

/// The identity lease that this server holds.
#[derive(Clone, Debug)]
pub(super) struct HeldLease {
    /// The key of the lease.
    pub(super) key: Key,
    /// The comparison in every write of this server: the lease is still this one.
    pub(super) fence: Compare,
    pub(super) uid: String,
    since: Timestamp,
}

/// Which lease may be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takeover {
    /// Any: a server that starts replaces the lease of its earlier process, which may still run.
    Always,
    /// An expired one, or its own: a server that lost its lease may be the earlier process itself.
    Abandoned,
}

/// The result of renewing the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Renewal {
    /// The lease was renewed.
    Renewed,
    /// The lease was deleted or replaced.
    Lost,
}

/// Whether the lease of a server that leaves is gone, so that none of its writes can be committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Released {
    Yes,
    Unknown,
}

impl Agreement {
    /// Deletes and creates the lease's key. `watch` observes that key across attempts.
    pub(super) async fn take_lease(
        &self,
        takeover: Takeover,
        watch: &mut LeaseWatch,
    ) -> Result<HeldLease, AgreementError> {
        let key = keys::lease_key(self.config.identity.as_str())?;
        for _ in 0..ATTEMPTS {
            if let Some(found) = watch_one(self.store.as_ref(), self.config.identity.as_str(), watch).await? {
                let abandoned = found.expired || found.lease.is_held_by(&self.holder);
                if takeover == Takeover::Abandoned && !abandoned {
                    return Err(AgreementError::IdentityTaken(self.config.identity.clone()));
                }
                let removal = Txn::new().when(Compare::mod_revision(&key, found.entry.mod_revision)).delete(&key);
                self.store.txn(removal).await?;
            }
            let (uid, since) = (restow_host::uuid().to_string(), restow_host::now());
            let value = keys::encode(self.lease(&uid, since))?;
            let joined = keys::key(keys::JOINED.to_string())?;
            let creation =
                Txn::new().when(Compare::absent(&key)).put(&key, value).put(&joined, self.config.identity.to_string());
            if let TxnOutcome::Committed { revision } = self.store.txn(creation).await? {
                self.alarm.renewed(&key, revision);
                return Ok(HeldLease { fence: Compare::create_revision(&key, revision), key, uid, since });
            }
        }
        Err(AgreementError::IdentityTaken(self.config.identity.clone()))
    }

    /// Renews the lease.
    pub(super) async fn renew_lease(&self, held_lease: &HeldLease) -> Result<Renewal, AgreementError> {
        let value = keys::encode(self.lease(&held_lease.uid, held_lease.since))?;
        let mut renewal = Txn::new().when(held_lease.fence.clone()).put(&held_lease.key, value);
        renewal.when.extend(self.alarm.renewal());
        match self.store.txn(renewal).await? {
            TxnOutcome::Committed { revision } => {
                self.alarm.renewed(&held_lease.key, revision);
                Ok(Renewal::Renewed)
            }
            TxnOutcome::Refused { .. } => Ok(Renewal::Lost),
        }
    }

    /// Whether the lease is still this one, and its last renewal is in the store.
    pub(super) async fn holds_lease(&self, held_lease: &HeldLease) -> Result<bool, AgreementError> {
        let found = self.store.get(&held_lease.key).await?;
        let holds = |compare: &Compare| compare.holds(found.as_ref());
        Ok(holds(&held_lease.fence) && self.alarm.renewal().is_none_or(|renewal| holds(&renewal)))
    }

    /// Deletes the lease, so that the other servers need not wait until it expires.
    pub(super) async fn release_lease(&self, held_lease: &HeldLease) -> Result<Released, AgreementError> {
        // Where it is refused, the lease was deleted or replaced before.
        self.store.txn(Txn::new().when(held_lease.fence.clone()).delete(&held_lease.key)).await?;
        Ok(Released::Yes)
    }

    fn lease(&self, uid: &str, since: Timestamp) -> Value {
        let annotations: BTreeMap<&str, SocketAddr> =
            self.config.advertised.iter().map(|address| (ADDRESS_ANNOTATION, *address)).collect();
        json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": self.config.identity,
                "namespace": "kube-system",
                "uid": uid,
                "creationTimestamp": Time::new(since),
                "annotations": annotations,
                "labels": {
                    IDENTITY_LABEL: COMPONENT,
                    "kubernetes.io/hostname": self.config.hostname,
                    // Every write of this server compares this lease, so the migrator may trust its reports.
                    FENCED_WRITES_LABEL: "true",
                },
            },
            "spec": {
                "holderIdentity": self.holder,
                "leaseDurationSeconds": self.config.lease_duration.as_secs().max(1),
                "renewTime": MicroTime::new(restow_host::now()),
            },
        })
    }
}

impl HeldLease {
    /// No lease: the fence holds while the key is absent.
    pub(super) fn none(key: Key) -> Self {
        HeldLease { fence: Compare::absent(&key), key, uid: String::new(), since: Timestamp::UNIX_EPOCH }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gates::Gates;
    use crate::storage::fence_alarm::FenceAlarm;
    use crate::storage_version::AgreementConfig;
    use restow_store::Store;
    use restow_store::conformance::{Model, ModelStore};
    use std::sync::Arc;

    /// Whether a server still holds its lease after it was renewed and the store was changed.
    async fn check(what: &str, expected: bool, change: impl AsyncFnOnce(&ModelStore, &Key, Model)) {
        let store = Arc::new(ModelStore::default());
        let config = AgreementConfig::new("a".parse().unwrap(), "host", &Gates::default());
        let agreement = Agreement::new(config, store.clone(), Arc::new(FenceAlarm::default()), &[]);
        let held_lease = agreement.take_lease(Takeover::Always, &mut LeaseWatch::default()).await.unwrap();
        let backup = store.back_up();
        assert_eq!(agreement.renew_lease(&held_lease).await.unwrap(), Renewal::Renewed);
        change(&store, &held_lease.key, backup).await;
        assert_eq!(agreement.holds_lease(&held_lease).await.unwrap(), expected, "{what}");
    }

    #[tokio::test]
    async fn a_lease_is_held_until_it_is_deleted_replaced_or_restored_from_a_backup() {
        check("renewed", true, async |_, _, _| {}).await;
        check("deleted", false, async |store, key, _| {
            store.txn(Txn::new().delete(key)).await.unwrap();
        })
        .await;
        check("replaced", false, async |store, key, _| {
            store.txn(Txn::new().delete(key)).await.unwrap();
            store.put(key, "another".into()).await.unwrap();
        })
        .await;
        check("restored", false, async |store, _, backup| store.restore(backup)).await;
    }
}
