//! Defaults that a row of the table cannot tell, because they follow from other values.

use base64::Engine;
use serde_json::{Map, Value, json};

type Fields = Map<String, Value>;

/// Completes a value of this type.
pub(super) fn complete(package: &str, name: &str, fields: &mut Fields) {
    match (package, name) {
        ("core/v1", "Container") | ("core/v1", "EphemeralContainer") => pull_policy(fields),
        ("core/v1", "Pod") => requests_from_limits(fields),
        ("core/v1", "PodSpec") => account(fields),
        ("core/v1", "NodeSpec") => node_ranges(fields),
        ("core/v1", "NodeStatus") => allocatable(fields),
        ("core/v1", "ServiceSpec") => affinity(fields),
        ("core/v1", "Secret") => secret(fields),
        ("core/v1", "Volume") => volume(fields),
        ("core/v1", "ServicePort") => target_port(fields),
        ("core/v1", "ReplicationController") => replication_controller(fields),
        ("batch/v1", "Job") => job(fields),
        ("networking/v1", "NetworkPolicySpec") => policy_types(fields),
        ("core/v1", "LimitRangeItem") => limits(fields),
        ("apps/v1", "StatefulSetSpec") => claims(fields),
        ("autoscaling/v1", "HorizontalPodAutoscaler") => processor_target(fields),
        ("autoscaling/v2", "HorizontalPodAutoscalerBehavior") => behavior(fields),
        ("flowcontrol/v1", "FlowSchemaSpec") => number(fields, "matchingPrecedence", 1000),
        ("flowcontrol/v1", "QueuingConfiguration") => {
            for (name, usual) in [("queues", 64), ("handSize", 8), ("queueLengthLimit", 50)] {
                number(fields, name, usual);
            }
        }
        _ => {}
    }
}

fn text<'a>(fields: &'a Fields, name: &str) -> &'a str {
    fields.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// An image that may change behind its name is pulled anew each time.
fn pull_policy(fields: &mut Fields) {
    if !text(fields, "imagePullPolicy").is_empty() {
        return;
    }
    let image = text(fields, "image");
    let last = image.rsplit('/').next().unwrap_or(image);
    let moving = !image.contains('@') && last.split_once(':').is_none_or(|(_, tag)| tag == "latest");
    let policy = if moving { "Always" } else { "IfNotPresent" };
    fields.insert("imagePullPolicy".into(), policy.into());
}

/// A container that is held to something and asks for nothing asks for all of that. Templates are left as they are.
fn requests_from_limits(pod: &mut Fields) {
    let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else { return };
    for field in ["initContainers", "containers"] {
        for container in spec.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten() {
            let Some(resources) = container.get_mut("resources").and_then(Value::as_object_mut) else { continue };
            let Some(limits) = resources.get("limits").and_then(Value::as_object).cloned() else { continue };
            let requests = resources.entry("requests").or_insert_with(|| json!({}));
            if let Some(requests) = requests.as_object_mut() {
                for (name, limit) in limits {
                    requests.entry(name).or_insert(limit);
                }
            }
        }
    }
}

/// What is given as text is kept as bytes, and only as such.
fn secret(fields: &mut Fields) {
    let Some(Value::Object(texts)) = fields.remove("stringData") else { return };
    let data = fields.entry("data").or_insert_with(|| json!({}));
    if let Some(data) = data.as_object_mut() {
        for (name, text) in texts {
            let bytes = text.as_str().unwrap_or_default().as_bytes();
            data.insert(name, base64::prelude::BASE64_STANDARD.encode(bytes).into());
        }
    }
}

/// A volume of which nothing is said is an empty directory.
fn volume(fields: &mut Fields) {
    if !fields.keys().any(|name| name != "name") {
        fields.insert("emptyDir".into(), json!({}));
    }
}

fn target_port(fields: &mut Fields) {
    let open = match fields.get("targetPort") {
        None | Some(Value::Null) => true,
        Some(Value::Number(number)) => number.as_i64() == Some(0),
        Some(Value::String(name)) => name.is_empty(),
        Some(_) => false,
    };
    if let Some(port) = fields.get("port").filter(|_| open).cloned() {
        fields.insert("targetPort".into(), port);
    }
}

/// What a controller does not say about whom it controls follows from the labels that it gives them.
fn replication_controller(fields: &mut Fields) {
    let labels = fields.get("spec").and_then(|spec| spec.pointer("/template/metadata/labels")).cloned();
    let Some(labels) = labels.filter(|labels| labels.as_object().is_some_and(|map| !map.is_empty())) else { return };
    if let Some(spec) = fields.get_mut("spec").and_then(Value::as_object_mut)
        && spec.get("selector").and_then(Value::as_object).is_none_or(Map::is_empty)
    {
        spec.insert("selector".into(), labels.clone());
    }
    inherit_labels(fields, labels);
}

fn job(fields: &mut Fields) {
    let labels = fields.get("spec").and_then(|spec| spec.pointer("/template/metadata/labels")).cloned();
    if let Some(spec) = fields.get_mut("spec").and_then(Value::as_object_mut) {
        // Both unset means one; a work queue says how many work at once and not how many must end.
        let is_open = |spec: &Fields, name: &str| spec.get(name).is_none_or(Value::is_null);
        if is_open(spec, "parallelism") && is_open(spec, "completions") {
            spec.insert("completions".into(), 1.into());
        }
        if is_open(spec, "parallelism") {
            spec.insert("parallelism".into(), 1.into());
        }
        if spec.get("podReplacementPolicy").is_none_or(Value::is_null) {
            let fails = spec.get("podFailurePolicy").is_some_and(|policy| !policy.is_null());
            let policy = if fails { "Failed" } else { "TerminatingOrFailed" };
            spec.insert("podReplacementPolicy".into(), policy.into());
        }
    }
    if let Some(labels) = labels.filter(|labels| labels.as_object().is_some_and(|map| !map.is_empty())) {
        inherit_labels(fields, labels);
    }
}

fn inherit_labels(fields: &mut Fields, labels: Value) {
    if let Some(metadata) = fields.get_mut("metadata").and_then(Value::as_object_mut)
        && metadata.get("labels").and_then(Value::as_object).is_none_or(Map::is_empty)
    {
        metadata.insert("labels".into(), labels);
    }
}

/// What a container gets at most is also what it gets by default, and what it gets it also asks for.
fn limits(fields: &mut Fields) {
    if text(fields, "type") != "Container" {
        return;
    }
    for (from, to) in [("max", "default"), ("default", "defaultRequest"), ("min", "defaultRequest")] {
        let Some(Value::Object(known)) = fields.get(from).cloned() else { continue };
        if let Some(open) = fields.entry(to).or_insert_with(|| json!({})).as_object_mut() {
            for (name, amount) in known {
                open.entry(name).or_insert(amount);
            }
        }
    }
}

/// A claim in a template is a claim like any other.
fn claims(fields: &mut Fields) {
    let claims = fields.get_mut("volumeClaimTemplates").and_then(Value::as_array_mut);
    for claim in claims.into_iter().flatten().filter_map(Value::as_object_mut) {
        claim.insert("apiVersion".into(), "v1".into());
        claim.insert("kind".into(), "PersistentVolumeClaim".into());
        claim.insert("status".into(), json!({"phase": "Pending"}));
    }
}

/// The annotation in which version 1 keeps the measures that it has no fields for.
const MEASURES: &str = "/metadata/annotations/autoscaling.alpha.kubernetes.io~1metrics";

/// Where nothing is said of what to measure, the processor is kept at a load of 80 percent.
fn processor_target(fields: &mut Fields) {
    let measured = Value::Object(fields.clone()).pointer(MEASURES).is_some();
    if let Some(spec) = fields.get_mut("spec").and_then(Value::as_object_mut).filter(|_| !measured) {
        let target = spec.entry("targetCPUUtilizationPercentage").or_insert(Value::Null);
        if target.is_null() {
            *target = 80.into();
        }
    }
}

/// Whoever says something of how to scale is told the rest.
fn behavior(fields: &mut Fields) {
    let half = json!({"type": "Percent", "value": 100, "periodSeconds": 15});
    let up = json!({"selectPolicy": "Max", "stabilizationWindowSeconds": 0,
        "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}, half]});
    let down = json!({"selectPolicy": "Max", "policies": [half]});
    for (name, usual) in [("scaleUp", up), ("scaleDown", down)] {
        let rules = fields.entry(name).or_insert_with(|| json!({}));
        if rules.is_null() {
            *rules = json!({});
        }
        for (field, value) in usual.as_object().into_iter().flatten() {
            if rules[field].is_null() || rules[field] == json!([]) {
                rules[field] = value.clone();
            }
        }
    }
}

/// Sets a number of which zero says nothing.
fn number(fields: &mut Fields, name: &str, usual: i64) {
    if fields.get(name).is_none_or(|number| number.as_i64() == Some(0)) {
        fields.insert(name.into(), usual.into());
    }
}

/// The service account of pods has two names, of which one is old.
fn account(fields: &mut Fields) {
    let (new, old) = ("serviceAccountName", "serviceAccount");
    let known = if text(fields, new).is_empty() { text(fields, old) } else { text(fields, new) };
    if !known.is_empty() {
        let known = Value::from(known);
        fields.insert(old.into(), known.clone());
        fields.insert(new.into(), known);
    }
}

/// What a node has can be given away, unless it says otherwise.
fn allocatable(fields: &mut Fields) {
    if let Some(all) = fields.get("capacity").filter(|all| !all.is_null()).cloned()
        && fields.get("allocatable").is_none_or(Value::is_null)
    {
        fields.insert("allocatable".into(), all);
    }
}

/// The first range of addresses of a node has a field of its own, which counts.
fn node_ranges(fields: &mut Fields) {
    let ranges = fields.get("podCIDRs").and_then(Value::as_array).cloned().unwrap_or_default();
    match (text(fields, "podCIDR").to_string(), ranges) {
        (own, ranges) if own.is_empty() => {
            if let Some(first) = ranges.into_iter().next() {
                fields.insert("podCIDR".into(), first);
            }
        }
        (own, mut ranges) if ranges.first().is_none_or(|first| *first != own.as_str()) => {
            if ranges.is_empty() {
                ranges.push(Value::Null);
            }
            ranges[0] = own.into();
            fields.insert("podCIDRs".into(), ranges.into());
        }
        _ => {}
    }
}

/// A service that does not bind clients needs no words about how.
fn affinity(fields: &mut Fields) {
    if text(fields, "sessionAffinity") == "None" {
        fields.remove("sessionAffinityConfig");
    }
}

fn policy_types(fields: &mut Fields) {
    if fields.get("policyTypes").and_then(Value::as_array).is_none_or(Vec::is_empty) {
        let egress = fields.get("egress").and_then(Value::as_array).is_some_and(|rules| !rules.is_empty());
        let types = if egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
        fields.insert("policyTypes".into(), types);
    }
}
