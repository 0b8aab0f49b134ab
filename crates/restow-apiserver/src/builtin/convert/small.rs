//! Kinds whose versions differ in a field or two.

use super::version_of;
use restow_apimachinery::object::Object;
use serde_json::{Map, Value, json};

const ROLLBACK: &str = "deprecated.deployment.rollback.to";
const RBAC: &str = "rbac.authorization.k8s.io";
/// A label that no pod has, to say "none" where an empty selector means "all", and "all" where it means "none".
const EMPTY_SELECTOR: &str = "pdb.kubernetes.io/deprecated-v1beta1-empty-selector-match";

pub(super) fn ingress(object: &mut Object, _source: &str, target: &str) -> Result<(), String> {
    let old = version_of(target) == "v1beta1";
    let Some(spec) = object.fields_mut().get_mut("spec").and_then(Value::as_object_mut) else { return Ok(()) };
    let (from, to) = if old { ("defaultBackend", "backend") } else { ("backend", "defaultBackend") };
    if let Some(mut backend) = spec.remove(from) {
        convert_backend(&mut backend, old);
        spec.insert(to.into(), backend);
    }
    for rule in spec.get_mut("rules").and_then(Value::as_array_mut).into_iter().flatten() {
        let paths = rule.pointer_mut("/http/paths").and_then(Value::as_array_mut);
        paths.into_iter().flatten().filter_map(|path| path.get_mut("backend")).for_each(|b| convert_backend(b, old));
    }
    Ok(())
}

fn convert_backend(backend: &mut Value, old: bool) {
    let Some(fields) = backend.as_object_mut() else { return };
    if old {
        let Some(service) = fields.remove("service").filter(|service| !service.is_null()) else { return };
        let port = &service["port"];
        let port = if port["name"].is_string() { port["name"].clone() } else { port["number"].clone() };
        fields.insert("serviceName".into(), service["name"].clone());
        fields.insert("servicePort".into(), port);
        return;
    }
    let name = fields.remove("serviceName").unwrap_or_default();
    let port = match fields.remove("servicePort").unwrap_or_default() {
        Value::String(name) => json!({"name": name}),
        Value::Number(number) if number.as_i64() != Some(0) => json!({"number": number}),
        _ => json!({}),
    };
    if !name.as_str().unwrap_or_default().is_empty() || port != json!({}) {
        fields.insert("service".into(), json!({"name": name, "port": port}));
    }
}

pub(super) fn runtime_class(object: &mut Object, source: &str, target: &str) -> Result<(), String> {
    const NAMES: [(&str, &str); 3] =
        [("runtimeHandler", "handler"), ("overhead", "overhead"), ("scheduling", "scheduling")];
    let old = |version: &str| version_of(version) == "v1alpha1";
    if old(source) && !old(target) {
        let spec = object.fields_mut().remove("spec").unwrap_or_default();
        NAMES.iter().for_each(|(nested, flat)| object.set(flat, spec.get(*nested).cloned()));
    } else if old(target) && !old(source) {
        let moved = NAMES.iter().filter_map(|(nested, flat)| Some((nested, object.fields_mut().remove(*flat)?)));
        let spec: Map<String, Value> = moved.map(|(name, value)| (name.to_string(), value)).collect();
        object.set("spec", Some(spec.into()));
    }
    Ok(())
}

pub(super) fn pod_disruption_budget(object: &mut Object, _source: &str, target: &str) -> Result<(), String> {
    let expression = |operator: &str| json!({"matchExpressions": [{"key": EMPTY_SELECTOR, "operator": operator}]});
    let Some(selector) = object.fields_mut().get_mut("spec").and_then(|spec| spec.get_mut("selector")) else {
        return Ok(());
    };
    // What an empty selector means elsewhere is written as the presence or absence of a label that nothing has.
    let (empty, opposite) = match version_of(target) {
        "v1beta1" => (expression("DoesNotExist"), expression("Exists")),
        _ => (expression("Exists"), expression("DoesNotExist")),
    };
    if *selector == json!({}) {
        *selector = empty;
    } else if *selector == opposite {
        *selector = json!({});
    }
    Ok(())
}

pub(super) fn role_binding(object: &mut Object, source: &str, target: &str) -> Result<(), String> {
    let old = |version: &str| version_of(version) == "v1alpha1";
    if old(source) == old(target) {
        return Ok(());
    }
    let subjects = object.fields_mut().get_mut("subjects").and_then(Value::as_array_mut);
    for subject in subjects.into_iter().flatten().filter_map(Value::as_object_mut) {
        match old(target) {
            true => subject_with_version(subject),
            false => subject_with_group(subject),
        }
    }
    Ok(())
}

fn subject_with_version(subject: &mut Map<String, Value>) {
    let group = subject.remove("apiGroup").and_then(|group| group.as_str().map(str::to_string)).unwrap_or_default();
    let kind = subject.get("kind").and_then(Value::as_str).unwrap_or_default();
    let version = match (kind, group.as_str()) {
        ("ServiceAccount", "") => "v1".to_string(),
        ("User" | "Group", RBAC) => format!("{RBAC}/v1alpha1"),
        (_, group) => format!("{group}/"),
    };
    subject.insert("apiVersion".into(), version.into());
}

fn subject_with_group(subject: &mut Map<String, Value>) {
    let version = subject.remove("apiVersion").unwrap_or_default();
    let named = version.as_str().and_then(|version| version.split_once('/')).map_or("", |(group, _)| group);
    let kind = subject.get("kind").and_then(Value::as_str).unwrap_or_default();
    let group = match kind {
        "ServiceAccount" => "",
        "User" | "Group" => RBAC,
        _ => named,
    };
    // In v1alpha1 any user meant anyone who is known.
    if kind == "User" && subject.get("name").is_some_and(|name| name == "*") {
        subject.insert("kind".into(), "Group".into());
        subject.insert("name".into(), "system:authenticated".into());
    }
    if !group.is_empty() {
        subject.insert("apiGroup".into(), group.into());
    }
}

pub(super) fn certificate_signing_request(object: &mut Object, source: &str, _target: &str) -> Result<(), String> {
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

pub(super) fn deployment(object: &mut Object, source: &str, target: &str) -> Result<(), String> {
    let spec = |object: &mut Object| object.fields_mut().get_mut("spec").and_then(Value::as_object_mut).cloned();
    if version_of(source) == "v1beta1" {
        let Some(mut fields) = spec(object) else { return Ok(()) };
        if let Some(rollback) = fields.remove("rollbackTo").filter(|rollback| !rollback.is_null()) {
            let revision = rollback["revision"].as_i64().unwrap_or_default().to_string();
            object.metadata_mut().entry("annotations").or_insert_with(|| json!({}))[ROLLBACK] = revision.into();
            object.set("spec", Some(fields.into()));
        }
    } else if version_of(target) == "v1beta1"
        && let Some(revision) = object.annotation(ROLLBACK).and_then(|text| text.parse::<i64>().ok())
        && let Some(mut fields) = spec(object)
    {
        fields.insert("rollbackTo".into(), json!({"revision": revision}));
        object.set("spec", Some(fields.into()));
        if let Some(annotations) = object.metadata_mut().get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.remove(ROLLBACK);
        }
    }
    Ok(())
}

pub(super) fn lease_candidate(object: &mut Object, _source: &str, target: &str) -> Result<(), String> {
    let Some(spec) = object.fields_mut().get_mut("spec").and_then(Value::as_object_mut) else { return Ok(()) };
    if version_of(target) == "v1alpha1" {
        let strategies: Vec<Value> = spec.remove("strategy").into_iter().collect();
        spec.insert("preferredStrategies".into(), strategies.into());
    } else if let Some(Value::Array(strategies)) = spec.remove("preferredStrategies")
        && let Some(first) = strategies.into_iter().next()
    {
        spec.insert("strategy".into(), first);
    }
    Ok(())
}

pub(super) fn storage_version_migration(object: &mut Object, source: &str, target: &str) -> Result<(), String> {
    let (from, to) = match (version_of(source), version_of(target)) {
        ("v1alpha1", _) => ("lastUpdateTime", "lastTransitionTime"),
        (_, "v1alpha1") => ("lastTransitionTime", "lastUpdateTime"),
        _ => return Ok(()),
    };
    let conditions = object.fields_mut().get_mut("status").and_then(|status| status.get_mut("conditions"));
    for condition in conditions.and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut) {
        if let Some(time) = condition.remove(from) {
            condition.insert(to.into(), time);
        }
    }
    Ok(())
}

/// The first alphas of these kinds were replaced by others that share little with them.
pub(super) fn dropped_alphas(_object: &mut Object, source: &str, target: &str) -> Result<(), String> {
    let lasting = |version: &str| matches!(version_of(version), "v1alpha3" | "v1beta1");
    match lasting(source) && lasting(target) {
        true => Ok(()),
        false => Err("this version was replaced without a conversion; delete the object and create it anew".into()),
    }
}
