//! Reconciles the StorageVersions: measures how long servers disagree, and reports again what others deleted or changed.
//!
//! A StorageVersion that was deleted or edited by hand is repaired at once, not only at the next start of a server. Repeated
//! repairs of the same object back off exponentially, so that two writers that disagree do not spend all their time on it.

use super::registrar::jittered;
use super::{Agreement, AgreementError, RegistrationState, keys};
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
use std::time::Duration;
use tokio::time::Instant;

/// How often long disagreements and missing reports are checked, and the pause after a failure.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// After this time a disagreement is more than an upgrade in progress.
const LONG_DISAGREEMENT: SignedDuration = SignedDuration::from_mins(10);
/// The backoff between repairs of the same object.
const REPAIR_BACKOFF: Backoff = Backoff { first: SignedDuration::from_millis(50), cap: SignedDuration::from_secs(30) };
/// How often all objects are listed again, in case that something failed.
const RESYNC_PERIOD: Duration = Duration::from_secs(20);
/// After this time without a repair, the backoff of an object starts over.
const BACKOFF_RESET: Duration = Duration::from_secs(120);

/// The resources on which the servers disagree, by the name of the StorageVersion. Exposed as a metric.
#[derive(Clone, Debug, Default)]
pub(super) struct Disagreements(Arc<Mutex<BTreeMap<String, DisagreementStatus>>>);

#[derive(Debug, Default)]
struct DisagreementStatus {
    disagreement: Option<Disagreement>,
    /// Whether a long disagreement was logged.
    warned: bool,
}

impl Disagreements {
    fn all(&self) -> MutexGuard<'_, BTreeMap<String, DisagreementStatus>> {
        // Nothing that can panic happens while the lock is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an object, and logs a disagreement that began or ended.
    fn observe(&self, name: &str, object: Option<&StorageVersion>, now: Timestamp) {
        let mut all = self.all();
        let Some(object) = object else {
            all.remove(name);
            return;
        };
        let status = all.entry(name.to_string()).or_default();
        let found = disagreement(object);
        match (&status.disagreement, &found) {
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
        status.warned &= found.is_some();
        status.disagreement = found;
    }

    /// Logs each long disagreement once.
    fn warn_of_long_ones(&self, now: Timestamp) {
        for (name, status) in self.all().iter_mut().filter(|(_, status)| !status.warned) {
            let Some(found) = status.disagreement.as_ref().filter(|found| found.lasted(now) > LONG_DISAGREEMENT) else {
                continue;
            };
            tracing::warn!(
                storage_version = name, stored = %found, minutes = found.lasted(now).as_mins(),
                "the API servers have stored a resource in different versions for a long time; finish the upgrade or the rollback of \
                 the servers that are named, or stop them"
            );
            status.warned = true;
        }
    }
}

impl Collector for Disagreements {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let name = "apiserver_storage_version_disagreement_seconds";
        let help = "How long the API servers have stored a resource in different versions; 0 while they agree.";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        let now = restow_host::now();
        for (name, status) in self.all().iter() {
            let Some(resource) = keys::resource_of(name) else { continue };
            let lasted = status.disagreement.as_ref().map_or(0.0, |found| found.lasted(now).as_secs_f64());
            let labels = [("group", resource.group()), ("resource", resource.resource())];
            ConstGauge::new(lasted).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

/// Runs the reconciler.
pub(super) async fn run(agreement: Arc<Agreement>, watch_cache: Arc<WatchCache>) {
    let mut reconciler =
        Reconciler { agreement: &agreement, repairs_due: BTreeMap::new(), past_repairs: HashMap::new() };
    agreement.all_announced().await;
    loop {
        match reconciler.list(&watch_cache).await {
            Ok(Some(changes)) => reconciler.watch(changes).await,
            Ok(None) => {}
            Err(error) => tracing::warn!(reason = error.chain(), "the StorageVersions could not be read; trying again"),
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

struct Reconciler<'a> {
    agreement: &'a Agreement,
    /// The resources whose StorageVersion lacks the report of this server, and when to repair it.
    repairs_due: BTreeMap<GroupResource, Instant>,
    /// When and how many times in a row each was repaired.
    past_repairs: HashMap<GroupResource, (Instant, u32)>,
}

impl Reconciler<'_> {
    /// Lists all objects, and subscribes to later changes; `None` when the list is out of date already.
    async fn list(&mut self, watch_cache: &WatchCache) -> Result<Option<Subscription>, AgreementError> {
        let folder = keys::STORAGE_VERSIONS;
        let listed = self.agreement.store.range(RangeRequest::prefix(folder)).await?;
        let Ok(changes) = watch_cache.subscribe(folder, KeyRange::prefix(folder), listed.revision) else {
            return Ok(None);
        };
        // In order: each observation draws a random number, and a simulation has to repeat.
        let by_name: BTreeMap<&str, &Entry> = listed.entries.iter().map(|entry| (name_of(&entry.key), entry)).collect();
        self.agreement.disagreements.all().retain(|name, _| by_name.contains_key(name.as_str()));
        self.repairs_due.clear();
        if let RegistrationState::Registered(held_lease) = self.agreement.state() {
            let _guard = self.agreement.report_lock.lock().await;
            self.agreement.withdraw_votes(&held_lease).await?;
        }
        by_name.iter().for_each(|(name, entry)| self.observe(name, Some(entry)));
        let known: Vec<String> = self.agreement.reported().keys().map(StorageVersion::name_for).collect();
        known.iter().filter(|name| !by_name.contains_key(name.as_str())).for_each(|name| self.observe(name, None));
        Ok(Some(changes))
    }

    /// Handles changes until the subscription expires or the resync is due.
    async fn watch(&mut self, mut changes: Subscription) {
        let begun = Instant::now();
        while begun.elapsed() < RESYNC_PERIOD {
            let due = self.repairs_due.values().min().map(|due| due.saturating_duration_since(Instant::now()));
            match tokio::time::timeout(due.unwrap_or(POLL_INTERVAL).min(POLL_INTERVAL), changes.next()).await {
                Ok(Err(_)) => return,
                Ok(Ok((events, _))) => {
                    events.iter().for_each(|event| self.observe(name_of(&event.key), event.current.as_ref()));
                }
                Err(_) => {
                    self.agreement.disagreements.warn_of_long_ones(restow_host::now());
                    self.agreement.report_pending().await;
                }
            }
            self.repair_due().await;
        }
    }

    fn observe(&mut self, name: &str, entry: Option<&Entry>) {
        let now = restow_host::now();
        let object = entry.and_then(|entry| keys::read::<StorageVersion>(entry).ok());
        self.agreement.disagreements.observe(name, object.as_ref(), now);
        let Some(resource) = keys::resource_of(name) else { return };
        if self.agreement.is_up_to_date(&resource, object.as_ref(), now) {
            self.repairs_due.remove(&resource);
        } else {
            let times = self
                .past_repairs
                .get(&resource)
                .filter(|(last, _)| last.elapsed() < BACKOFF_RESET)
                .map_or(0, |(_, times)| *times);
            let pause = Duration::try_from(REPAIR_BACKOFF.after(times + 1)).unwrap_or(POLL_INTERVAL);
            // Each server waits for a random time, so that mostly only one acts where one is enough.
            self.repairs_due.entry(resource).or_insert_with(|| Instant::now() + jittered(pause));
        }
    }

    /// Makes the repairs that are due.
    async fn repair_due(&mut self) {
        let now = Instant::now();
        let due: Vec<GroupResource> =
            self.repairs_due.iter().filter(|(_, due)| **due <= now).map(|(resource, _)| resource.clone()).collect();
        for resource in due {
            self.repairs_due.remove(&resource);
            match self.agreement.report_again(&resource).await {
                Ok(Repair::None) => {}
                Ok(Repair::Withdrawn) => tracing::info!(
                    storage_version = StorageVersion::name_for(&resource),
                    "this server does not serve a resource that an earlier process of it reported; the report was withdrawn"
                ),
                Ok(Repair::ReportedResource) => {
                    tracing::warn!(
                        storage_version = StorageVersion::name_for(&resource),
                        "the report of this server was removed or changed by another client; it was reported again"
                    );
                    let (last, times) = self.past_repairs.entry(resource).or_insert((now, 0));
                    *times = if last.elapsed() < BACKOFF_RESET { *times + 1 } else { 1 };
                    *last = Instant::now();
                }
                Err(error) => {
                    tracing::warn!(
                        reason = error.chain(),
                        "a storage version could not be reported again; trying again"
                    );
                    self.repairs_due.insert(resource, now + POLL_INTERVAL);
                }
            }
        }
    }
}

/// How an object was repaired.
enum Repair {
    None,
    ReportedResource,
    Withdrawn,
}

impl Agreement {
    /// Whether a StorageVersion has the report of this server, where this server may write the resource; and no entry of this
    /// server where it does not serve the resource.
    fn is_up_to_date(&self, resource: &GroupResource, object: Option<&StorageVersion>, now: Timestamp) -> bool {
        let writers = self.writers_at(resource);
        let first = writers.first().and_then(|resource| Some((resource, resource.storage.as_deref()?)));
        let Some((resource, storage)) = first else {
            let entries = object.into_iter().flat_map(|object| &object.status.storage_versions);
            return !entries.into_iter().any(|entry| entry.api_server_id == self.config.identity.as_str());
        };
        if !matches!(storage.encoding().membership, Membership::Registered(_)) {
            return true;
        }
        // A report that fails is logged where it is tried.
        self.current_report(resource, storage).is_ok_and(|report| is_reported(object, &report, now))
    }

    /// Reports a resource again, or withdraws it if this server does not serve it, where that is needed.
    async fn report_again(&self, resource: &GroupResource) -> Result<Repair, AgreementError> {
        let _guard = self.report_lock.lock().await;
        let RegistrationState::Registered(held_lease) = self.state() else { return Ok(Repair::None) };
        let key = keys::storage_version_key(resource)?;
        let found = restow_store::StoreExt::get(self.store.as_ref(), &key).await?;
        let object = found.as_ref().and_then(|entry| keys::read::<StorageVersion>(entry).ok());
        if self.is_up_to_date(resource, object.as_ref(), restow_host::now()) {
            return Ok(Repair::None);
        }
        let registrar = self.registrar(&held_lease);
        let (repaired, repair) = match self.writers_at(resource).is_empty() {
            true => (registrar.withdraw(resource).await, Repair::Withdrawn),
            false => (registrar.report(resource).await, Repair::ReportedResource),
        };
        match repaired {
            Err(AgreementError::LeaseLost(_)) => {
                // The lease keeper registers again, and reports everything then.
                self.alarm.ring();
                Ok(Repair::None)
            }
            done => done.map(|()| repair),
        }
    }

    /// Reports the resources whose earlier report failed.
    async fn report_pending(&self) {
        let waits = |resource: &GroupResource| {
            let writers = self.writers_at(resource);
            let storage = writers.first().and_then(|resource| resource.storage.as_ref());
            storage.is_some_and(|storage| storage.encoding().membership == Membership::Pending)
        };
        let places: Vec<GroupResource> = self.reported().keys().cloned().collect();
        for resource in places.iter().filter(|resource| waits(resource)) {
            let _guard = self.report_lock.lock().await;
            let RegistrationState::Registered(held_lease) = self.state() else { return };
            match self.registrar(&held_lease).report(resource).await {
                Ok(()) => {}
                Err(AgreementError::LeaseLost(_)) => return self.alarm.ring(),
                Err(error) => {
                    let reason = error.chain();
                    tracing::error!(resource = %resource, reason, "a storage version could not be reported, so the resource cannot be written yet; trying again");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
