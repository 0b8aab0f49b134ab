//! This server among the others: it has an identity, reports in which versions it stores, and writes only what it has
//! reported. What to report and what to remove is decided by the pure rules of `restow-rules`; here they are acted on.
//!
//! A server takes an identity lease, reports every resource that it writes, and from then on each of its writes compares
//! that the lease is still the one that it reported under. A server whose lease was removed can write nothing more; it takes
//! a new lease, reports everything again, and goes on.
//!
//! | file | what is in it |
//! |---|---|
//! | `identity.rs` | the own lease: taking, renewing, releasing it |
//! | `leases.rs` | everybody's leases: who takes part |
//! | `registrar.rs` | the transactions that report and withdraw |
//! | `keeper.rs` | the task that joins, stays, and joins again |
//! | `elections.rs` | voting on the version, instead of each server storing what it prefers |
//! | `elsewhere.rs` | reporting to the main API server too, where this is an aggregated one |
//! | `whereabouts.rs` | where all servers are |
//! | `collector.rs` | the task that removes what servers leave behind |
//! | `attending.rs` | how long servers disagree, and putting right what somebody else changed |
//! | `written.rs` | what clients write about identities and storage versions |
//! | `barrier.rs` | which writes pass before everything is reported |
//!
//! # For resources that come and go
//!
//! Built-in resources are reported when the server starts. Whoever serves others calls [`Agreement::report`] before the
//! first write of a resource, and again with the new [`Resource`] before the first write in another version; and
//! [`Agreement::withdraw`] when the resource is gone. Everything that was reported is reported again by itself when the
//! server had to take a new lease.

mod barrier;
mod collector;
mod config;
mod elections;
mod endpoints;
mod error;
mod identity;
mod keeper;
mod keys;
mod lease_watch;
mod reconciler;
mod registrar;
mod upstream;
mod written;

use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::request::request_info::ResourceTarget;
use crate::resource::write_gate::passes_barrier;
use crate::resource::{Membership, Origin, Resource, Storage};
use crate::storage::fence_alarm::FenceAlarm;
use crate::storage::watch_cache::WatchCache;
pub use config::{AgreementConfig, Guarantee, StorageVersions};
pub use error::AgreementError;
use identity::Tenure;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use reconciler::Sights;
use registrar::Registrar;
use restow_api::{GroupResource, ServerId};
use restow_rules::ServerReport;
use restow_store::Store;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;
use tokio::sync::{Notify, watch};
pub use upstream::Elsewhere;
pub(crate) use written::joining;

/// The name of the readiness check, as in Kubernetes.
pub(crate) const READINESS: &str = "poststarthook/built-in-resources-storage-version-updater";

/// This server among the others.
pub struct Agreement {
    config: AgreementConfig,
    store: Arc<dyn Store>,
    alarm: Arc<FenceAlarm>,
    /// What tells this process from an earlier one of the same instance.
    holder: String,
    standing: watch::Sender<Standing>,
    reported: Mutex<BTreeMap<GroupResource, Reported>>,
    /// The places about which a transaction was sent that may or may not have been carried out.
    doubted: Mutex<BTreeSet<GroupResource>>,
    /// Whether everything that this server serves is known, so that it stands for nothing else.
    complete: watch::Sender<bool>,
    /// Told when this server has to join again, whatever its lease says.
    unsettled: Notify,
    /// Whoever changes what is reported takes a turn, so that joining sees all of it.
    turn: tokio::sync::Mutex<()>,
    /// On which resources the servers disagree.
    sights: Sights,
    /// How often a registration was refused and had to be decided again.
    retries: Counter,
    /// After how many seconds everything was reported for the first time.
    registered_after: Gauge<f64, AtomicU64>,
    started: Instant,
}

/// Where this server stands.
#[derive(Clone, Debug)]
enum Standing {
    /// Storage versions are not reported.
    Unmanaged,
    /// It has yet to report, or has to report again.
    Outside { last_error: Option<String> },
    /// It has reported everything, under this lease.
    Member(Tenure),
    /// It has left for good.
    Left,
}

/// What is reported about one place in the store.
struct Reported {
    /// The resource whose name and versions are reported.
    resource: Arc<Resource>,
    /// Others that write to the same place: equivalent resources, and handlers that are on their way out.
    sharing: Vec<Weak<Resource>>,
    /// What was reported last under the present lease, and is what is written.
    said: Option<ServerReport>,
}

impl Agreement {
    /// Sets up the part of this server. Until it has joined, the stored ones of `resources` cannot be written.
    pub(crate) fn new(
        config: AgreementConfig,
        store: Arc<dyn Store>,
        alarm: Arc<FenceAlarm>,
        resources: &[Arc<Resource>],
    ) -> Self {
        let standing = match config.has_identity || config.reports {
            true => Standing::Outside { last_error: None },
            false => Standing::Unmanaged,
        };
        if let Some(elsewhere) = &config.elsewhere {
            // Only a server that is made sets it, and it is made once.
            let upstream = elsewhere.clone();
            alarm.write_only_while(move || upstream.holds());
        }
        let agreement = Agreement {
            holder: format!("{}_{}", config.identity, uuid::Uuid::new_v4()),
            config,
            store,
            alarm,
            standing: watch::Sender::new(standing),
            reported: Mutex::default(),
            doubted: Mutex::default(),
            complete: watch::Sender::new(false),
            unsettled: Notify::new(),
            turn: tokio::sync::Mutex::default(),
            sights: Sights::default(),
            retries: Counter::default(),
            registered_after: Gauge::default(),
            started: Instant::now(),
        };
        if agreement.takes_part() {
            resources.iter().for_each(|resource| agreement.announce(resource));
        }
        agreement
    }

    /// Starts what joins and stays, and what collects. A server without an identity takes back first what it reported when
    /// it had one.
    pub(crate) async fn start(self: &Arc<Self>, watch_cache: &Arc<WatchCache>) -> Result<(), AgreementError> {
        match self.takes_part() {
            true => drop(tokio::spawn(keeper::keep(self.clone()))),
            false => self.retire().await?,
        }
        if self.config.reports {
            tokio::spawn(collector::collect_regularly(self.clone(), watch_cache.clone()));
            tokio::spawn(reconciler::attend(self.clone(), watch_cache.clone()));
        }
        if self.config.reports && self.config.storage_versions != StorageVersions::Report {
            tokio::spawn(elections::follow(self.clone(), watch_cache.clone()));
        }
        Ok(())
    }

    /// Everything that this server serves has been announced. Whatever else it reported in an earlier life is withdrawn.
    pub(crate) fn announced_everything(&self) {
        self.complete.send_replace(true);
    }

    /// What this server reported may be lost, though its lease is not: it takes a new one and reports everything again.
    pub(crate) fn join_again(&self) {
        self.unsettled.notify_one();
    }

    /// Completes when everything that this server serves is known.
    async fn complete(&self) {
        // The sender lives as long as this, so waiting cannot fail.
        let _ = self.complete.subscribe().wait_for(|complete| *complete).await;
    }

    /// Lets the figures be read with all others.
    pub(crate) fn register(&self, metrics: &Metrics) {
        let figures = (self.alarm.failures.clone(), self.retries.clone(), self.registered_after.clone());
        let sights = self.sights.clone();
        metrics.register(|registry| {
            let (failures, retries, registered_after) = figures;
            registry.register("apiserver_storage_version_fence_failures", "Writes that a fence refused", failures);
            let help = "Reports of storage versions that were refused and decided again";
            registry.register("apiserver_storage_version_registration_retries", help, retries);
            let help = "The time from the start until all storage versions were reported; 0 before";
            registry.register("apiserver_storage_version_registered_after_seconds", help, registered_after);
            registry.register_collector(Box::new(sights));
        });
    }

    /// The id of this server, which is also the name of its identity lease.
    pub fn identity(&self) -> &ServerId {
        &self.config.identity
    }

    /// Reports that this server stores `resource` in the version of its storage's encoding, and lets it write. Returns when
    /// the report is in the store; until then, writes of the resource wait. If the server is joining, this waits for that.
    ///
    /// Earlier resources at the same place stay allowed to write, so that requests that hold them can finish; it is up to
    /// their own fences to refuse an outdated version.
    pub async fn report(&self, resource: &Arc<Resource>) -> Result<(), AgreementError> {
        let Some(storage) = resource.storage.as_ref().filter(|_| self.takes_part()) else { return Ok(()) };
        {
            let _turn = self.turn.lock().await;
            self.announce(resource);
            if let Standing::Member(tenure) = self.standing() {
                match self.registrar(&tenure).enter(&storage.location).await {
                    Err(AgreementError::LeaseLost(_)) => self.alarm.ring(),
                    done => return done,
                }
            }
        }
        // Joining reports everything that is remembered, this resource included.
        let mut encoding = storage.encoding();
        while encoding.membership == Membership::Pending {
            storage.changed_from(&encoding).await;
            encoding = storage.encoding();
        }
        Ok(())
    }

    /// Takes back the report about the resource at `location`, which this server does not write any more. Its own fences must
    /// refuse whatever write of it is still under way.
    /// A server that is not a member just now has to be told again when it is.
    pub async fn withdraw(&self, location: &GroupResource) -> Result<(), AgreementError> {
        let _turn = self.turn.lock().await;
        self.reported().remove(location);
        match self.standing() {
            Standing::Member(tenure) => self.registrar(&tenure).withdraw(location).await,
            _ => Ok(()),
        }
    }

    /// Whether this server has an identity, so that it writes only while it is a member.
    pub(crate) fn takes_part(&self) -> bool {
        self.config.has_identity || self.config.reports
    }

    /// Whether what is reported about this resource is what this server has to say about it now.
    pub(crate) fn has_reported(&self, resource: &Resource) -> bool {
        let Some(storage) = resource.storage.as_ref().filter(|_| self.config.reports) else { return true };
        let report = self.report_about(resource, storage).ok();
        self.reported().get(&storage.location).is_some_and(|known| known.said == report)
    }

    /// Whether everything is reported, or nothing has to be.
    pub fn is_settled(&self) -> bool {
        matches!(self.standing(), Standing::Member(_) | Standing::Unmanaged)
    }

    /// Completes when everything is reported, or nothing has to be.
    pub async fn settled(&self) {
        let settled = |standing: &Standing| !matches!(standing, Standing::Outside { .. });
        // The sender lives as long as this, so waiting cannot fail.
        let _ = self.standing.subscribe().wait_for(settled).await;
    }

    /// Refuses a write to a built-in resource that has yet to be reported, in Kubernetes' words.
    pub(crate) fn admit(&self, resource: &Resource, target: &ResourceTarget) -> Result<(), ApiError> {
        let Some(storage) = &resource.storage else { return Ok(()) };
        let pending = storage.encoding().membership == Membership::Pending;
        if !pending || resource.origin != Origin::Builtin || barrier::reads(target.verb) {
            return Ok(());
        }
        if passes_barrier(&resource.group_resource, &target.namespace) {
            return Ok(());
        }
        let last_error = match self.standing() {
            Standing::Outside { last_error } => last_error,
            _ => None,
        };
        Err(barrier::refusal(&resource.group_resource, last_error.as_deref()))
    }

    /// How often fences have refused writes of this server.
    pub fn fence_failures(&self) -> u64 {
        self.alarm.count()
    }

    /// How often a registration was refused and had to be decided again.
    pub fn registration_retries(&self) -> u64 {
        self.retries.get()
    }

    fn standing(&self) -> Standing {
        self.standing.borrow().clone()
    }

    fn registrar<'a>(&'a self, tenure: &'a Tenure) -> Registrar<'a> {
        Registrar { agreement: self, tenure }
    }

    /// What this server reports about a resource now.
    fn report_about(&self, resource: &Resource, storage: &Storage) -> Result<ServerReport, AgreementError> {
        let (encoding, decodable) = (storage.encoding().version.clone(), storage.decodable.clone());
        ServerReport::new(self.config.identity.clone(), encoding, decodable, resource.served.clone())
            .map_err(|source| AgreementError::Report { resource: resource.group_resource.to_string(), source })
    }

    fn reported(&self) -> MutexGuard<'_, BTreeMap<GroupResource, Reported>> {
        // Nothing that can panic happens while the lock is held.
        self.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a resource among those that are reported, and lets its writes wait for that if they never were.
    pub(crate) fn announce(&self, resource: &Arc<Resource>) {
        let Some(storage) = &resource.storage else { return };
        storage.await_report();
        let mut reported = self.reported();
        match reported.get_mut(&storage.location) {
            None => {
                let fresh = Reported { resource: resource.clone(), sharing: Vec::new(), said: None };
                reported.insert(storage.location.clone(), fresh);
            }
            Some(known) => known.add(resource, &storage.location),
        }
    }

    /// Everything that writes at this place.
    fn writers_at(&self, location: &GroupResource) -> Vec<Arc<Resource>> {
        let reported = self.reported();
        let Some(known) = reported.get(location) else { return Vec::new() };
        let sharing = known.sharing.iter().filter_map(Weak::upgrade);
        std::iter::once(known.resource.clone()).chain(sharing).collect()
    }

    fn note_said(&self, location: &GroupResource, report: ServerReport) {
        if let Some(known) = self.reported().get_mut(location) {
            known.said = Some(report);
        }
    }

    fn said_about(&self, location: &GroupResource) -> Option<ServerReport> {
        self.reported().get(location).and_then(|known| known.said.clone())
    }

    fn doubted(&self) -> MutexGuard<'_, BTreeSet<GroupResource>> {
        self.doubted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody knows whether a transaction about this place was or will be carried out. It names the object's revision, so
    /// any other write makes sure that it never is.
    fn doubt(&self, location: &GroupResource) {
        self.doubted().insert(location.clone());
    }

    /// A later transaction about this place was carried out.
    fn trust(&self, location: &GroupResource) {
        self.doubted().remove(location);
    }

    fn is_doubted(&self, location: &GroupResource) -> bool {
        self.doubted().contains(location)
    }

    fn set_membership_at(&self, location: &GroupResource, membership: &Membership) {
        for resource in self.writers_at(location) {
            if let Some(storage) = &resource.storage {
                storage.set_membership(membership.clone());
            }
        }
    }
}

impl Reported {
    /// A resource of the place's own name is the one that is reported; an equivalent one only shares the place.
    fn add(&mut self, resource: &Arc<Resource>, location: &GroupResource) {
        self.sharing.retain(|other| other.strong_count() > 0);
        if Arc::ptr_eq(&self.resource, resource) {
            return;
        }
        if resource.group_resource == *location {
            let before = std::mem::replace(&mut self.resource, resource.clone());
            self.sharing.push(Arc::downgrade(&before));
        } else {
            self.sharing.push(Arc::downgrade(resource));
        }
    }
}

impl std::fmt::Debug for Agreement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agreement").field("config", &self.config).finish_non_exhaustive()
    }
}
