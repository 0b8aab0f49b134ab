//! Making a new object.

use crate::admission::resource_quota::{self, Charge};
use crate::admission::{self, Operation};
use crate::builtin::kinds::service::allocation;
use crate::error::ApiError;
use crate::field_manager;
use crate::handlers::{Answer, Call, metadata, update};
use crate::namespaces::Freshness;
use crate::request::body;
use crate::resource::object_meta;
use crate::storage::object_store::{Begin, Change, Changed, Decision, EncodedBy};
use async_trait::async_trait;
use restow_apimachinery::managed_fields::{Given, Writer};
use restow_apimachinery::object::Object;
use restow_store::{Compare, Mutation};

/// How often a generated name that is taken is replaced by another.
const NAME_ATTEMPTS: usize = 8;

pub(super) async fn create(call: &Call<'_>) -> Result<Answer, ApiError> {
    if !call.target.name.is_empty() {
        return Err(ApiError::MethodNotAllowed);
    }
    let given = body::object(call)?;
    if !given.resource_version().is_empty() {
        return Err(ApiError::BadRequest("resourceVersion should not be set on objects to be created".into()));
    }
    if !given.name().is_empty() || given.meta("generateName").is_empty() {
        return create_once(call, given, Given::Object).await;
    }
    for _ in 0..NAME_ATTEMPTS {
        match create_once(call, given.clone(), Given::Object).await {
            Err(ApiError::AlreadyExists { .. }) => {}
            other => return other,
        }
    }
    Err(ApiError::Timeout("no free name could be generated; try again".into()))
}

/// Makes a new object; the entries are those of who applies it, where it is applied.
pub(super) async fn create_once(call: &Call<'_>, mut object: Object, entries: Given) -> Result<Answer, ApiError> {
    metadata::prepare_new(call, &mut object)?;
    call.check_namespace(object.name(), Freshness::Cached).await?;
    record(call, &mut object, entries);
    let object = admission::mutate(&call.admission(), Operation::Create, object, None).await?;
    let mut object = checked(call, object)?;
    let name = object.name().to_string();
    let unassigned = update::is_service(call).then(|| object.clone());
    let claims = match &unassigned {
        Some(_) => allocation::allocate(&call.handlers.core, call, &mut object, None).await?,
        None => Vec::new(),
    };
    call.handlers.access().check_grant(&call.user, &object, None, &call.target.name).await?;
    admission::validate(&call.admission(), Operation::Create, Some(&object), None).await?;
    if call.dry_run()? {
        resource_quota::charge(&call.admission(), &object, None, Charge::default()).await?;
        return match call.handlers.objects().get(call.place(&name)).await? {
            Some(_) => Err(taken(call, &name)),
            None => Ok(Answer::Object { code: 201, object }),
        };
    }
    let charge = Charge::default();
    let freshness = Freshness::Cached;
    let mut decision = Creation { call, object, unassigned, claims, freshness, namespace: None, charge };
    match call.handlers.objects().change(call.place(&name), &mut decision).await? {
        Changed::Created(written) => Ok(call.written(201, written).await),
        other => Err(ApiError::Internal(format!("creating ended with {other:?}"))),
    }
}

/// Writes the object where there is none.
struct Creation<'a> {
    call: &'a Call<'a>,
    object: Object,
    /// The object without what no other one may have, where it is of such a kind.
    unassigned: Option<Object>,
    /// What must hold for it to be had.
    claims: Vec<Compare>,
    /// How the namespace is looked at: first as remembered, then as stored.
    freshness: Freshness,
    /// What must hold of the namespace.
    namespace: Option<Compare>,
    /// What it takes from quotas.
    charge: Charge,
}

#[async_trait]
impl Decision for Creation<'_> {
    fn begin(&self) -> Begin {
        Begin::Absent
    }

    async fn decide(&mut self, before: Option<&Object>) -> Result<Change, ApiError> {
        if before.is_some() {
            return Err(taken(self.call, self.object.name()));
        }
        // The second time, what was chosen may have been taken meanwhile.
        if let Some(unassigned) = self.unassigned.as_ref().filter(|_| self.freshness == Freshness::Live) {
            self.object = unassigned.clone();
            self.claims = allocation::allocate(&self.call.handlers.core, self.call, &mut self.object, None).await?;
        }
        self.namespace = self.call.check_namespace(self.object.name(), self.freshness).await?;
        self.freshness = Freshness::Live;
        self.charge =
            resource_quota::charge(&self.call.admission(), &self.object, None, std::mem::take(&mut self.charge))
                .await?;
        Ok(Change::Write(self.object.clone()))
    }

    fn conditions(&self) -> Vec<Compare> {
        self.namespace.iter().chain(&self.claims).chain(&self.charge.conditions).cloned().collect()
    }

    fn alongside(&self) -> Vec<Mutation> {
        self.charge.mutations.clone()
    }

    fn beside(&self) -> Option<EncodedBy> {
        self.charge.encoded_by.clone()
    }
}

/// Notes who set what in a new object, before admission has its say: what that sets belongs to nobody.
pub(super) fn record(call: &Call<'_>, object: &mut Object, entries: Given) {
    call.resource.strategy.default(object);
    if let Given::Applied(entries) = entries {
        object.metadata_mut().insert("managedFields".into(), entries);
        return;
    }
    let (manager, now, version) = (call.manager(), object_meta::now(), call.version.to_string());
    let writer = Writer { manager: &manager, subresource: "", api_version: &version, now: &now };
    field_manager::record_creation(&call.resource, &writer, object);
}

/// Completes and checks a new object.
pub(super) fn checked(call: &Call<'_>, mut object: Object) -> Result<Object, ApiError> {
    call.resource.strategy.default(&mut object);
    call.resource.strategy.prepare_create(&mut object);
    let mut problems = metadata::problems(call, &object);
    problems.extend(metadata::owner_count_problem(&object, None));
    problems.extend(call.resource.strategy.validate_create(&object));
    match problems.is_empty() {
        true => Ok(object),
        false => Err(call.invalid(object.name(), problems)),
    }
}

fn taken(call: &Call<'_>, name: &str) -> ApiError {
    ApiError::AlreadyExists { resource: call.resource.group_resource.clone(), name: name.to_string() }
}
