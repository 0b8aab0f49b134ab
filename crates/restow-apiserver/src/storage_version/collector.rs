//! The task that removes what servers leave behind. Every server runs it, and one of them, the leader, acts.
//!
//! Leadership only saves work: each removal names what it rests on as preconditions, so two leaders do no harm.

use super::identity::Tenure;
use super::lease_watch::{self, Leases, watch_one};
use super::{Agreement, AgreementError, Standing, elections, keys};
use crate::storage::watch_cache::{Subscription, WatchCache};
use jiff::Timestamp;
use restow_api::internal_apiserver::StorageVersion;
use restow_api::{MicroTime, ResourceVersion, ServerId, Time};
use restow_clock::Moment;
use restow_rules::LeaseWatch;
use restow_rules::collect::{CollectEffect, CollectSnapshot, MOST_DROPPED, plan};
use restow_store::{Compare, KeyRange, RangeRequest, Revision, Txn, TxnOutcome};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// The lease of the leader.
const LEADER: &str = "storage-version-collector";
/// How long the leader leads without saying that it is alive.
const LEADERSHIP: Duration = Duration::from_secs(5);
/// How often it says so.
const RENEWAL: Duration = Duration::from_millis(1900);
/// How often everybody looks.
const BREATH: Duration = Duration::from_secs(1);
/// After this many looks without anything new, everything is read all the same.
const THOROUGH: u32 = 30;

/// How often it is begun anew at once where there is more than fits into one transaction.
const MOST_ROUNDS: usize = 50;

/// Collects until the server leaves.
pub(crate) async fn collect_regularly(agreement: Arc<Agreement>, watch_cache: Arc<WatchCache>) {
    let mut collector = Collector {
        agreement: &agreement,
        watch: LeaseWatch::default(),
        leader: LeaseWatch::default(),
        renewed: None,
        known: Vec::new(),
        idle: 0,
    };
    let mut subscription = subscribe(&watch_cache);
    loop {
        wait(&watch_cache, &mut subscription).await;
        let tenure = match agreement.standing() {
            Standing::Member(tenure) => tenure,
            Standing::Left => return,
            Standing::Outside { .. } | Standing::Unmanaged => continue,
        };
        if let Err(error) = collector.pass(&tenure).await {
            tracing::warn!(reason = error.chain(), "leftovers of other servers could not be collected; trying again");
        }
    }
}

/// How much of what there was to do was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Collection {
    Complete,
    /// There was more than fits into one transaction.
    Partial,
    /// Somebody else was faster.
    Refused,
}

struct Collector<'a> {
    agreement: &'a Agreement,
    /// What is known of everybody's leases. Who does not lead watches too, and can act as soon as it does.
    watch: LeaseWatch,
    /// What is known of the leader's lease.
    leader: LeaseWatch,
    /// When this server last said that it leads.
    renewed: Option<Moment>,
    /// The leases that there were when everything was in order.
    known: Vec<ServerId>,
    idle: u32,
}

impl Collector<'_> {
    async fn pass(&mut self, tenure: &Tenure) -> Result<(), AgreementError> {
        let leases = self.read_leases().await?;
        if !self.lead(tenure).await? {
            // Whoever takes over begins with a thorough look.
            self.known.clear();
            return Ok(());
        }
        let overdue = leases.to_collect(&self.watch).0.iter().any(|lease| lease.expired);
        self.idle += 1;
        if !overdue && self.known == leases.names() && self.idle < THOROUGH {
            return Ok(());
        }
        let mut complete = self.collect(tenure).await?;
        for _ in 0..MOST_ROUNDS {
            if complete != Collection::Partial {
                break;
            }
            complete = self.collect(tenure).await?;
        }
        let votes_complete = elections::collect(self.agreement, tenure).await?;
        let complete = complete == Collection::Complete && votes_complete;
        self.idle = 0;
        self.known = if complete { leases.names() } else { Vec::new() };
        Ok(())
    }

    async fn read_leases(&mut self) -> Result<Leases, AgreementError> {
        let leases = Leases::read(self.agreement.store.as_ref()).await?;
        leases.tell(&mut self.watch);
        Ok(leases)
    }

    /// Reads, decides and acts. Tells how much of what there was to do could be done.
    async fn collect(&mut self, tenure: &Tenure) -> Result<Collection, AgreementError> {
        let store = &self.agreement.store;
        let nobody_joined = lease_watch::nobody_joined(store.as_ref()).await?;
        let listed = store.range(RangeRequest::prefix(keys::STORAGE_VERSIONS)).await?;
        // An object that cannot be read is left to whoever can mend it; the others are not to suffer from it.
        let storage_versions = listed.entries.iter().filter_map(|entry| keys::read(entry).ok()).collect();
        let (mut leases, unread) = self.read_leases().await?.to_collect(&self.watch);
        // A server that acts here is alive, however long its own lease was not renewed.
        let own = &self.agreement.config.identity;
        for lease in leases.iter_mut().filter(|lease| lease.id == *own) {
            lease.expired = false;
        }
        let snapshot = CollectSnapshot { storage_versions, leases: Some(leases), unread };
        let (mut complete, mut partial) = (true, false);
        for effect in plan(&snapshot, Timestamp::now()) {
            partial |= matches!(&effect, CollectEffect::UpdateStorageVersion { absent_leases, .. }
                if absent_leases.len() >= MOST_DROPPED);
            complete &= self.act(tenure, effect, &snapshot, &nobody_joined).await?;
        }
        Ok(match (complete, partial) {
            (true, true) => Collection::Partial,
            (true, false) => Collection::Complete,
            (false, _) => Collection::Refused,
        })
    }

    async fn act(
        &self,
        tenure: &Tenure,
        effect: CollectEffect,
        snapshot: &CollectSnapshot,
        nobody_joined: &Compare,
    ) -> Result<bool, AgreementError> {
        let txn = match effect {
            CollectEffect::DeleteLease { id, revision } => {
                tracing::warn!(identity = %id, "an API server stopped renewing its identity lease; it may not write any more");
                let key = keys::lease_key(id.as_str())?;
                Txn::new().when(Compare::mod_revision(&key, number(Some(&revision)))).delete(&key)
            }
            CollectEffect::UpdateStorageVersion { name, revision, absent_leases, status } => {
                let key = keys::key(format!("{}{name}", keys::STORAGE_VERSIONS))?;
                let Some(found) = snapshot.storage_versions.iter().find(|object| object.metadata.name == name) else {
                    return Ok(false);
                };
                let object = StorageVersion { status, ..found.clone() };
                let value = keys::written(serde_json::to_value(&object).unwrap_or_default())?;
                let txn = Txn::new().when(Compare::mod_revision(&key, number(revision.as_ref()))).put(&key, value);
                without(txn.when(nobody_joined.clone()), &absent_leases)?
            }
            CollectEffect::DeleteStorageVersion { name, revision, absent_leases } => {
                let key = keys::key(format!("{}{name}", keys::STORAGE_VERSIONS))?;
                let txn = Txn::new().when(Compare::mod_revision(&key, number(revision.as_ref()))).delete(&key);
                without(txn, &absent_leases)?
            }
        };
        let outcome = self.agreement.store.txn(txn.when(tenure.fence.clone())).await?;
        Ok(matches!(outcome, TxnOutcome::Committed { .. }))
    }

    /// Leads, if nobody else does. Tells whether this server is the leader now.
    async fn lead(&mut self, tenure: &Tenure) -> Result<bool, AgreementError> {
        let store = &self.agreement.store;
        let key = keys::lease_key(LEADER)?;
        let found = watch_one(store.as_ref(), LEADER, &mut self.leader).await?;
        let lease = found.as_ref().map(|found| found.lease.clone()).unwrap_or_default();
        let own = lease.is_held_by(&self.agreement.holder);
        if !own && found.as_ref().is_some_and(|found| !found.expired) {
            return Ok(false);
        }
        if own && self.renewed.is_some_and(|renewed| renewed.elapsed() < RENEWAL) {
            return Ok(true);
        }
        let (now, begun) = (Timestamp::now(), Moment::now());
        let mut metadata = serde_json::to_value(&lease.metadata).unwrap_or_default();
        metadata["name"] = LEADER.into();
        metadata["namespace"] = "kube-system".into();
        if lease.metadata.uid.is_empty() {
            metadata["uid"] = uuid::Uuid::new_v4().to_string().into();
            metadata["creationTimestamp"] = json!(Time::new(now));
        }
        let transitions = lease.spec.lease_transitions.unwrap_or_default() + i64::from(!own);
        let acquired = lease.spec.acquire_time.filter(|_| own).unwrap_or_else(|| MicroTime::new(now));
        let value = keys::written(json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata,
            "spec": {
                "holderIdentity": self.agreement.holder, "leaseDurationSeconds": LEADERSHIP.as_secs(),
                "acquireTime": acquired, "renewTime": MicroTime::new(now), "leaseTransitions": transitions,
            },
        }))?;
        let revision = found.map_or(Revision::ZERO, |found| found.entry.mod_revision);
        let txn = Txn::new().when(Compare::mod_revision(&key, revision)).when(tenure.fence.clone()).put(&key, value);
        let leads = matches!(store.txn(txn).await?, TxnOutcome::Committed { .. });
        self.renewed = leads.then_some(begun);
        Ok(leads)
    }
}

/// The transaction under the condition that none of these leases exists.
fn without(mut txn: Txn, leases: &[String]) -> Result<Txn, AgreementError> {
    for id in leases {
        txn = txn.when(Compare::absent(&keys::lease_key(id)?));
    }
    Ok(txn)
}

/// The revision that a resource version stands for; one that no object has where it is missing.
fn number(revision: Option<&ResourceVersion>) -> Revision {
    Revision::new(revision.and_then(|revision| revision.as_str().parse().ok()).unwrap_or(u64::MAX))
}

fn subscribe(watch_cache: &WatchCache) -> Option<Subscription> {
    watch_cache.subscribe(keys::LEASE_FOLDER, KeyRange::prefix(keys::LEASES), watch_cache.reached()).ok()
}

/// Waits until a lease is deleted, or for a moment.
async fn wait(watch_cache: &WatchCache, subscription: &mut Option<Subscription>) {
    let Some(leases) = subscription else {
        tokio::time::sleep(BREATH).await;
        *subscription = subscribe(watch_cache);
        return;
    };
    let deletion = async {
        loop {
            match leases.next().await {
                Ok((events, _)) if events.iter().any(|event| event.current.is_none()) => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    };
    if let Ok(false) = tokio::time::timeout(BREATH, deletion).await {
        *subscription = None;
    }
}
