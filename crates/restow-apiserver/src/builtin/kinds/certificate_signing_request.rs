//! CertificateSigningRequests: validation, the changes that `approval` and `status` may make, and conversion.
//!
//! Admission decides who may approve, sign and attest: `admission/certificate_signing.rs`.

use crate::admission::certificate_signing::organizations;
use crate::builtin::convert::version_of;
use crate::builtin::validation::{duplicate, unsupported};
use crate::resource::strategy::Strategy;
use restow_apimachinery::field::FieldError;
use restow_apimachinery::go_syntax::quote;
use restow_apimachinery::object::Object;
use serde_json::Value;

const CONDITIONS: &str = "status.conditions";
/// The final conditions of a request. Their status is always True.
const ENDS: [&str; 3] = ["Approved", "Denied", "Failed"];

pub(super) struct CertificateSigningRequest;

impl Strategy for CertificateSigningRequest {
    /// The specification is immutable.
    fn prepare_update(&self, object: &mut Object, old: &Object) {
        object.set("spec", old.get("spec").cloned());
    }

    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        problems(object)
    }

    fn validate_change(&self, object: &Object, baseline: &Object) -> Vec<FieldError> {
        change_problems(object, baseline)
    }

    fn subresource_fields(&self, subresource: &str) -> Option<&'static [&'static [&'static str]]> {
        match subresource {
            "status" => Some(&[&["status"], &["metadata"]]),
            "approval" => Some(&[&["status", "conditions"]]),
            _ => None,
        }
    }

    /// `approval` sets conditions, and `status` sets the certificate once.
    fn with_permitted_changes(&self, subresource: &str, object: &Object, old: &Object) -> Option<Object> {
        let mut baseline = old.clone();
        match subresource {
            "approval" => baseline.set_at(&["status", "conditions"], Some(decided(object, old).into())),
            "status" => {
                let path = ["status", "certificate"];
                if old.text(&path).is_empty() {
                    baseline.set_at(&path, object.at(&path).cloned());
                }
            }
            _ => return None,
        }
        Some(baseline)
    }
}

/// All validation errors of a request.
fn problems(object: &Object) -> Vec<FieldError> {
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

/// All validation errors of replacing `old`, which has the changes that the subresource may make.
fn change_problems(object: &Object, old: &Object) -> Vec<FieldError> {
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

/// The conditions that were sent, and the stored ones that are missing there: `approval` cannot remove a condition.
fn decided(object: &Object, old: &Object) -> Vec<Value> {
    let path = ["status", "conditions"];
    let of = |object: &Object| object.at(&path).and_then(Value::as_array).cloned().unwrap_or_default();
    let (mut conditions, before) = (of(object), of(old));
    let gone = before.into_iter().filter(|was| !conditions.iter().any(|is| is["type"] == was["type"]));
    let gone: Vec<Value> = gone.collect();
    conditions.extend(gone);
    conditions
}

pub(crate) fn convert(object: &mut Object, source: &str, _target: &str) -> Result<(), String> {
    if version_of(source) != "v1beta1" {
        return Ok(());
    }
    if let Some(spec) = object.fields_mut().get_mut("spec").and_then(Value::as_object_mut) {
        spec.entry("signerName").or_insert_with(|| "kubernetes.io/legacy-unknown".into());
    }
    let conditions = object.fields_mut().get_mut("status").and_then(|status| status.get_mut("conditions"));
    for condition in conditions.and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut) {
        condition.entry("status").or_insert_with(|| "True".into());
    }
    Ok(())
}
