//! Checks that a row of the table cannot tell, because they look at several fields at once.

use super::{Fields, below, is_unset, text_at};
use crate::builtin::validation::unsupported;
use restow_apimachinery::field::{FieldError, FieldRule};
use restow_apimachinery::names::{label_value_problems, qualified_name_problems};
use restow_apimachinery::types::Amount;
use restow_tables::checks::TextForm;
use serde_json::{Value, json};
use std::collections::HashSet;

type Examine = fn(&Fields, &str, &mut Vec<FieldError>);

/// The types that are checked here.
const KNOWN: &[(&str, &str, Examine)] = &[
    ("apiregistration/v1", "APIService", api_service),
    ("apps/v1", "DaemonSetUpdateStrategy", daemon_strategy),
    ("apps/v1", "DeploymentSpec", deployment),
    ("apps/v1", "DeploymentStrategy", deployment_strategy),
    ("apps/v1", "RollingUpdateDaemonSet", daemon_update),
    ("apps/v1", "StatefulSetSpec", stateful_set),
    ("apps/v1", "StatefulSetUpdateStrategy", stateful_strategy),
    ("autoscaling/v1", "HorizontalPodAutoscalerSpec", autoscaler),
    ("autoscaling/v2", "HorizontalPodAutoscalerSpec", autoscaler),
    ("autoscaling/v2", "MetricTarget", metric_target),
    ("autoscaling/v2", "ResourceMetricSource", resource_metric),
    ("batch/v1", "JobSpec", job),
    ("batch/v1", "PodFailurePolicyOnExitCodesRequirement", exit_codes),
    ("core/v1", "Container", container),
    ("core/v1", "EnvFromSource", variables_source),
    ("core/v1", "EnvVarSource", variable_source),
    ("core/v1", "NodeSelectorRequirement", node_requirement),
    ("core/v1", "ObjectFieldSelector", field_selector),
    ("core/v1", "PersistentVolumeClaimSpec", claim),
    ("core/v1", "ResourceFieldSelector", resource_selector),
    ("core/v1", "ResourceQuotaSpec", quota),
    ("core/v1", "ResourceRequirements", resources),
    ("core/v1", "ServiceSpec", service),
    ("core/v1", "Sysctl", sysctl),
    ("core/v1", "Toleration", toleration),
    ("events/v1", "Event", event),
    ("meta/v1", "LabelSelectorRequirement", label_requirement),
    ("networking/v1", "IngressBackend", ingress_backend),
    ("networking/v1", "NetworkPolicyPort", policy_port),
];

/// All of them, with their packages.
#[cfg(test)]
pub(super) fn types() -> impl Iterator<Item = (&'static str, &'static str)> {
    KNOWN.iter().map(|(package, name, _)| (*package, *name))
}

pub(super) fn knows(package: &str, name: &str) -> bool {
    find(package, name).is_some()
}

/// Checks a value of this type.
pub(super) fn examine(package: &str, name: &str, fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    if let Some(examine) = find(package, name) {
        examine(fields, path, found);
    }
}

fn find(package: &str, name: &str) -> Option<Examine> {
    let known = KNOWN.binary_search_by(|(known, kind, _)| (*known, *kind).cmp(&(package, name))).ok()?;
    Some(KNOWN[known].2)
}

fn number(fields: &Fields, name: &str) -> Option<i64> {
    fields.get(name).and_then(Value::as_i64)
}

fn count(fields: &Fields, names: &[&str]) -> usize {
    names.iter().filter(|name| fields.get(**name).is_some_and(|value| !value.is_null())).count()
}

fn toleration(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    let text = |name: &str| text_at(fields, &[name]);
    let operator = below(path, "operator");
    if text("key").is_empty() && text("operator") != "Exists" {
        let detail = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
        found.push(FieldError::invalid(&operator, &text("operator").into(), detail));
    }
    if fields.contains_key("tolerationSeconds") && text("effect") != "NoExecute" {
        let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        found.push(FieldError::invalid(below(path, "effect"), &text("effect").into(), detail));
    }
    match text("operator") {
        "" | "Equal" => {
            let problems = label_value_problems(text("value")).into_iter();
            found.extend(problems.map(|problem| FieldError::invalid(&operator, &text("value").into(), problem)));
        }
        "Exists" if !text("value").is_empty() => {
            let detail = "value must be empty when `operator` is 'Exists'";
            found.push(FieldError::invalid(&operator, &text("value").into(), detail));
        }
        "Exists" | "Lt" | "Gt" => {}
        other => found.push(unsupported(operator, other, &["Equal", "Exists"])),
    }
}

fn values(fields: &Fields) -> &[Value] {
    fields.get("values").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn label_requirement(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    requirement(fields, path, false, found);
}

fn node_requirement(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    requirement(fields, path, true, found);
}

fn requirement(fields: &Fields, path: &str, compares: bool, found: &mut Vec<FieldError>) {
    let (operator, values) = (text_at(fields, &["operator"]), values(fields));
    let at = below(path, "values");
    match operator {
        "In" | "NotIn" if values.is_empty() => {
            found.push(FieldError::required(&at, "must be specified when `operator` is 'In' or 'NotIn'"));
        }
        "In" | "NotIn" => {}
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            found
                .push(FieldError::forbidden(&at, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"));
        }
        "Exists" | "DoesNotExist" => {}
        "Gt" | "Lt" if compares && values.len() != 1 => {
            found.push(FieldError::required(&at, "must be specified single value when `operator` is 'Lt' or 'Gt'"));
        }
        "Gt" | "Lt" if compares => {}
        other => {
            found.push(FieldError::invalid(below(path, "operator"), &other.into(), "not a valid selector operator"));
        }
    }
    let key = text_at(fields, &["key"]);
    let problems = qualified_name_problems(key).into_iter();
    found.extend(problems.map(|problem| FieldError::invalid(below(path, "key"), &key.into(), problem)));
    for (index, value) in values.iter().enumerate() {
        let problems = label_value_problems(value.as_str().unwrap_or_default()).into_iter();
        found.extend(problems.map(|problem| FieldError::invalid(format!("{at}[{index}]"), value, problem)));
    }
}

fn variable_source(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    let detail = match count(fields, &["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"])
    {
        0 => "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        1 => return,
        _ => "may not have more than one field specified at a time",
    };
    found.push(FieldError::invalid(path, &"".into(), detail));
}

fn variables_source(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    let detail = match count(fields, &["configMapRef", "secretRef"]) {
        0 => "must specify one of: `configMapRef` or `secretRef`",
        1 => return,
        _ => "may not have more than one field specified at a time",
    };
    // Kubernetes tells of the whole list.
    let list = path.rsplit_once('[').map_or(path, |(list, _)| list);
    found.push(FieldError::invalid(list, &"".into(), detail));
}

fn field_selector(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    const KNOWN: [&str; 17] = [
        "metadata.annotations",
        "metadata.labels",
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "spec.hostNetwork",
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "status.hostIP",
        "status.hostIPs",
        "status.nominatedNodeName",
        "status.phase",
        "status.podIP",
        "status.podIPs",
        "",
    ];
    let named = text_at(fields, &["fieldPath"]);
    if !KNOWN.contains(&named) && !named.contains("['") {
        let detail = format!("error converting fieldPath: field label not supported: {named}");
        found.push(FieldError::invalid(below(path, "fieldPath"), &named.into(), detail));
    }
}

fn resource_selector(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    const KNOWN: [&str; 6] = [
        "limits.cpu",
        "limits.ephemeral-storage",
        "limits.memory",
        "requests.cpu",
        "requests.ephemeral-storage",
        "requests.memory",
    ];
    let named = text_at(fields, &["resource"]);
    let huge = ["limits.hugepages-", "requests.hugepages-"].iter().any(|start| named.starts_with(start));
    if !named.is_empty() && !KNOWN.contains(&named) && !huge {
        found.push(unsupported(below(path, "resource"), named, &KNOWN));
    }
}

fn sysctl(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    let name = text_at(fields, &["name"]);
    let part = |part: &str| {
        let known = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
        part.starts_with(known)
            && part.ends_with(known)
            && part.chars().all(|letter| known(letter) || "-_".contains(letter))
    };
    if !name.is_empty() && (name.len() > 253 || !name.split(['.', '/']).all(part)) {
        let detail = "must have at most 253 characters and match regex \
                      ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
        found.push(FieldError::invalid(below(path, "name"), &name.into(), detail));
    }
}

fn policy_port(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    let Some(end) = number(fields, "endPort") else { return };
    let mut wrong = |detail: &str| found.push(FieldError::invalid(below(path, "endPort"), &end.into(), detail));
    match fields.get("port") {
        None | Some(Value::Null) => wrong("may not be specified when `port` is not specified"),
        Some(Value::String(_)) => wrong("may not be specified when `port` is non-numeric"),
        Some(port) if port.as_i64().is_some_and(|port| end < port) => wrong("must be greater than or equal to `port`"),
        Some(_) => {}
    }
    if !(1..=65535).contains(&end) {
        wrong(&super::values::bounds(Some(1), Some(65535)));
    }
}

fn ingress_backend(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    match count(fields, &["service", "resource"]) {
        0 => found.push(FieldError::invalid(path, &"".into(), "resource or service backend is required")),
        1 => {}
        _ => found.push(FieldError::invalid(path, &"".into(), "cannot set both resource and service backends")),
    }
    let Some(service) = fields.get("service").filter(|service| !service.is_null()) else { return };
    let port = |field: &str| !is_unset(service["port"].get(field));
    match (port("name"), port("number")) {
        (false, false) => found.push(FieldError::required(path, "port name or number is required")),
        (true, true) => found.push(FieldError::invalid(path, &"".into(), "cannot set both port name & port number")),
        _ => {}
    }
}

fn autoscaler(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    let most = number(fields, "maxReplicas").unwrap_or_default();
    let at = below(path, "maxReplicas");
    match most {
        0 => found.push(FieldError::required(&at, "")),
        1.. => {}
        _ => found.push(FieldError::invalid(&at, &most.into(), "must be greater than or equal to 1")),
    }
    let target = text_at(fields, &["scaleTargetRef", "apiVersion"]);
    // Of what can be scaled, only this has no group.
    let core = text_at(fields, &["scaleTargetRef", "kind"]) == "ReplicationController";
    if !target.contains('/') && !core {
        let detail = "apiVersion must specify API group";
        found.push(FieldError::invalid(below(path, "scaleTargetRef.apiVersion"), &target.into(), detail));
    }
    if most < number(fields, "minReplicas").unwrap_or(1) {
        found.push(FieldError::invalid(at, &most.into(), "must be greater than or equal to `minReplicas`"));
    }
}

fn metric_target(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    let kind = text_at(fields, &["type"]);
    if !matches!(kind, "Utilization" | "Value" | "AverageValue") {
        let detail = "must be either Utilization, Value, or AverageValue";
        found.push(FieldError::invalid(below(path, "type"), &kind.into(), detail));
    }
    for name in ["value", "averageValue"] {
        let value = fields.get(name).unwrap_or(&Value::Null);
        if Amount::read(value).is_some_and(|amount| amount <= Amount::default()) {
            found.push(FieldError::invalid(below(path, name), value, "must be positive"));
        }
    }
}

fn resource_metric(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    let target = fields.get("target").and_then(Value::as_object);
    let at = below(path, "target.averageUtilization");
    match target.map_or(0, |target| count(target, &["averageUtilization", "averageValue"])) {
        0 => found.push(FieldError::required(at, "must set either a target raw value or a target utilization")),
        1 => {}
        _ => found.push(FieldError::forbidden(at, "may not set both a target raw value and a target utilization")),
    }
}

fn deployment(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    let Some(deadline) = number(fields, "progressDeadlineSeconds") else { return };
    if deadline <= number(fields, "minReadySeconds").unwrap_or_default() {
        let at = below(path, "progressDeadlineSeconds");
        found.push(FieldError::invalid(at, &deadline.into(), "must be greater than minReadySeconds"));
    }
}

fn daemon_update(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    let is_some = |name: &str| match fields.get(name) {
        Some(Value::String(share)) => share != "0%",
        Some(value) => value.as_i64().is_some_and(|number| number != 0),
        None => false,
    };
    match (is_some("maxUnavailable"), is_some("maxSurge")) {
        (false, false) => {
            found.push(FieldError::required(below(path, "maxUnavailable"), "cannot be 0 when maxSurge is 0"));
        }
        (true, true) => {
            let (at, value) = (below(path, "maxSurge"), fields.get("maxSurge").unwrap_or(&Value::Null));
            found.push(FieldError::invalid(at, value, "may not be set when maxUnavailable is non-zero"));
        }
        _ => {}
    }
}

/// A value that is shown with names as Kubernetes has them in its memory: these fields of it.
fn shown(fields: &Fields, inner: &[(&str, &str)]) -> Value {
    let update = fields.get("rollingUpdate").and_then(Value::as_object).map(|update| {
        let inner =
            inner.iter().map(|(shown, name)| (shown.to_string(), update.get(*name).cloned().unwrap_or_default()));
        Value::Object(inner.collect())
    });
    json!({"Type": text_at(fields, &["type"]), "RollingUpdate": update})
}

fn deployment_strategy(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    let known = ["Recreate", "RollingUpdate"];
    strategy(fields, path, &known, &[("MaxUnavailable", "maxUnavailable"), ("MaxSurge", "maxSurge")], found);
    let detail = "may not be specified when strategy `type` is 'Recreate'";
    if text_at(fields, &["type"]) == "Recreate" && count(fields, &["rollingUpdate"]) > 0 {
        found.push(FieldError::forbidden(below(path, "rollingUpdate"), detail));
    }
}

fn daemon_strategy(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    let known = ["RollingUpdate", "OnDelete"];
    strategy(fields, path, &known, &[("MaxUnavailable", "maxUnavailable"), ("MaxSurge", "maxSurge")], found);
}

fn strategy(fields: &Fields, path: &str, known: &[&str], inner: &[(&str, &str)], found: &mut Vec<FieldError>) {
    let kind = text_at(fields, &["type"]);
    if !kind.is_empty() && !known.contains(&kind) {
        let mut problem = unsupported(path, kind, known);
        problem.rule = FieldRule::NotSupported(shown(fields, inner).to_string());
        found.push(problem);
    }
}

fn stateful_strategy(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    if !matches!(text_at(fields, &["type"]), "" | "RollingUpdate" | "OnDelete") {
        let value = shown(fields, &[("Partition", "partition"), ("MaxUnavailable", "maxUnavailable")]);
        found.push(FieldError::invalid(path, &value, "must be 'RollingUpdate' or 'OnDelete'"));
    }
}

fn stateful_set(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    let policy = text_at(fields, &["podManagementPolicy"]);
    if !matches!(policy, "" | "OrderedReady" | "Parallel") {
        let at = below(path, "podManagementPolicy");
        found.push(FieldError::invalid(at, &policy.into(), "must be 'OrderedReady' or 'Parallel'"));
    }
}

fn job(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    let Some(policy) = fields.get("podReplacementPolicy").and_then(Value::as_str) else { return };
    // Who says which failures count replaces pods only when they have failed.
    let known: &[&str] = match count(fields, &["podFailurePolicy"]) {
        0 => &["Failed", "TerminatingOrFailed"],
        _ => &["Failed"],
    };
    if !known.contains(&policy) {
        found.push(unsupported(below(path, "podReplacementPolicy"), policy, known));
    }
}

fn exit_codes(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    let (at, codes) = (below(path, "values"), values(fields));
    if codes.is_empty() {
        let value = fields.get("values").unwrap_or(&Value::Null);
        found.push(FieldError::invalid(at, value, "at least one value is required"));
        return;
    }
    let mut seen = HashSet::new();
    for (index, code) in codes.iter().enumerate() {
        if text_at(fields, &["operator"]) == "In" && code.as_i64() == Some(0) {
            found.push(FieldError::invalid(format!("{at}[{index}]"), code, "must not be 0 for the In operator"));
        }
        if !seen.insert(code.to_string()) {
            let rule = FieldRule::Duplicate(code.to_string());
            found.push(FieldError { field: format!("{at}[{index}]"), rule, detail: String::new() });
        }
    }
    if !codes.iter().map(Value::as_i64).is_sorted() {
        found.push(FieldError::invalid(at, &codes.into(), "must be ordered"));
    }
}

fn container(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    let mounts = fields.get("volumeMounts").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    for (index, mount) in mounts.iter().enumerate() {
        let place = &mount["mountPath"];
        if !is_unset(Some(place)) && mounts[..index].iter().any(|earlier| earlier["mountPath"] == *place) {
            let at = format!("{path}.volumeMounts[{index}].mountPath");
            found.push(FieldError::invalid(at, place, "must be unique"));
        }
    }
}

/// Nothing is less than nothing.
fn not_negative(amounts: Option<&Value>, path: &str, found: &mut Vec<FieldError>) {
    for (name, amount) in amounts.and_then(Value::as_object).into_iter().flatten() {
        if Amount::read(amount).is_some_and(|amount| amount < Amount::default()) {
            let detail = super::values::bounds(Some(0), None);
            found.push(FieldError::invalid(format!("{path}[{name}]"), amount, detail));
        }
    }
}

fn resources(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    for kind in ["limits", "requests"] {
        not_negative(fields.get(kind), &below(path, kind), found);
    }
}

fn quota(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    const SCOPES: [&str; 7] = [
        "Terminating",
        "NotTerminating",
        "BestEffort",
        "NotBestEffort",
        "PriorityClass",
        "CrossNamespacePodAffinity",
        "VolumeAttributesClass",
    ];
    not_negative(fields.get("hard"), &below(path, "hard"), found);
    let scopes = fields.get("scopes").unwrap_or(&Value::Null);
    let known = |scope: &Value| scope.as_str().is_some_and(|scope| SCOPES.contains(&scope));
    if scopes.as_array().is_some_and(|scopes| !scopes.iter().all(known)) {
        found.push(FieldError::invalid(below(path, "scopes"), scopes, "unsupported scope"));
    }
}

fn claim(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    let asked = fields.get("resources").and_then(|resources| resources.pointer("/requests/storage"));
    match asked {
        None => found.push(FieldError::required(below(path, "resources[storage]"), "")),
        Some(asked) if Amount::read(asked).is_some_and(|amount| amount <= Amount::default()) => {
            let at = below(path, "resources[storage]");
            found.push(FieldError::invalid(at, asked, "must be greater than zero"));
        }
        Some(_) => {}
    }
}

/// Kubernetes calls the field by another name here.
const SOURCES: &str = "LoadBalancerSourceRanges";

fn service(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    let ranges = fields.get("loadBalancerSourceRanges").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let at = below(path, SOURCES);
    if !ranges.is_empty() && text_at(fields, &["type"]) != "LoadBalancer" {
        found.push(FieldError::forbidden(&at, "may only be used when `type` is 'LoadBalancer'"));
    }
    let rule = super::values::text_problems(TextForm::Cidr);
    for (index, range) in ranges.iter().enumerate() {
        let problems = rule(range.as_str().unwrap_or_default().trim()).into_iter();
        found.extend(problems.map(|problem| FieldError::invalid(format!("{at}[{index}]"), range, problem)));
    }
}

fn api_service(fields: &Fields, _: &str, found: &mut Vec<FieldError>) {
    let text = |path: &[&str]| text_at(fields, path);
    let expected = format!("{}.{}", text(&["spec", "version"]), text(&["spec", "group"]));
    let name = text(&["metadata", "name"]);
    if name != expected {
        let detail = format!("must be `spec.version+\".\"+spec.group`: {expected:?}");
        found.push(FieldError::invalid("metadata.name", &name.into(), detail));
    }
}

/// Events of the newer kind say who tells of what.
fn event(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    let nothing = &Value::from("");
    let text = |name: &str| text_at(fields, &[name]);
    let (about, own) = (text_at(fields, &["regarding", "namespace"]), text_at(fields, &["metadata", "namespace"]));
    // Events about what has no namespace lie in one that every cluster has.
    if about.is_empty() && !["default", "kube-system"].contains(&own) {
        let at = below(path, "involvedObject.namespace");
        found.push(FieldError::invalid(at, &about.into(), "does not match event.namespace"));
    }
    if is_unset(fields.get("eventTime")) {
        found.push(FieldError::required(below(path, "eventTime"), ""));
    }
    for name in ["reportingController", "reportingInstance", "action", "reason"] {
        let at = below(path, name);
        if text(name).is_empty() {
            found.push(FieldError::required(&at, ""));
        }
        if name == "reportingController" {
            let problems = qualified_name_problems(text(name)).into_iter();
            found.extend(problems.map(|problem| FieldError::invalid(&at, &text(name).into(), problem)));
        } else if text(name).chars().count() > 128 {
            found.push(FieldError::invalid(&at, nothing, "can have at most 128 characters"));
        }
    }
    if !matches!(text("type"), "Normal" | "Warning") {
        let detail = format!("has invalid value: {}", text("type"));
        found.push(FieldError::invalid(below(path, "type"), nothing, detail));
    }
    if let Some(series) = fields.get("series").and_then(Value::as_object) {
        if number(series, "count").unwrap_or_default() < 2 {
            found.push(FieldError::invalid(below(path, "series.count"), nothing, "should be at least 2"));
        }
        if is_unset(series.get("lastObservedTime")) {
            found.push(FieldError::required(below(path, "series.lastObservedTime"), ""));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::KNOWN;

    #[test]
    fn the_types_are_sorted() {
        assert!(KNOWN.is_sorted_by_key(|(package, name, _)| (*package, *name)));
    }
}
