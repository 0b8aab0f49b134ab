//! Storage version registration: this server has an identity lease, reports in which versions it stores its resources, and
//! writes only what it has reported. `restow-rules` decides what to report and what to remove; this module carries it out.
//!
//! A server takes an identity lease and reports every resource that it writes. From then on each of its writes compares that
//! the lease is still the one that it reported under (the fence). A server whose lease was deleted cannot write any more. It
//! takes a new lease, reports everything again, and continues.
//!
//! | file | what is in it |
//! |---|---|
//! | `config.rs` | `AgreementConfig`: identity, lease duration, report or vote |
//! | `identity_lease.rs` | this server's own lease: take, renew, release |
//! | `lease_watch.rs` | the leases of all servers: who takes part, which leases have expired |
//! | `lease_keeper.rs` | the task that registers this server, renews its lease, and registers again after a loss |
//! | `registrar.rs` | the transactions that report and withdraw |
//! | `elections.rs` | voting on the storage version, instead of each server storing what it prefers |
//! | `upstream.rs` | the main API server that an aggregated server reports to as well |
//! | `endpoints.rs` | the addresses of all servers |
//! | `collector.rs` | the task that deletes expired leases and the entries of servers that are gone |
//! | `reconciler.rs` | the task that measures disagreements and repairs StorageVersions that others changed |
//! | `client_writes.rs` | leases and StorageVersions that clients write through the API |
//! | `barrier.rs` | which writes pass before everything is reported |
//! | `keys.rs` | the keys of leases, StorageVersions and elections |
//!
//! # Resources that are added and removed
//!
//! Built-in resources are reported when the server starts. The owner of other resources calls [`Agreement::report`] before the
//! first write of a resource, and again with the new [`Resource`] before the first write in another version. It calls
//! [`Agreement::withdraw`] when the resource is gone. After the server had to take a new lease, everything that was reported
//! is reported again automatically.

mod barrier;
mod client_writes;
mod collector;
mod config;
mod elections;
mod endpoints;
mod error;
mod identity_lease;
mod keys;
mod lease_keeper;
mod lease_watch;
mod reconciler;
mod registrar;
mod upstream;

use crate::core::Core;
use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::request::request_info::ResourceTarget;
use crate::resource::write_gate::passes_barrier;
use crate::resource::{Membership, Origin, Resource, Storage};
use crate::storage::fence_alarm::FenceAlarm;
pub(crate) use client_writes::mark_server_joined;
pub use config::{AgreementConfig, Guarantee, StorageVersions};
pub use error::AgreementError;
use identity_lease::HeldLease;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use reconciler::Disagreements;
use registrar::Registrar;
use restow_api::{GroupResource, ServerId};
use restow_rules::ServerReport;
use restow_store::Store;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
pub use upstream::Upstream;

/// The name of the readiness check, as in Kubernetes.
pub(crate) const READINESS: &str = "poststarthook/built-in-resources-storage-version-updater";

/// The registration of this server: its identity lease, its reports and its votes.
pub struct Agreement {
    config: AgreementConfig,
    store: Arc<dyn Store>,
    alarm: Arc<FenceAlarm>,
    /// Distinguishes this process from earlier ones with the same identity.
    holder: String,
    state: watch::Sender<RegistrationState>,
    reported: Mutex<BTreeMap<GroupResource, ReportedResource>>,
    /// The resources with a transaction whose outcome is unknown.
    uncertain: Mutex<BTreeSet<GroupResource>>,
    /// Whether all resources that this server serves were announced. It withdraws reports about any others.
    all_announced: watch::Sender<bool>,
    /// Notified when this server has to register again, even if its lease is intact.
    reregister_requested: Notify,
    /// Held while reports change, so that registering covers all of them.
    report_lock: tokio::sync::Mutex<()>,
    /// The resources on which the servers disagree.
    disagreements: Disagreements,
    /// How many registrations were refused and had to be retried.
    retries: Counter,
    /// The seconds from the start until everything was reported for the first time.
    registered_after: Gauge<f64, AtomicU64>,
    started: Instant,
}

/// How far the registration of this server is.
#[derive(Clone, Debug)]
enum RegistrationState {
    /// Storage versions are not reported.
    Disabled,
    /// Nothing is reported yet, or everything has to be reported again.
    Pending { last_error: Option<String> },
    /// Everything is reported under this lease.
    Registered(HeldLease),
    /// The server has left for good.
    Left,
}

/// A resource that is reported, by its location in the store.
struct ReportedResource {
    /// The resource whose name and versions are reported.
    resource: Arc<Resource>,
    /// Others that write to the same location: equivalent resources, and handlers that are being replaced.
    sharing: Vec<Weak<Resource>>,
    /// The last report under the present lease; writes use its encoding.
    last_report: Option<ServerReport>,
}

impl Agreement {
    /// Sets up the registration. Until the server is registered, the stored ones of `resources` cannot be written.
    pub(crate) fn new(
        config: AgreementConfig,
        store: Arc<dyn Store>,
        alarm: Arc<FenceAlarm>,
        resources: &[Arc<Resource>],
    ) -> Self {
        let state = match config.has_identity || config.reports {
            true => RegistrationState::Pending { last_error: None },
            false => RegistrationState::Disabled,
        };
        if let Some(upstream) = &config.upstream {
            let upstream = upstream.clone();
            alarm.write_only_while(move || upstream.holds());
        }
        let agreement = Agreement {
            holder: format!("{}_{}", config.identity, restow_host::uuid()),
            config,
            store,
            alarm,
            state: watch::Sender::new(state),
            reported: Mutex::default(),
            uncertain: Mutex::default(),
            all_announced: watch::Sender::new(false),
            reregister_requested: Notify::new(),
            report_lock: tokio::sync::Mutex::default(),
            disagreements: Disagreements::default(),
            retries: Counter::default(),
            registered_after: Gauge::default(),
            started: Instant::now(),
        };
        if agreement.participates() {
            resources.iter().for_each(|resource| agreement.announce(resource));
        }
        agreement
    }

    /// Starts the tasks, which end when this server leaves or ends. A server without an identity first withdraws what it
    /// reported when it had one.
    pub(crate) async fn start(self: &Arc<Self>, core: &Core) -> Result<(), AgreementError> {
        match self.participates() {
            true => drop(core.spawn(lease_keeper::run(self.clone()))),
            false => self.withdraw_previous_registration().await?,
        }
        if self.config.reports {
            self.spawn(core, collector::run(self.clone(), core.watch_cache().clone()));
            self.spawn(core, reconciler::run(self.clone(), core.watch_cache().clone()));
        }
        if self.config.reports && self.config.storage_versions != StorageVersions::Report {
            self.spawn(core, elections::run(self.clone(), core.watch_cache().clone()));
        }
        if self.config.upstream.is_some() {
            self.spawn(core, upstream::run(self.clone()));
        }
        Ok(())
    }

    /// Runs a task until this server leaves or ends.
    fn spawn(self: &Arc<Self>, core: &Core, task: impl Future<Output = ()> + Send + 'static) {
        let agreement = self.clone();
        core.spawn(async move {
            tokio::select! {
                biased;
                () = task => {}
                () = agreement.left() => {}
            }
        });
    }

    /// All resources that this server serves were announced. Reports of an earlier process about any others are withdrawn.
    pub(crate) fn all_resources_announced(&self) {
        self.all_announced.send_replace(true);
    }

    /// Takes a new lease and reports everything again, because reports may be lost though the lease is not.
    pub(crate) fn reregister(&self) {
        self.reregister_requested.notify_one();
    }

    /// Completes when all resources that this server serves were announced.
    async fn all_announced(&self) {
        // The sender lives as long as this, so waiting cannot fail.
        let _ = self.all_announced.subscribe().wait_for(|all| *all).await;
    }

    /// Registers the metrics.
    pub(crate) fn register(&self, metrics: &Metrics) {
        let values = (self.alarm.failures.clone(), self.retries.clone(), self.registered_after.clone());
        let disagreements = self.disagreements.clone();
        metrics.register(|registry| {
            let (failures, retries, registered_after) = values;
            registry.register(
                "apiserver_storage_version_fence_failures",
                "WritePermission that a fence refused",
                failures,
            );
            let help = "Reports of storage versions that were refused and decided again";
            registry.register("apiserver_storage_version_registration_retries", help, retries);
            let help = "The time from the start until all storage versions were reported; 0 before";
            registry.register("apiserver_storage_version_registered_after_seconds", help, registered_after);
            registry.register_collector(Box::new(disagreements));
        });
    }

    /// The id of this server, which is also the name of its identity lease.
    pub fn identity(&self) -> &ServerId {
        &self.config.identity
    }

    /// Reports that this server stores `resource` in the version of its storage's encoding, and lets it write. Returns when
    /// the report is in the store; until then, writes of the resource wait. While the server is registering, this waits for it.
    ///
    /// Earlier resources at the same location may still write, so that requests that hold them can finish. Their own fences
    /// refuse an outdated version.
    pub async fn report(&self, resource: &Arc<Resource>) -> Result<(), AgreementError> {
        let Some(storage) = resource.storage.as_ref().filter(|_| self.participates()) else { return Ok(()) };
        {
            let _guard = self.report_lock.lock().await;
            self.announce(resource);
            if let RegistrationState::Registered(held_lease) = self.state() {
                match self.registrar(&held_lease).report(&storage.location).await {
                    Err(AgreementError::LeaseLost(_)) => self.alarm.ring(),
                    done => return done,
                }
            }
        }
        // Registering reports everything that was announced, this resource included.
        let mut encoding = storage.encoding();
        while encoding.membership == Membership::Pending {
            storage.changed_from(&encoding).await;
            encoding = storage.encoding();
        }
        Ok(())
    }

    /// Withdraws the report about the resource at `location`, which this server does not write any more. The resource's own
    /// fences must refuse writes that are still in flight. While the server is not registered, nothing is withdrawn: call this
    /// again once it is.
    pub async fn withdraw(&self, location: &GroupResource) -> Result<(), AgreementError> {
        let _guard = self.report_lock.lock().await;
        self.reported().remove(location);
        match self.state() {
            RegistrationState::Registered(held_lease) => self.registrar(&held_lease).withdraw(location).await,
            _ => Ok(()),
        }
    }

    /// Whether this server has an identity, so that it writes only while it is registered.
    pub(crate) fn participates(&self) -> bool {
        self.config.has_identity || self.config.reports
    }

    /// Whether the last report about this resource is still true.
    pub(crate) fn has_reported(&self, resource: &Resource) -> bool {
        let Some(storage) = resource.storage.as_ref().filter(|_| self.config.reports) else { return true };
        let report = self.current_report(resource, storage).ok();
        self.reported().get(&storage.location).is_some_and(|known| known.last_report == report)
    }

    /// Whether everything is reported, or nothing has to be reported.
    pub fn is_registered(&self) -> bool {
        matches!(self.state(), RegistrationState::Registered(_) | RegistrationState::Disabled)
    }

    /// Completes when everything is reported, or nothing has to be reported.
    pub async fn registered(&self) {
        let registered = |state: &RegistrationState| !matches!(state, RegistrationState::Pending { .. });
        // The sender lives as long as this, so waiting cannot fail.
        let _ = self.state.subscribe().wait_for(registered).await;
    }

    /// Refuses a write to a built-in resource that is not reported yet, with Kubernetes' message.
    pub(crate) fn admit(&self, resource: &Resource, target: &ResourceTarget) -> Result<(), ApiError> {
        let Some(storage) = &resource.storage else { return Ok(()) };
        let pending = storage.encoding().membership == Membership::Pending;
        if !pending || resource.origin != Origin::Builtin || barrier::is_read(target.verb) {
            return Ok(());
        }
        if passes_barrier(&resource.group_resource, &target.namespace) {
            return Ok(());
        }
        let last_error = match self.state() {
            RegistrationState::Pending { last_error } => last_error,
            _ => None,
        };
        Err(barrier::refusal(&resource.group_resource, last_error.as_deref()))
    }

    /// How many writes of this server were refused by a fence.
    pub fn fence_failures(&self) -> u64 {
        self.alarm.count()
    }

    /// How many registrations were refused and had to be retried.
    pub fn registration_retries(&self) -> u64 {
        self.retries.get()
    }

    fn state(&self) -> RegistrationState {
        self.state.borrow().clone()
    }

    fn registrar<'a>(&'a self, held_lease: &'a HeldLease) -> Registrar<'a> {
        Registrar { agreement: self, held_lease }
    }

    /// What this server reports about a resource now.
    fn current_report(&self, resource: &Resource, storage: &Storage) -> Result<ServerReport, AgreementError> {
        let (encoding, decodable) = (storage.encoding().version.clone(), storage.decodable.clone());
        ServerReport::new(self.config.identity.clone(), encoding, decodable, resource.served.clone())
            .map_err(|source| AgreementError::Report { resource: resource.group_resource.to_string(), source })
    }

    fn reported(&self) -> MutexGuard<'_, BTreeMap<GroupResource, ReportedResource>> {
        // Nothing that can panic happens while the lock is held.
        self.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a resource to those that are reported. If it never was reported, its writes wait for the report.
    pub(crate) fn announce(&self, resource: &Arc<Resource>) {
        let Some(storage) = &resource.storage else { return };
        storage.await_report();
        let mut reported = self.reported();
        match reported.get_mut(&storage.location) {
            None => {
                let fresh = ReportedResource { resource: resource.clone(), sharing: Vec::new(), last_report: None };
                reported.insert(storage.location.clone(), fresh);
            }
            Some(known) => known.add(resource, &storage.location),
        }
    }

    /// All resources that write at this location.
    fn writers_at(&self, location: &GroupResource) -> Vec<Arc<Resource>> {
        let reported = self.reported();
        let Some(known) = reported.get(location) else { return Vec::new() };
        let sharing = known.sharing.iter().filter_map(Weak::upgrade);
        std::iter::once(known.resource.clone()).chain(sharing).collect()
    }

    fn record_report(&self, location: &GroupResource, report: ServerReport) {
        if let Some(known) = self.reported().get_mut(location) {
            known.last_report = Some(report);
        }
    }

    fn last_report(&self, location: &GroupResource) -> Option<ServerReport> {
        self.reported().get(location).and_then(|known| known.last_report.clone())
    }

    fn uncertain(&self) -> MutexGuard<'_, BTreeSet<GroupResource>> {
        self.uncertain.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The outcome of a transaction on this StorageVersion is unknown: it was or will be committed, or not. It compares the
    /// object's revision, so any later write prevents it.
    fn mark_uncertain(&self, location: &GroupResource) {
        self.uncertain().insert(location.clone());
    }

    /// A later transaction on this StorageVersion was committed.
    fn mark_certain(&self, location: &GroupResource) {
        self.uncertain().remove(location);
    }

    fn is_uncertain(&self, location: &GroupResource) -> bool {
        self.uncertain().contains(location)
    }

    fn set_membership_at(&self, location: &GroupResource, membership: &Membership) {
        for resource in self.writers_at(location) {
            if let Some(storage) = &resource.storage {
                storage.set_membership(membership.clone());
            }
        }
    }
}

impl ReportedResource {
    /// The resource with the location's own name is reported; an equivalent one only shares the location.
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
