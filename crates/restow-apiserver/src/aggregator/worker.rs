//! Looks after the server behind one APIService: finds its addresses, checks it, writes the condition `Available`, and fetches
//! its discovery. Each has a task of its own, so that one that does not answer holds up no other.

use crate::aggregator::Aggregator;
use crate::aggregator::api_service::{ApiService, Condition};
use crate::aggregator::availability::{self, Location, Observation};
use crate::aggregator::backend::Backend;
use crate::aggregator::fetch::{self, FetchedDiscovery};
use crate::core::Core;
use crate::error::ApiError;
use crate::resource::{ObjectRef, Resource};
use crate::storage::object_store::{ObjectChange, ObjectDecision};
use crate::storage::watch_cache::Subscription;
use async_trait::async_trait;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use restow_api::GroupVersion;
use restow_apimachinery::object::Object;
use restow_auth::User;
use restow_auth::user::MASTERS;
use restow_store::{RangeRequest, Revision};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// How often a server that is available is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// The first and the longest pause between checks of a server that is not available.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The pause after the store could not be read, or a condition could not be written.
const STORE_PAUSE: Duration = Duration::from_secs(1);
/// How long to wait for further changes after one.
const SETTLE: Duration = Duration::from_millis(50);
/// How old the discovery of a server may be.
const DISCOVERY_INTERVAL: Duration = Duration::from_secs(60);
/// How many addresses are checked.
const ATTEMPTS: usize = 5;
/// The user that servers see in these requests.
const USER: &str = "system:kube-aggregator";

/// One pass over a server.
struct Pass {
    observed: Observation,
    condition: Condition,
    /// When the next one is due, if nothing changes.
    due: Instant,
    changes: Option<Changes>,
}

/// The subscriptions to the namespace of the service.
struct Changes {
    services: Subscription,
    slices: Subscription,
}

/// The task of one APIService.
pub(super) struct Worker {
    aggregator: Arc<Aggregator>,
    backend: Arc<Backend>,
    leads: watch::Receiver<bool>,
    pause: Duration,
    discovery: FetchedDiscovery,
    fetched: Option<Instant>,
    /// Since when the store cannot be read.
    unreadable: Option<Instant>,
    /// What became of the last condition.
    written: Written,
}

/// Whether the stored condition is the one that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    /// It is, or another server writes it.
    Yes,
    /// It must be tried again.
    NotYet,
}

impl Worker {
    pub(super) fn new(aggregator: Arc<Aggregator>, backend: Arc<Backend>) -> Self {
        let leads = aggregator.leadership.leads.subscribe();
        let discovery = FetchedDiscovery::default();
        Worker {
            aggregator,
            backend,
            leads,
            pause: FIRST_PAUSE,
            discovery,
            fetched: None,
            unreadable: None,
            written: Written::Yes,
        }
    }

    /// Works until the APIService is changed or deleted.
    pub(super) async fn run(mut self) {
        let replaced = self.backend.replaced.clone();
        replaced.run_until_cancelled(self.work()).await;
    }

    async fn work(&mut self) {
        let mut last: Option<Pass> = None;
        loop {
            let pass = self.pass(last.as_ref()).await;
            self.aggregator.checked(&self.backend, last.as_ref().map(|last| &last.condition), &pass.condition);
            self.written = self.write(&pass.condition).await;
            last = Some(self.wait(pass).await);
        }
    }

    /// Waits until something may have changed, the condition is to be written again, or the next pass is due.
    async fn wait(&mut self, mut pass: Pass) -> Pass {
        let due = match self.written {
            Written::Yes => pass.due,
            Written::NotYet => pass.due.min(Instant::now() + STORE_PAUSE),
        };
        let changed = async {
            match &mut pass.changes {
                Some(Changes { services, slices }) => {
                    futures::future::select(services.next().boxed(), slices.next().boxed()).await;
                    // Changes often come in groups, and each pass reads the namespace.
                    tokio::time::sleep(SETTLE).await;
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            _ = self.leads.changed() => {}
            () = changed => {}
            () = tokio::time::sleep_until(due) => {}
        }
        pass
    }

    /// Finds the server and checks it. A change in the namespace that does not concern the service is no reason to check again.
    async fn pass(&mut self, last: Option<&Pass>) -> Pass {
        let core = self.aggregator.core.clone();
        let (observed, changes) = match observe(&core, &self.backend).await {
            Ok(found) => found,
            Err(error) => return self.unreadable(&error, last),
        };
        self.unreadable = None;
        if let Some(last) = last.filter(|last| last.observed == observed && Instant::now() < last.due) {
            return Pass { observed, condition: last.condition.clone(), due: last.due, changes };
        }
        let condition = match availability::locate(&self.backend.spec, &observed) {
            Location::Nowhere(condition) => {
                self.backend.set_addresses(Vec::new());
                condition
            }
            Location::At(addresses) => {
                self.backend.set_addresses(addresses.clone());
                availability::checked(check(&self.backend, &addresses).await)
            }
        };
        let available = condition.is_true();
        self.refresh_discovery(available).await;
        self.pause = if available { FIRST_PAUSE } else { (self.pause * 2).min(LONGEST_PAUSE) };
        let wait = if available && changes.is_some() { CHECK_INTERVAL } else { self.pause };
        Pass { observed, condition, due: Instant::now() + wait, changes }
    }

    /// The store could not be read: the addresses stay as they are, and for a while the condition, too.
    fn unreadable(&mut self, error: &ApiError, last: Option<&Pass>) -> Pass {
        let since = *self.unreadable.get_or_insert_with(Instant::now);
        let stored = || self.aggregator.find(self.backend.version.group(), self.backend.version.version());
        let before = last.map(|last| last.condition.clone()).or_else(|| stored()?.condition().cloned());
        let unknown = availability::cannot_be_checked(&self.backend.spec, &error.to_string());
        let condition = availability::while_unreadable(before, since.elapsed(), unknown);
        Pass { observed: Observation::default(), condition, due: Instant::now() + STORE_PAUSE, changes: None }
    }

    async fn refresh_discovery(&mut self, available: bool) {
        let old = self.fetched.is_none_or(|fetched| fetched.elapsed() >= DISCOVERY_INTERVAL);
        if available && !old && self.discovery.is_current() {
            return;
        }
        let next = match available {
            true => fetch::fetch(&self.backend, &self.discovery).await,
            false => self.discovery.stale(),
        };
        if next.is_current() {
            self.fetched = Some(Instant::now());
        }
        let first = !self.aggregator.has_discovery(&self.backend);
        if first || next != self.discovery {
            self.aggregator.set_discovery(&self.backend, &next);
        }
        self.discovery = next;
    }

    /// Writes the condition if this server is the one that does, and it is another one than before.
    async fn write(&self, condition: &Condition) -> Written {
        if !self.aggregator.leadership.leads() {
            return Written::Yes;
        }
        if !self.aggregator.agreement.is_registered() {
            return Written::NotYet;
        }
        let mut decision = SetCondition { backend: &self.backend, condition };
        match self.aggregator.change(&self.backend.version, &mut decision).await {
            Ok(_) => Written::Yes,
            Err(error) => {
                if self.written == Written::Yes {
                    let version = &self.backend.version;
                    tracing::warn!(%error, %version, "the condition of an APIService could not be written; trying again");
                }
                Written::NotYet
            }
        }
    }
}

/// The user that servers see: it may read everything.
pub(super) fn aggregator_user() -> User {
    User::named(USER).with_group(MASTERS)
}

/// Whether the server answers at any of these addresses. The error is that of the first one, so that it stays the same.
async fn check(backend: &Backend, addresses: &[String]) -> Result<(), String> {
    let user = aggregator_user();
    let checks = addresses.iter().take(ATTEMPTS).enumerate();
    let mut checks: FuturesUnordered<_> =
        checks.map(|(number, address)| backend.check(address, &user).map(move |outcome| (number, outcome))).collect();
    let mut failures = Vec::new();
    while let Some((number, outcome)) = checks.next().await {
        match outcome {
            Ok(()) => return Ok(()),
            Err(failure) => failures.push((number, failure)),
        }
    }
    failures.sort();
    Err(failures.into_iter().next().map(|(_, failure)| failure).unwrap_or_default())
}

/// The service and its slices, with subscriptions to later changes.
async fn observe(core: &Core, backend: &Backend) -> Result<(Observation, Option<Changes>), ApiError> {
    let spec = &backend.spec;
    let Some((slices, slices_version)) = find(core, "discovery.k8s.io/v1", "endpointslices") else {
        return Err(ApiError::NoSuchResource);
    };
    let Some((services, services_version)) = find(core, "v1", "services") else { return Err(ApiError::NoSuchResource) };
    let Some(storage) = &slices.storage else { return Err(ApiError::NoSuchResource) };
    let listed = core.objects().store().range(RangeRequest::new(storage.range(&spec.namespace))).await?;
    let mut observed = Observation::default();
    for entry in &listed.entries {
        // A slice that cannot be decoded names no address. The others count.
        let Ok(slice) = slices.decode(entry, &slices_version).await else { continue };
        if availability::is_of(slice.as_value(), &spec.name) {
            let fields = ["metadata", "ports", "endpoints", "addressType"];
            observed.slices.push(only(slice.as_value(), &fields));
        }
    }
    let object_ref =
        ObjectRef { resource: &services, version: &services_version, namespace: &spec.namespace, name: &spec.name };
    if let Some(entry) = core.objects().get(object_ref).await? {
        let service = services.decode(&entry, &services_version).await?;
        observed.service = Some(only(service.as_value(), &["spec"]));
    }
    let changes = subscribe(core, &services, &spec.namespace, listed.revision)
        .zip(subscribe(core, &slices, &spec.namespace, listed.revision))
        .map(|(services, slices)| Changes { services, slices });
    Ok((observed, changes))
}

/// The fields of an object that matter. Of the metadata, the resource version does not.
fn only(object: &serde_json::Value, fields: &[&str]) -> serde_json::Value {
    let mut kept = serde_json::Map::new();
    for field in fields {
        kept.insert((*field).to_string(), object[*field].clone());
    }
    if let Some(labels) = object.pointer("/metadata/labels").filter(|_| kept.contains_key("metadata")) {
        kept.insert("metadata".into(), serde_json::json!({"labels": labels}));
    }
    kept.into()
}

fn find(core: &Core, version: &str, plural: &str) -> Option<(Arc<Resource>, GroupVersion)> {
    let version: GroupVersion = version.parse().ok()?;
    let resource = core.registry().find(&version, plural)?.clone();
    Some((resource, version))
}

fn subscribe(core: &Core, resource: &Resource, namespace: &str, after: Revision) -> Option<Subscription> {
    let storage = resource.storage.as_ref()?;
    core.watch_cache().subscribe(&storage.folder(), storage.range(namespace), after).ok()
}

/// Sets the condition of an APIService that still names this server.
struct SetCondition<'a> {
    backend: &'a Backend,
    condition: &'a Condition,
}

#[async_trait]
impl ObjectDecision for SetCondition<'_> {
    async fn decide(&mut self, before: Option<&Object>) -> Result<ObjectChange, ApiError> {
        let Some(before) = before else { return Ok(ObjectChange::Keep) };
        let same = |service: &ApiService| {
            let spec = service.backend.as_ref();
            spec.is_some_and(|spec| self.backend.is_of(&service.version, spec))
        };
        let Some(service) = ApiService::read(before).filter(same) else { return Ok(ObjectChange::Keep) };
        if service.condition.as_ref() == Some(self.condition) {
            return Ok(ObjectChange::Keep);
        }
        let Condition { status, reason, message } = self.condition;
        tracing::info!(name = service.name, status, reason, message, "changing APIService availability");
        let mut object = before.clone();
        self.condition.set_in(&mut object);
        Ok(ObjectChange::Write(object))
    }
}
