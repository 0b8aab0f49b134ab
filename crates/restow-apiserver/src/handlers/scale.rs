//! The `scale` subresource: the number of replicas in one format (`Scale`) for all kinds that can be scaled.

use crate::admission::{self, Operation};
use crate::error::ApiError;
use crate::field_manager::Application;
use crate::handlers::pipeline::{self, DesiredObject};
use crate::handlers::{Call, HandlerResponse, apply, patch, update};
use crate::request::body;
use crate::resource::Verb;
use crate::resource::object_meta;
use crate::resource::strategy::{ScaleFields, ScaleSelector};
use async_trait::async_trait;
use restow_apimachinery::field::FieldError;
use restow_apimachinery::managed_fields::{FieldWriter, Given};
use restow_apimachinery::object::Object;
use restow_apimachinery::selector::selector_text;
use restow_apimachinery::types::{self, TypeTable};
use serde_json::{Map, Value, json};
use std::borrow::Cow;

pub(super) async fn scale(call: &Call<'_>) -> Result<HandlerResponse, ApiError> {
    let fields = call.resource.strategy.scale(&call.version.to_string()).ok_or(ApiError::NoSuchResource)?;
    let name = &call.target.name;
    let wanted = match call.target.verb {
        Verb::Get => {
            let entry =
                call.handlers.objects().get(call.object_ref(name)).await?.ok_or_else(|| call.not_found(name))?;
            let object = call.resource.decode(&entry, &call.version).await?;
            return Ok(HandlerResponse::Object { code: 200, object: scale_of(&fields, &object) });
        }
        Verb::Patch if call.patch_type == apply::MEDIA_TYPE => Wanted::Applied(applied(call)?),
        Verb::Patch => {
            patch::refuse_force(call)?;
            Wanted::Patch(patch::read(call)?)
        }
        _ => Wanted::Whole(given(call)?),
    };
    let (code, written) = pipeline::write(call, &ScaledObject { call, fields: &fields, wanted }).await?;
    Ok(HandlerResponse::Object { code, object: scale_of(&fields, &written.into_object()) })
}

/// The change of the scale that a client requests.
enum Wanted {
    Whole(Value),
    Patch(patch::Patch),
    /// An apply patch: only its fields change, and its manager owns them.
    Applied(Value),
}

/// An object with the requested number of replicas. Admission sees the Scale.
struct ScaledObject<'a> {
    call: &'a Call<'a>,
    fields: &'a ScaleFields,
    wanted: Wanted,
}

#[async_trait]
impl DesiredObject for ScaledObject<'_> {
    fn create(&self) -> Result<Option<(Object, Given)>, ApiError> {
        Ok(None)
    }

    async fn replace(&self, old: &Object) -> Result<(Object, Given), ApiError> {
        self.mutated(self.call, old).await
    }

    async fn mutated(&self, call: &Call<'_>, old: &Object) -> Result<(Object, Given), ApiError> {
        let (name, current) = (&call.target.name, scale_of(self.fields, old));
        let wanted = self.wanted_scale(&current)?;
        if !wanted.name().is_empty() && wanted.name() != name {
            return Err(update::name_mismatch(wanted.name(), name));
        }
        let wanted = admission::mutate(&call.admission(), Operation::Update, wanted, Some(&current)).await?;
        update::check_preconditions(call, &wanted, old)?;
        let replicas = wanted.at(&["spec", "replicas"]).and_then(Value::as_i64).unwrap_or_default();
        let given = self.entries(old, replicas).await?;
        if replicas < 0 {
            let problem = FieldError::invalid("spec.replicas", &replicas.into(), "must be greater than or equal to 0");
            return Err(invalid(name, problem));
        }
        let mut object = old.clone();
        if number(&self.fields.replicas, old) != Some(replicas) {
            put(&mut object, &self.fields.replicas, replicas.into());
        }
        Ok((object, given))
    }

    fn admitted<'a>(&self, object: &'a Object) -> Cow<'a, Object> {
        Cow::Owned(scale_of(self.fields, object))
    }
}

impl ScaledObject<'_> {
    /// The requested Scale, given the current one.
    fn wanted_scale(&self, current: &Object) -> Result<Object, ApiError> {
        let wanted = match &self.wanted {
            Wanted::Whole(value) => value.clone(),
            Wanted::Patch(patch) => {
                let value = patch::patched(patch, current.clone().into_value(), scale_type())?;
                normalized(value).map_err(|error| patch::invalid_result(self.call, patch, current, error))?
            }
            Wanted::Applied(configuration) => {
                let mut wanted = current.clone().into_value();
                json_patch::merge(&mut wanted, configuration);
                wanted
            }
        };
        let mut wanted = Object::from_value(wanted).map_err(|_| ApiError::bad_request("a Scale must be an object"))?;
        wanted.set_type("autoscaling/v1", "Scale");
        Ok(wanted)
    }

    /// The managed fields after the change. Applying a scale conflicts with another manager of the replicas field.
    async fn entries(&self, old: &Object, replicas: i64) -> Result<Given, ApiError> {
        let Wanted::Applied(configuration) = &self.wanted else { return Ok(Given::Object) };
        let call = self.call;
        let mut wanted = Object::default();
        wanted.set_type(old.api_version(), old.kind());
        if configuration["spec"].get("replicas").is_some_and(|replicas| !replicas.is_null()) {
            put(&mut wanted, &self.fields.replicas, replicas.into());
        }
        let (manager, now, version) = (call.manager(), object_meta::now(), call.version.to_string());
        let writer =
            FieldWriter { manager: &manager, subresource: &call.target.subresource, api_version: &version, now: &now };
        let application = Application { resource: &call.resource, writer, configuration: wanted };
        let mut object = old.clone();
        put(&mut object, &self.fields.replicas, replicas.into());
        let (entries, conflicts) = application.entries(old, &object).await?;
        match conflicts.is_empty() || call.query.is_on("force") {
            true => Ok(Given::Applied(entries)),
            false => Err(apply::conflict(&conflicts)),
        }
    }
}

/// The Scale of an apply patch.
fn applied(call: &Call<'_>) -> Result<Value, ApiError> {
    apply::check_manager(call)?;
    let (value, _) = apply::parse(call)?;
    let (version, kind) =
        (value["apiVersion"].as_str().unwrap_or_default(), value["kind"].as_str().unwrap_or_default());
    if (version, kind) != ("autoscaling/v1", "Scale") {
        return Err(ApiError::BadRequest(format!("invalid object type: {version}, Kind={kind}")));
    }
    let mut configuration = normalized(value.clone())?;
    if value["spec"].get("replicas").is_none()
        && let Some(spec) = configuration["spec"].as_object_mut()
    {
        // The type has a default for `replicas`. Remove it: an apply patch manages only the fields that it contains.
        spec.remove("replicas");
    }
    Ok(configuration)
}

fn invalid(name: &str, problem: FieldError) -> ApiError {
    let kind = crate::error::GroupKind { group: "autoscaling".into(), kind: "Scale".into() };
    ApiError::Invalid { kind, name: name.to_string(), causes: vec![problem] }
}

fn scale_type() -> Option<types::TypeId> {
    TypeTable::shared().kind("autoscaling/v1", "Scale")
}

fn given(call: &Call<'_>) -> Result<Value, ApiError> {
    let value = body::value(call)?;
    if value["kind"].as_str().is_some_and(|kind| kind != "Scale") {
        return Err(ApiError::bad_request("the body of a request to scale must be a Scale"));
    }
    normalized(value)
}

/// Normalizes a Scale by its type, so that every stored number of replicas can be encoded.
fn normalized(value: Value) -> Result<Value, ApiError> {
    let Some(kind) = scale_type() else { return Ok(value) };
    let decoded = types::normalize(kind, value).map_err(|error| ApiError::BadRequest(error.to_string()))?;
    Ok(decoded.value)
}

/// The Scale of an object.
fn scale_of(fields: &ScaleFields, object: &Object) -> Object {
    let mut metadata = Map::new();
    for name in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = object.at(&["metadata", name]) {
            metadata.insert(name.into(), value.clone());
        }
    }
    // A custom resource may contain any number; a Scale has 32 bits.
    let shown = |path: &[String]| {
        number(path, object).map_or(0, |number| number.clamp(i64::from(i32::MIN), i64::from(i32::MAX)))
    };
    let mut spec = json!({});
    let replicas = shown(&fields.replicas);
    if replicas != 0 {
        spec["replicas"] = replicas.into();
    }
    let mut status = json!({"replicas": shown(&fields.status_replicas)});
    let selector = selected(&fields.selector, object);
    if !selector.is_empty() {
        status["selector"] = selector.into();
    }
    let scale = json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata, "spec": spec, "status": status,
    });
    Object::from_value(scale).unwrap_or_default()
}

fn number(path: &[String], object: &Object) -> Option<i64> {
    at(object, path).and_then(Value::as_i64)
}

fn at<'a>(object: &'a Object, path: &[String]) -> Option<&'a Value> {
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    object.at(&path)
}

fn put(object: &mut Object, path: &[String], value: Value) {
    let Some((first, rest)) = path.split_first() else { return };
    let mut slot = object.fields_mut().entry(first.clone()).or_insert_with(|| json!({}));
    for step in rest {
        if !slot.is_object() {
            *slot = json!({});
        }
        slot = &mut slot[step.as_str()];
    }
    *slot = value;
}

fn selected(selector: &ScaleSelector, object: &Object) -> String {
    match selector {
        ScaleSelector::None => String::new(),
        ScaleSelector::Text(path) => at(object, path).and_then(Value::as_str).unwrap_or_default().to_string(),
        ScaleSelector::Labels(path) => {
            let labels = at(object, path).cloned().unwrap_or_default();
            selector_text(&json!({"matchLabels": labels}))
        }
        ScaleSelector::Selector(path) => at(object, path).map(selector_text).unwrap_or_default(),
    }
}
