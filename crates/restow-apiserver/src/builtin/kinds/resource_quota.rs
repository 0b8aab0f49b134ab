//! ResourceQuotas: their amounts and scopes. The ResourceQuota admission plugin enforces them: `admission/resource_quota.rs`.

use crate::builtin::checks::by_type::amounts_not_negative;
use crate::builtin::checks::{Fields, below};
use restow_apimachinery::field::FieldError;
use serde_json::Value;

pub(crate) fn check_spec(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    const SCOPES: [&str; 7] = [
        "Terminating",
        "NotTerminating",
        "BestEffort",
        "NotBestEffort",
        "PriorityClass",
        "CrossNamespacePodAffinity",
        "VolumeAttributesClass",
    ];
    amounts_not_negative(fields.get("hard"), &below(path, "hard"), found);
    let scopes = fields.get("scopes").unwrap_or(&Value::Null);
    let known = |scope: &Value| scope.as_str().is_some_and(|scope| SCOPES.contains(&scope));
    if scopes.as_array().is_some_and(|scopes| !scopes.iter().all(known)) {
        found.push(FieldError::invalid(below(path, "scopes"), scopes, "unsupported scope"));
    }
}
