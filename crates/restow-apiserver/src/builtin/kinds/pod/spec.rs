//! Validation of pod specifications and pod templates.

use crate::builtin::validation::{choice, duplicate, list, port_problem};
use restow_apimachinery::field::{FieldError, FieldRule};
use restow_apimachinery::names::NameRule;
use restow_apimachinery::object::Object;
use restow_apimachinery::types::compare_quantities;
use serde_json::{Value, json};
use std::cmp::Ordering;
use std::collections::BTreeSet;

const RESTART: [&str; 3] = ["Always", "OnFailure", "Never"];
const DNS: [&str; 4] = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
const PULL: [&str; 3] = ["Always", "IfNotPresent", "Never"];
const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];

/// The validation errors of a pod template at this path. `claims` are the names of volumes from claim templates.
pub(crate) fn template_problems(template: Option<&Value>, path: &str, claims: &[&str]) -> Vec<FieldError> {
    spec_problems(template.and_then(|template| template.get("spec")), &format!("{path}.spec"), claims)
}

/// The validation errors of a pod's specification at this path.
pub(crate) fn spec_problems(spec: Option<&Value>, path: &str, claims: &[&str]) -> Vec<FieldError> {
    let spec = spec.unwrap_or(&Value::Null);
    let (mut problems, mut volumes) = volume_problems(spec, path);
    volumes.extend(claims);
    let mut names = BTreeSet::new();
    let containers = list(&spec["containers"]);
    if containers.is_empty() {
        problems.push(FieldError::required(format!("{path}.containers"), ""));
    }
    for field in ["initContainers", "containers"] {
        for (index, container) in list(&spec[field]).iter().enumerate() {
            let at = format!("{path}.{field}[{index}]");
            problems.extend(container_problems(container, &at));
            problems.extend(mount_problems(container, &at, &volumes));
            let name = &container["name"];
            if !name.is_null() && !names.insert(name.to_string()) {
                problems.push(duplicate(format!("{at}.name"), name));
            }
        }
    }
    problems.extend(choice(&spec["restartPolicy"], &format!("{path}.restartPolicy"), &RESTART));
    problems.extend(choice(&spec["dnsPolicy"], &format!("{path}.dnsPolicy"), &DNS));
    problems
}

/// A pod with scheduling gates has no node.
pub(crate) fn gated_problem(pod: &Object) -> Option<FieldError> {
    let gated = !list(pod.at(&["spec", "schedulingGates"]).unwrap_or(&Value::Null)).is_empty();
    let placed = !pod.text(&["spec", "nodeName"]).is_empty();
    let detail = "cannot be set until all schedulingGates have been cleared";
    (gated && placed).then(|| FieldError::forbidden("spec.nodeName", detail))
}

fn container_problems(container: &Value, at: &str) -> Vec<FieldError> {
    let mut problems = Vec::new();
    let text = |name: &str| container[name].as_str().unwrap_or_default();
    match text("name") {
        "" => problems.push(FieldError::required(format!("{at}.name"), "")),
        name => problems.extend(label_problems(name, &format!("{at}.name"))),
    }
    match text("image") {
        "" => problems.push(FieldError::required(format!("{at}.image"), "")),
        image if image != image.trim() => problems.push(FieldError::invalid(
            format!("{at}.image"),
            &image.into(),
            "must not have leading or trailing whitespace",
        )),
        _ => {}
    }
    problems.extend(choice(&container["imagePullPolicy"], &format!("{at}.imagePullPolicy"), &PULL));
    for (index, port) in list(&container["ports"]).iter().enumerate() {
        let at = format!("{at}.ports[{index}]");
        match port["containerPort"].as_i64().unwrap_or_default() {
            0 => problems.push(FieldError::required(format!("{at}.containerPort"), "")),
            number => problems.extend(port_problem(number, &format!("{at}.containerPort"))),
        }
        problems.extend(choice(&port["protocol"], &format!("{at}.protocol"), &PROTOCOLS));
    }
    problems.extend(resource_problems(&container["resources"], &format!("{at}.resources")));
    for (index, variable) in list(&container["env"]).iter().enumerate() {
        if variable["name"].as_str().unwrap_or_default().is_empty() {
            problems.push(FieldError::required(format!("{at}.env[{index}].name"), ""));
        }
    }
    problems
}

/// Requests may not exceed limits.
fn resource_problems(resources: &Value, at: &str) -> Vec<FieldError> {
    let requests = resources["requests"].as_object().into_iter().flatten();
    let beyond = requests.filter_map(|(name, request)| {
        let limit = resources["limits"][name].as_str()?;
        let larger = compare_quantities(request.as_str()?, limit)? == Ordering::Greater;
        let detail = format!("must be less than or equal to {name} limit of {limit}");
        larger.then(|| FieldError::invalid(format!("{at}.requests"), request, detail))
    });
    beyond.collect()
}

/// The validation errors of the volumes, and their names.
fn volume_problems<'a>(spec: &'a Value, path: &str) -> (Vec<FieldError>, BTreeSet<&'a str>) {
    let mut problems = Vec::new();
    let mut names = BTreeSet::new();
    for (index, volume) in list(&spec["volumes"]).iter().enumerate() {
        let at = format!("{path}.volumes[{index}].name");
        let name = volume["name"].as_str().unwrap_or_default();
        match name {
            "" => problems.push(FieldError::required(at, "")),
            name if !names.insert(name) => problems.push(duplicate(at, &name.into())),
            name => problems.extend(label_problems(name, &at)),
        }
    }
    (problems, names)
}

fn mount_problems(container: &Value, at: &str, volumes: &BTreeSet<&str>) -> Vec<FieldError> {
    let mut problems = Vec::new();
    for (index, mount) in list(&container["volumeMounts"]).iter().enumerate() {
        let at = format!("{at}.volumeMounts[{index}]");
        let name = mount["name"].as_str().unwrap_or_default();
        if name.is_empty() {
            problems.push(FieldError::required(format!("{at}.name"), ""));
        } else if !volumes.contains(name) {
            let rule = FieldRule::NotFound(Value::from(name).to_string());
            problems.push(FieldError { field: format!("{at}.name"), rule, detail: String::new() });
        }
        if mount["mountPath"].as_str().unwrap_or_default().is_empty() {
            problems.push(FieldError::required(format!("{at}.mountPath"), ""));
        }
    }
    problems
}

fn label_problems(name: &str, at: &str) -> Vec<FieldError> {
    NameRule::Label.check(name).into_iter().map(|problem| FieldError::invalid(at, &json!(name), problem)).collect()
}
