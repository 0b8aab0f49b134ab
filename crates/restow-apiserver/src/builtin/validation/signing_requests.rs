//! Requests for certificates: what they ask for, and who decides about them by which subresource.

use super::{duplicate, unsupported};
use crate::admission::certificate_signing::organizations;
use restow_apimachinery::field::FieldError;
use restow_apimachinery::go_syntax::quote;
use restow_apimachinery::object::Object;
use serde_json::Value;

const CONDITIONS: &str = "status.conditions";
/// What a request ends with. It is true, or it is not there.
const ENDS: [&str; 3] = ["Approved", "Denied", "Failed"];

/// Everything that is wrong with a request.
pub(super) fn problems(object: &Object) -> Vec<FieldError> {
    let mut problems = Vec::new();
    let request = object.text(&["spec", "request"]);
    if let Err(problem) = organizations(request) {
        problems.push(FieldError::invalid("spec.request", &request.into(), problem));
    }
    if object.at(&["spec", "usages"]).and_then(Value::as_array).is_none_or(Vec::is_empty) {
        problems.push(FieldError::required("spec.usages", ""));
    }
    if object.text(&["spec", "signerName"]).is_empty() {
        problems.push(FieldError::required("spec.signerName", ""));
    }
    problems.extend(condition_problems(object));
    problems
}

fn condition_problems(object: &Object) -> Vec<FieldError> {
    let mut problems = Vec::new();
    let mut seen: Vec<&str> = Vec::new();
    for (index, condition) in all(object).iter().enumerate() {
        let text = |field: &str| condition[field].as_str().unwrap_or_default();
        let (kind, status, at) = (text("type"), text("status"), format!("{CONDITIONS}[{index}]"));
        if kind.is_empty() {
            problems.push(FieldError::required(format!("{at}.type"), ""));
        }
        let supported: &[&str] = if ENDS.contains(&kind) { &["True"] } else { &["False", "True", "Unknown"] };
        match status {
            "" => problems.push(FieldError::required(format!("{at}.status"), "")),
            status if !supported.contains(&status) => {
                problems.push(unsupported(format!("{at}.status"), status, supported));
            }
            _ => {}
        }
        let opposite = match kind {
            "Approved" => "Denied",
            "Denied" => "Approved",
            _ => "",
        };
        if !opposite.is_empty() && seen.contains(&opposite) {
            let detail = "Approved and Denied conditions are mutually exclusive";
            problems.push(FieldError::invalid(CONDITIONS, &kind.into(), detail));
        }
        if seen.contains(&kind) {
            problems.push(duplicate(format!("{at}.type"), &kind.into()));
        }
        seen.push(kind);
    }
    problems
}

/// Everything that is wrong with putting a request in the place of `old`. What the subresource in question may change is
/// the same in both.
pub(super) fn change_problems(object: &Object, old: &Object) -> Vec<FieldError> {
    let mut problems = Vec::new();
    for kind in ENDS {
        let (is, was) = (of_type(object, kind), of_type(old, kind));
        let change = match () {
            () if is.len() < was.len() => "remove",
            () if kind == "Failed" => continue,
            () if is.len() > was.len() => "add",
            () if is != was => "modify",
            () => continue,
        };
        let detail = format!("updates may not {change} a condition of type {}", quote(kind));
        problems.push(FieldError::forbidden(CONDITIONS, detail));
    }
    let path = ["status", "certificate"];
    let detail = match (object.text(&path), old.text(&path)) {
        (is, was) if is == was => return problems,
        (_, "") => "updates may not set certificate content",
        _ => "updates may not modify existing certificate content",
    };
    problems.push(FieldError::forbidden("status.certificate", detail));
    problems
}

fn all(object: &Object) -> &[Value] {
    object.at(&["status", "conditions"]).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn of_type<'a>(object: &'a Object, kind: &str) -> Vec<&'a Value> {
    all(object).iter().filter(|condition| condition["type"] == kind).collect()
}
