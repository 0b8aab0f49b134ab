//! Create: a POST to a collection.

use crate::error::ApiError;
use crate::field_manager;
use crate::handlers::pipeline::{self, DesiredObject};
use crate::handlers::{Call, HandlerResponse, metadata};
use crate::namespaces::Freshness;
use crate::request::body;
use crate::resource::object_meta;
use async_trait::async_trait;
use restow_apimachinery::managed_fields::{FieldWriter, Given};
use restow_apimachinery::object::Object;

/// The number of attempts to generate a name that is not taken.
const NAME_ATTEMPTS: usize = 8;

pub(super) async fn create(call: &Call<'_>) -> Result<HandlerResponse, ApiError> {
    if !call.target.name.is_empty() {
        return Err(ApiError::MethodNotAllowed);
    }
    let object = body::object(call)?;
    if !object.resource_version().is_empty() {
        return Err(ApiError::BadRequest("resourceVersion should not be set on objects to be created".into()));
    }
    let attempts = match !object.name().is_empty() || object.meta("generateName").is_empty() {
        true => 1,
        false => NAME_ATTEMPTS,
    };
    let posted = PostedObject { call, object };
    for attempt in 1..=attempts {
        match pipeline::write(call, &posted).await {
            Err(ApiError::AlreadyExists { .. }) if attempt < attempts => {}
            Err(ApiError::AlreadyExists { .. }) if attempts > 1 => break,
            written => {
                let (code, written) = written?;
                return Ok(call.written_response(code, written).await);
            }
        }
    }
    Err(ApiError::Timeout("no free name could be generated; try again".into()))
}

/// An object from the body of a POST.
struct PostedObject<'a> {
    call: &'a Call<'a>,
    object: Object,
}

#[async_trait]
impl DesiredObject for PostedObject<'_> {
    fn create(&self) -> Result<Option<(Object, Given)>, ApiError> {
        Ok(Some((self.object.clone(), Given::Object)))
    }

    async fn replace(&self, old: &Object) -> Result<(Object, Given), ApiError> {
        let resource = self.call.resource.group_resource.clone();
        Err(ApiError::AlreadyExists { resource, name: old.name().to_string() })
    }
}

/// The default stage of a new object: its metadata, defaults and managed fields. Fields that admission sets later have
/// no manager.
pub(super) async fn defaulted(call: &Call<'_>, mut object: Object, given: Given) -> Result<Object, ApiError> {
    metadata::prepare_new(call, &mut object)?;
    call.check_namespace(object.name(), Freshness::Cached).await?;
    call.resource.strategy.default(&mut object);
    if let Given::Applied(entries) = given {
        object.metadata_mut().insert("managedFields".into(), entries);
        return Ok(object);
    }
    let (manager, now, version) = (call.manager(), object_meta::now(), call.version.to_string());
    let writer = FieldWriter { manager: &manager, subresource: "", api_version: &version, now: &now };
    field_manager::record_creation(&call.resource, &writer, &mut object);
    Ok(object)
}

/// The validate stage of a new object: sets the fields of its strategy, and collects all validation errors.
pub(super) fn validated(call: &Call<'_>, mut object: Object) -> Result<Object, ApiError> {
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
