//! May someone do something: `SubjectAccessReview`, and its forms for oneself and for one namespace.

use crate::json::{WrongType, items, object, text, texts, texts_map};
use crate::review::{ReviewError, with_status};
use crate::{Attributes, Authorizer, Decision, ResourceAttributes, User};
use restow_api::validation::is_label_key;
use restow_apimachinery::field::FieldError;
use serde_json::{Map, Value, json};

const ONE_OF_TWO: &str = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
const RESOURCE: &str = "spec.resourceAttributes";

/// Answers a `SubjectAccessReview`: may the user in it do what is in it?
pub fn subject_access_review(authorizer: &dyn Authorizer, request: &Value) -> Result<Value, ReviewError> {
    let spec = spec(request)?;
    let problems = [spec_problems(&spec, true)?, metadata_problems(request, &["managedFields"], "must be empty")];
    refuse(problems.concat())?;
    Ok(with_status(request, status(authorizer, &subject(&spec)?, &spec)?))
}

/// Answers a `SelfSubjectAccessReview`: may I do what is in it?
pub fn self_subject_access_review(
    authorizer: &dyn Authorizer,
    user: &User,
    request: &Value,
) -> Result<Value, ReviewError> {
    let spec = spec(request)?;
    let problems = [spec_problems(&spec, false)?, metadata_problems(request, &["managedFields"], "must be empty")];
    refuse(problems.concat())?;
    Ok(with_status(request, status(authorizer, user, &spec)?))
}

/// Answers a `LocalSubjectAccessReview`, posted in the namespace: may the user in it do what is in it there?
pub fn local_subject_access_review(
    authorizer: &dyn Authorizer,
    namespace: &str,
    request: &Value,
) -> Result<Value, ReviewError> {
    let spec = spec(request)?;
    let metadata = object(request, "metadata")?.unwrap_or(&Value::Null);
    let own_namespace = match text(metadata, "namespace")? {
        "" => namespace,
        own => own,
    };
    let mut problems = spec_problems(&spec, true)?;
    let allowed = ["namespace", "managedFields"];
    problems.extend(metadata_problems(request, &allowed, "must be empty except for namespace"));
    if let Some(resource) = object(&spec, "resourceAttributes")? {
        let asked = text(resource, "namespace")?;
        if asked != own_namespace {
            let field = format!("{RESOURCE}.namespace");
            problems.push(FieldError::invalid(field, &asked.into(), "must match metadata.namespace"));
        }
    }
    if let Some(path) = object(&spec, "nonResourceAttributes")? {
        let detail = "disallowed on this kind of request";
        problems.push(FieldError::invalid("spec.nonResourceAttributes", path, detail));
    }
    refuse(problems)?;
    if own_namespace != namespace {
        let message = format!("spec.resourceAttributes.namespace must match namespace: {namespace}");
        return Err(ReviewError::BadRequest(message));
    }
    Ok(with_status(request, status(authorizer, &subject(&spec)?, &spec)?))
}

fn spec(request: &Value) -> Result<Value, WrongType> {
    Ok(object(request, "spec")?.cloned().unwrap_or_else(|| json!({})))
}

fn refuse(problems: Vec<FieldError>) -> Result<(), ReviewError> {
    if problems.is_empty() { Ok(()) } else { Err(ReviewError::Invalid(problems)) }
}

fn spec_problems(spec: &Value, names_subject: bool) -> Result<Vec<FieldError>, ReviewError> {
    let within = |error: WrongType| error.within("spec");
    let resource = object(spec, "resourceAttributes").map_err(within)?;
    let path = object(spec, "nonResourceAttributes").map_err(within)?;
    let mut problems = Vec::new();
    if resource.is_some() == path.is_some() {
        problems.push(FieldError::invalid("spec", path.unwrap_or(&Value::Null), ONE_OF_TWO));
    }
    if names_subject
        && text(spec, "user").map_err(within)?.is_empty()
        && texts(spec, "groups").map_err(within)?.is_empty()
    {
        problems.push(FieldError::invalid("spec.user", &"".into(), "at least one of user or group must be specified"));
    }
    if let Some(resource) = resource {
        for selector in ["fieldSelector", "labelSelector"] {
            problems.extend(selector_problems(resource, selector)?);
        }
    }
    Ok(problems)
}

/// What is wrong with a selector. Roles know no selectors, so beyond this it plays no part.
fn selector_problems(resource: &Value, name: &str) -> Result<Vec<FieldError>, WrongType> {
    let Some(selector) = object(resource, name)? else { return Ok(Vec::new()) };
    let path = format!("{RESOURCE}.{name}");
    let (raw, requirements) = (text(selector, "rawSelector")?, items(selector, "requirements")?);
    let mut problems = Vec::new();
    if !raw.is_empty() && !requirements.is_empty() {
        let detail = "may not specified at the same time as requirements";
        problems.push(FieldError::invalid(format!("{path}.rawSelector"), &raw.into(), detail));
    }
    if raw.is_empty() && requirements.is_empty() {
        let detail = format!("when {path} is specified, requirements or rawSelector is required");
        problems.push(FieldError::required(format!("{path}.requirements"), detail));
    }
    for (index, requirement) in requirements.iter().enumerate() {
        problems.extend(requirement_problems(requirement, name, &format!("{path}.requirements[{index}]"))?);
    }
    Ok(problems)
}

/// An operator that this server does not know is no mistake: a newer client may know it.
fn requirement_problems(requirement: &Value, selector: &str, path: &str) -> Result<Vec<FieldError>, WrongType> {
    let (key, operator, values) =
        (text(requirement, "key")?, text(requirement, "operator")?, items(requirement, "values")?);
    let mut problems = Vec::new();
    if selector == "fieldSelector" && key.is_empty() {
        problems.push(FieldError::required(format!("{path}.key"), "must be specified"));
    }
    let field = format!("{path}.values");
    match operator {
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
        problems.extend(invalid.map(|detail| FieldError::invalid(format!("{path}.key"), &key.into(), detail)));
    }
    Ok(problems)
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

fn subject(spec: &Value) -> Result<User, WrongType> {
    Ok(User {
        name: text(spec, "user")?.into(),
        uid: text(spec, "uid")?.into(),
        groups: texts(spec, "groups")?,
        extra: texts_map(spec, "extra")?,
    })
}

fn attributes(spec: &Value) -> Result<Attributes, WrongType> {
    let Some(resource) = object(spec, "resourceAttributes")? else {
        let path = object(spec, "nonResourceAttributes")?.unwrap_or(&Value::Null);
        return Ok(Attributes::path(text(path, "verb")?, text(path, "path")?));
    };
    let field = |name: &str| text(resource, name).map(String::from);
    let version = match field("version")? {
        version if version.is_empty() => "*".into(),
        version => version,
    };
    let asked = ResourceAttributes {
        verb: field("verb")?,
        group: field("group")?,
        version,
        resource: field("resource")?,
        subresource: field("subresource")?,
        namespace: field("namespace")?,
        name: field("name")?,
    };
    Ok(asked.into())
}

fn status(authorizer: &dyn Authorizer, user: &User, spec: &Value) -> Result<Value, WrongType> {
    let decision: Decision = authorizer.authorize(user, &attributes(spec)?);
    let mut status = Map::new();
    status.insert("allowed".into(), json!(decision.is_allowed()));
    if !decision.reason().is_empty() {
        status.insert("reason".into(), json!(decision.reason()));
    }
    Ok(Value::Object(status))
}
