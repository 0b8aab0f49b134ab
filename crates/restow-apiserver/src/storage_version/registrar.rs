//! The transactions that add the reports of this server to StorageVersions, and withdraw them.
//!
//! Each compares the revision of the StorageVersion that was read, that this server's lease is still the same, and that the
//! leases of the servers whose entries it drops still do not exist. The StorageVersion is read before the leases.

use super::elections::Selection;
use super::identity_lease::HeldLease;
use super::lease_watch::ServerList;
use super::{Agreement, AgreementError, keys};
use crate::resource::{Membership, Resource};
use crate::storage::key_pages::name_of;
use futures::{StreamExt, TryStreamExt};
use rand::Rng;
use restow_api::internal_apiserver::{StorageVersion, StorageVersionStatus};
use restow_api::{GroupResource, ServerId, Time};
use restow_rules::collect::Collected;
use restow_rules::{Participants, ServerReport, register, withdraw};
use restow_store::{Compare, Entry, Key, RangeRequest, Revision, StoreError, StoreExt, Txn, TxnOutcome};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// How many times one report is tried before registration starts over.
pub(super) const ATTEMPTS: usize = 30;
/// How many reports are in flight at once.
const CONCURRENT_REPORTS: usize = 128;
/// The longest pause between two attempts.
const MAX_PAUSE: Duration = Duration::from_millis(250);

/// Reports for a server under one lease.
pub(super) struct Registrar<'a> {
    pub(super) agreement: &'a Agreement,
    pub(super) held_lease: &'a HeldLease,
}

/// Whether this server may write a resource.
enum WritePermission {
    AfterReport,
    Never,
}

/// The result of reporting a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReportOutcome {
    /// The reported version is the one that is written.
    Done,
    /// Another version came into force meanwhile.
    VersionChanged,
}

/// What to do with a StorageVersion.
enum StatusChange {
    Unchanged,
    Write(StorageVersionStatus, Vec<String>),
    Delete(Vec<String>),
}

impl Registrar<'_> {
    /// Reports the resources at these locations concurrently, and allows writes of each as soon as it is reported. A resource
    /// that cannot be reported, because an object is damaged, waits; the others do not wait for it.
    pub(super) async fn report_all(&self, locations: Vec<GroupResource>) -> Result<(), AgreementError> {
        let store = &self.agreement.store;
        let listed = store.range(RangeRequest::prefix(keys::STORAGE_VERSIONS)).await?;
        let by_name: HashMap<String, Entry> =
            listed.entries.into_iter().map(|entry| (name_of(&entry.key).to_string(), entry)).collect();
        let servers = ServerList::read_or_unknown(store.as_ref()).await;
        futures::stream::iter(locations)
            .map(|location| {
                let found = by_name.get(&StorageVersion::name_for(&location)).cloned();
                let servers = servers.clone();
                async move {
                    match self.report_with(&location, found, servers).await {
                        Err(error @ (AgreementError::Unreadable { .. } | AgreementError::Report { .. })) => {
                            let reason = error.chain();
                            tracing::error!(resource = %location, reason, "a storage version could not be reported, so the resource cannot be written yet");
                            Ok(())
                        }
                        done => done,
                    }
                }
            })
            .buffer_unordered(CONCURRENT_REPORTS)
            .try_collect::<Vec<()>>()
            .await?;
        Ok(())
    }

    /// Reports the resource at this location, and allows its writes.
    pub(super) async fn report(&self, location: &GroupResource) -> Result<(), AgreementError> {
        let store = &self.agreement.store;
        let found = store.get(&keys::storage_version_key(location)?).await?;
        self.report_with(location, found, ServerList::read_or_unknown(store.as_ref()).await).await
    }

    /// Withdraws everything that this server or an earlier process of it reported, and clears agreements that do not take this
    /// server into account.
    pub(super) async fn withdraw_everything(&self) -> Result<(), AgreementError> {
        if let Some(upstream) = &self.agreement.config.upstream {
            upstream.withdraw_everything().await.map_err(AgreementError::Upstream)?;
        }
        let store = &self.agreement.store;
        let listed = store.range(RangeRequest::prefix(keys::STORAGE_VERSIONS)).await?;
        let servers = ServerList::read_or_unknown(store.as_ref()).await;
        for entry in listed.entries {
            let Some(location) = keys::resource_of(name_of(&entry.key)) else { continue };
            self.update_storage_version(&location, Some(entry), servers.clone(), |current, participants| {
                withdrawal(current, participants, &self.agreement.config.identity)
            })
            .await?;
        }
        self.agreement.withdraw_votes(self.held_lease).await
    }

    /// Withdraws the report about this resource, at the main API server first: as long as that fails, the entry in the own store
    /// stays and records that there is something to withdraw.
    pub(super) async fn withdraw(&self, location: &GroupResource) -> Result<(), AgreementError> {
        if let Some(upstream) = &self.agreement.config.upstream {
            upstream.withdraw(location).await.map_err(AgreementError::Upstream)?;
        }
        let store = &self.agreement.store;
        let found = store.get(&keys::storage_version_key(location)?).await?;
        let own = &self.agreement.config.identity;
        let servers = ServerList::read_or_unknown(store.as_ref()).await;
        self.update_storage_version(location, found, servers, |current, participants| {
            withdrawal(current, participants, own)
        })
        .await
    }

    async fn report_with(
        &self,
        location: &GroupResource,
        mut found: Option<Entry>,
        mut servers: ServerList,
    ) -> Result<(), AgreementError> {
        let store = &self.agreement.store;
        for _ in 0..ATTEMPTS {
            if self.report_once(location, found, servers).await? == ReportOutcome::Done {
                return Ok(());
            }
            // Another version came into force while this one was reported.
            found = store.get(&keys::storage_version_key(location)?).await?;
            servers = ServerList::read_or_unknown(store.as_ref()).await;
        }
        Err(AgreementError::Contended { name: StorageVersion::name_for(location), attempts: ATTEMPTS })
    }

    async fn report_once(
        &self,
        location: &GroupResource,
        found: Option<Entry>,
        servers: ServerList,
    ) -> Result<ReportOutcome, AgreementError> {
        let writers = self.agreement.writers_at(location);
        let first = writers.first().and_then(|resource| Some((resource, resource.storage.as_deref()?)));
        let Some((resource, storage)) = first else { return Ok(ReportOutcome::Done) };
        if !self.agreement.config.reports {
            // This server does not report its version, so its entry must not claim one.
            let own = &self.agreement.config.identity;
            self.update_storage_version(location, found, servers, |current, participants| {
                withdrawal(current, participants, own)
            })
            .await?;
            self.agreement.set_membership_at(location, &Membership::Registered(self.held_lease.fence.clone()));
            return Ok(ReportOutcome::Done);
        }
        if self.agreement.votes_on(resource)
            && let Some(selection) = self.vote(resource).await?
            && let WritePermission::Never = self.apply_selection(location, &writers, selection).await?
        {
            return Ok(ReportOutcome::Done);
        }
        let report = self.agreement.current_report(resource, storage)?;
        self.shut_out_unanswered_writes(location, &writers, Some(&report))?;
        let decide = |current: Option<&StorageVersion>, participants: &Participants| {
            let registration = register(current, participants, &report, restow_host::now());
            match current.is_some_and(|object| object.status == registration.status) {
                // The entry existed after the lease was taken, and no server removes it while the lease exists.
                true => StatusChange::Unchanged,
                false => StatusChange::Write(registration.status, registration.dropped),
            }
        };
        self.update_storage_version(location, found, servers, decide).await?;
        if let Some(upstream) = &self.agreement.config.upstream {
            upstream.report(location, &report).await.map_err(AgreementError::Upstream)?;
        }
        Ok(self.grant(location, report))
    }

    /// Ensures that no write can be committed later in a version that this server is about to stop reporting. The outcome of an
    /// unanswered write is unknown. Where only the lease can refuse it, this server has to take a new lease first.
    fn shut_out_unanswered_writes(
        &self,
        location: &GroupResource,
        writers: &[Arc<Resource>],
        next: Option<&ServerReport>,
    ) -> Result<(), AgreementError> {
        let changes = match (self.agreement.last_report(location), next) {
            (Some(last_report), Some(next)) => last_report.encoding() != next.encoding(),
            (last_report, None) => last_report.is_some(),
            (None, Some(_)) => false,
        };
        let mut storages = writers.iter().filter_map(|writer| writer.storage.as_ref());
        if !changes || !storages.any(|storage| storage.write_gate().may_still_commit(&self.held_lease.fence)) {
            return Ok(());
        }
        tracing::warn!(resource = %location, "the outcome of a write in the previous version is unknown; a new identity lease fences it out");
        self.agreement.reregister();
        Err(AgreementError::LeaseLost(self.agreement.config.identity.clone()))
    }

    /// Grants writes to the resources at this location that encode the reported version, and to no others. The report is of the
    /// first of them; the others may be handlers that are being replaced.
    fn grant(&self, location: &GroupResource, report: ServerReport) -> ReportOutcome {
        let writers = self.agreement.writers_at(location);
        let storages = writers.iter().filter_map(|writer| writer.storage.as_ref());
        let granted: Vec<bool> = storages.map(|storage| storage.grant(&report, &self.held_lease.fence)).collect();
        if granted.first() == Some(&false) {
            return ReportOutcome::VersionChanged;
        }
        self.agreement.record_report(location, report);
        ReportOutcome::Done
    }

    /// Applies the selected version. A new one is not written before it is reported.
    async fn apply_selection(
        &self,
        location: &GroupResource,
        writers: &[Arc<Resource>],
        selection: Selection,
    ) -> Result<WritePermission, AgreementError> {
        match selection {
            Selection::Write(version, fences) => {
                for storage in writers.iter().filter_map(|writer| writer.storage.as_ref()) {
                    let same = storage.encoding().version == version;
                    storage.set_encoding(version.clone(), fences.clone());
                    if same {
                        continue;
                    }
                    // Writes in flight in the old version finish while that is still reported.
                    drop(storage.write_gate().halt().await);
                }
                Ok(WritePermission::AfterReport)
            }
            Selection::Refuse(reason) => {
                tracing::error!(reason, "this server cannot write a resource in the selected version");
                self.agreement.set_membership_at(location, &Membership::Refused(reason));
                // Writes in flight finish while the version is still reported.
                for storage in writers.iter().filter_map(|writer| writer.storage.as_ref()) {
                    drop(storage.write_gate().halt().await);
                }
                self.shut_out_unanswered_writes(location, writers, None)?;
                self.withdraw(location).await?;
                Ok(WritePermission::Never)
            }
        }
    }

    /// Reads, decides and writes a StorageVersion, and retries on a conflict.
    async fn update_storage_version(
        &self,
        location: &GroupResource,
        mut found: Option<Entry>,
        mut servers: ServerList,
        decide: impl Fn(Option<&StorageVersion>, &Participants) -> StatusChange,
    ) -> Result<(), AgreementError> {
        let store = &self.agreement.store;
        let key = keys::storage_version_key(location)?;
        for attempt in 0..ATTEMPTS {
            let Some(txn) = self.transaction(location, &key, found.as_ref(), &servers, &decide)? else {
                return Ok(());
            };
            match store.txn(txn.otherwise_get(&key).otherwise_get(&self.held_lease.key)).await {
                Ok(TxnOutcome::Committed { .. }) => {
                    self.agreement.mark_certain(location);
                    return Ok(());
                }
                Ok(TxnOutcome::Refused { found: mut read, .. }) => {
                    let lease = read.pop().flatten();
                    if !self.held_lease.fence.holds(lease.as_ref()) {
                        return Err(AgreementError::LeaseLost(self.agreement.config.identity.clone()));
                    }
                    found = read.pop().flatten();
                }
                // It may be committed now or later; the next write of the object prevents that.
                Err(StoreError::OutcomeUnknown(_)) => {
                    self.agreement.mark_uncertain(location);
                    found = store.get(&key).await?;
                }
                Err(error) => return Err(error.into()),
            }
            self.agreement.retries.inc();
            pause(attempt).await;
            servers = ServerList::read_or_unknown(store.as_ref()).await;
        }
        Err(AgreementError::Contended { name: StorageVersion::name_for(location), attempts: ATTEMPTS })
    }

    /// An object that cannot be decoded is replaced. Everything in it comes from the servers; each of them reports again when it
    /// finds its entry missing, and there is no agreement until all have done so.
    fn transaction(
        &self,
        location: &GroupResource,
        key: &Key,
        found: Option<&Entry>,
        servers: &ServerList,
        decide: impl Fn(Option<&StorageVersion>, &Participants) -> StatusChange,
    ) -> Result<Option<Txn>, AgreementError> {
        let current = found.and_then(|entry| match keys::read::<StorageVersion>(entry) {
            Ok(object) => Some(object),
            Err(error) => {
                tracing::error!(reason = error.chain(), "a StorageVersion is damaged; the API servers report it anew");
                None
            }
        });
        let outcome = match decide(current.as_ref(), &servers.participants) {
            StatusChange::Unchanged if self.agreement.is_uncertain(location) => match current.clone() {
                Some(object) => StatusChange::Write(object.status, Vec::new()),
                None => StatusChange::Unchanged,
            },
            outcome => outcome,
        };
        let (txn, dropped) = match outcome {
            StatusChange::Unchanged => return Ok(None),
            StatusChange::Write(status, dropped) => {
                let mut object = current.unwrap_or_else(|| new_storage_version(location));
                object.status = status;
                (Txn::new().put(key, keys::encode(serde_json::to_value(&object).unwrap_or_default())?), dropped)
            }
            StatusChange::Delete(dropped) => (Txn::new().delete(key), dropped),
        };
        let revision = found.map_or(Revision::ZERO, |entry| entry.mod_revision);
        let mut txn = txn.when(Compare::mod_revision(key, revision)).when(self.held_lease.fence.clone());
        txn.when.extend(servers.no_server_joined.clone());
        for server in dropped {
            txn = txn.when(Compare::absent(&keys::lease_key(&server)?));
        }
        Ok(Some(txn))
    }
}

/// What to do with a StorageVersion when this server withdraws its entry.
fn withdrawal(current: Option<&StorageVersion>, participants: &Participants, own: &ServerId) -> StatusChange {
    let Some(object) = current else { return StatusChange::Unchanged };
    match withdraw(object, participants, own, restow_host::now()) {
        Collected::Keep => StatusChange::Unchanged,
        Collected::Update { status, dropped: _ } => StatusChange::Write(status, Vec::new()),
        Collected::Delete { dropped: _ } => StatusChange::Delete(Vec::new()),
    }
}

/// A StorageVersion without entries.
fn new_storage_version(location: &GroupResource) -> StorageVersion {
    let mut object = StorageVersion::new(location);
    object.metadata.uid = restow_host::uuid().to_string();
    object.metadata.creation_timestamp = Some(Time::new(restow_host::now()));
    object
}

/// A random backoff after a conflict.
pub(super) async fn pause(attempt: usize) {
    let longest = Duration::from_millis(5).saturating_mul(1 << attempt.min(10)).min(MAX_PAUSE);
    tokio::time::sleep(jittered(longest)).await;
}

/// A random part of a duration.
pub(super) fn jittered(longest: Duration) -> Duration {
    longest.mul_f64(restow_host::random().random_range(0.1..=1.0))
}
