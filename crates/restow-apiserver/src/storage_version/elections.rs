//! Voting: every server says which version it prefers, all store the selected one, and it moves when all prefer the same.
//!
//! A server votes for each built-in resource when it joins, and follows the elections from then on. Under the strict
//! guarantee each write compares that the election has not changed since the server looked; under the loose one the server
//! relies on hearing of a change soon.

use super::config::{Guarantee, StorageVersions};
use super::identity::Tenure;
use super::lease_watch::{Leases, nobody_joined};
use super::registrar::{ATTEMPTS, Registrar, pause};
use super::{Agreement, AgreementError, Standing, keys};
use crate::resource::{Fence, Origin, Resource};
use crate::storage::key_pages::name_of;
use crate::storage::watch_cache::{Subscription, WatchCache};
use restow_api::internal_apiserver::StorageVersion as Report;
use restow_api::kube_apiserver_internal::StorageVersion as Election;
use restow_api::{GroupResource, GroupVersion, Time};
use restow_rules::Participants;
use restow_rules::vote::{self, Ballot, Codec, Tally, Writing};
use restow_store::{
    Compare, Entry, Key, KeyRange, RangeRequest, Revision, Store, StoreError, StoreExt, Txn, TxnOutcome,
};
use std::sync::Arc;
use std::time::Duration;

/// How long to wait before looking again when the changes could not be followed.
const BREATH: Duration = Duration::from_millis(200);

/// What this server may do after it has voted.
pub(super) enum Elected {
    /// Write this version, comparing this.
    Write(GroupVersion, Vec<Fence>),
    /// Write nothing, for this reason.
    Refuse(String),
}

impl Agreement {
    /// Whether servers vote on how this resource is stored. What the agreement itself rests on is not voted on, and the
    /// storage version of a custom resource is what its definition says.
    pub(super) fn votes_on(&self, resource: &Resource) -> bool {
        let own = [Report::GROUP, Election::GROUP, "coordination.k8s.io"];
        matches!(self.config.storage_versions, StorageVersions::Vote(_))
            && resource.origin == Origin::Builtin
            && !own.contains(&resource.group_resource.group())
    }

    /// What a selection means for this server.
    fn elected(&self, resource: &Resource, selected: &str, key: &Key, revision: Revision) -> Option<Elected> {
        let storage = resource.storage.as_ref()?;
        let decodable = storage.decodable.iter().cloned().collect();
        let codec = Codec { encodable: storage.decodable.iter().cloned().collect(), decodable };
        Some(match vote::writing(&resource.group_resource, selected, &codec) {
            Writing::RefuseWrites(refusal) => Elected::Refuse(refusal.to_string()),
            Writing::Encode(version) => match self.config.storage_versions {
                StorageVersions::Vote(Guarantee::Strict) => {
                    Elected::Write(version, vec![Fence::Selected(Compare::mod_revision(key, revision))])
                }
                _ => Elected::Write(version, Vec::new()),
            },
        })
    }
}

impl Registrar<'_> {
    /// Votes for what this release prefers, and tells what was selected.
    pub(super) async fn vote(&self, resource: &Resource) -> Result<Option<Elected>, AgreementError> {
        let Some(storage) = &resource.storage else { return Ok(None) };
        let store = &self.agreement.store;
        let key = keys::election_key(&storage.location)?;
        let ballot = Ballot { id: self.agreement.config.identity.clone(), preferred: storage.preferred.clone() };
        let mut found = store.get(&key).await?;
        for attempt in 0..ATTEMPTS {
            let current = found.as_ref().map(keys::read::<Election>).transpose()?;
            let electorate = Electorate::read(store.as_ref()).await?;
            let tally = vote::vote(current.as_ref(), &electorate.voters, &ballot);
            if let (Some(entry), Some(current)) = (&found, &current)
                && current.selected_version == tally.selected_version
                && current.candidate_versions == tally.candidate_versions
            {
                return Ok(self.agreement.elected(resource, &tally.selected_version, &key, entry.mod_revision));
            }
            let object = current.unwrap_or_else(|| fresh(&storage.location));
            let txn = write(&key, found.as_ref(), object, &tally, &electorate.rests_on(self.tenure))?;
            match store.txn(txn.otherwise_get(&key).otherwise_get(&self.tenure.key)).await {
                Ok(TxnOutcome::Committed { revision }) => {
                    return Ok(self.agreement.elected(resource, &tally.selected_version, &key, revision));
                }
                Ok(TxnOutcome::Refused { found: mut read, .. }) => {
                    if !self.tenure.fence.holds(read.pop().flatten().as_ref()) {
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

/// Drops the votes of servers that are gone, which may be what the rest has waited for.
pub(super) async fn collect(agreement: &Agreement, tenure: &Tenure) -> Result<bool, AgreementError> {
    let store = &agreement.store;
    let listed = store.range(RangeRequest::prefix(keys::ELECTIONS)).await?;
    let electorate = Electorate::read(store.as_ref()).await?;
    let mut complete = true;
    for entry in &listed.entries {
        let Ok(election) = keys::read::<Election>(entry) else { continue };
        let Some(tally) = vote::collect(&election, &electorate.voters) else { continue };
        let txn = write_or_remove(entry, election, &tally, &electorate.rests_on(tenure))?;
        complete &= matches!(store.txn(txn).await?, TxnOutcome::Committed { .. });
    }
    Ok(complete)
}

/// Follows the elections until the server leaves.
pub(super) async fn follow(agreement: Arc<Agreement>, watch_cache: Arc<WatchCache>) {
    let mut subscription: Option<Subscription> = None;
    loop {
        match agreement.standing() {
            Standing::Left => return,
            Standing::Member(_) => {}
            Standing::Outside { .. } | Standing::Unmanaged => {
                tokio::time::sleep(BREATH).await;
                subscription = None;
                continue;
            }
        }
        let changed = match &mut subscription {
            None => {
                let since = watch_cache.reached();
                subscription = watch_cache.subscribe(keys::ELECTIONS, KeyRange::prefix(keys::ELECTIONS), since).ok();
                // What changed before the subscription is found by looking at everything once.
                agreement.voted_on()
            }
            Some(elections) => match tokio::time::timeout(BREATH * 5, elections.next()).await {
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
        if let Err(error) = agreement.follow_selection(changed).await {
            tracing::warn!(reason = error.chain(), "an election could not be followed; trying again");
            subscription = None;
            tokio::time::sleep(BREATH).await;
        }
    }
}

impl Agreement {
    /// The places that are voted on.
    fn voted_on(&self) -> Vec<GroupResource> {
        let reported = self.reported();
        let voted = reported.iter().filter(|(_, known)| self.votes_on(&known.resource));
        voted.map(|(location, _)| location.clone()).collect()
    }

    /// Takes back the votes of an earlier life of this server on what it does not vote on.
    pub(super) async fn withdraw_votes(&self, tenure: &Tenure) -> Result<(), AgreementError> {
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
                // Who was faster has changed it; the next look finds what is left to do.
                self.store.txn(write_or_remove(&entry, election, &tally, std::slice::from_ref(&tenure.fence))?).await?;
            }
        }
        Ok(())
    }

    /// Reports and writes what is selected now.
    async fn follow_selection(&self, locations: Vec<GroupResource>) -> Result<(), AgreementError> {
        if locations.is_empty() {
            return Ok(());
        }
        let _turn = self.turn.lock().await;
        let Standing::Member(tenure) = self.standing() else { return Ok(()) };
        match self.registrar(&tenure).enter_all(locations).await {
            // The keeper joins again, and votes on everything then.
            Err(AgreementError::LeaseLost(_)) => {
                self.alarm.ring();
                Ok(())
            }
            done => done,
        }
    }
}

/// Who has to vote, and the comparison that holds as long as nobody else has.
struct Electorate {
    voters: Participants,
    nobody_joined: Compare,
}

impl Electorate {
    /// The key is read before the leases: whoever joins in between is noticed by the comparison.
    async fn read(store: &dyn Store) -> Result<Self, AgreementError> {
        let nobody_joined = nobody_joined(store).await?;
        Ok(Electorate { voters: Leases::read(store).await?.voters(), nobody_joined })
    }

    /// What a transaction of this server has to compare that selects something on their behalf: who has joined has not voted
    /// yet, and must not be outvoted.
    fn rests_on(&self, tenure: &Tenure) -> [Compare; 2] {
        [tenure.fence.clone(), self.nobody_joined.clone()]
    }
}

/// The transaction that writes an election, or removes one without any vote.
fn write_or_remove(
    entry: &Entry,
    election: Election,
    tally: &Tally,
    rests_on: &[Compare],
) -> Result<Txn, AgreementError> {
    match tally.candidate_versions.is_empty() {
        false => write(&entry.key, Some(entry), election, tally, rests_on),
        true => under(Txn::new().delete(&entry.key), &entry.key, Some(entry), tally, rests_on),
    }
}

fn write(
    key: &Key,
    found: Option<&Entry>,
    mut object: Election,
    tally: &Tally,
    rests_on: &[Compare],
) -> Result<Txn, AgreementError> {
    object.selected_version = tally.selected_version.clone();
    object.candidate_versions = tally.candidate_versions.clone();
    let value = keys::written(serde_json::to_value(&object).unwrap_or_default())?;
    under(Txn::new().put(key, value), key, found, tally, rests_on)
}

/// The transaction under the conditions that it rests on.
fn under(
    txn: Txn,
    key: &Key,
    found: Option<&Entry>,
    tally: &Tally,
    rests_on: &[Compare],
) -> Result<Txn, AgreementError> {
    let revision = found.map_or(Revision::ZERO, |entry| entry.mod_revision);
    let mut txn = txn.when(Compare::mod_revision(key, revision));
    txn.when.extend(rests_on.iter().cloned());
    for server in &tally.dropped {
        txn = txn.when(Compare::absent(&keys::lease_key(server)?));
    }
    Ok(txn)
}

/// An election in which nobody has voted yet.
fn fresh(location: &GroupResource) -> Election {
    let mut object = Election::new(location);
    object.metadata.uid = uuid::Uuid::new_v4().to_string();
    object.metadata.creation_timestamp = Some(Time::new(jiff::Timestamp::now()));
    object
}
