//! NetworkPolicies: default policy types, and checks of port ranges.

use crate::builtin::checks::by_type::number;
use crate::builtin::checks::{Fields, below, values};
use restow_apimachinery::field::FieldError;
use serde_json::{Value, json};

pub(crate) fn default_policy_types(fields: &mut Fields) {
    if fields.get("policyTypes").and_then(Value::as_array).is_none_or(Vec::is_empty) {
        let egress = fields.get("egress").and_then(Value::as_array).is_some_and(|rules| !rules.is_empty());
        let types = if egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
        fields.insert("policyTypes".into(), types);
    }
}

pub(crate) fn check_port(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    let Some(end) = number(fields, "endPort") else { return };
    let mut wrong = |detail: &str| found.push(FieldError::invalid(below(path, "endPort"), &end.into(), detail));
    match fields.get("port") {
        None | Some(Value::Null) => wrong("may not be specified when `port` is not specified"),
        Some(Value::String(_)) => wrong("may not be specified when `port` is non-numeric"),
        Some(port) if port.as_i64().is_some_and(|port| end < port) => wrong("must be greater than or equal to `port`"),
        Some(_) => {}
    }
    if !(1..=65535).contains(&end) {
        wrong(&values::bounds(Some(1), Some(65535)));
    }
}
