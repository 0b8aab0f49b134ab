//! Voting: every server votes for the version it prefers, all store the selected one, and it changes when all prefer the same.
//!
//! A server votes on each built-in resource when it registers, and watches the elections from then on. With the strict
//! guarantee each write compares that the election has not changed since the server read it. With the loose guarantee the
//! server relies on the watch.

use super::config::{Guarantee, StorageVersions};
use super::identity_lease::HeldLease;
use super::lease_watch::{Leases, no_server_joined};
use super::registrar::{ATTEMPTS, Registrar, pause};
use super::{Agreement, AgreementError, RegistrationState, keys};
use crate::resource::{Fence, Origin, Resource};
use crate::storage::key_pages::name_of;
use crate::storage::watch_cache::{Subscription, WatchCache};
use restow_api::internal_apiserver::StorageVersion as Report;
use restow_api::kube_apiserver_internal::StorageVersion as Election;
use restow_api::{GroupResource, GroupVersion, Time};
use restow_rules::Participants;
use restow_rules::vote::{self, Ballot, Codec, ElectionResult, Writing};
use restow_store::{
    Compare, Entry, Key, KeyRange, RangeRequest, Revision, Store, StoreError, StoreExt, Txn, TxnOutcome,
};
use std::sync::Arc;
use std::time::Duration;

/// How long to wait after a failure.
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// What the selected version means for this server.
pub(super) enum Selection {
    /// Write this version, with these comparisons.
    Write(GroupVersion, Vec<Fence>),
    /// Write nothing, for this reason.
    Refuse(String),
}

impl Agreement {
    /// Whether servers vote on the storage version of this resource. They do not vote on leases, StorageVersions and elections;
    /// and the CRD sets the storage version of a custom resource.
    pub(super) fn votes_on(&self, resource: &Resource) -> bool {
        let own = [Report::GROUP, Election::GROUP, "coordination.k8s.io"];
        matches!(self.config.storage_versions, StorageVersions::Vote(_))
            && resource.origin == Origin::Builtin
            && !own.contains(&resource.group_resource.group())
    }

    /// What a selected version means for this server.
    fn selection(&self, resource: &Resource, selected: &str, key: &Key, revision: Revision) -> Option<Selection> {
        let storage = resource.storage.as_ref()?;
        let decodable = storage.decodable.iter().cloned().collect();
        let codec = Codec { encodable: storage.decodable.iter().cloned().collect(), decodable };
        Some(match vote::writing(&resource.group_resource, selected, &codec) {
            Writing::RefuseWrites(refusal) => Selection::Refuse(refusal.to_string()),
            Writing::Encode(version) => match self.config.storage_versions {
                StorageVersions::Vote(Guarantee::Strict) => {
                    Selection::Write(version, vec![Fence::Selected(Compare::mod_revision(key, revision))])
                }
                _ => Selection::Write(version, Vec::new()),
            },
        })
    }
}

impl Registrar<'_> {
    /// Votes for the version that this release prefers, and returns the selection.
    pub(super) async fn vote(&self, resource: &Resource) -> Result<Option<Selection>, AgreementError> {
        let Some(storage) = &resource.storage else { return Ok(None) };
        let store = &self.agreement.store;
        let key = keys::election_key(&storage.location)?;
        let ballot = Ballot { id: self.agreement.config.identity.clone(), preferred: storage.preferred.clone() };
        let mut found = store.get(&key).await?;
        for attempt in 0..ATTEMPTS {
            let current = found.as_ref().map(keys::read::<Election>).transpose()?;
            let voters = Voters::read(store.as_ref()).await?;
            let tally = vote::vote(current.as_ref(), &voters.participants, &ballot);
            if let (Some(entry), Some(current)) = (&found, &current)
                && current.selected_version == tally.selected_version
                && current.candidate_versions == tally.candidate_versions
            {
                return Ok(self.agreement.selection(resource, &tally.selected_version, &key, entry.mod_revision));
            }
            let object = current.unwrap_or_else(|| new_election(&storage.location));
            let txn = write(&key, found.as_ref(), object, &tally, &voters.preconditions(self.held_lease))?;
            match store.txn(txn.otherwise_get(&key).otherwise_get(&self.held_lease.key)).await {
                Ok(TxnOutcome::Committed { revision }) => {
                    return Ok(self.agreement.selection(resource, &tally.selected_version, &key, revision));
                }
                Ok(TxnOutcome::Refused { found: mut read, .. }) => {
                    if !self.held_lease.fence.holds(read.pop().flatten().as_ref()) {
                        return Err(AgreementError::LeaseLost(self.agreement.config.identity.clone()));
                    }
                    found = read.pop().flatten();
                }
                Err(StoreError::OutcomeUnknown(_)) => found = store.get(&key).await?,
                Err(error) => return Err(error.into()),
            }
            self.agreement.retries.inc();
            pause(attempt).await;
        }
        Err(AgreementError::Contended { name: Election::name_for(&storage.location), attempts: ATTEMPTS })
    }
}

/// Drops the votes of servers that are gone. That may change the selected version.
pub(super) async fn collect(agreement: &Agreement, held_lease: &HeldLease) -> Result<bool, AgreementError> {
    let store = &agreement.store;
    let listed = store.range(RangeRequest::prefix(keys::ELECTIONS)).await?;
    let voters = Voters::read(store.as_ref()).await?;
    let mut complete = true;
    for entry in &listed.entries {
        let Ok(election) = keys::read::<Election>(entry) else { continue };
        let Some(tally) = vote::collect(&election, &voters.participants) else { continue };
        let txn = write_or_remove(entry, election, &tally, &voters.preconditions(held_lease))?;
        complete &= matches!(store.txn(txn).await?, TxnOutcome::Committed { .. });
    }
    Ok(complete)
}

/// Watches the elections.
pub(super) async fn run(agreement: Arc<Agreement>, watch_cache: Arc<WatchCache>) {
    let mut subscription: Option<Subscription> = None;
    loop {
        match agreement.state() {
            RegistrationState::Registered(_) => {}
            RegistrationState::Pending { .. } | RegistrationState::Disabled | RegistrationState::Left => {
                tokio::time::sleep(RETRY_DELAY).await;
                subscription = None;
                continue;
            }
        }
        let changed = match &mut subscription {
            None => {
                let since = watch_cache.reached();
                subscription = watch_cache.subscribe(keys::ELECTIONS, KeyRange::prefix(keys::ELECTIONS), since).ok();
                // Changes before the subscription are found by checking every election once.
                agreement.voted_on()
            }
            Some(elections) => match tokio::time::timeout(RETRY_DELAY * 5, elections.next()).await {
                Err(_) => continue,
                Ok(Err(_)) => {
                    subscription = None;
                    continue;
                }
                Ok(Ok((events, _))) => {
                    let names: Vec<&str> = events.iter().map(|event| name_of(&event.key)).collect();
                    let all = agreement.voted_on().into_iter();
                    all.filter(|location| names.contains(&Election::name_for(location).as_str())).collect()
                }
            },
        };
        if let Err(error) = agreement.apply_selected_versions(changed).await {
            tracing::warn!(
                reason = error.chain(),
                "the selected version of an election could not be applied; trying again"
            );
            subscription = None;
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }
}

impl Agreement {
    /// The resources that are voted on.
    fn voted_on(&self) -> Vec<GroupResource> {
        let reported = self.reported();
        let voted = reported.iter().filter(|(_, known)| self.votes_on(&known.resource));
        voted.map(|(location, _)| location.clone()).collect()
    }

    /// Withdraws votes of an earlier process of this server on resources that it does not vote on.
    pub(super) async fn withdraw_votes(&self, held_lease: &HeldLease) -> Result<(), AgreementError> {
        let voted_on: Vec<String> = match self.config.reports {
            true => self.voted_on().iter().map(Election::name_for).collect(),
            false => Vec::new(),
        };
        for entry in self.store.range(RangeRequest::prefix(keys::ELECTIONS)).await?.entries {
            if voted_on.iter().any(|name| name == name_of(&entry.key)) {
                continue;
            }
            let Ok(election) = keys::read::<Election>(&entry) else { continue };
            if let Some(tally) = vote::withdraw(&election, &self.config.identity) {
                // If this is refused, another server was faster; the next resync tries again.
                self.store
                    .txn(write_or_remove(&entry, election, &tally, std::slice::from_ref(&held_lease.fence))?)
                    .await?;
            }
        }
        Ok(())
    }

    /// Reports and writes the versions that are selected now.
    async fn apply_selected_versions(&self, locations: Vec<GroupResource>) -> Result<(), AgreementError> {
        if locations.is_empty() {
            return Ok(());
        }
        let _guard = self.report_lock.lock().await;
        let RegistrationState::Registered(held_lease) = self.state() else { return Ok(()) };
        match self.registrar(&held_lease).report_all(locations).await {
            // The lease keeper registers again, and votes on everything then.
            Err(AgreementError::LeaseLost(_)) => {
                self.alarm.ring();
                Ok(())
            }
            done => done,
        }
    }
}

/// The servers that vote, and the comparison that holds until another server joins.
struct Voters {
    participants: Participants,
    no_server_joined: Compare,
}

impl Voters {
    /// Reads the key before the leases, so that the comparison fails if a server joins in between.
    async fn read(store: &dyn Store) -> Result<Self, AgreementError> {
        let no_server_joined = no_server_joined(store).await?;
        Ok(Voters { participants: Leases::read(store).await?.voters(), no_server_joined })
    }

    /// The comparisons of a transaction that may select a version: a server that has joined meanwhile has not voted yet, and must
    /// not be outvoted.
    fn preconditions(&self, held_lease: &HeldLease) -> [Compare; 2] {
        [held_lease.fence.clone(), self.no_server_joined.clone()]
    }
}

/// The transaction that writes an election, or deletes one without votes.
fn write_or_remove(
    entry: &Entry,
    election: Election,
    tally: &ElectionResult,
    preconditions: &[Compare],
) -> Result<Txn, AgreementError> {
    match tally.candidate_versions.is_empty() {
        false => write(&entry.key, Some(entry), election, tally, preconditions),
        true => with_preconditions(Txn::new().delete(&entry.key), &entry.key, Some(entry), tally, preconditions),
    }
}

fn write(
    key: &Key,
    found: Option<&Entry>,
    mut object: Election,
    tally: &ElectionResult,
    preconditions: &[Compare],
) -> Result<Txn, AgreementError> {
    object.selected_version = tally.selected_version.clone();
    object.candidate_versions = tally.candidate_versions.clone();
    let value = keys::encode(serde_json::to_value(&object).unwrap_or_default())?;
    with_preconditions(Txn::new().put(key, value), key, found, tally, preconditions)
}

/// Adds the preconditions to a transaction.
fn with_preconditions(
    txn: Txn,
    key: &Key,
    found: Option<&Entry>,
    tally: &ElectionResult,
    preconditions: &[Compare],
) -> Result<Txn, AgreementError> {
    let revision = found.map_or(Revision::ZERO, |entry| entry.mod_revision);
    let mut txn = txn.when(Compare::mod_revision(key, revision));
    txn.when.extend(preconditions.iter().cloned());
    for server in &tally.dropped {
        txn = txn.when(Compare::absent(&keys::lease_key(server)?));
    }
    Ok(txn)
}

/// An election without votes.
fn new_election(location: &GroupResource) -> Election {
    let mut object = Election::new(location);
    object.metadata.uid = restow_host::uuid().to_string();
    object.metadata.creation_timestamp = Some(Time::new(restow_host::now()));
    object
}
