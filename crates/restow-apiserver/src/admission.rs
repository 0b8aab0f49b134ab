//! Admission: who may not be refused by the policy may still be refused, or changed, by the rules of the cluster.
//!
//! First what is built in completes the object, then policies and mutating webhooks change it, one after the other; then the
//! verbs check it, and after that policies and validating webhooks see what will be stored. Requests about the configuration of
//! admission itself are asked of nobody, so that no configuration can lock itself in.

pub(crate) mod certificate_signing;
mod compute;
mod expression;
mod limit_ranger;
mod mutating_policy;
mod namespace_lifecycle;
mod plugins;
mod pods;
mod policy;
mod request;
pub(crate) mod resource_quota;
mod review;
mod rule;
#[cfg(test)]
mod tests;
mod validating_policy;
pub(crate) mod validation;
mod webhook;
mod webhook_dispatcher;

pub(crate) use rule::Operation;

use crate::auth::Access;
use crate::core::Core;
use crate::core::reflector::{ReflectedStore, reflect};
use crate::error::ApiError;
use crate::namespaces::Namespaces;
use crate::request::options::DryRun;
use crate::storage::key_pages::name_of;
use crate::storage::watch_cache::CacheEvent;
use crate::webhook_client::ServiceResolver;
use arc_swap::ArcSwap;
use futures::FutureExt;
use mutating_policy::Policies;
use policy::{Binding, Policy};
use request::Request;
use resource_quota::QuotaStore;
use restow_api::GroupVersion;
use restow_apimachinery::object::Object;
use restow_apimachinery::typed::{self, WrongType};
use restow_store::{Entry, RangeRequest};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use webhook::Webhook;

/// The group of all configuration of admission.
const GROUP: &str = "admissionregistration.k8s.io";

/// What is configured.
pub(crate) struct Admission {
    core: Arc<Core>,
    access: Arc<Access>,
    namespaces: Arc<Namespaces>,
    /// Where the services of the cluster are, for webhooks.
    services: Arc<dyn ServiceResolver>,
    mutating: Configurations<Webhook>,
    validating: Configurations<Webhook>,
    mutating_policies: Configurations<Policy>,
    mutating_bindings: Configurations<Binding>,
    policies: Configurations<Policy>,
    bindings: Configurations<Binding>,
    quotas: resource_quota::Quotas,
}

/// A request as admission looks at it.
pub(crate) struct AdmissionCall<'a> {
    pub(crate) admission: &'a Admission,
    pub(crate) request: &'a crate::request::Request,
}

impl Deref for AdmissionCall<'_> {
    type Target = crate::request::Request;

    fn deref(&self) -> &crate::request::Request {
        self.request
    }
}

/// What is configured, by the name of its object, which is the order in which it counts.
struct Configurations<T> {
    by_name: Mutex<BTreeMap<String, Vec<Arc<T>>>>,
    all: ArcSwap<Vec<Arc<T>>>,
}

impl<T> Default for Configurations<T> {
    fn default() -> Self {
        Configurations { by_name: Mutex::default(), all: ArcSwap::default() }
    }
}

impl<T> Configurations<T> {
    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, Vec<Arc<T>>>)) {
        let mut by_name = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut by_name);
        self.all.store(Arc::new(by_name.values().flatten().cloned().collect()));
    }
}

/// Completes and changes an object that is about to be written.
pub(crate) async fn mutate(
    call: &AdmissionCall<'_>,
    operation: Operation,
    mut object: Object,
    old: Option<&Object>,
) -> Result<Object, ApiError> {
    plugins::complete(call, operation, &mut object).await?;
    limit_ranger::apply_defaults(call, operation, &mut object).await?;
    let admission = call.admission;
    let webhooks = admission.mutating.all.load_full();
    let policies = Policies {
        policies: admission.mutating_policies.all.load_full(),
        bindings: admission.mutating_bindings.all.load_full(),
    };
    if webhooks.is_empty() && policies.is_empty() || is_exempt(call) {
        return Ok(object);
    }
    let request = Request::new(call, operation, old)?;
    let mut object = change(&request, &policies, &webhooks, object).boxed().await?;
    plugins::set_certificate_requester(call, operation, &mut object);
    Ok(object)
}

/// Lets policies and then webhooks change the object, and then once more those after whom something changed it.
async fn change(
    request: &Request<'_>,
    policies: &Policies,
    webhooks: &[Arc<Webhook>],
    object: Object,
) -> Result<Object, ApiError> {
    let (seen_by_webhooks, outdated_policies) = policies.apply(request, object).await?;
    let (made, outdated) = webhook_dispatcher::mutate(request, webhooks, seen_by_webhooks.clone()).await?;
    let outdated_policies = if made == seen_by_webhooks { outdated_policies } else { policies.policies.len() };
    let object = policies.reinvoke(request, made.clone(), outdated_policies).await?;
    let outdated = if object == made { outdated } else { webhooks.len() };
    webhook_dispatcher::reinvoke(request, &webhooks[..outdated], object).await
}

/// Refuses what must not be written or removed. `object` is what will be stored; there is none when one is removed.
pub(crate) async fn validate(
    call: &AdmissionCall<'_>,
    operation: Operation,
    object: Option<&Object>,
    old: Option<&Object>,
) -> Result<(), ApiError> {
    plugins::check(call, operation, object, old)?;
    certificate_signing::check(call, operation, object, old)?;
    limit_ranger::check(call, operation, object, old).await?;
    ask_validating(&Request::new(call, operation, old)?, object).await
}

/// Asks policies and validating webhooks.
async fn ask_validating(request: &Request<'_>, object: Option<&Object>) -> Result<(), ApiError> {
    if is_exempt(request.call) {
        return Ok(());
    }
    let admission = request.call.admission;
    let (policies, bindings) = (admission.policies.all.load_full(), admission.bindings.all.load_full());
    if !policies.is_empty() && !bindings.is_empty() {
        request.validate_by_policies(&policies, &bindings, object).boxed().await?;
    }
    let webhooks = admission.validating.all.load_full();
    if !webhooks.is_empty() {
        webhook_dispatcher::validate(request, &webhooks, object).boxed().await?;
    }
    Ok(())
}

/// Asks what is built in about a removal, then the mutating webhooks, which may refuse it, and then the validating ones.
pub(crate) async fn admit_removal(call: &AdmissionCall<'_>, old: &Object, dry_run: DryRun) -> Result<(), ApiError> {
    namespace_lifecycle::check_delete(call, old)?;
    let webhooks = call.admission.mutating.all.load_full();
    let request = Request::with_dry_run(call, Operation::Delete, Some(old), dry_run);
    if !webhooks.is_empty() && !is_exempt(call) {
        webhook_dispatcher::validate(&request, &webhooks, None).boxed().await?;
    }
    ask_validating(&request, None).await
}

fn is_exempt(call: &AdmissionCall<'_>) -> bool {
    call.version.group() == GROUP
}

impl Admission {
    pub(crate) fn new(
        core: Arc<Core>,
        access: Arc<Access>,
        namespaces: Arc<Namespaces>,
        services: Arc<dyn ServiceResolver>,
    ) -> Self {
        Admission {
            core,
            access,
            namespaces,
            services,
            mutating: Configurations::default(),
            validating: Configurations::default(),
            mutating_policies: Configurations::default(),
            mutating_bindings: Configurations::default(),
            policies: Configurations::default(),
            bindings: Configurations::default(),
            quotas: resource_quota::Quotas::default(),
        }
    }

    /// Reads the configuration, so that no request escapes it after a start, and follows it from then on.
    pub(crate) async fn start(self: &Arc<Self>) -> Result<(), ApiError> {
        let version = GroupVersion::new(GROUP, "v1").map_err(|error| ApiError::Internal(error.to_string()))?;
        for part in Part::ALL {
            let store = ConfigurationStore { admission: self.clone(), part };
            self.reflect(version.clone(), part.plural(), store).await?;
        }
        let core = GroupVersion::new("", "v1").map_err(|error| ApiError::Internal(error.to_string()))?;
        self.reflect(core, "resourcequotas", QuotaStore::new(self.clone())).await
    }

    async fn reflect(
        &self,
        version: GroupVersion,
        plural: &'static str,
        store: impl ReflectedStore,
    ) -> Result<(), ApiError> {
        let registry = self.core.registry();
        if let Some(storage) = registry.find(&version, plural).and_then(|resource| resource.storage.as_ref()) {
            let range = RangeRequest::new(storage.range(""));
            store.replace(&self.core.objects().store().range(range).await?.entries);
        }
        self.core.spawn(reflect(self.core.clone(), version, plural, store));
        Ok(())
    }
}

/// What an object of the configuration is.
#[derive(Clone, Copy)]
enum Part {
    Mutating,
    Validating,
    MutatingPolicies,
    MutatingBindings,
    Policies,
    Bindings,
}

impl Part {
    const ALL: [Part; 6] = [
        Part::Mutating,
        Part::Validating,
        Part::MutatingPolicies,
        Part::MutatingBindings,
        Part::Policies,
        Part::Bindings,
    ];

    fn plural(self) -> &'static str {
        match self {
            Part::Mutating => "mutatingwebhookconfigurations",
            Part::Validating => "validatingwebhookconfigurations",
            Part::MutatingPolicies => "mutatingadmissionpolicies",
            Part::MutatingBindings => "mutatingadmissionpolicybindings",
            Part::Policies => "validatingadmissionpolicies",
            Part::Bindings => "validatingadmissionpolicybindings",
        }
    }
}

/// Keeps one part of the configuration in step with its objects.
struct ConfigurationStore {
    admission: Arc<Admission>,
    part: Part,
}

/// A change of the configuration: everything there is, or one object that is there now or no longer.
enum News<'a> {
    All(&'a [Entry]),
    One(&'a str, Option<&'a Entry>),
}

impl ConfigurationStore {
    fn take(&self, news: &News<'_>) {
        let admission = &self.admission;
        let services = admission.services.clone();
        let webhooks = |object: &Value| Webhook::read_all(object, &services);
        match self.part {
            Part::Mutating => take(&admission.mutating, news, webhooks),
            Part::Validating => take(&admission.validating, news, webhooks),
            Part::MutatingPolicies => take(&admission.mutating_policies, news, one),
            Part::MutatingBindings => take(&admission.mutating_bindings, news, one),
            Part::Policies => take(&admission.policies, news, one),
            Part::Bindings => take(&admission.bindings, news, one),
        }
    }
}

fn one<T: DeserializeOwned>(object: &Value) -> Result<Vec<Arc<T>>, WrongType> {
    typed::read(object).map(|object| vec![Arc::new(object)])
}

fn take<T>(
    configurations: &Configurations<T>,
    news: &News<'_>,
    read: impl Fn(&Value) -> Result<Vec<Arc<T>>, WrongType>,
) {
    let read = |entry: &Entry| {
        let object: Value = serde_json::from_slice(&entry.value).unwrap_or_default();
        read(&object).unwrap_or_else(|error| {
            tracing::warn!(?error, name = name_of(&entry.key), "a configuration of admission cannot be understood");
            Vec::new()
        })
    };
    configurations.change(|by_name| match news {
        News::All(entries) => {
            *by_name = entries.iter().map(|entry| (name_of(&entry.key).to_string(), read(entry))).collect();
        }
        News::One(name, Some(entry)) => {
            by_name.insert(name.to_string(), read(entry));
        }
        News::One(name, None) => {
            by_name.remove(*name);
        }
    });
}

impl ReflectedStore for ConfigurationStore {
    fn replace(&self, entries: &[Entry]) {
        self.take(&News::All(entries));
    }

    fn apply(&self, event: &CacheEvent) {
        self.take(&News::One(name_of(&event.key), event.current.as_ref()));
    }
}
