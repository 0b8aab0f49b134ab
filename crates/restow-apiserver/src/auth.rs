//! Authentication and authorization of requests. The RBAC objects and service accounts are kept in memory by reflectors;
//! the rules themselves are in `restow-auth`.

use crate::core::Core;
use crate::core::reflector::{ReflectedStore, reflect};
use crate::error::ApiError;
use crate::flow_control::fair_queue;
use crate::resource::ObjectRef;
use crate::resource::Scope;
use crate::resource::object_meta;
use crate::storage::key_pages::{name_of, namespace_of};
use crate::storage::object_store::{ObjectChange, ObjectDecision};
use crate::storage::watch_cache::CacheEvent;
use crate::storage_version::Agreement;
use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt};
use http::{HeaderMap, header};
use restow_api::{GroupResource, GroupVersion};
use restow_apimachinery::object::Object;
use restow_auth::authenticate::{
    Authenticators, CertificateError, ClientCertificate, Credentials, Impersonation, RequestHeaders, Secret,
    bearer_token,
};
use restow_auth::bootstrap::{Reconciliation, bootstrap_objects, reconcile};
use restow_auth::rbac::{PolicyRule, RbacKind, Replacement, Rules};
use restow_auth::service_account::{BoundKind, BoundObject, ServiceAccounts};
use restow_auth::user::MASTERS;
use restow_auth::{Attributes, Authorizer, Decision, PrivilegedGroup, User};
use restow_store::Entry;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::sync::{Arc, PoisonError, RwLock};

/// Authentication and authorization of a server.
#[derive(Debug)]
pub struct AccessConfig {
    /// The accepted credentials.
    pub authenticators: Authenticators,
    /// The authorization mode.
    pub authorization: AuthorizationMode,
}

/// What the TLS handshake says about a client.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientCertificates {
    /// The certificate of a user, or why it is none.
    pub(crate) user: Option<Result<ClientCertificate, CertificateError>>,
    /// The certificate of a front proxy.
    pub(crate) front_proxy: Option<ClientCertificate>,
}

/// The authorization mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthorizationMode {
    /// RBAC, with Kubernetes' default policy.
    Rbac,
    /// Every authenticated user may do everything. For tests, and for servers behind another one that authorizes.
    AllowAll,
}

/// Authenticates and authorizes requests, with the RBAC policy in memory.
pub(crate) struct Access {
    core: Arc<Core>,
    /// Says whether this server may write.
    agreement: Arc<Agreement>,
    authenticators: Authenticators,
    /// The front proxies that are trusted.
    request_headers: Option<RequestHeaders>,
    authorization: AuthorizationMode,
    authorizer: PrivilegedGroup<Arc<RwLock<Arc<Rules>>>>,
    /// The policy. Long readers clone the inner pointer; a change then copies the rules.
    rules: Arc<RwLock<Arc<Rules>>>,
    /// The service accounts that exist, by namespace and name, with their uids.
    accounts: RwLock<HashMap<(String, String), String>>,
}

/// The resources of the RBAC policy.
const POLICY: [(&str, RbacKind); 4] = [
    ("clusterroles", RbacKind::ClusterRole),
    ("clusterrolebindings", RbacKind::ClusterRoleBinding),
    ("roles", RbacKind::Role),
    ("rolebindings", RbacKind::RoleBinding),
];

impl Access {
    pub(crate) fn new(
        core: Arc<Core>,
        agreement: Arc<Agreement>,
        config: AccessConfig,
        request_headers: Option<RequestHeaders>,
    ) -> Self {
        let rules = Arc::new(RwLock::new(Arc::new(Rules::default())));
        Access {
            core,
            agreement,
            authenticators: config.authenticators,
            request_headers,
            authorization: config.authorization,
            authorizer: PrivilegedGroup::new(rules.clone()),
            rules,
            accounts: RwLock::default(),
        }
    }

    pub(crate) fn authenticators(&self) -> &Authenticators {
        &self.authenticators
    }

    pub(crate) fn authorizer(&self) -> &dyn Authorizer {
        &self.authorizer
    }

    /// The user of the client certificate or bearer token.
    pub(crate) fn authenticate(
        &self,
        certificates: &ClientCertificates,
        headers: &HeaderMap,
        path: &str,
    ) -> Result<User, ApiError> {
        let refused = |error: &dyn Display| {
            tracing::debug!(%error, "authentication failed");
            ApiError::Unauthorized
        };
        let token = token(headers).map_err(|problem| refused(&problem))?;
        let now = restow_host::now();
        let front_proxy = certificates.front_proxy.as_ref().zip(self.request_headers.as_ref());
        let front_proxy = front_proxy.and_then(|(proxy, config)| {
            let pairs = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
            config.user(proxy, pairs, now).transpose()
        });
        let credentials = Credentials { certificate: certificates.user.as_ref(), front_proxy, token, path };
        self.authenticators.authenticate(&credentials, self, now).map_err(|error| refused(&error))
    }

    /// Removes the headers in which front proxies name users: what they say has been taken from them.
    pub(crate) fn remove_request_headers(&self, headers: &mut HeaderMap) {
        let Some(config) = &self.request_headers else { return };
        let named: Vec<_> = headers.keys().filter(|name| config.contains(name.as_str())).cloned().collect();
        for name in named {
            headers.remove(name);
        }
    }

    /// The impersonated user, if the headers name one and the user may impersonate them.
    pub(crate) fn impersonate(&self, user: &User, headers: &HeaderMap) -> Result<Option<User>, ApiError> {
        let pairs = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
        let impersonation =
            Impersonation::from_headers(pairs).map_err(|error| ApiError::BadRequest(error.to_string()))?;
        let Some(impersonation) = impersonation else { return Ok(None) };
        for check in &impersonation.checks {
            self.authorize(user, check)?;
        }
        Ok(Some(impersonation.user))
    }

    /// Refuses requests that the user is not allowed to make.
    pub(crate) fn authorize(&self, user: &User, attributes: &Attributes) -> Result<(), ApiError> {
        if self.authorization == AuthorizationMode::AllowAll {
            return Ok(());
        }
        let Decision::NoOpinion { reason } = self.authorizer.authorize(user, attributes) else { return Ok(()) };
        let message = attributes.forbidden_message(user, &reason);
        Err(match attributes {
            Attributes::Path { .. } => ApiError::ForbiddenPath(message),
            Attributes::Resource(target) => match GroupResource::new(&*target.group, &*target.resource) {
                Ok(resource) => ApiError::Forbidden { resource, name: target.name.clone(), message },
                Err(_) => ApiError::ForbiddenPath(message),
            },
        })
    }

    /// Refuses privilege escalation: RBAC objects that grant more than the user has.
    pub(crate) async fn check_grant(
        &self,
        user: &User,
        object: &Object,
        old: Option<&Object>,
        name: &str,
    ) -> Result<(), ApiError> {
        let policy = object.api_version().starts_with("rbac.authorization.k8s.io/");
        if !policy || self.authorization == AuthorizationMode::AllowAll {
            return Ok(());
        }
        if !user.is_in(MASTERS) {
            // The comparison can take long: a small object can name many permissions, and a user can have many.
            fair_queue::wait_for_turn(usize::MAX).await;
        }
        self.policy().check_write(user, object.as_value(), old.map(Object::as_value), name).map_err(|escalation| {
            let plural =
                POLICY.iter().find(|(_, kind)| kind.as_str() == object.kind()).map_or("", |(plural, _)| plural);
            match GroupResource::new("rbac.authorization.k8s.io", plural) {
                Ok(resource) => {
                    ApiError::Forbidden { resource, name: object.name().to_string(), message: escalation.to_string() }
                }
                Err(_) => ApiError::ForbiddenPath(escalation.to_string()),
            }
        })
    }

    fn set_rule(&self, kind: RbacKind, namespace: &str, name: &str, value: Option<&Value>) {
        let (replacement, outcome) = Replacement::read(kind, namespace, name, value);
        Arc::make_mut(&mut self.rules.write().unwrap_or_else(PoisonError::into_inner)).replace(replacement);
        if let Err(malformed) = outcome {
            tracing::warn!(?malformed, "an RBAC object is malformed and grants nothing");
        }
    }

    /// The current policy.
    fn policy(&self) -> Arc<Rules> {
        self.rules.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn stale_aggregates(&self) -> Vec<(String, Vec<PolicyRule>)> {
        self.policy().stale_aggregates().into_iter().collect()
    }
}

impl ServiceAccounts for Access {
    fn uid_of(&self, namespace: &str, name: &str) -> Option<String> {
        let accounts = self.accounts.read().unwrap_or_else(PoisonError::into_inner);
        accounts.get(&(namespace.to_string(), name.to_string())).cloned()
    }

    /// This server does not bind tokens to objects yet.
    fn bound_object(&self, _kind: BoundKind, _namespace: &str, _name: &str) -> Option<BoundObject> {
        None
    }
}

/// The bearer token. Several headers, or one that is not text, are an error.
fn token(headers: &HeaderMap) -> Result<Option<Secret<'_>>, &'static str> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err("several Authorization headers");
    }
    value.to_str().map(bearer_token).map_err(|_| "the Authorization header is not text")
}

fn policy_version() -> Result<GroupVersion, ApiError> {
    GroupVersion::new("rbac.authorization.k8s.io", "v1").map_err(|error| ApiError::Internal(error.to_string()))
}

impl Access {
    /// Reads the policy and starts its reflectors.
    pub(crate) async fn start(self: &Arc<Self>) -> Result<(), ApiError> {
        let version = policy_version()?;
        self.read_policy().await?;
        for (plural, kind) in POLICY {
            let store = PolicyStore { access: self.clone(), kind };
            self.core.spawn(reflect(self.core.clone(), version.clone(), plural, store));
        }
        let v1 = GroupVersion::new("", "v1").map_err(|error| ApiError::Internal(error.to_string()))?;
        let accounts = AccountStore { access: self.clone() };
        self.core.spawn(reflect(self.core.clone(), v1, "serviceaccounts", accounts));
        Ok(())
    }

    /// Creates the default policy (bootstrap policy). It is in force when this returns.
    pub(crate) async fn reconcile_default_policy(self: &Arc<Self>) -> Result<(), ApiError> {
        let version = policy_version()?;
        if self.core.registry().find(&version, "clusterroles").is_some() {
            futures::stream::iter(bootstrap_objects())
                .map(|wanted| self.reconcile_default(wanted))
                .buffer_unordered(32)
                .try_collect::<Vec<()>>()
                .await?;
        }
        self.read_policy().await?;
        self.write_aggregates().await
    }

    async fn read_policy(self: &Arc<Self>) -> Result<(), ApiError> {
        let version = policy_version()?;
        for (plural, kind) in POLICY {
            let registry = self.core.registry();
            if let Some(storage) = registry.find(&version, plural).and_then(|resource| resource.storage.as_ref()) {
                let range = restow_store::RangeRequest::new(storage.range(""));
                PolicyStore { access: self.clone(), kind }
                    .replace(&self.core.objects().store().range(range).await?.entries);
            }
        }
        Ok(())
    }

    /// Creates or completes one object of the default policy.
    async fn reconcile_default(&self, wanted: Value) -> Result<(), ApiError> {
        let version = policy_version()?;
        let kind = wanted["kind"].as_str().unwrap_or_default();
        let Some((plural, _)) = POLICY.iter().find(|(_, known)| known.as_str() == kind) else { return Ok(()) };
        let Some(resource) = self.core.registry().find(&version, plural).cloned() else { return Ok(()) };
        let name = wanted["metadata"]["name"].as_str().unwrap_or_default().to_string();
        let namespace = match resource.scope {
            Scope::Namespaced => wanted["metadata"]["namespace"].as_str().unwrap_or_default().to_string(),
            Scope::Cluster => String::new(),
        };
        let reference = ObjectRef { resource: &resource, version: &version, namespace: &namespace, name: &name };
        self.core.objects().change(reference, &mut ReconcileDefault { wanted: &wanted }).await?;
        Ok(())
    }

    /// Writes the rules of aggregated ClusterRoles that are out of date.
    async fn write_aggregates(&self) -> Result<(), ApiError> {
        let version = policy_version()?;
        for (name, rules) in self.stale_aggregates() {
            let Some(resource) = self.core.registry().find(&version, "clusterroles").cloned() else { return Ok(()) };
            let reference = ObjectRef { resource: &resource, version: &version, namespace: "", name: &name };
            let mut decision = SetRules { rules: json!(rules) };
            if let crate::storage::object_store::Changed::Updated(written) =
                self.core.objects().change(reference, &mut decision).await?
            {
                self.set_rule(RbacKind::ClusterRole, "", &name, Some(written.into_object().as_value()));
            }
        }
        Ok(())
    }
}

/// Creates or completes an object of the default policy.
struct ReconcileDefault<'a> {
    wanted: &'a Value,
}

#[async_trait]
impl ObjectDecision for ReconcileDefault<'_> {
    async fn decide(&mut self, before: Option<&Object>) -> Result<ObjectChange, ApiError> {
        let (new, value) = match reconcile(before.map(Object::as_value), self.wanted) {
            None => return Ok(ObjectChange::Keep),
            Some(Reconciliation::Update(value)) => (false, value),
            Some(Reconciliation::Create(value) | Reconciliation::Recreate(value)) => (true, value),
        };
        let mut object = Object::from_value(value)
            .map_err(|_| ApiError::Internal("an object of the default policy is malformed".into()))?;
        if new {
            let fields = object.metadata_mut();
            fields.insert("uid".into(), restow_host::uuid().to_string().into());
            fields.insert("creationTimestamp".into(), object_meta::now().into());
        }
        Ok(ObjectChange::Write(object))
    }
}

/// Replaces the rules of a role.
struct SetRules {
    rules: Value,
}

#[async_trait]
impl ObjectDecision for SetRules {
    async fn decide(&mut self, before: Option<&Object>) -> Result<ObjectChange, ApiError> {
        let Some(object) = before else { return Ok(ObjectChange::Keep) };
        let mut object = object.clone();
        object.set("rules", Some(self.rules.clone()));
        Ok(ObjectChange::Write(object))
    }
}

/// Receives the RBAC objects of one kind from a reflector.
struct PolicyStore {
    access: Arc<Access>,
    kind: RbacKind,
}

impl PolicyStore {
    fn set(&self, entry: &Entry) {
        let value: Value = serde_json::from_slice(&entry.value).unwrap_or_default();
        self.access.set_rule(self.kind, self.namespace(entry), name_of(&entry.key), Some(&value));
    }

    fn namespace<'a>(&self, entry: &'a Entry) -> &'a str {
        match self.kind {
            RbacKind::Role | RbacKind::RoleBinding => namespace_of(&entry.key),
            RbacKind::ClusterRole | RbacKind::ClusterRoleBinding => "",
        }
    }
}

#[async_trait]
impl ReflectedStore for PolicyStore {
    fn replace(&self, entries: &[Entry]) {
        // Find missed deletions by comparison. Clearing the policy first would deny requests meanwhile.
        let present: HashSet<(&str, &str)> =
            entries.iter().map(|entry| (self.namespace(entry), name_of(&entry.key))).collect();
        for (namespace, name) in self.access.policy().names(self.kind) {
            if !present.contains(&(namespace.as_str(), name.as_str())) {
                self.access.set_rule(self.kind, &namespace, &name, None);
            }
        }
        entries.iter().for_each(|entry| self.set(entry));
    }

    fn apply(&self, event: &CacheEvent) {
        match (&event.current, &event.previous) {
            (Some(entry), _) => self.set(entry),
            (None, Some(entry)) => {
                self.access.set_rule(self.kind, self.namespace(entry), name_of(&entry.key), None);
            }
            (None, None) => {}
        }
    }

    async fn resync(&self) {
        if self.kind != RbacKind::ClusterRole || !self.access.agreement.is_registered() {
            return;
        }
        if let Err(error) = self.access.write_aggregates().await {
            tracing::warn!(%error, "could not write aggregated ClusterRoles");
        }
    }
}

/// Receives the service accounts from a reflector.
struct AccountStore {
    access: Arc<Access>,
}

impl AccountStore {
    fn key(entry: &Entry) -> (String, String) {
        (namespace_of(&entry.key).to_string(), name_of(&entry.key).to_string())
    }

    fn uid(entry: &Entry) -> Option<String> {
        let object: Value = serde_json::from_slice(&entry.value).ok()?;
        let deleted = !object["metadata"]["deletionTimestamp"].is_null();
        object["metadata"]["uid"].as_str().filter(|_| !deleted).map(str::to_string)
    }
}

impl ReflectedStore for AccountStore {
    fn replace(&self, entries: &[Entry]) {
        let found = entries.iter().filter_map(|entry| Some((Self::key(entry), Self::uid(entry)?)));
        *self.access.accounts.write().unwrap_or_else(PoisonError::into_inner) = found.collect();
    }

    fn apply(&self, event: &CacheEvent) {
        let Some(entry) = event.current.as_ref().or(event.previous.as_ref()) else { return };
        let mut accounts = self.access.accounts.write().unwrap_or_else(PoisonError::into_inner);
        match event.current.as_ref().and_then(Self::uid) {
            Some(uid) => accounts.insert(Self::key(entry), uid),
            None => accounts.remove(&Self::key(entry)),
        };
    }
}
