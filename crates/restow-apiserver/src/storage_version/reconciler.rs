//! Looks after the StorageVersions: tells how long servers disagree, and reports again what somebody else took away.
//!
//! A StorageVersion that was deleted or edited by hand is put right within moments, not when a server happens to start. If
//! it is changed again and again, each repair waits longer than the one before, so that two who disagree do not spend all
//! their time on it.

use super::registrar::jittered;
use super::{Agreement, AgreementError, Standing, keys};
use crate::resource::Membership;
use crate::storage::key_pages::name_of;
use crate::storage::watch_cache::{Subscription, WatchCache};
use jiff::{SignedDuration, Timestamp};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use restow_api::GroupResource;
use restow_api::internal_apiserver::StorageVersion;
use restow_rules::trigger::Backoff;
use restow_rules::{Disagreement, disagreement, is_reported};
use restow_store::{Entry, KeyRange, RangeRequest};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often it is looked whether the server has left, and what has lasted long.
const BREATH: Duration = Duration::from_secs(1);
/// After this time a disagreement is no upgrade under way any more.
const LONG: SignedDuration = SignedDuration::from_mins(10);
/// The pauses before one and the same object is put right again.
const PAUSES: Backoff = Backoff { first: SignedDuration::from_millis(50), cap: SignedDuration::from_secs(30) };
/// How often everything is looked at, in case that something could not be done when it was time for it.
const THOROUGH: Duration = Duration::from_secs(20);
/// Who is left alone for this long is put right without delay the next time.
const CALM: Duration = Duration::from_secs(120);

/// On which resources the servers disagree, by the name of the StorageVersion. Metrics read it.
#[derive(Clone, Debug, Default)]
pub(super) struct Sights(Arc<Mutex<BTreeMap<String, Freshness>>>);

#[derive(Debug, Default)]
struct Freshness {
    disagreement: Option<Disagreement>,
    /// Whether it was said that this lasts long.
    told: bool,
}

impl Sights {
    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Freshness>> {
        // Nothing that can panic happens while the lock is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of an object, and tells of what began or ended with it.
    fn see(&self, name: &str, object: Option<&StorageVersion>, now: Timestamp) {
        let mut all = self.all();
        let Some(object) = object else {
            all.remove(name);
            return;
        };
        let freshness = all.entry(name.to_string()).or_default();
        let found = disagreement(object);
        match (&freshness.disagreement, &found) {
            (None, Some(found)) => tracing::info!(
                storage_version = name, stored = %found,
                "the API servers store a resource in different versions; it can be migrated when they agree"
            ),
            (Some(past), None) => tracing::info!(
                storage_version = name,
                version = object.status.common_encoding_version,
                seconds = past.lasted(now).as_secs(),
                "the API servers store a resource in the same version again"
            ),
            _ => {}
        }
        freshness.told &= found.is_some();
        freshness.disagreement = found;
    }

    /// Tells once of each disagreement that has become long.
    fn tell_of_long_ones(&self, now: Timestamp) {
        for (name, freshness) in self.all().iter_mut().filter(|(_, freshness)| !freshness.told) {
            let Some(found) = freshness.disagreement.as_ref().filter(|found| found.lasted(now) > LONG) else {
                continue;
            };
            tracing::warn!(
                storage_version = name, stored = %found, minutes = found.lasted(now).as_mins(),
                "the API servers have stored a resource in different versions for long; finish the upgrade or the rollback of \
                 the servers that are named, or stop them"
            );
            freshness.told = true;
        }
    }
}

impl Collector for Sights {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let name = "apiserver_storage_version_disagreement_seconds";
        let help = "How long the API servers have stored a resource in different versions; 0 while they agree.";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        let now = Timestamp::now();
        for (name, freshness) in self.all().iter() {
            let Some(place) = keys::resource_of(name) else { continue };
            let lasted = freshness.disagreement.as_ref().map_or(0.0, |found| found.lasted(now).as_secs_f64());
            let labels = [("group", place.group()), ("resource", place.resource())];
            ConstGauge::new(lasted).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

/// Attends until the server leaves.
pub(super) async fn attend(agreement: Arc<Agreement>, watch_cache: Arc<WatchCache>) {
    let mut attendant = Attendant { agreement: &agreement, astray: BTreeMap::new(), repairs: HashMap::new() };
    agreement.complete().await;
    while !matches!(agreement.standing(), Standing::Left) {
        match attendant.begin(&watch_cache).await {
            Ok(Some(changes)) => attendant.follow(changes).await,
            Ok(None) => {}
            Err(error) => tracing::warn!(reason = error.chain(), "the StorageVersions could not be read; trying again"),
        }
        tokio::time::sleep(BREATH).await;
    }
}

struct Attendant<'a> {
    agreement: &'a Agreement,
    /// The places whose object does not say what this server reported, and when to do something about it.
    astray: BTreeMap<GroupResource, Instant>,
    /// When and how many times in a row each was put right.
    repairs: HashMap<GroupResource, (Instant, u32)>,
}

impl Attendant<'_> {
    /// Looks at everything, and subscribes to what comes after; nothing when that is out of date already.
    async fn begin(&mut self, watch_cache: &WatchCache) -> Result<Option<Subscription>, AgreementError> {
        let folder = keys::STORAGE_VERSIONS;
        let listed = self.agreement.store.range(RangeRequest::prefix(folder)).await?;
        let Ok(changes) = watch_cache.subscribe(folder, KeyRange::prefix(folder), listed.revision) else {
            return Ok(None);
        };
        let by_name: HashMap<&str, &Entry> = listed.entries.iter().map(|entry| (name_of(&entry.key), entry)).collect();
        self.agreement.sights.all().retain(|name, _| by_name.contains_key(name.as_str()));
        self.astray.clear();
        if let Standing::Member(tenure) = self.agreement.standing() {
            let _turn = self.agreement.turn.lock().await;
            self.agreement.withdraw_votes(&tenure).await?;
        }
        by_name.iter().for_each(|(name, entry)| self.see(name, Some(entry)));
        let known: Vec<String> = self.agreement.reported().keys().map(StorageVersion::name_for).collect();
        known.iter().filter(|name| !by_name.contains_key(name.as_str())).for_each(|name| self.see(name, None));
        Ok(Some(changes))
    }

    /// Follows the changes until they have overtaken this, or the server leaves.
    async fn follow(&mut self, mut changes: Subscription) {
        let begun = Instant::now();
        while !matches!(self.agreement.standing(), Standing::Left) && begun.elapsed() < THOROUGH {
            let due = self.astray.values().min().map(|due| due.saturating_duration_since(Instant::now()));
            match tokio::time::timeout(due.unwrap_or(BREATH).min(BREATH), changes.next()).await {
                Ok(Err(_)) => return,
                Ok(Ok((events, _))) => {
                    events.iter().for_each(|event| self.see(name_of(&event.key), event.current.as_ref()));
                }
                Err(_) => {
                    self.agreement.sights.tell_of_long_ones(Timestamp::now());
                    self.agreement.report_pending().await;
                }
            }
            self.put_right().await;
        }
    }

    fn see(&mut self, name: &str, entry: Option<&Entry>) {
        let now = Timestamp::now();
        let object = entry.and_then(|entry| keys::read::<StorageVersion>(entry).ok());
        self.agreement.sights.see(name, object.as_ref(), now);
        let Some(place) = keys::resource_of(name) else { return };
        if self.agreement.stands_by(&place, object.as_ref(), now) {
            self.astray.remove(&place);
        } else {
            let times =
                self.repairs.get(&place).filter(|(last, _)| last.elapsed() < CALM).map_or(0, |(_, times)| *times);
            let pause = Duration::try_from(PAUSES.after(times + 1)).unwrap_or(BREATH);
            // Each server waits for another time, so that mostly one of them has to act where one is enough.
            self.astray.entry(place).or_insert_with(|| Instant::now() + jittered(pause));
        }
    }

    /// Reports again what is due.
    async fn put_right(&mut self) {
        let now = Instant::now();
        let due: Vec<GroupResource> =
            self.astray.iter().filter(|(_, due)| **due <= now).map(|(place, _)| place.clone()).collect();
        for place in due {
            self.astray.remove(&place);
            match self.agreement.report_again(&place).await {
                Ok(Repair::None) => {}
                Ok(Repair::Withdrawn) => tracing::info!(
                    storage_version = StorageVersion::name_for(&place),
                    "this server does not serve a resource that it reported in an earlier life; the report was withdrawn"
                ),
                Ok(Repair::Reported) => {
                    tracing::warn!(
                        storage_version = StorageVersion::name_for(&place),
                        "somebody removed or changed what this server reported; it was reported again"
                    );
                    let (last, times) = self.repairs.entry(place).or_insert((now, 0));
                    *times = if last.elapsed() < CALM { *times + 1 } else { 1 };
                    *last = Instant::now();
                }
                Err(error) => {
                    tracing::warn!(
                        reason = error.chain(),
                        "a storage version could not be reported again; trying again"
                    );
                    self.astray.insert(place, now + BREATH);
                }
            }
        }
    }
}

/// What had to be done about an object.
enum Repair {
    None,
    Reported,
    Withdrawn,
}

impl Agreement {
    /// Whether an object says what this server has reported, as far as it has reported anything and may write. About what it
    /// does not serve, it says nothing.
    fn stands_by(&self, place: &GroupResource, object: Option<&StorageVersion>, now: Timestamp) -> bool {
        let writers = self.writers_at(place);
        let first = writers.first().and_then(|resource| Some((resource, resource.storage.as_deref()?)));
        let Some((resource, storage)) = first else {
            let entries = object.into_iter().flat_map(|object| &object.status.storage_versions);
            return !entries.into_iter().any(|entry| entry.api_server_id == self.config.identity.as_str());
        };
        if !matches!(storage.encoding().membership, Membership::Registered(_)) {
            return true;
        }
        // What cannot be reported is told of where it is tried.
        self.report_about(resource, storage).is_ok_and(|report| is_reported(object, &report, now))
    }

    /// Reports what is written at a place once more, or withdraws what is not, if that is needed.
    async fn report_again(&self, place: &GroupResource) -> Result<Repair, AgreementError> {
        let _turn = self.turn.lock().await;
        let Standing::Member(tenure) = self.standing() else { return Ok(Repair::None) };
        let key = keys::storage_version_key(place)?;
        let found = restow_store::StoreExt::get(self.store.as_ref(), &key).await?;
        let object = found.as_ref().and_then(|entry| keys::read::<StorageVersion>(entry).ok());
        if self.stands_by(place, object.as_ref(), Timestamp::now()) {
            return Ok(Repair::None);
        }
        let registrar = self.registrar(&tenure);
        let (repaired, repair) = match self.writers_at(place).is_empty() {
            true => (registrar.withdraw(place).await, Repair::Withdrawn),
            false => (registrar.enter(place).await, Repair::Reported),
        };
        match repaired {
            Err(AgreementError::LeaseLost(_)) => {
                // The keeper joins again, and reports everything then.
                self.alarm.ring();
                Ok(Repair::None)
            }
            done => done.map(|()| repair),
        }
    }

    /// Reports what could not be reported when it was time for it.
    async fn report_pending(&self) {
        let waits = |place: &GroupResource| {
            let writers = self.writers_at(place);
            let storage = writers.first().and_then(|resource| resource.storage.as_ref());
            storage.is_some_and(|storage| storage.encoding().membership == Membership::Pending)
        };
        let places: Vec<GroupResource> = self.reported().keys().cloned().collect();
        for place in places.iter().filter(|place| waits(place)) {
            let _turn = self.turn.lock().await;
            let Standing::Member(tenure) = self.standing() else { return };
            match self.registrar(&tenure).enter(place).await {
                Ok(()) => {}
                Err(AgreementError::LeaseLost(_)) => return self.alarm.ring(),
                Err(error) => {
                    let reason = error.chain();
                    tracing::error!(resource = %place, reason, "a resource cannot be written yet; trying again");
                }
            }
        }
    }
}
