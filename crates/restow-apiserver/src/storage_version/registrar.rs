//! The transactions that put this server's reports into StorageVersions, and take them out again.
//!
//! Each compares the revision of the StorageVersion that was read, that the own lease is still the same, and that the leases
//! of the servers whose entries it drops still do not exist. The StorageVersion is read first and the leases after it.

use super::elections::Elected;
use super::identity::Tenure;
use super::lease_watch::Roll;
use super::{Agreement, AgreementError, keys};
use crate::resource::{Membership, Resource};
use crate::storage::key_pages::name_of;
use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use rand::Rng;
use restow_api::internal_apiserver::{StorageVersion, StorageVersionStatus};
use restow_api::{GroupResource, ServerId, Time};
use restow_rules::collect::Collected;
use restow_rules::{Participants, ServerReport, register, withdraw};
use restow_store::{Compare, Entry, Key, RangeRequest, Revision, StoreError, StoreExt, Txn, TxnOutcome};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// How often one report is decided again before the whole is given up and begun anew.
pub(super) const ATTEMPTS: usize = 30;
/// How many reports are under way at once.
const AT_ONCE: usize = 128;
/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// Reports for a server during one tenure.
pub(super) struct Registrar<'a> {
    pub(super) agreement: &'a Agreement,
    pub(super) tenure: &'a Tenure,
}

/// Whether a resource is written once it is reported.
enum Writes {
    Afterwards,
    Never,
}

/// What came of reporting a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entered {
    /// What was reported is what is written.
    Settled,
    /// Another version came into force meanwhile.
    Overtaken,
}

/// What an object will be.
enum Outcome {
    Unchanged,
    Write(StorageVersionStatus, Vec<String>),
    Delete(Vec<String>),
}

impl Registrar<'_> {
    /// Reports everything that is written at these places, all at once, and lets each write as soon as it is reported. What
    /// cannot be reported, because an object about it is damaged, waits; everything else does not wait for it.
    pub(super) async fn enter_all(&self, locations: Vec<GroupResource>) -> Result<(), AgreementError> {
        let store = &self.agreement.store;
        let listed = store.range(RangeRequest::prefix(keys::STORAGE_VERSIONS)).await?;
        let by_name: HashMap<String, Entry> =
            listed.entries.into_iter().map(|entry| (name_of(&entry.key).to_string(), entry)).collect();
        let roll = Roll::call(store.as_ref()).await;
        futures::stream::iter(locations)
            .map(|location| {
                let found = by_name.get(&StorageVersion::name_for(&location)).cloned();
                let roll = roll.clone();
                async move {
                    match self.enter_with(&location, found, roll).await {
                        Err(error @ (AgreementError::Unreadable { .. } | AgreementError::Report { .. })) => {
                            let reason = error.chain();
                            tracing::error!(resource = %location, reason, "a resource cannot be written yet");
                            Ok(())
                        }
                        done => done,
                    }
                }
            })
            .buffer_unordered(AT_ONCE)
            .try_collect::<Vec<()>>()
            .await?;
        Ok(())
    }

    /// Reports what is written at this place, and lets it write.
    pub(super) async fn enter(&self, location: &GroupResource) -> Result<(), AgreementError> {
        let store = &self.agreement.store;
        let found = store.get(&keys::storage_version_key(location)?).await?;
        self.enter_with(location, found, Roll::call(store.as_ref()).await).await
    }

    /// Takes back whatever an earlier life of this server reported and this one does not stand for, and lets nobody agree
    /// who does not know of this server.
    pub(super) async fn withdraw_everything(&self) -> Result<(), AgreementError> {
        if let Some(elsewhere) = &self.agreement.config.elsewhere {
            elsewhere.withdraw_everything().await.map_err(AgreementError::Elsewhere)?;
        }
        let store = &self.agreement.store;
        let listed = store.range(RangeRequest::prefix(keys::STORAGE_VERSIONS)).await?;
        let roll = Roll::call(store.as_ref()).await;
        for entry in listed.entries {
            let Some(location) = keys::resource_of(name_of(&entry.key)) else { continue };
            self.settle(&location, Some(entry), roll.clone(), |current, participants| {
                withdrawal(current, participants, &self.agreement.config.identity)
            })
            .await?;
        }
        self.agreement.withdraw_votes(self.tenure).await
    }

    /// Takes back what this server reported about this place. Elsewhere first: as long as that fails, the entry in the own store
    /// stays, and with it the knowledge that there is something to take back.
    pub(super) async fn withdraw(&self, location: &GroupResource) -> Result<(), AgreementError> {
        if let Some(elsewhere) = &self.agreement.config.elsewhere {
            elsewhere.withdraw(location).await.map_err(AgreementError::Elsewhere)?;
        }
        let store = &self.agreement.store;
        let found = store.get(&keys::storage_version_key(location)?).await?;
        let own = &self.agreement.config.identity;
        let roll = Roll::call(store.as_ref()).await;
        self.settle(location, found, roll, |current, participants| withdrawal(current, participants, own)).await
    }

    async fn enter_with(
        &self,
        location: &GroupResource,
        mut found: Option<Entry>,
        mut roll: Roll,
    ) -> Result<(), AgreementError> {
        let store = &self.agreement.store;
        for _ in 0..ATTEMPTS {
            if self.enter_once(location, found, roll).await? == Entered::Settled {
                return Ok(());
            }
            // Another version came into force while this one was reported.
            found = store.get(&keys::storage_version_key(location)?).await?;
            roll = Roll::call(store.as_ref()).await;
        }
        Err(AgreementError::Contended { name: StorageVersion::name_for(location), attempts: ATTEMPTS })
    }

    async fn enter_once(
        &self,
        location: &GroupResource,
        found: Option<Entry>,
        roll: Roll,
    ) -> Result<Entered, AgreementError> {
        let writers = self.agreement.writers_at(location);
        let first = writers.first().and_then(|resource| Some((resource, resource.storage.as_deref()?)));
        let Some((resource, storage)) = first else { return Ok(Entered::Settled) };
        if !self.agreement.config.reports {
            // Nobody is told in which version this server writes, so nobody must think to know.
            let own = &self.agreement.config.identity;
            self.settle(location, found, roll, |current, participants| withdrawal(current, participants, own)).await?;
            self.agreement.set_membership_at(location, &Membership::Registered(self.tenure.fence.clone()));
            return Ok(Entered::Settled);
        }
        if self.agreement.votes_on(resource)
            && let Some(elected) = self.vote(resource).await?
            && let Writes::Never = self.obey(location, &writers, elected).await?
        {
            return Ok(Entered::Settled);
        }
        let report = self.agreement.report_about(resource, storage)?;
        self.outlive_doubts(location, &writers, Some(&report))?;
        let decide = |current: Option<&StorageVersion>, participants: &Participants| {
            let registration = register(current, participants, &report, Timestamp::now());
            match current.is_some_and(|object| object.status == registration.status) {
                // The entry was there after the lease was taken, and nobody may remove it while the lease exists.
                true => Outcome::Unchanged,
                false => Outcome::Write(registration.status, registration.dropped),
            }
        };
        self.settle(location, found, roll, decide).await?;
        if let Some(elsewhere) = &self.agreement.config.elsewhere {
            elsewhere.report(location, &report).await.map_err(AgreementError::Elsewhere)?;
        }
        Ok(self.grant(location, report))
    }

    /// Makes sure that nothing can land any more in a version that this server is about to report no longer. Of a write that
    /// was never answered nobody knows; where nothing but the lease refuses it, this server has to take another one first.
    fn outlive_doubts(
        &self,
        location: &GroupResource,
        writers: &[Arc<Resource>],
        next: Option<&ServerReport>,
    ) -> Result<(), AgreementError> {
        let changes = match (self.agreement.said_about(location), next) {
            (Some(said), Some(next)) => said.encoding() != next.encoding(),
            (said, None) => said.is_some(),
            (None, Some(_)) => false,
        };
        let mut storages = writers.iter().filter_map(|writer| writer.storage.as_ref());
        if !changes || !storages.any(|storage| storage.write_gate().is_doubted(&self.tenure.fence)) {
            return Ok(());
        }
        tracing::warn!(resource = %location, "a write in the version of before was not answered; it is shut out by a new lease");
        self.agreement.join_again();
        Err(AgreementError::LeaseLost(self.agreement.config.identity.clone()))
    }

    /// Lets everything at this place write that encodes what was reported, and nothing else. What is reported is what the
    /// first of them encodes; others may be handlers on their way out.
    fn grant(&self, location: &GroupResource, report: ServerReport) -> Entered {
        let writers = self.agreement.writers_at(location);
        let storages = writers.iter().filter_map(|writer| writer.storage.as_ref());
        let granted: Vec<bool> = storages.map(|storage| storage.grant(&report, &self.tenure.fence)).collect();
        if granted.first() == Some(&false) {
            return Entered::Overtaken;
        }
        self.agreement.note_said(location, report);
        Entered::Settled
    }

    /// Puts the selected version in force. A new one is not written before it is reported.
    async fn obey(
        &self,
        location: &GroupResource,
        writers: &[Arc<Resource>],
        elected: Elected,
    ) -> Result<Writes, AgreementError> {
        match elected {
            Elected::Write(version, fences) => {
                for storage in writers.iter().filter_map(|writer| writer.storage.as_ref()) {
                    let same = storage.encoding().version == version;
                    storage.set_encoding(version.clone(), fences.clone());
                    if same {
                        continue;
                    }
                    // What is on its way in the old version arrives while that is still reported.
                    drop(storage.write_gate().halt().await);
                }
                Ok(Writes::Afterwards)
            }
            Elected::Refuse(reason) => {
                tracing::error!(reason, "this server does not write a resource");
                self.agreement.set_membership_at(location, &Membership::Refused(reason));
                // What is on its way arrives while it is still reported.
                for storage in writers.iter().filter_map(|writer| writer.storage.as_ref()) {
                    drop(storage.write_gate().halt().await);
                }
                self.outlive_doubts(location, writers, None)?;
                self.withdraw(location).await?;
                Ok(Writes::Never)
            }
        }
    }

    /// Decides and writes, and when somebody else was faster, reads, decides and writes again.
    async fn settle(
        &self,
        location: &GroupResource,
        mut found: Option<Entry>,
        mut roll: Roll,
        decide: impl Fn(Option<&StorageVersion>, &Participants) -> Outcome,
    ) -> Result<(), AgreementError> {
        let store = &self.agreement.store;
        let key = keys::storage_version_key(location)?;
        for attempt in 0..ATTEMPTS {
            let Some(txn) = self.transaction(location, &key, found.as_ref(), &roll, &decide)? else {
                return Ok(());
            };
            match store.txn(txn.otherwise_get(&key).otherwise_get(&self.tenure.key)).await {
                Ok(TxnOutcome::Committed { .. }) => {
                    self.agreement.trust(location);
                    return Ok(());
                }
                Ok(TxnOutcome::Refused { found: mut read, .. }) => {
                    let lease = read.pop().flatten();
                    if !self.tenure.fence.holds(lease.as_ref()) {
                        return Err(AgreementError::LeaseLost(self.agreement.config.identity.clone()));
                    }
                    found = read.pop().flatten();
                }
                // It may have been written, or may yet be; whoever writes again makes sure that it comes to nothing then.
                Err(StoreError::OutcomeUnknown(_)) => {
                    self.agreement.doubt(location);
                    found = store.get(&key).await?;
                }
                Err(error) => return Err(error.into()),
            }
            self.agreement.retries.inc();
            pause(attempt).await;
            roll = Roll::call(store.as_ref()).await;
        }
        Err(AgreementError::Contended { name: StorageVersion::name_for(location), attempts: ATTEMPTS })
    }

    /// An object that cannot be read is replaced: everything in it is what servers say of themselves, each of them says it
    /// again as soon as it finds it missing, and until the last one has done so nobody agrees.
    fn transaction(
        &self,
        location: &GroupResource,
        key: &Key,
        found: Option<&Entry>,
        roll: &Roll,
        decide: impl Fn(Option<&StorageVersion>, &Participants) -> Outcome,
    ) -> Result<Option<Txn>, AgreementError> {
        let current = found.and_then(|entry| match keys::read::<StorageVersion>(entry) {
            Ok(object) => Some(object),
            Err(error) => {
                tracing::error!(reason = error.chain(), "a StorageVersion is damaged; the API servers report it anew");
                None
            }
        });
        let outcome = match decide(current.as_ref(), &roll.participants) {
            Outcome::Unchanged if self.agreement.is_doubted(location) => match current.clone() {
                Some(object) => Outcome::Write(object.status, Vec::new()),
                None => Outcome::Unchanged,
            },
            outcome => outcome,
        };
        let (txn, dropped) = match outcome {
            Outcome::Unchanged => return Ok(None),
            Outcome::Write(status, dropped) => {
                let mut object = current.unwrap_or_else(|| fresh(location));
                object.status = status;
                (Txn::new().put(key, keys::written(serde_json::to_value(&object).unwrap_or_default())?), dropped)
            }
            Outcome::Delete(dropped) => (Txn::new().delete(key), dropped),
        };
        let revision = found.map_or(Revision::ZERO, |entry| entry.mod_revision);
        let mut txn = txn.when(Compare::mod_revision(key, revision)).when(self.tenure.fence.clone());
        txn.when.extend(roll.nobody_joined.clone());
        for server in dropped {
            txn = txn.when(Compare::absent(&keys::lease_key(&server)?));
        }
        Ok(Some(txn))
    }
}

/// What becomes of a StorageVersion when this server has nothing to say about it.
fn withdrawal(current: Option<&StorageVersion>, participants: &Participants, own: &ServerId) -> Outcome {
    let Some(object) = current else { return Outcome::Unchanged };
    match withdraw(object, participants, own, Timestamp::now()) {
        Collected::Keep => Outcome::Unchanged,
        Collected::Update { status, dropped: _ } => Outcome::Write(status, Vec::new()),
        Collected::Delete { dropped: _ } => Outcome::Delete(Vec::new()),
    }
}

/// A StorageVersion on which nobody has reported yet.
fn fresh(location: &GroupResource) -> StorageVersion {
    let mut object = StorageVersion::new(location);
    object.metadata.uid = uuid::Uuid::new_v4().to_string();
    object.metadata.creation_timestamp = Some(Time::new(Timestamp::now()));
    object
}

/// A random pause, so that servers that got into each other's way do not do so again.
pub(super) async fn pause(attempt: usize) {
    let longest = Duration::from_millis(5).saturating_mul(1 << attempt.min(10)).min(LONGEST_PAUSE);
    tokio::time::sleep(jittered(longest)).await;
}

/// A random part of a time.
pub(super) fn jittered(longest: Duration) -> Duration {
    longest.mul_f64(rand::rng().random_range(0.1..=1.0))
}
