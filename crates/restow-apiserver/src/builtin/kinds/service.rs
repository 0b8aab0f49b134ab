//! Services: validation, defaults, fields that an update keeps, and `proxy`.
//!
//! Cluster IPs and node ports are allocated in `service/allocation.rs`.

pub(crate) mod allocation;

use crate::builtin::checks::{Fields, below, text_at, values};
use crate::builtin::validation::{choice, duplicate, list, port_problem, unsupported};
use crate::core::{Core, WriteHook};
use crate::error::ApiError;
use crate::request::Request;
use crate::resource::Verb;
use crate::resource::strategy::{Connection, Strategy, SubresourceAction};
use async_trait::async_trait;
use restow_apimachinery::field::FieldError;
use restow_apimachinery::names::NameRule;
use restow_apimachinery::object::Object;
use restow_store::Compare;
use restow_store::Mutation;
use restow_tables::checks::TextForm;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

const TYPES: [&str; 4] = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
const AFFINITIES: [&str; 2] = ["ClientIP", "None"];
const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];
/// The error names the field like this, as Kubernetes does.
const SOURCES: &str = "LoadBalancerSourceRanges";
/// The fields that a service keeps when an update omits them.
const KEPT: [&str; 4] = ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"];

pub(super) struct Service;

impl Strategy for Service {
    fn prepare_update(&self, object: &mut Object, old: &Object) {
        keep_allocated(object, old);
    }

    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        problems(object)
    }

    fn validate_change(&self, object: &Object, baseline: &Object) -> Vec<FieldError> {
        change_problems(object, baseline)
    }

    fn additional_mutations(&self, old: Option<&Object>, new: Option<&Object>) -> Vec<Mutation> {
        allocation::key_changes(old, new)
    }

    fn subresource_action(&self, subresource: &str) -> Option<SubresourceAction> {
        (subresource == "proxy").then_some(SubresourceAction::Connect)
    }

    fn connection(&self, _subresource: &str, _verb: Verb, object: &Object) -> Connection {
        Connection::Unavailable(format!("no endpoints available for service {:?}", object.name()))
    }
}

fn problems(object: &Object) -> Vec<FieldError> {
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

/// The cluster IP does not change, unless the type changes from or to ExternalName.
fn change_problems(object: &Object, old: &Object) -> Vec<FieldError> {
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

/// Keeps addresses and ports that an update omits.
fn keep_allocated(object: &mut Object, old: &Object) {
    let (Some(before), Some(mut spec)) = (old.get("spec").cloned(), object.get("spec").cloned()) else { return };
    if object.text(&["spec", "type"]) == "ExternalName" {
        if let Some(fields) = spec.as_object_mut().filter(|_| old.text(&["spec", "type"]) != "ExternalName") {
            KEPT.iter().for_each(|field| drop(fields.remove(*field)));
        }
        return object.set("spec", Some(spec));
    }
    if spec["clusterIP"].as_str().unwrap_or_default().is_empty() {
        for field in KEPT {
            if spec[field].is_null() || field.starts_with("clusterIP") {
                spec[field] = before[field].clone();
            }
        }
    } else if spec["clusterIPs"].is_null() {
        spec["clusterIPs"] = json!([spec["clusterIP"]]);
    }
    let ports_before = before["ports"].as_array().cloned().unwrap_or_default();
    if object.text(&["spec", "type"]) != "ClusterIP" {
        for port in spec["ports"].as_array_mut().into_iter().flatten().filter(|port| port["nodePort"].is_null()) {
            let same =
                ports_before.iter().find(|old| old["port"] == port["port"] && old["protocol"] == port["protocol"]);
            port["nodePort"] = same.map(|old| old["nodePort"].clone()).unwrap_or_default();
        }
    }
    let without_nulls = |value: Value| match value {
        Value::Object(fields) => Value::Object(fields.into_iter().filter(|(_, value)| !value.is_null()).collect()),
        other => other,
    };
    if let Some(ports) = spec["ports"].as_array_mut() {
        ports.iter_mut().for_each(|port| *port = without_nulls(port.take()));
    }
    object.set("spec", Some(without_nulls(spec)));
}

pub(crate) fn check_spec(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    let ranges = fields.get("loadBalancerSourceRanges").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let at = below(path, SOURCES);
    if !ranges.is_empty() && text_at(fields, &["type"]) != "LoadBalancer" {
        found.push(FieldError::forbidden(&at, "may only be used when `type` is 'LoadBalancer'"));
    }
    let rule = values::text_problems(TextForm::Cidr);
    for (index, range) in ranges.iter().enumerate() {
        let problems = rule(range.as_str().unwrap_or_default().trim()).into_iter();
        found.extend(problems.map(|problem| FieldError::invalid(format!("{at}[{index}]"), range, problem)));
    }
}

/// Removes the configuration of session affinity if there is no session affinity.
pub(crate) fn default_affinity(fields: &mut Fields) {
    if text_at(fields, &["sessionAffinity"]) == "None" {
        fields.remove("sessionAffinityConfig");
    }
}

pub(crate) fn default_target_port(fields: &mut Fields) {
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

/// Assigns cluster IPs and node ports that no other Service has.
pub(crate) struct ServiceAddresses(pub(crate) Arc<Core>);

#[async_trait]
impl WriteHook for ServiceAddresses {
    async fn claim(
        &self,
        request: &Request,
        object: &mut Object,
        old: Option<&Object>,
    ) -> Result<Vec<Compare>, ApiError> {
        match old {
            Some(old) if old.get("spec") == object.get("spec") => Ok(Vec::new()),
            _ => allocation::allocate(&self.0, request, object, old).await,
        }
    }
}
