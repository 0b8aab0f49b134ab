//! Validation of rules and selectors, which webhooks and policies share.

use super::{items, text, unsupported};
use restow_apimachinery::field::FieldError;
use serde_json::Value;

/// The operations that rules can name.
const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];

/// Errors of a rule.
pub(super) fn rule_problems(rule: &Value, path: &str) -> Vec<FieldError> {
    let mut problems = Vec::new();
    for (field, what) in [("operations", "operations"), ("apiGroups", "API groups"), ("apiVersions", "API versions")] {
        problems.extend(list_problems(&rule[field], &format!("{path}.{field}"), what));
        if field == "operations" {
            let named = items(&rule[field]).iter().enumerate();
            problems.extend(named.filter_map(|(index, operation)| {
                unsupported(format!("{path}.operations[{index}]"), operation, &OPERATIONS)
            }));
        }
    }
    problems.extend(resource_problems(&rule["resources"], &format!("{path}.resources")));
    if !rule["scope"].is_null() {
        problems.extend(unsupported(format!("{path}.scope"), &rule["scope"], &["*", "Cluster", "Namespaced"]));
    }
    problems
}

/// The error of a list that must not be empty, and must have nothing beside `*`.
fn list_problems(list: &Value, path: &str, what: &str) -> Option<FieldError> {
    let values = items(list);
    let star = values.iter().any(|value| value == "*");
    match values.len() {
        0 => Some(FieldError::required(path, "")),
        1 => None,
        _ if star => Some(FieldError::invalid(path, list, format!("if '*' is present, must not specify other {what}"))),
        _ => None,
    }
}

fn resource_problems(list: &Value, path: &str) -> Vec<FieldError> {
    let values = items(list);
    if values.is_empty() {
        return vec![FieldError::required(path, "")];
    }
    let mut problems = Vec::new();
    for (index, value) in values.iter().enumerate().filter(|(_, value)| text(value).is_empty()) {
        problems.push(FieldError::invalid(format!("{path}[{index}]"), value, "resource name must not be empty"));
    }
    let has = |wanted: &str| values.iter().any(|value| value == wanted);
    let plain = values.iter().filter(|value| !text(value).contains('/')).count();
    if has("*/*") && values.len() > 1 {
        let detail = "if '*/*' is present, must not specify other resources";
        problems.push(FieldError::invalid(path, list, detail));
    } else if has("*") && plain > 1 {
        let detail = "if '*' is present, must not specify other resources without subresources";
        problems.push(FieldError::invalid(path, list, detail));
    }
    problems
}

/// Errors of a label selector.
pub(super) fn selector_problems(selector: &Value, path: &str) -> Vec<FieldError> {
    let mut problems = Vec::new();
    for (index, expression) in items(&selector["matchExpressions"]).iter().enumerate() {
        let at = |field: &str| format!("{path}.matchExpressions[{index}].{field}");
        let values = items(&expression["values"]);
        match text(&expression["operator"]) {
            "In" | "NotIn" if values.is_empty() => problems
                .push(FieldError::required(at("values"), "must be specified when `operator` is 'In' or 'NotIn'")),
            "In" | "NotIn" => {}
            "Exists" | "DoesNotExist" if !values.is_empty() => problems.push(FieldError::forbidden(
                at("values"),
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            )),
            "Exists" | "DoesNotExist" => {}
            other => {
                problems.push(FieldError::invalid(at("operator"), &other.into(), "not a valid selector operator"));
            }
        }
        let key = text(&expression["key"]);
        let wrong = restow_apimachinery::names::qualified_name_problems(key).into_iter();
        problems.extend(wrong.map(|detail| FieldError::invalid(at("key"), &key.into(), detail)));
    }
    problems
}
