//! HorizontalPodAutoscaler: autoscaling/v1 has one CPU target, autoscaling/v2 has any metrics. Values that v1 has no
//! field for are kept in annotations, so that an update by a client of v1 loses nothing.

use crate::builtin::convert::version_of;
use restow_apimachinery::object::Object;
use serde_json::{Map, Value, json};

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";
const CARRIERS: [&str; 4] = [METRICS, CURRENT_METRICS, CONDITIONS, BEHAVIOR];

/// The default CPU utilization.
const DEFAULT_UTILIZATION: i64 = 80;

/// The position of a value of a nested metric in the flat form of the annotations.
struct FieldMove {
    /// The field, and the field in it (may be empty).
    nested: (&'static str, &'static str),
    flat: &'static str,
    /// A quantity that the flat form always has.
    always: bool,
}

const fn at(outer: &'static str, inner: &'static str, flat: &'static str) -> FieldMove {
    FieldMove { nested: (outer, inner), flat, always: false }
}

const fn always(outer: &'static str, inner: &'static str, flat: &'static str) -> FieldMove {
    FieldMove { nested: (outer, inner), flat, always: true }
}

type Form = (&'static str, &'static [FieldMove]);

const SPEC_FORMS: [Form; 5] = [
    (
        "object",
        &[
            at("describedObject", "", "target"),
            at("metric", "name", "metricName"),
            at("metric", "selector", "selector"),
            always("target", "value", "targetValue"),
            at("target", "averageValue", "averageValue"),
        ],
    ),
    (
        "pods",
        &[
            at("metric", "name", "metricName"),
            at("metric", "selector", "selector"),
            always("target", "averageValue", "targetAverageValue"),
        ],
    ),
    (
        "resource",
        &[
            at("name", "", "name"),
            at("target", "averageUtilization", "targetAverageUtilization"),
            at("target", "averageValue", "targetAverageValue"),
        ],
    ),
    (
        "containerResource",
        &[
            at("name", "", "name"),
            at("container", "", "container"),
            at("target", "averageUtilization", "targetAverageUtilization"),
            at("target", "averageValue", "targetAverageValue"),
        ],
    ),
    (
        "external",
        &[
            at("metric", "name", "metricName"),
            at("metric", "selector", "metricSelector"),
            at("target", "value", "targetValue"),
            at("target", "averageValue", "targetAverageValue"),
        ],
    ),
];

const STATUS_FORMS: [Form; 5] = [
    (
        "object",
        &[
            at("describedObject", "", "target"),
            at("metric", "name", "metricName"),
            at("metric", "selector", "selector"),
            always("current", "value", "currentValue"),
            at("current", "averageValue", "averageValue"),
        ],
    ),
    (
        "pods",
        &[
            at("metric", "name", "metricName"),
            at("metric", "selector", "selector"),
            always("current", "averageValue", "currentAverageValue"),
        ],
    ),
    (
        "resource",
        &[
            at("name", "", "name"),
            at("current", "averageUtilization", "currentAverageUtilization"),
            always("current", "averageValue", "currentAverageValue"),
        ],
    ),
    (
        "containerResource",
        &[
            at("name", "", "name"),
            at("container", "", "container"),
            at("current", "averageUtilization", "currentAverageUtilization"),
            always("current", "averageValue", "currentAverageValue"),
        ],
    ),
    (
        "external",
        &[
            at("metric", "name", "metricName"),
            at("metric", "selector", "metricSelector"),
            always("current", "value", "currentValue"),
            at("current", "averageValue", "currentAverageValue"),
        ],
    ),
];

pub(crate) fn convert(object: &mut Object, source: &str, target: &str) -> Result<(), String> {
    match (version_of(source), version_of(target)) {
        ("v2", "v1") => to_v1(object),
        ("v1", "v2") => to_v2(object),
        (from, to) => return Err(format!("there is no conversion from {from} to {to}")),
    }
    Ok(())
}

fn to_v1(object: &mut Object) {
    let mut spec = taken(object, "spec");
    let mut status = taken(object, "status");
    let metrics = list(spec.remove("metrics"));
    let utilization = metrics.iter().find_map(cpu_utilization).cloned();
    let others: Vec<Value> =
        metrics.iter().filter(|metric| cpu_utilization(metric).is_none()).map(|m| flat(m, &SPEC_FORMS)).collect();
    let current = list(status.remove("currentMetrics"));
    let used = current.iter().filter(|metric| is_cpu(metric));
    let used = used.filter_map(|metric| metric.pointer("/resource/current/averageUtilization")).next_back().cloned();
    let current: Vec<Value> = current.iter().map(|metric| flat(metric, &STATUS_FORMS)).collect();
    let conditions = list(status.remove("conditions"));
    let behavior = spec.remove("behavior").filter(|behavior| !behavior.is_null());

    put(&mut spec, "targetCPUUtilizationPercentage", utilization);
    put(&mut status, "currentCPUUtilizationPercentage", used);
    object.set("spec", Some(spec.into()));
    object.set("status", Some(status.into()));
    drop_carriers(object);
    carry(object, METRICS, others);
    carry(object, CURRENT_METRICS, current);
    carry(object, CONDITIONS, conditions);
    if let Some(behavior) = behavior {
        // The annotation has the field names of its first version.
        annotate(object, BEHAVIOR, &renamed(&behavior, |name| first_letter(name, char::to_ascii_uppercase)));
    }
}

fn to_v2(object: &mut Object) {
    let mut spec = taken(object, "spec");
    let mut status = taken(object, "status");
    let mut metrics: Vec<Value> = carried(object, METRICS).iter().map(|m| nested(m, &SPEC_FORMS)).collect();
    let utilization = spec.remove("targetCPUUtilizationPercentage").filter(|value| !value.is_null());
    metrics.extend(utilization.map(|value| cpu_target(&value)));
    if metrics.is_empty() {
        metrics.push(cpu_target(&DEFAULT_UTILIZATION.into()));
    }
    spec.insert("metrics".into(), metrics.into());
    let behavior = object.annotation(BEHAVIOR).and_then(|text| serde_json::from_str::<Value>(text).ok());
    if let Some(behavior) = behavior.filter(|behavior| behavior.as_object().is_some_and(|map| !map.is_empty())) {
        spec.insert("behavior".into(), renamed(&behavior, |name| first_letter(name, char::to_ascii_lowercase)));
    }
    let used = status.remove("currentCPUUtilizationPercentage").filter(|value| !value.is_null());
    let current: Vec<Value> = carried(object, CURRENT_METRICS).iter().map(|m| nested(m, &STATUS_FORMS)).collect();
    if !current.is_empty() {
        status.insert("currentMetrics".into(), current.into());
    } else if let Some(used) = used {
        let resource = json!({"name": "cpu", "current": {"averageUtilization": used}});
        status.insert("currentMetrics".into(), json!([{"type": "Resource", "resource": resource}]));
    }
    let conditions = carried(object, CONDITIONS);
    if !conditions.is_empty() {
        status.insert("conditions".into(), conditions.into());
    }
    object.set("spec", Some(spec.into()));
    object.set("status", Some(status.into()));
    drop_carriers(object);
}

fn is_cpu(metric: &Value) -> bool {
    metric["type"] == "Resource" && metric["resource"]["name"] == "cpu"
}

fn cpu_utilization(metric: &Value) -> Option<&Value> {
    let value = metric.pointer("/resource/target/averageUtilization")?;
    (is_cpu(metric) && !value.is_null()).then_some(value)
}

fn cpu_target(utilization: &Value) -> Value {
    let target = json!({"type": "Utilization", "averageUtilization": utilization});
    json!({"type": "Resource", "resource": {"name": "cpu", "target": target}})
}

/// A metric in the flat form of the annotations.
fn flat(metric: &Value, forms: &[Form]) -> Value {
    let mut out = json!({"type": metric["type"]});
    for (source, places) in forms {
        if !metric[*source].is_object() {
            continue;
        }
        let mut fields = Map::new();
        for place in *places {
            let (outer, inner) = place.nested;
            let value = if inner.is_empty() { &metric[*source][outer] } else { &metric[*source][outer][inner] };
            let value = if value.is_null() && place.always { &json!("0") } else { value };
            put(&mut fields, place.flat, Some(value.clone()).filter(|value| !value.is_null()));
        }
        out[*source] = fields.into();
    }
    out
}

/// A metric in the nested form of v2.
fn nested(metric: &Value, forms: &[Form]) -> Value {
    let mut out = json!({"type": metric["type"]});
    for (source, places) in forms {
        if !metric[*source].is_object() {
            continue;
        }
        let mut fields = json!({});
        for place in *places {
            let value = &metric[*source][place.flat];
            match place.nested {
                _ if value.is_null() => {}
                (outer, "") => fields[outer] = value.clone(),
                (outer, inner) => fields[outer][inner] = value.clone(),
            }
        }
        if forms[0].1[3].nested.0 == "target" {
            set_target_type(source, &mut fields);
        }
        out[*source] = fields;
    }
    out
}

/// Sets the type of the target, which the flat form does not contain.
fn set_target_type(source: &str, fields: &mut Value) {
    let target = &fields["target"];
    let has = |name: &str| !target[name].is_null();
    let kind = match source {
        "pods" => "AverageValue",
        "object" if has("averageValue") => "AverageValue",
        "object" => "Value",
        "external" if has("value") => "Value",
        "external" => "AverageValue",
        _ if has("averageUtilization") => "Utilization",
        _ => "AverageValue",
    };
    // The flat form requires the value, so zero besides an average means unset.
    let placeholder = source == "object" && kind == "AverageValue" && target["value"] == "0";
    fields["target"]["type"] = kind.into();
    if let Some(target) = fields["target"].as_object_mut().filter(|_| placeholder) {
        target.remove("value");
    }
}

/// The same value with renamed fields.
fn renamed(value: &Value, rename: fn(&str) -> String) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(name, value)| (rename(name), renamed(value, rename))).collect())
        }
        Value::Array(items) => items.iter().map(|item| renamed(item, rename)).collect(),
        other => other.clone(),
    }
}

fn first_letter(name: &str, change: fn(&char) -> char) -> String {
    let mut letters = name.chars();
    letters.next().iter().map(change).chain(letters).collect()
}

fn taken(object: &mut Object, field: &str) -> Map<String, Value> {
    match object.fields_mut().remove(field) {
        Some(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}

fn list(value: Option<Value>) -> Vec<Value> {
    match value {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    }
}

fn put(fields: &mut Map<String, Value>, name: &str, value: Option<Value>) {
    if let Some(value) = value {
        fields.insert(name.into(), value);
    }
}

fn carry(object: &mut Object, key: &str, items: Vec<Value>) {
    if !items.is_empty() {
        annotate(object, key, &items.into());
    }
}

fn annotate(object: &mut Object, key: &str, value: &Value) {
    object.metadata_mut().entry("annotations").or_insert_with(|| json!({}))[key] = value.to_string().into();
}

fn carried(object: &Object, key: &str) -> Vec<Value> {
    let text = object.annotation(key).unwrap_or_default();
    list(serde_json::from_str(text).ok())
}

fn drop_carriers(object: &mut Object) {
    if let Some(annotations) = object.metadata_mut().get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.retain(|key, _| !CARRIERS.contains(&key.as_str()));
        if annotations.is_empty() {
            object.metadata_mut().remove("annotations");
        }
    }
}
