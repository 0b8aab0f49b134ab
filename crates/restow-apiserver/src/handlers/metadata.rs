//! The metadata of objects: fields that the server sets, fields that clients may change, and validation.

use crate::error::ApiError;
use crate::handlers::Call;
use crate::resource::object_meta::{now, random_suffix};
use crate::resource::{Origin, Scope};
use restow_apimachinery::field::{FieldError, FieldRule};
use restow_apimachinery::names::{label_value_problems, qualified_name_problems};
use restow_apimachinery::object::Object;
use serde_json::Value;
use std::collections::HashSet;

/// The maximum total size of annotations in bytes.
const ANNOTATION_BYTES: usize = 256 * 1024;
/// The maximum number of owner references that a client may set. Kubernetes has no limit. Here the garbage collector
/// removes a few owners at a time and writes the object each time.
const MAX_OWNERS: usize = 1_000;
/// The finalizers that need no domain.
const STANDARD_FINALIZERS: [&str; 4] =
    ["foregroundDeletion", "kubernetes", "orphan", "customresourcecleanup.apiextensions.k8s.io"];
/// The fields that an update takes from the stored object.
const KEPT: [&str; 4] = ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"];

/// Completes the metadata of a new object.
pub(super) fn prepare_new(call: &Call<'_>, object: &mut Object) -> Result<(), ApiError> {
    set_namespace(call, object)?;
    if object.name().is_empty() && !object.meta("generateName").is_empty() {
        let base: String =
            object.meta("generateName").chars().take(call.resource.strategy.name_rule().longest_base()).collect();
        object.set_meta("name", &format!("{base}{}", random_suffix()));
    }
    let metadata = object.metadata_mut();
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "generation", "resourceVersion", "selfLink"] {
        metadata.remove(field);
    }
    metadata.insert("uid".into(), restow_host::uuid().to_string().into());
    metadata.insert("creationTimestamp".into(), now().into());
    if call.resource.strategy.has_generation() {
        metadata.insert("generation".into(), 1.into());
    }
    Ok(())
}

/// Copies the fields that a client cannot change from the stored object.
pub(super) fn prepare_replacement(call: &Call<'_>, object: &mut Object, old: &Object) -> Result<(), ApiError> {
    set_namespace(call, object)?;
    for field in KEPT {
        let kept = old.at(&["metadata", field]).cloned();
        let metadata = object.metadata_mut();
        match kept {
            Some(value) => metadata.insert(field.into(), value),
            None => metadata.remove(field),
        };
    }
    let generation = old.at(&["metadata", "generation"]).cloned();
    match generation {
        Some(generation) => object.metadata_mut().insert("generation".into(), generation),
        None => object.metadata_mut().remove("generation"),
    };
    Ok(())
}

/// Increments `metadata.generation` if the specification has changed.
pub(super) fn increment_generation(call: &Call<'_>, object: &mut Object, old: &Object) {
    if call.resource.strategy.has_generation() && specification(call, object) != specification(call, old) {
        object.metadata_mut().insert("generation".into(), (old.generation() + 1).into());
    }
}

/// All fields except metadata and status. A custom resource without the status subresource has no separate status.
fn specification<'a>(call: &Call<'_>, object: &'a Object) -> Vec<(&'a String, &'a Value)> {
    let whole = call.resource.origin == Origin::Custom && call.resource.subresource("status").is_none();
    let counts = |name: &str| !matches!(name, "metadata" | "apiVersion" | "kind") && (whole || name != "status");
    object.fields().iter().filter(|(name, _)| counts(name)).collect()
}

/// All validation errors of an object's metadata.
pub(super) fn problems(call: &Call<'_>, object: &Object) -> Vec<FieldError> {
    let mut problems = Vec::new();
    let name = object.name();
    if name.is_empty() {
        problems.push(FieldError::required("metadata.name", "name or generateName is required"));
    } else {
        let found = call.resource.strategy.name_rule().check(name).into_iter();
        problems.extend(found.map(|problem| FieldError::invalid("metadata.name", &name.into(), problem)));
    }
    problems.extend(map_problems(object, "labels", |value| label_value_problems(value).into_iter().next()));
    problems.extend(map_problems(object, "annotations", |_| None));
    let annotations = object.at(&["metadata", "annotations"]).and_then(Value::as_object);
    let size: usize =
        annotations.into_iter().flatten().map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum();
    if size > ANNOTATION_BYTES {
        problems.push(FieldError {
            field: "metadata.annotations".into(),
            rule: FieldRule::TooLong,
            detail: format!("may not be more than {ANNOTATION_BYTES} bytes"),
        });
    }
    problems.extend(owner_problems(object));
    for finalizer in object.finalizers() {
        let found = qualified_name_problems(finalizer).into_iter();
        problems.extend(found.map(|problem| FieldError::invalid("metadata.finalizers", &finalizer.into(), problem)));
    }
    let unqualified = |name: &str| !name.contains('/') && !STANDARD_FINALIZERS.contains(&name);
    for (index, finalizer) in object.finalizers().into_iter().enumerate() {
        if call.resource.origin == Origin::Builtin && unqualified(finalizer) {
            let detail = "name is neither a standard finalizer name nor is it fully qualified";
            problems.push(FieldError::invalid(format!("metadata.finalizers[{index}]"), &finalizer.into(), detail));
        }
    }
    problems
}

/// Every owner reference is complete, and at most one is the controller.
fn owner_problems(object: &Object) -> Vec<FieldError> {
    let Some(owners) = object.at(&["metadata", "ownerReferences"]).and_then(Value::as_array) else { return Vec::new() };
    let text = |owner: &Value, field: &str| owner[field].as_str().unwrap_or_default().to_string();
    let mut problems = Vec::new();
    for (index, owner) in owners.iter().enumerate() {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if text(owner, field).is_empty() {
                let path = format!("metadata.ownerReferences[{index}].{field}");
                problems.push(FieldError::required(path, "must not be empty"));
            }
        }
    }
    let mut in_charge = owners.iter().filter(|owner| owner["controller"] == true);
    if let (Some(first), Some(second)) = (in_charge.next(), in_charge.next()) {
        let named = |owner: &Value| format!("{}/{}", text(owner, "kind"), text(owner, "name"));
        let detail = format!(
            "Only one reference can have Controller set to true. Found \"true\" in references for {} and {}",
            named(first),
            named(second)
        );
        problems.push(FieldError::invalid("metadata.ownerReferences", &owners.clone().into(), detail));
    }
    problems
}

/// Refuses a client that adds more owners than the garbage collector can process in a few rounds.
pub(super) fn owner_count_problem(object: &Object, old: Option<&Object>) -> Option<FieldError> {
    let owners = ["metadata", "ownerReferences"];
    let count = |object: &Object| object.at(&owners).and_then(Value::as_array).map_or(0, Vec::len);
    let (now, before) = (count(object), old.map_or(0, count));
    (now > MAX_OWNERS && now > before).then(|| FieldError {
        field: "metadata.ownerReferences".into(),
        rule: FieldRule::TooMany(now.to_string()),
        detail: format!("must have at most {MAX_OWNERS} items"),
    })
}

/// The validation errors of a change from `old` to `object`.
pub(super) fn change_problems(object: &Object, old: &Object) -> Vec<FieldError> {
    let mut problems: Vec<FieldError> = owner_count_problem(object, Some(old)).into_iter().collect();
    if old.is_being_deleted() {
        let before: HashSet<&str> = old.finalizers().into_iter().collect();
        let added = object.finalizers().into_iter().filter(|added| !before.contains(added));
        let added: Vec<String> = added.map(|name| format!("{name:?}")).collect();
        if !added.is_empty() {
            problems.push(FieldError::forbidden(
                "metadata.finalizers",
                format!(
                    "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                    added.join(", ")
                ),
            ));
        }
    }
    problems
}

fn map_problems(object: &Object, field: &str, value_problem: impl Fn(&str) -> Option<String>) -> Vec<FieldError> {
    let path = format!("metadata.{field}");
    let Some(value) = object.at(&["metadata", field]).filter(|value| !value.is_null()) else { return Vec::new() };
    let Some(map) = value.as_object() else {
        return vec![FieldError::invalid(path, value, "must be a map of text")];
    };
    let mut problems = Vec::new();
    for (key, value) in map {
        problems.extend(
            qualified_name_problems(key)
                .into_iter()
                .map(|problem| FieldError::invalid(path.clone(), &key.as_str().into(), problem)),
        );
        match value.as_str() {
            None => problems.push(FieldError::invalid(format!("{path}.{key}"), value, "must be text")),
            Some(text) => {
                let problem = value_problem(text);
                problems.extend(problem.map(|problem| FieldError::invalid(path.clone(), value, problem)));
            }
        }
    }
    problems
}

fn set_namespace(call: &Call<'_>, object: &mut Object) -> Result<(), ApiError> {
    if call.resource.scope == Scope::Cluster {
        object.set_meta("namespace", "");
        return Ok(());
    }
    if object.namespace().is_empty() {
        object.set_meta("namespace", &call.target.namespace);
    }
    if object.namespace() != call.target.namespace {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    Ok(())
}
