//! The transactions that put this server's reports into StorageVersions, and take them out again.
//!
//! Each compares the revision of the StorageVersion that was read, that the own lease is still the same, and that the leases
//! of the servers whose entries it drops still do not exist. The StorageVersion is read first and the leases after it.

use super::elections::Elected;
use super::identity::Tenure;
use super::{Agreement, AgreementError, leases, places};
use crate::following::name_of;
use crate::resource::{Membership, Resource};
use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use rand::Rng;
use restow_agreement::collect::Collected;
use restow_agreement::{Participants, register, withdraw};
use restow_api::internal_apiserver::{StorageVersion, StorageVersionStatus};
use restow_api::{GroupResource, Time};
use restow_store::{Compare, Entry, Key, RangeRequest, Revision, StoreError, StoreExt, Txn, TxnOutcome};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// How often one report is decided again before the whole is given up and begun anew.
pub(super) const ATTEMPTS: usize = 30;
/// How many reports are under way at once.
const AT_ONCE: usize = 128;
/// How many leases one transaction may compare at most. A store allows 128 comparisons.
const MOST_DROPPED: usize = 100;
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

/// What an object will be.
enum Outcome {
    Unchanged,
    Write(StorageVersionStatus, Vec<String>),
    Delete(Vec<String>),
}

impl Registrar<'_> {
    /// Reports everything that is written at these places, all at once, and lets each write as soon as it is reported.
    pub(super) async fn enter_all(&self, locations: Vec<GroupResource>) -> Result<(), AgreementError> {
        let store = &self.agreement.store;
        let listed = store.range(RangeRequest::prefix(places::STORAGE_VERSIONS)).await?;
        let by_name: HashMap<String, Entry> =
            listed.entries.into_iter().map(|entry| (name_of(&entry.key).to_string(), entry)).collect();
        let participants = leases::participants(store.as_ref()).await;
        futures::stream::iter(locations)
            .map(|location| {
                let found = by_name.get(&StorageVersion::name_for(&location)).cloned();
                let participants = participants.clone();
                async move { self.enter_with(&location, found, participants).await }
            })
            .buffer_unordered(AT_ONCE)
            .try_collect::<Vec<()>>()
            .await?;
        Ok(())
    }

    /// Reports what is written at this place, and lets it write.
    pub(super) async fn enter(&self, location: &GroupResource) -> Result<(), AgreementError> {
        let store = &self.agreement.store;
        let found = store.get(&places::storage_version_key(location)?).await?;
        self.enter_with(location, found, leases::participants(store.as_ref()).await).await
    }

    /// Takes back what this server reported about this place.
    pub(super) async fn withdraw(&self, location: &GroupResource) -> Result<(), AgreementError> {
        let store = &self.agreement.store;
        let found = store.get(&places::storage_version_key(location)?).await?;
        let own = &self.agreement.config.identity;
        let decide = |current: Option<&StorageVersion>, _: &Participants| match current {
            None => Outcome::Unchanged,
            Some(object) => match withdraw(object, own, Timestamp::now()) {
                Collected::Keep => Outcome::Unchanged,
                Collected::Update { status, dropped: _ } => Outcome::Write(status, Vec::new()),
                Collected::Delete { dropped: _ } => Outcome::Delete(Vec::new()),
            },
        };
        self.settle(location, found, Participants::unreadable(), decide).await?;
        match &self.agreement.config.elsewhere {
            Some(elsewhere) => elsewhere.withdraw(location).await.map_err(AgreementError::Elsewhere),
            None => Ok(()),
        }
    }

    async fn enter_with(
        &self,
        location: &GroupResource,
        found: Option<Entry>,
        participants: Participants,
    ) -> Result<(), AgreementError> {
        let writers = self.agreement.writers_at(location);
        let first = writers.first().and_then(|resource| Some((resource, resource.storage.as_deref()?)));
        let Some((resource, storage)) = first else { return Ok(()) };
        if self.agreement.votes_on(resource)
            && let Some(elected) = self.vote(resource).await?
            && let Writes::Never = self.obey(location, &writers, elected).await?
        {
            return Ok(());
        }
        let report = self.agreement.report_about(resource, storage)?;
        let decide = |current: Option<&StorageVersion>, participants: &Participants| {
            let now = Timestamp::now();
            let mut registration = register(current, participants, &report, now);
            if registration.dropped.len() > MOST_DROPPED {
                registration = register(current, &Participants::unreadable(), &report, now);
            }
            match current.is_some_and(|object| object.status == registration.status) {
                // The entry was there after the lease was taken, and nobody may remove it while the lease exists.
                true => Outcome::Unchanged,
                false => Outcome::Write(registration.status, registration.dropped),
            }
        };
        self.settle(location, found, participants, decide).await?;
        if let Some(elsewhere) = &self.agreement.config.elsewhere {
            elsewhere.report(location, &report).await.map_err(AgreementError::Elsewhere)?;
        }
        self.agreement.set_membership_at(location, &Membership::Registered(self.tenure.fence.clone()));
        Ok(())
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
                    if storage.encoding().version == version {
                        storage.set_encoding(version.clone(), fences.clone());
                        continue;
                    }
                    storage.set_membership(Membership::Pending);
                    storage.set_encoding(version.clone(), fences.clone());
                    // What is on its way in the old version arrives while that is still reported.
                    drop(storage.passage().halt().await);
                }
                Ok(Writes::Afterwards)
            }
            Elected::Refuse(reason) => {
                tracing::error!(reason, "this server does not write a resource");
                self.agreement.set_membership_at(location, &Membership::Refused(reason));
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
        mut participants: Participants,
        decide: impl Fn(Option<&StorageVersion>, &Participants) -> Outcome,
    ) -> Result<(), AgreementError> {
        let store = &self.agreement.store;
        let key = places::storage_version_key(location)?;
        for attempt in 0..ATTEMPTS {
            let current = found.as_ref().map(places::read::<StorageVersion>).transpose()?;
            let Some(txn) =
                self.transaction(location, &key, found.as_ref(), current.as_ref(), &participants, &decide)?
            else {
                return Ok(());
            };
            match store.txn(txn.otherwise_get(&key).otherwise_get(&self.tenure.key)).await {
                Ok(TxnOutcome::Committed { .. }) => return Ok(()),
                Ok(TxnOutcome::Refused { found: mut read, .. }) => {
                    let lease = read.pop().flatten();
                    if !self.tenure.fence.holds(lease.as_ref()) {
                        return Err(AgreementError::LeaseLost(self.agreement.config.identity.clone()));
                    }
                    found = read.pop().flatten();
                }
                // It may have been written; whoever reads again will see.
                Err(StoreError::OutcomeUnknown(_)) => found = store.get(&key).await?,
                Err(error) => return Err(error.into()),
            }
            self.agreement.retries.inc();
            pause(attempt).await;
            participants = leases::participants(store.as_ref()).await;
        }
        Err(AgreementError::Contended { name: StorageVersion::name_for(location), attempts: ATTEMPTS })
    }

    fn transaction(
        &self,
        location: &GroupResource,
        key: &Key,
        found: Option<&Entry>,
        current: Option<&StorageVersion>,
        participants: &Participants,
        decide: impl Fn(Option<&StorageVersion>, &Participants) -> Outcome,
    ) -> Result<Option<Txn>, AgreementError> {
        let (txn, dropped) = match decide(current, participants) {
            Outcome::Unchanged => return Ok(None),
            Outcome::Write(status, dropped) => {
                let mut object = current.cloned().unwrap_or_else(|| fresh(location));
                object.status = status;
                (Txn::new().put(key, places::written(serde_json::to_value(&object).unwrap_or_default())), dropped)
            }
            Outcome::Delete(dropped) => (Txn::new().delete(key), dropped),
        };
        let revision = found.map_or(Revision::ZERO, |entry| entry.mod_revision);
        let mut txn = txn.when(Compare::mod_revision(key, revision)).when(self.tenure.fence.clone());
        for server in dropped {
            txn = txn.when(Compare::absent(&places::lease_key(&server)?));
        }
        Ok(Some(txn))
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
