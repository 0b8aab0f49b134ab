//! The `scale` subresource: how many, in one form for every kind that can be scaled.

use crate::admission::{self, Operation};
use crate::error::ApiError;
use crate::field_manager::Application;
use crate::handlers::{Answer, Call, apply, patch, update};
use crate::request::body;
use crate::resource::Verb;
use crate::resource::object_meta;
use crate::resource::strategy::{ScaleFields, ScaleSelector};
use crate::storage::object_store::{Change, Changed, Decision};
use async_trait::async_trait;
use restow_apimachinery::field::FieldError;
use restow_apimachinery::managed_fields::{Given, Writer};
use restow_apimachinery::object::Object;
use restow_apimachinery::selector::selector_text;
use restow_apimachinery::types::{self, TypeTable};
use serde_json::{Map, Value, json};

pub(super) async fn scale(call: &Call<'_>) -> Result<Answer, ApiError> {
    let fields = call.resource.strategy.scale(&call.version.to_string()).ok_or(ApiError::NoSuchResource)?;
    let name = &call.target.name;
    let wanted = match call.target.verb {
        Verb::Get => {
            let entry = call.handlers.objects().get(call.place(name)).await?.ok_or_else(|| call.not_found(name))?;
            let object = call.resource.decode(&entry, &call.version).await?;
            return Ok(Answer::Object { code: 200, object: scale_of(&fields, &object) });
        }
        Verb::Patch if call.patch_type == apply::MEDIA_TYPE => Wanted::Applied(applied(call)?),
        Verb::Patch => {
            patch::refuse_force(call)?;
            Wanted::Patch(patch::read(call)?)
        }
        _ => Wanted::Whole(given(call)?),
    };
    let mut decision = Scaling { call, fields: &fields, wanted, dry_run: call.dry_run()?, rehearsed: None };
    let changed = call.handlers.objects().change(call.place(name), &mut decision).await?;
    let object = match (decision.rehearsed, changed) {
        (Some(object), _) => object,
        (None, Changed::Updated(written) | Changed::Created(written)) => written.into_object(),
        (None, Changed::Removed(_) | Changed::Absent) => return Err(call.not_found(name)),
    };
    Ok(Answer::Object { code: 200, object: scale_of(&fields, &object) })
}

/// What a client wants the scale to be.
enum Wanted {
    Whole(Value),
    Patch(patch::Patch),
    /// Only what it says is wanted, and belongs to who applies it.
    Applied(Value),
}

struct Scaling<'a> {
    call: &'a Call<'a>,
    fields: &'a ScaleFields,
    wanted: Wanted,
    dry_run: bool,
    rehearsed: Option<Object>,
}

#[async_trait]
impl Decision for Scaling<'_> {
    async fn decide(&mut self, before: Option<&Object>) -> Result<Change, ApiError> {
        let name = &self.call.target.name;
        let old = before.ok_or_else(|| self.call.not_found(name))?;
        let current = scale_of(self.fields, old);
        let wanted = match &self.wanted {
            Wanted::Whole(value) => value.clone(),
            Wanted::Patch(patch) => {
                let value = patch::patched(patch, current.clone().into_value(), scale_type())?;
                normalized(value).map_err(|error| patch::senseless(self.call, patch, &current, error))?
            }
            Wanted::Applied(configuration) => {
                let mut wanted = current.clone().into_value();
                json_patch::merge(&mut wanted, configuration);
                wanted
            }
        };
        let wanted = Object::from_value(wanted);
        let mut wanted = wanted.map_err(|_| ApiError::bad_request("a Scale must be an object"))?;
        wanted.set_type("autoscaling/v1", "Scale");
        if !wanted.name().is_empty() && wanted.name() != name {
            return Err(ApiError::BadRequest(format!(
                "the name of the object ({}) does not match the name on the URL ({name})",
                wanted.name()
            )));
        }
        let wanted = admission::mutate(&self.call.admission(), Operation::Update, wanted, Some(&current)).await?;
        update::check_expectations(self.call, &wanted, old)?;
        let replicas = wanted.at(&["spec", "replicas"]).and_then(Value::as_i64).unwrap_or_default();
        let given = self.entries(old, replicas).await?;
        if replicas < 0 {
            let problem = FieldError::invalid("spec.replicas", &replicas.into(), "must be greater than or equal to 0");
            return Err(invalid(name, problem));
        }
        let mut object = old.clone();
        if number(&self.fields.replicas, old) != Some(replicas) {
            put(&mut object, &self.fields.replicas, replicas.into());
            if self.call.resource.strategy.has_generation() {
                object.metadata_mut().insert("generation".into(), (old.generation() + 1).into());
            }
        }
        let problems = update::problems(self.call, &object, old);
        if !problems.is_empty() {
            return Err(self.call.invalid(name, problems));
        }
        let scale = scale_of(self.fields, &object);
        admission::validate(&self.call.admission(), Operation::Update, Some(&scale), Some(&current)).await?;
        update::record(self.call, old, &mut object, given).await?;
        if self.dry_run {
            self.rehearsed = Some(object);
            return Ok(Change::Keep);
        }
        Ok(Change::Write(object))
    }
}

impl Scaling<'_> {
    /// Who manages what then. Who applies a scale is in the way of whoever manages how many there are.
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
            Writer { manager: &manager, subresource: &call.target.subresource, api_version: &version, now: &now };
        let application = Application { resource: &call.resource, writer, configuration: wanted };
        let mut object = old.clone();
        put(&mut object, &self.fields.replicas, replicas.into());
        let (entries, conflicts) = application.entries(old, &object).await;
        match conflicts.is_empty() || call.query.is_on("force") {
            true => Ok(Given::Applied(entries)),
            false => Err(apply::conflict(&conflicts)),
        }
    }
}

/// The configuration of a scale that is applied.
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
        // What is not said is not wanted, whatever its type takes for it.
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

/// A scale as its type reads it: whatever else is stored as a number of replicas, nobody could encode it.
fn normalized(value: Value) -> Result<Value, ApiError> {
    let Some(kind) = scale_type() else { return Ok(value) };
    let decoded = types::normalize(kind, value).map_err(|error| ApiError::BadRequest(error.to_string()))?;
    Ok(decoded.value)
}

/// The scale of an object.
fn scale_of(fields: &ScaleFields, object: &Object) -> Object {
    let mut metadata = Map::new();
    for name in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = object.at(&["metadata", name]) {
            metadata.insert(name.into(), value.clone());
        }
    }
    // A custom resource may say any number, and a scale has 32 bits for it.
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
