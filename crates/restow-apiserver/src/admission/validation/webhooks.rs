//! Validation of webhook configurations.

use super::rules::{rule_problems, selector_problems};
use super::{condition_problems, duplicate, items, text, unsupported};
use crate::admission::expression::WEBHOOK_VARIABLES;
use restow_apimachinery::field::FieldError;
use restow_apimachinery::names::NameRule;
use restow_apimachinery::object::Object;
use serde_json::Value;

/// The supported versions of AdmissionReview.
const REVIEWS: [&str; 2] = ["v1", "v1beta1"];

/// Errors of a configuration.
pub(super) fn problems(object: &Object) -> Vec<FieldError> {
    let mut problems = Vec::new();
    let webhooks = object.get("webhooks").map(items).unwrap_or_default();
    for (index, webhook) in webhooks.iter().enumerate() {
        let path = format!("webhooks[{index}]");
        problems.extend(webhook_problems(webhook, &path));
        if object.kind() == "MutatingWebhookConfiguration" && !webhook["reinvocationPolicy"].is_null() {
            let policy = &webhook["reinvocationPolicy"];
            problems.extend(unsupported(format!("{path}.reinvocationPolicy"), policy, &["IfNeeded", "Never"]));
        }
        if webhooks[..index].iter().any(|before| before["name"] == webhook["name"]) {
            problems.push(duplicate(format!("{path}.name"), text(&webhook["name"])));
        }
    }
    problems
}

fn webhook_problems(webhook: &Value, path: &str) -> Vec<FieldError> {
    let at = |field: &str| format!("{path}.{field}");
    let mut problems = name_problems(text(&webhook["name"]), &at("name"));
    for (index, rule) in items(&webhook["rules"]).iter().enumerate() {
        problems.extend(rule_problems(rule, &format!("{path}.rules[{index}]")));
    }
    for (field, supported) in [("failurePolicy", ["Fail", "Ignore"]), ("matchPolicy", ["Equivalent", "Exact"])] {
        if !webhook[field].is_null() {
            problems.extend(unsupported(at(field), &webhook[field], &supported));
        }
    }
    match &webhook["sideEffects"] {
        Value::Null => {
            problems.push(FieldError::required(at("sideEffects"), "must specify one of None, NoneOnDryRun"));
        }
        effects => problems.extend(unsupported(at("sideEffects"), effects, &["None", "NoneOnDryRun"])),
    }
    if webhook["timeoutSeconds"].as_i64().is_some_and(|seconds| !(1..=30).contains(&seconds)) {
        let detail = "the timeout value must be between 1 and 30 seconds";
        problems.push(FieldError::invalid(at("timeoutSeconds"), &webhook["timeoutSeconds"], detail));
    }
    for field in ["namespaceSelector", "objectSelector"] {
        problems.extend(selector_problems(&webhook[field], &at(field)));
    }
    problems.extend(client_problems(&webhook["clientConfig"], &at("clientConfig")));
    problems.extend(condition_problems(&webhook["matchConditions"], &at("matchConditions"), &WEBHOOK_VARIABLES));
    problems.extend(review_problems(&webhook["admissionReviewVersions"], &at("admissionReviewVersions")));
    problems
}

fn name_problems(name: &str, path: &str) -> Vec<FieldError> {
    if name.is_empty() {
        return vec![FieldError::required(path, "")];
    }
    let wrong = NameRule::Subdomain.check(name);
    if !wrong.is_empty() {
        return wrong.into_iter().map(|detail| FieldError::invalid(path, &name.into(), detail)).collect();
    }
    match name.split('.').count() {
        0..=2 => {
            let detail = "should be a domain with at least three segments separated by dots";
            vec![FieldError::invalid(path, &name.into(), detail)]
        }
        _ => Vec::new(),
    }
}

fn review_problems(versions: &Value, path: &str) -> Vec<FieldError> {
    let known = REVIEWS.join(", ");
    let listed = items(versions);
    if listed.is_empty() {
        return vec![FieldError::required(path, format!("must specify one of {known}"))];
    }
    let mut problems = Vec::new();
    for (index, version) in listed.iter().enumerate() {
        if listed[..index].contains(version) {
            problems.push(FieldError::invalid(format!("{path}[{index}]"), version, "duplicate version"));
        }
    }
    if !listed.iter().any(|version| REVIEWS.contains(&text(version))) {
        problems.push(FieldError::invalid(path, versions, format!("must include at least one of {known}")));
    }
    problems
}

/// Errors of `clientConfig`.
fn client_problems(config: &Value, path: &str) -> Vec<FieldError> {
    match (&config["url"], &config["service"]) {
        (Value::Null, Value::Null) => {
            vec![FieldError::required(path, "exactly one of url or service is required")]
        }
        (Value::Null, service) => service_problems(service, &format!("{path}.service")),
        (url, Value::Null) => url_problems(text(url), &format!("{path}.url")),
        _ => vec![FieldError::required(path, "exactly one of url or service is required")],
    }
}

fn url_problems(url: &str, path: &str) -> Vec<FieldError> {
    const FORM: &str = "; desired format: https://host[/path]";
    let Some((scheme, rest)) = url.split_once("://") else {
        let detail = format!("'https' is the only allowed URL scheme{FORM}");
        return vec![FieldError::invalid(path, &"".into(), detail)];
    };
    let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = rest.split('/').next().unwrap_or_default();
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    let mut problems = Vec::new();
    let mut found = |value: &str, detail: String| problems.push(FieldError::invalid(path, &value.into(), detail));
    if scheme != "https" {
        found(scheme, format!("'https' is the only allowed URL scheme{FORM}"));
    }
    if host.is_empty() {
        found(host, format!("host must be specified{FORM}"));
    }
    for (part, what) in [
        (user, "user information is not permitted in the URL"),
        (fragment, "fragments are not permitted in the URL"),
        (query, "query parameters are not permitted in the URL"),
    ] {
        if !part.is_empty() {
            found(part, what.into());
        }
    }
    problems
}

fn service_problems(service: &Value, path: &str) -> Vec<FieldError> {
    let mut problems = Vec::new();
    for field in ["name", "namespace"] {
        if text(&service[field]).is_empty() {
            problems.push(FieldError::required(format!("{path}.{field}"), ""));
        }
    }
    if service["port"].as_i64().is_some_and(|port| !(1..=65535).contains(&port)) {
        let detail = "port is not valid: must be between 1 and 65535, inclusive";
        problems.push(FieldError::invalid(format!("{path}.port"), &service["port"], detail));
    }
    let given = text(&service["path"]);
    if !matches!(given, "" | "/") {
        let at = format!("{path}.path");
        let mut found = |detail: String| problems.push(FieldError::invalid(at.clone(), &given.into(), detail));
        if !given.starts_with('/') {
            found("must start with a '/'".into());
        }
        let rest = given.get(1..).unwrap_or_default();
        for (index, segment) in rest.strip_suffix('/').unwrap_or(rest).split('/').enumerate() {
            if segment.is_empty() {
                found(format!("segment[{index}] may not be empty"));
            } else {
                NameRule::Subdomain
                    .check(segment)
                    .into_iter()
                    .for_each(|why| found(format!("segment[{index}]: {why}")));
            }
        }
    }
    problems
}
