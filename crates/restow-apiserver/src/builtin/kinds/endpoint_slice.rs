//! EndpointSlices: the address type, and conversion of v1beta1's topology.

use crate::builtin::convert::version_of;
use crate::builtin::validation::unsupported;
use crate::resource::strategy::Strategy;
use restow_apimachinery::field::FieldError;
use restow_apimachinery::object::Object;
use serde_json::Value;

const FAMILIES: [&str; 3] = ["FQDN", "IPv4", "IPv6"];
const ZONE: &str = "topology.kubernetes.io/zone";
const HOST: &str = "kubernetes.io/hostname";

pub(super) struct EndpointSlice;

impl Strategy for EndpointSlice {
    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        problems(object)
    }
}

fn problems(object: &Object) -> Vec<FieldError> {
    match object.text(&["addressType"]) {
        "" => vec![FieldError::required("addressType", "")],
        known if FAMILIES.contains(&known) => Vec::new(),
        other => vec![unsupported("addressType", other, &FAMILIES)],
    }
}

pub(crate) fn convert(object: &mut Object, _source: &str, target: &str) -> Result<(), String> {
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
    // A host name that equals the node name is redundant.
    if topology.get(HOST).is_some_and(|host| fields.get("nodeName") == Some(host)) {
        topology.remove(HOST);
    }
    if !topology.is_empty() {
        fields.insert("deprecatedTopology".into(), topology.into());
    }
}
