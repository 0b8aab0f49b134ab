//! Events, endpoint slices and priority levels: fields that moved or changed their names.

use super::version_of;
use restow_apimachinery::object::Object;
use serde_json::{Value, json};

/// The names of an event's fields in the core group and in events.k8s.io, where they differ.
const EVENT_FIELDS: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

const ZONE: &str = "topology.kubernetes.io/zone";
const HOST: &str = "kubernetes.io/hostname";
/// Says that zero shares are meant, in versions where zero otherwise means "not said".
const ZERO_SHARES: &str = "flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares";
/// The shares of a priority level that does not say.
const DEFAULT_SHARES: i64 = 30;

pub(super) fn event(object: &mut Object, source: &str, target: &str) -> Result<(), String> {
    let core = |version: &str| !version.contains('/');
    if core(source) == core(target) {
        return Ok(());
    }
    for (old, new) in EVENT_FIELDS {
        let (from, to) = if core(source) { (old, new) } else { (new, old) };
        let value = object.fields_mut().remove(from);
        object.set(to, value);
    }
    Ok(())
}

pub(super) fn endpoint_slice(object: &mut Object, _source: &str, target: &str) -> Result<(), String> {
    let endpoints = object.fields_mut().get_mut("endpoints").and_then(Value::as_array_mut);
    for endpoint in endpoints.into_iter().flatten() {
        match version_of(target) {
            "v1beta1" => fold_topology(endpoint),
            _ => unfold_topology(endpoint),
        }
    }
    Ok(())
}

fn fold_topology(endpoint: &mut Value) {
    let Some(fields) = endpoint.as_object_mut() else { return };
    let mut topology = match fields.remove("deprecatedTopology") {
        Some(Value::Object(map)) => map,
        _ => serde_json::Map::new(),
    };
    if let Some(zone) = fields.remove("zone").filter(|zone| !zone.is_null()) {
        topology.insert(ZONE.into(), zone);
    }
    if let Some(node) = fields.get("nodeName").filter(|node| !node.is_null()) {
        topology.entry(HOST).or_insert_with(|| node.clone());
    }
    if !topology.is_empty() {
        fields.insert("topology".into(), topology.into());
    }
}

fn unfold_topology(endpoint: &mut Value) {
    let Some(fields) = endpoint.as_object_mut() else { return };
    let Some(Value::Object(mut topology)) = fields.remove("topology") else { return };
    if let Some(zone) = topology.remove(ZONE) {
        fields.insert("zone".into(), zone);
    }
    // Only a host that says the same as the node's name says nothing.
    if topology.get(HOST).is_some_and(|host| fields.get("nodeName") == Some(host)) {
        topology.remove(HOST);
    }
    if !topology.is_empty() {
        fields.insert("deprecatedTopology".into(), topology.into());
    }
}

pub(super) fn priority_level(object: &mut Object, source: &str, target: &str) -> Result<(), String> {
    let marked = object.annotation(ZERO_SHARES).is_some();
    let Some(limited) = object.fields_mut().get_mut("spec").and_then(|spec| spec.get_mut("limited")) else {
        return Ok(());
    };
    let Some(limited) = limited.as_object_mut() else { return Ok(()) };
    let given = limited.remove(shares_field(source)).and_then(|shares| shares.as_i64()).unwrap_or_default();
    let shares = match version_of(source) {
        "v1" => given,
        "v1beta3" if marked => given,
        _ if given == 0 => DEFAULT_SHARES,
        _ => given,
    };
    limited.insert(shares_field(target).into(), shares.into());
    mark_zero(object, version_of(target) == "v1beta3" && shares == 0);
    Ok(())
}

fn shares_field(api_version: &str) -> &'static str {
    match version_of(api_version) {
        "v1" | "v1beta3" => "nominalConcurrencyShares",
        _ => "assuredConcurrencyShares",
    }
}

fn mark_zero(object: &mut Object, zero: bool) {
    let metadata = object.metadata_mut();
    if zero {
        metadata.entry("annotations").or_insert_with(|| json!({}))[ZERO_SHARES] = "".into();
    } else if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove(ZERO_SHARES);
        if annotations.is_empty() {
            metadata.remove("annotations");
        }
    }
}
