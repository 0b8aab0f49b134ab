//! Services.

use super::pods::{choice, list, port_problem};
use super::{duplicate, unsupported};
use restow_apimachinery::field::FieldError;
use restow_apimachinery::names::NameRule;
use restow_apimachinery::object::Object;
use serde_json::{Value, json};
use std::collections::BTreeSet;

const TYPES: [&str; 4] = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
const AFFINITIES: [&str; 2] = ["ClientIP", "None"];
const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];

pub(super) fn problems(object: &Object) -> Vec<FieldError> {
    let mut problems = Vec::new();
    let kind = object.text(&["spec", "type"]);
    let ports = list(object.at(&["spec", "ports"]).unwrap_or(&Value::Null));
    if !TYPES.contains(&kind) {
        problems.push(unsupported("spec.type", kind, &TYPES));
    }
    let headless = object.text(&["spec", "clusterIP"]) == "None";
    match kind {
        "ExternalName" if object.text(&["spec", "externalName"]).is_empty() => {
            problems.push(FieldError::required("spec.externalName", ""));
        }
        "ExternalName" => {}
        _ if ports.is_empty() && !headless => problems.push(FieldError::required("spec.ports", "")),
        _ => {}
    }
    let mut names = BTreeSet::new();
    let mut numbers = BTreeSet::new();
    for (index, port) in ports.iter().enumerate() {
        let at = format!("spec.ports[{index}]");
        problems.extend(port_problems(port, &at, ports.len() > 1));
        let name = port["name"].as_str().unwrap_or_default();
        if !name.is_empty() && !names.insert(name) {
            problems.push(duplicate(format!("{at}.name"), &name.into()));
        }
        if !numbers.insert((port["protocol"].to_string(), port["port"].to_string())) {
            problems.push(duplicate(at, &json!({"port": port["port"], "protocol": port["protocol"]})));
        }
    }
    let affinity = object.at(&["spec", "sessionAffinity"]).unwrap_or(&Value::Null);
    problems.extend(choice(affinity, "spec.sessionAffinity", &AFFINITIES));
    problems
}

fn port_problems(port: &Value, at: &str, several: bool) -> Vec<FieldError> {
    let mut problems = Vec::new();
    match port["name"].as_str().unwrap_or_default() {
        "" if several => problems.push(FieldError::required(format!("{at}.name"), "")),
        "" => {}
        name => {
            let found = NameRule::Label.check(name).into_iter();
            problems.extend(found.map(|problem| FieldError::invalid(format!("{at}.name"), &name.into(), problem)));
        }
    }
    problems.extend(port_problem(port["port"].as_i64().unwrap_or_default(), &format!("{at}.port")));
    problems.extend(choice(&port["protocol"], &format!("{at}.protocol"), &PROTOCOLS));
    problems
}

/// An address stays with its service for as long as that has one.
pub(super) fn change_problems(object: &Object, old: &Object) -> Vec<FieldError> {
    let external = |object: &Object| object.text(&["spec", "type"]) == "ExternalName";
    let before = object_addresses(old);
    if external(old) || external(object) || before.is_empty() {
        return Vec::new();
    }
    let now = object_addresses(object);
    match now.first() == before.first() {
        true => Vec::new(),
        false => vec![FieldError::invalid("spec.clusterIPs[0]", &json!(now), "may not change once set")],
    }
}

fn object_addresses(object: &Object) -> Vec<String> {
    let listed = list(object.at(&["spec", "clusterIPs"]).unwrap_or(&Value::Null));
    let listed: Vec<String> = listed.iter().filter_map(Value::as_str).map(str::to_string).collect();
    match object.text(&["spec", "clusterIP"]) {
        "" => listed,
        one => std::iter::once(one.to_string()).chain(listed.into_iter().skip(1)).collect(),
    }
}
