//! `SubjectAccessReview`, `SelfSubjectAccessReview` and `LocalSubjectAccessReview`: whether a user may make a request.

use crate::posted::Posted;
use crate::review::{ReviewError, with_status};
use crate::{Attributes, Authorizer, Decision, ResourceAttributes, User};
use restow_api::validation::is_label_key;
use restow_apimachinery::field::FieldError;
use restow_apimachinery::meta_v1::LabelSelectorRequirement;
use restow_apimachinery::typed;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

const ONE_OF_TWO: &str = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
const RESOURCE: &str = "spec.resourceAttributes";

/// The spec of all three reviews. `SelfSubjectAccessReview` has no subject.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    resource_attributes: Option<ResourceFields>,
    non_resource_attributes: Option<PathFields>,
    user: String,
    groups: Vec<String>,
    uid: String,
    extra: BTreeMap<String, Vec<String>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ResourceFields {
    verb: String,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
    field_selector: Option<Selector>,
    label_selector: Option<Selector>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PathFields {
    verb: String,
    path: String,
}

/// A selector. It is only validated: RBAC does not evaluate selectors.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Selector {
    raw_selector: String,
    requirements: Vec<LabelSelectorRequirement>,
}

/// The three reviews.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Subject,
    SelfSubject,
    LocalSubject,
}

/// Answers a `SubjectAccessReview`: whether the user in its spec may make the request in its spec.
pub fn subject_access_review(authorizer: &dyn Authorizer, request: &Value) -> Result<Value, ReviewError> {
    let Posted { spec, .. } = typed::read(request)?;
    refuse(problems(request, &spec, Kind::Subject))?;
    Ok(with_status(request, status(authorizer, &subject(&spec), spec)))
}

/// Answers a `SelfSubjectAccessReview`: whether the requesting user may make the request in its spec.
pub fn self_subject_access_review(
    authorizer: &dyn Authorizer,
    user: &User,
    request: &Value,
) -> Result<Value, ReviewError> {
    let Posted { spec, .. } = typed::read(request)?;
    refuse(problems(request, &spec, Kind::SelfSubject))?;
    Ok(with_status(request, status(authorizer, user, spec)))
}

/// Answers a `LocalSubjectAccessReview`, posted in the namespace: whether the user in its spec may make the request in
/// this namespace.
pub fn local_subject_access_review(
    authorizer: &dyn Authorizer,
    namespace: &str,
    request: &Value,
) -> Result<Value, ReviewError> {
    let Posted { spec, metadata } = typed::read::<Posted<Spec>>(request)?;
    let own_namespace = if metadata.namespace.is_empty() { namespace } else { &metadata.namespace };
    let mut problems = problems(request, &spec, Kind::LocalSubject);
    if let Some(requested) = spec.resource_attributes.as_ref().filter(|requested| requested.namespace != own_namespace)
    {
        let field = format!("{RESOURCE}.namespace");
        problems.push(FieldError::invalid(field, &json!(requested.namespace), "must match metadata.namespace"));
    }
    if spec.non_resource_attributes.is_some() {
        let detail = "disallowed on this kind of request";
        problems.push(FieldError::invalid("spec.nonResourceAttributes", path_value(request), detail));
    }
    refuse(problems)?;
    if own_namespace != namespace {
        let message = format!("spec.resourceAttributes.namespace must match namespace: {namespace}");
        return Err(ReviewError::BadRequest(message));
    }
    Ok(with_status(request, status(authorizer, &subject(&spec), spec)))
}

fn refuse(problems: Vec<FieldError>) -> Result<(), ReviewError> {
    if problems.is_empty() { Ok(()) } else { Err(ReviewError::Invalid(problems)) }
}

/// The posted `spec.nonResourceAttributes`, for messages.
fn path_value(request: &Value) -> &Value {
    request.pointer("/spec/nonResourceAttributes").unwrap_or(&Value::Null)
}

fn problems(request: &Value, spec: &Spec, kind: Kind) -> Vec<FieldError> {
    let mut problems = Vec::new();
    if spec.resource_attributes.is_some() == spec.non_resource_attributes.is_some() {
        problems.push(FieldError::invalid("spec", path_value(request), ONE_OF_TWO));
    }
    if kind != Kind::SelfSubject && spec.user.is_empty() && spec.groups.is_empty() {
        problems.push(FieldError::invalid("spec.user", &"".into(), "at least one of user or group must be specified"));
    }
    if let Some(resource) = &spec.resource_attributes {
        for (name, selector) in
            [("fieldSelector", &resource.field_selector), ("labelSelector", &resource.label_selector)]
        {
            problems.extend(selector.iter().flat_map(|selector| selector_problems(selector, name)));
        }
    }
    problems.extend(match kind {
        Kind::LocalSubject => {
            metadata_problems(request, &["namespace", "managedFields"], "must be empty except for namespace")
        }
        Kind::Subject | Kind::SelfSubject => metadata_problems(request, &["managedFields"], "must be empty"),
    });
    problems
}

fn selector_problems(selector: &Selector, name: &str) -> Vec<FieldError> {
    let path = format!("{RESOURCE}.{name}");
    let Selector { raw_selector, requirements } = selector;
    let mut problems = Vec::new();
    if !raw_selector.is_empty() && !requirements.is_empty() {
        let detail = "may not specified at the same time as requirements";
        problems.push(FieldError::invalid(format!("{path}.rawSelector"), &json!(raw_selector), detail));
    }
    if raw_selector.is_empty() && requirements.is_empty() {
        let detail = format!("when {path} is specified, requirements or rawSelector is required");
        problems.push(FieldError::required(format!("{path}.requirements"), detail));
    }
    for (index, requirement) in requirements.iter().enumerate() {
        problems.extend(requirement_problems(requirement, name, &format!("{path}.requirements[{index}]")));
    }
    problems
}

/// An unknown operator is accepted: a newer client may know it.
fn requirement_problems(requirement: &LabelSelectorRequirement, selector: &str, path: &str) -> Vec<FieldError> {
    let LabelSelectorRequirement { key, operator, values } = requirement;
    let mut problems = Vec::new();
    if selector == "fieldSelector" && key.is_empty() {
        problems.push(FieldError::required(format!("{path}.key"), "must be specified"));
    }
    let field = format!("{path}.values");
    match operator.as_str() {
        "In" | "NotIn" if values.is_empty() => {
            problems.push(FieldError::required(field, "must be specified when `operator` is 'In' or 'NotIn'"));
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            problems.push(FieldError::forbidden(field, detail));
        }
        _ => {}
    }
    if selector == "labelSelector" {
        let invalid = is_label_key(key).into_iter();
        problems.extend(invalid.map(|detail| FieldError::invalid(format!("{path}.key"), &json!(key), detail)));
    }
    problems
}

fn metadata_problems(request: &Value, allowed: &[&str], detail: &str) -> Vec<FieldError> {
    let Some(metadata) = request.get("metadata").filter(|metadata| !metadata.is_null()) else { return Vec::new() };
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(entries) => entries.is_empty(),
        Value::Number(number) => number.as_i64() == Some(0),
        Value::Bool(_) => false,
    };
    let fields = metadata.as_object().into_iter().flatten();
    let mut given = fields.filter(|(field, value)| !allowed.contains(&field.as_str()) && !is_empty(value));
    match given.next() {
        None => Vec::new(),
        Some(_) => vec![FieldError::invalid("metadata", metadata, detail)],
    }
}

fn subject(spec: &Spec) -> User {
    let Spec { user, groups, uid, extra, .. } = spec;
    User { name: user.clone(), uid: uid.clone(), groups: groups.clone(), extra: extra.clone() }
}

fn attributes(spec: Spec) -> Attributes {
    let Some(requested) = spec.resource_attributes else {
        let PathFields { verb, path } = spec.non_resource_attributes.unwrap_or_default();
        return Attributes::Path { verb, path };
    };
    let ResourceFields { verb, group, version, resource, subresource, namespace, name, .. } = requested;
    let version = if version.is_empty() { "*".into() } else { version };
    ResourceAttributes { verb, group, version, resource, subresource, namespace, name }.into()
}

fn status(authorizer: &dyn Authorizer, user: &User, spec: Spec) -> Value {
    let decision: Decision = authorizer.authorize(user, &attributes(spec));
    let mut status = Map::new();
    status.insert("allowed".into(), json!(decision.is_allowed()));
    if !decision.reason().is_empty() {
        status.insert("reason".into(), json!(decision.reason()));
    }
    Value::Object(status)
}
