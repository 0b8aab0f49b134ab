//! The task that deletes expired identity leases and the entries of servers that are gone. Every server runs it; only the
//! leader acts.
//!
//! Leader election only saves work: each removal has preconditions, so two leaders do no harm.

use super::identity_lease::HeldLease;
use super::lease_watch::{self, Leases, watch_one};
use super::{Agreement, AgreementError, RegistrationState, elections, keys};
use crate::storage::watch_cache::{Subscription, WatchCache};
use restow_api::internal_apiserver::StorageVersion;
use restow_api::{MicroTime, ResourceVersion, ServerId, Time};
use restow_host::Moment;
use restow_rules::LeaseWatch;
use restow_rules::collect::{CollectEffect, CollectSnapshot, MOST_DROPPED, plan};
use restow_store::{Compare, KeyRange, RangeRequest, Revision, Txn, TxnOutcome};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// The name of the leader lease.
const LEADER_LEASE: &str = "storage-version-collector";
/// The duration of the leader lease.
const LEADER_LEASE_DURATION: Duration = Duration::from_secs(5);
/// How often the leader renews it.
const LEADER_RENEW_INTERVAL: Duration = Duration::from_millis(1900);
/// How often the leases are read.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// After this many passes without a change, everything is read anyway.
const FULL_PASS_AFTER: u32 = 30;

/// How many rounds follow each other where there is more to drop than fits into one transaction.
const MAX_ROUNDS: usize = 50;

/// Runs the collector.
pub(super) async fn run(agreement: Arc<Agreement>, watch_cache: Arc<WatchCache>) {
    let mut collector = Collector {
        agreement: &agreement,
        watch: LeaseWatch::default(),
        leader: LeaseWatch::default(),
        renewed: None,
        collected: Vec::new(),
        idle: 0,
    };
    let mut subscription = subscribe(&watch_cache);
    loop {
        wait(&watch_cache, &mut subscription).await;
        let held_lease = match agreement.state() {
            RegistrationState::Registered(held_lease) => held_lease,
            RegistrationState::Pending { .. } | RegistrationState::Disabled | RegistrationState::Left => continue,
        };
        if let Err(error) = collector.pass(&held_lease).await {
            tracing::warn!(
                reason = error.chain(),
                "expired leases and stale entries could not be collected; trying again"
            );
        }
    }
}

/// How much of a pass was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PassOutcome {
    Complete,
    /// There was more than fits into one transaction.
    Partial,
    /// A precondition failed: another server was faster.
    Refused,
}

struct Collector<'a> {
    agreement: &'a Agreement,
    /// Observes all leases. A server that does not lead observes them too, so that it can act as soon as it leads.
    watch: LeaseWatch,
    /// Observes the leader lease.
    leader: LeaseWatch,
    /// When this server last renewed the leader lease.
    renewed: Option<Moment>,
    /// The leases after the last complete pass.
    collected: Vec<ServerId>,
    idle: u32,
}

impl Collector<'_> {
    async fn pass(&mut self, held_lease: &HeldLease) -> Result<(), AgreementError> {
        let leases = self.read_leases().await?;
        if !self.lead(held_lease).await? {
            // A new leader begins with a full pass.
            self.collected.clear();
            return Ok(());
        }
        let overdue = leases.to_collect(&self.watch).0.iter().any(|lease| lease.expired);
        self.idle += 1;
        if !overdue && self.collected == leases.names() && self.idle < FULL_PASS_AFTER {
            return Ok(());
        }
        let mut complete = self.collect(held_lease).await?;
        for _ in 0..MAX_ROUNDS {
            if complete != PassOutcome::Partial {
                break;
            }
            complete = self.collect(held_lease).await?;
        }
        let votes_complete = elections::collect(self.agreement, held_lease).await?;
        let complete = complete == PassOutcome::Complete && votes_complete;
        self.idle = 0;
        self.collected = if complete { leases.names() } else { Vec::new() };
        Ok(())
    }

    async fn read_leases(&mut self) -> Result<Leases, AgreementError> {
        let leases = Leases::read(self.agreement.store.as_ref()).await?;
        leases.record_in(&mut self.watch);
        Ok(leases)
    }

    /// Reads, decides and acts.
    async fn collect(&mut self, held_lease: &HeldLease) -> Result<PassOutcome, AgreementError> {
        let store = &self.agreement.store;
        let no_server_joined = lease_watch::no_server_joined(store.as_ref()).await?;
        let listed = store.range(RangeRequest::prefix(keys::STORAGE_VERSIONS)).await?;
        // An object that cannot be decoded is skipped; the others are collected.
        let storage_versions = listed.entries.iter().filter_map(|entry| keys::read_with_revision(entry).ok()).collect();
        let (mut leases, unread) = self.read_leases().await?.to_collect(&self.watch);
        // This server is alive, however long its own lease was not renewed.
        let own = &self.agreement.config.identity;
        for lease in leases.iter_mut().filter(|lease| lease.id == *own) {
            lease.expired = false;
        }
        let snapshot = CollectSnapshot { storage_versions, leases: Some(leases), unread };
        let (mut complete, mut partial) = (true, false);
        for effect in plan(&snapshot, restow_host::now()) {
            partial |= matches!(&effect, CollectEffect::UpdateStorageVersion { absent_leases, .. }
                if absent_leases.len() >= MOST_DROPPED);
            complete &= self.act(held_lease, effect, &snapshot, &no_server_joined).await?;
        }
        Ok(match (complete, partial) {
            (true, true) => PassOutcome::Partial,
            (true, false) => PassOutcome::Complete,
            (false, _) => PassOutcome::Refused,
        })
    }

    async fn act(
        &self,
        held_lease: &HeldLease,
        effect: CollectEffect,
        snapshot: &CollectSnapshot,
        no_server_joined: &Compare,
    ) -> Result<bool, AgreementError> {
        let txn = match effect {
            CollectEffect::DeleteLease { id, revision } => {
                tracing::warn!(identity = %id, "an API server stopped renewing its identity lease; the lease is deleted and the server cannot write any more");
                let key = keys::lease_key(id.as_str())?;
                Txn::new().when(Compare::mod_revision(&key, number(Some(&revision)))).delete(&key)
            }
            CollectEffect::UpdateStorageVersion { name, revision, absent_leases, status } => {
                let key = keys::key(format!("{}{name}", keys::STORAGE_VERSIONS))?;
                let Some(found) = snapshot.storage_versions.iter().find(|object| object.metadata.name == name) else {
                    return Ok(false);
                };
                let object = StorageVersion { status, ..found.clone() };
                let value = keys::encode(serde_json::to_value(&object).unwrap_or_default())?;
                let txn = Txn::new().when(Compare::mod_revision(&key, number(revision.as_ref()))).put(&key, value);
                without(txn.when(no_server_joined.clone()), &absent_leases)?
            }
            CollectEffect::DeleteStorageVersion { name, revision, absent_leases } => {
                let key = keys::key(format!("{}{name}", keys::STORAGE_VERSIONS))?;
                let txn = Txn::new().when(Compare::mod_revision(&key, number(revision.as_ref()))).delete(&key);
                without(txn, &absent_leases)?
            }
        };
        let outcome = self.agreement.store.txn(txn.when(held_lease.fence.clone())).await?;
        Ok(matches!(outcome, TxnOutcome::Committed { .. }))
    }

    /// Takes or renews the leader lease. Returns whether this server is the leader now.
    async fn lead(&mut self, held_lease: &HeldLease) -> Result<bool, AgreementError> {
        let store = &self.agreement.store;
        let key = keys::lease_key(LEADER_LEASE)?;
        let found = watch_one(store.as_ref(), LEADER_LEASE, &mut self.leader).await?;
        let lease = found.as_ref().map(|found| found.lease.clone()).unwrap_or_default();
        let own = lease.is_held_by(&self.agreement.holder);
        if !own && found.as_ref().is_some_and(|found| !found.expired) {
            return Ok(false);
        }
        if own && self.renewed.is_some_and(|renewed| renewed.elapsed() < LEADER_RENEW_INTERVAL) {
            return Ok(true);
        }
        let (now, begun) = (restow_host::now(), Moment::now());
        let mut metadata = serde_json::to_value(&lease.metadata).unwrap_or_default();
        metadata["name"] = LEADER_LEASE.into();
        metadata["namespace"] = "kube-system".into();
        if lease.metadata.uid.is_empty() {
            metadata["uid"] = restow_host::uuid().to_string().into();
            metadata["creationTimestamp"] = json!(Time::new(now));
        }
        let transitions = lease.spec.lease_transitions.unwrap_or_default() + i64::from(!own);
        let acquired = lease.spec.acquire_time.filter(|_| own).unwrap_or_else(|| MicroTime::new(now));
        let value = keys::encode(json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata,
            "spec": {
                "holderIdentity": self.agreement.holder, "leaseDurationSeconds": LEADER_LEASE_DURATION.as_secs(),
                "acquireTime": acquired, "renewTime": MicroTime::new(now), "leaseTransitions": transitions,
            },
        }))?;
        let revision = found.map_or(Revision::ZERO, |found| found.entry.mod_revision);
        let txn =
            Txn::new().when(Compare::mod_revision(&key, revision)).when(held_lease.fence.clone()).put(&key, value);
        let leads = matches!(store.txn(txn).await?, TxnOutcome::Committed { .. });
        self.renewed = leads.then_some(begun);
        Ok(leads)
    }
}

/// Adds the condition that none of these leases exists.
fn without(mut txn: Txn, leases: &[String]) -> Result<Txn, AgreementError> {
    for id in leases {
        txn = txn.when(Compare::absent(&keys::lease_key(id)?));
    }
    Ok(txn)
}

/// The revision of a resource version; one that no object has where it is missing.
fn number(revision: Option<&ResourceVersion>) -> Revision {
    Revision::new(revision.and_then(|revision| revision.as_str().parse().ok()).unwrap_or(u64::MAX))
}

fn subscribe(watch_cache: &WatchCache) -> Option<Subscription> {
    watch_cache.subscribe(keys::LEASE_FOLDER, KeyRange::prefix(keys::LEASES), watch_cache.reached()).ok()
}

/// Waits until a lease is deleted, at most for `POLL_INTERVAL`.
async fn wait(watch_cache: &WatchCache, subscription: &mut Option<Subscription>) {
    let Some(leases) = subscription else {
        tokio::time::sleep(POLL_INTERVAL).await;
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
    if let Ok(false) = tokio::time::timeout(POLL_INTERVAL, deletion).await {
        *subscription = None;
    }
}
