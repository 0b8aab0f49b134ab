//! Cells that need more of an object than the value at a path.

use super::duration;
use restow_apimachinery::object::Object;
use restow_tables::columns::Special;
use serde_json::Value;

type Cell = fn(&Object) -> Option<String>;

/// The function of a special cell.
pub(super) fn cell(special: Special) -> Cell {
    match special {
        Special::AutoscalerTargets => autoscaler_targets,
        Special::ConfigEntries => config_entries,
        Special::Endpoints => endpoints,
        Special::EventSource => event_source,
        Special::IngressPorts => ingress_ports,
        Special::NodeExternal => |node| node_address(node, "ExternalIP"),
        Special::NodeInternal => |node| node_address(node, "InternalIP"),
        Special::NodeRoles => node_roles,
        Special::NodeStatus => node_status,
        Special::RequestedTime => requested_time,
        Special::ServiceAddress => service_address,
        Special::SubjectAccounts => |binding| subjects(binding, "ServiceAccount"),
        Special::SubjectGroups => |binding| subjects(binding, "Group"),
        Special::SubjectUsers => |binding| subjects(binding, "User"),
    }
}

fn list<'a>(object: &'a Object, path: &[&str]) -> impl Iterator<Item = &'a Value> {
    object.at(path).and_then(Value::as_array).into_iter().flatten()
}

fn joined(parts: Vec<String>) -> Option<String> {
    (!parts.is_empty()).then(|| parts.join(","))
}

fn texts<'a>(values: impl Iterator<Item = &'a Value>) -> Vec<String> {
    values.filter_map(Value::as_str).map(str::to_string).collect()
}

/// The external address of a service.
fn service_address(service: &Object) -> Option<String> {
    let own = texts(list(service, &["spec", "externalIPs"]));
    match service.text(&["spec", "type"]) {
        "ExternalName" => Some(service.text(&["spec", "externalName"]).to_string()),
        "LoadBalancer" => {
            let given = list(service, &["status", "loadBalancer", "ingress"]);
            let given = given.filter_map(|place| place["ip"].as_str().or_else(|| place["hostname"].as_str()));
            let all: Vec<String> = given.map(str::to_string).chain(own).collect();
            Some(joined(all).unwrap_or_else(|| "<pending>".into()))
        }
        _ => joined(own),
    }
}

fn node_status(node: &Object) -> Option<String> {
    let ready = list(node, &["status", "conditions"]).find(|condition| condition["type"] == "Ready");
    let status = match ready.map(|ready| ready["status"] == "True") {
        Some(true) => "Ready",
        Some(false) => "NotReady",
        None => "Unknown",
    };
    let closed = node.at(&["spec", "unschedulable"]) == Some(&Value::Bool(true));
    Some(if closed { format!("{status},SchedulingDisabled") } else { status.into() })
}

fn node_roles(node: &Object) -> Option<String> {
    let labels = node.at(&["metadata", "labels"]).and_then(Value::as_object).into_iter().flatten();
    let role = |(label, value): (&String, &Value)| match label.strip_prefix("node-role.kubernetes.io/") {
        Some(role) => Some(role.to_string()).filter(|role| !role.is_empty()),
        None if label == "kubernetes.io/role" => value.as_str().filter(|role| !role.is_empty()).map(str::to_string),
        None => None,
    };
    let mut roles: Vec<String> = labels.filter_map(role).collect();
    roles.sort();
    roles.dedup();
    joined(roles)
}

fn node_address(node: &Object, kind: &str) -> Option<String> {
    let mut addresses = list(node, &["status", "addresses"]);
    addresses.find(|address| address["type"] == kind)?["address"].as_str().map(str::to_string)
}

/// The addresses of an Endpoints: the first few, and the number of the others.
fn endpoints(endpoints: &Object) -> Option<String> {
    const SHOWN: usize = 3;
    let mut places = Vec::new();
    for subset in list(endpoints, &["subsets"]) {
        let inner = |field: &str| subset[field].as_array().map_or(&[][..], Vec::as_slice);
        for port in inner("ports") {
            let with_port = inner("addresses").iter().filter_map(|address| address["ip"].as_str());
            places.extend(with_port.map(|ip| match ip.contains(':') {
                true => format!("[{ip}]:{}", port["port"]),
                false => format!("{ip}:{}", port["port"]),
            }));
        }
        if inner("ports").is_empty() {
            places.extend(inner("addresses").iter().filter_map(|address| address["ip"].as_str()).map(str::to_string));
        }
    }
    let more = places.len().saturating_sub(SHOWN);
    places.truncate(SHOWN);
    let shown = joined(places)?;
    Some(if more > 0 { format!("{shown} + {more} more...") } else { shown })
}

/// The source of an event and its host. The field names depend on the version.
fn event_source(event: &Object) -> Option<String> {
    let first = |paths: [&[&str]; 4]| paths.into_iter().map(|path| event.text(path)).find(|text| !text.is_empty());
    let who: [&[&str]; 4] = [
        &["source", "component"],
        &["deprecatedSource", "component"],
        &["reportingComponent"],
        &["reportingController"],
    ];
    let place: [&[&str]; 4] =
        [&["source", "host"], &["deprecatedSource", "host"], &["reportingInstance"], &["reportingInstance"]];
    match (first(who)?, first(place)) {
        (who, Some(place)) => Some(format!("{who}, {place}")),
        (who, None) => Some(who.to_string()),
    }
}

fn config_entries(map: &Object) -> Option<String> {
    let count = |field: &str| map.get(field).and_then(Value::as_object).map_or(0, serde_json::Map::len);
    Some((count("data") + count("binaryData")).to_string())
}

fn ingress_ports(ingress: &Object) -> Option<String> {
    let safe = list(ingress, &["spec", "tls"]).next().is_some();
    Some(if safe { "80, 443" } else { "80" }.into())
}

fn requested_time(request: &Object) -> Option<String> {
    request.at(&["spec", "expirationSeconds"]).and_then(Value::as_i64).map(duration)
}

/// The subjects of a role binding.
fn subjects(binding: &Object, kind: &str) -> Option<String> {
    let named = list(binding, &["subjects"]).filter(|subject| subject["kind"] == kind);
    let names = named.filter_map(|subject| match (subject["namespace"].as_str(), subject["name"].as_str()?) {
        (Some(namespace), name) if kind == "ServiceAccount" => Some(format!("{namespace}/{name}")),
        (_, name) => Some(name.to_string()),
    });
    let names: Vec<String> = names.collect();
    (!names.is_empty()).then(|| names.join(", "))
}

/// The current and target values of the metrics.
fn autoscaler_targets(autoscaler: &Object) -> Option<String> {
    const SHOWN: usize = 2;
    if let Some(wanted) = autoscaler.at(&["spec", "targetCPUUtilizationPercentage"]).and_then(Value::as_i64) {
        let now = autoscaler.at(&["status", "currentCPUUtilizationPercentage"]).and_then(Value::as_i64);
        let now = now.map_or_else(|| "<unknown>".into(), |now| format!("{now}%"));
        return Some(format!("cpu: {now}/{wanted}%"));
    }
    let measured: Vec<&Value> = list(autoscaler, &["status", "currentMetrics"]).collect();
    let target = |(index, metric): (usize, &Value)| {
        let source = match metric["type"].as_str().unwrap_or_default() {
            "Resource" => "resource",
            "ContainerResource" => "containerResource",
            "Pods" => "pods",
            "Object" => "object",
            "External" => "external",
            _ => return "<unknown type>".to_string(),
        };
        let wanted = &metric[source]["target"];
        let now = measured.get(index).map_or(&Value::Null, |now| &now[source]["current"]);
        let name = match source {
            "resource" | "containerResource" => format!("{}: ", metric[source]["name"].as_str().unwrap_or_default()),
            _ => String::new(),
        };
        let part = |field: &str, sign: &str| {
            let shown = |value: &Value| match value {
                Value::Null => None,
                Value::String(text) => Some(format!("{text}{sign}")),
                number => Some(format!("{number}{sign}")),
            };
            let wanted = shown(&wanted[field])?;
            Some(format!("{}/{wanted}", shown(&now[field]).unwrap_or_else(|| "<unknown>".into())))
        };
        let share = part("averageUtilization", "%").or_else(|| part("averageValue", "")).or_else(|| part("value", ""));
        format!("{name}{}", share.unwrap_or_else(|| "<unknown>/<auto>".into()))
    };
    let all: Vec<String> = list(autoscaler, &["spec", "metrics"]).enumerate().map(target).collect();
    let more = all.len().saturating_sub(SHOWN);
    let shown = all.into_iter().take(SHOWN).collect::<Vec<_>>().join(", ");
    match (shown.is_empty(), more) {
        (true, _) => Some("<none>".into()),
        (false, 0) => Some(shown),
        (false, more) => Some(format!("{shown} + {more} more...")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(name: &str, object: Value, expected: Option<&str>) {
        let cell = cell(Special::parse(name).unwrap());
        assert_eq!(cell(&Object::from_value(object.clone()).unwrap()).as_deref(), expected, "{name} {object}");
    }

    #[test]
    fn the_address_cell_of_a_service() {
        let service = |kind: &str, ips: Value, given: Value| {
            json!({"spec": {"type": kind, "externalIPs": ips, "externalName": "a.b"},
                "status": {"loadBalancer": {"ingress": given}}})
        };
        check("service-address", service("ClusterIP", json!([]), json!([])), None);
        check("service-address", service("NodePort", json!(["1.2.3.4"]), json!([])), Some("1.2.3.4"));
        check("service-address", service("ExternalName", json!([]), json!([])), Some("a.b"));
        check("service-address", service("LoadBalancer", json!([]), json!([])), Some("<pending>"));
        let given = json!([{"ip": "5.6.7.8"}, {"hostname": "h"}]);
        check("service-address", service("LoadBalancer", json!(["1.2.3.4"]), given), Some("5.6.7.8,h,1.2.3.4"));
    }

    #[test]
    fn the_status_and_role_cells_of_a_node() {
        let node = |ready: &str, closed: bool| {
            json!({"spec": {"unschedulable": closed}, "metadata": {"labels": {"node-role.kubernetes.io/worker": "",
                "node-role.kubernetes.io/control-plane": ""}}, "status": {"conditions": [{"type": "Ready", "status": ready}],
                "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}})
        };
        check("node-status", node("True", false), Some("Ready"));
        check("node-status", node("Unknown", true), Some("NotReady,SchedulingDisabled"));
        check("node-status", json!({}), Some("Unknown"));
        check("node-roles", node("True", false), Some("control-plane,worker"));
        check("node-internal", node("True", false), Some("10.0.0.1"));
        check("node-external", node("True", false), None);
    }

    #[test]
    fn the_targets_cell_of_an_autoscaler() {
        let metric =
            |name: &str| json!({"type": "Resource", "resource": {"name": name, "target": {"averageUtilization": 50}}});
        let current = json!([{"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": 7}}}]);
        let pods = json!({"type": "Pods", "pods": {"target": {"averageValue": "5"}}});
        let scaler = |metrics: Value| json!({"spec": {"metrics": metrics}, "status": {"currentMetrics": current}});
        check("autoscaler-targets", scaler(json!([metric("cpu"), pods])), Some("cpu: 7%/50%, <unknown>/5"));
        let three = json!([metric("cpu"), metric("memory"), pods]);
        check("autoscaler-targets", scaler(three), Some("cpu: 7%/50%, memory: <unknown>/50% + 1 more..."));
        check(
            "autoscaler-targets",
            json!({"spec": {"targetCPUUtilizationPercentage": 80}}),
            Some("cpu: <unknown>/80%"),
        );
    }

    #[test]
    fn the_cells_of_other_kinds() {
        let subset = json!({"addresses": [{"ip": "1.1.1.1"}, {"ip": "::2"}], "ports": [{"port": 1}, {"port": 2}]});
        check("endpoints", json!({"subsets": [subset]}), Some("1.1.1.1:1,[::2]:1,1.1.1.1:2 + 1 more..."));
        check("endpoints", json!({}), None);
        check("event-source", json!({"source": {"component": "c"}}), Some("c"));
        let event = json!({"reportingController": "a.b/c", "reportingInstance": "i"});
        check("event-source", event, Some("a.b/c, i"));
        check("config-entries", json!({"data": {"a": "b"}, "binaryData": {"c": ""}}), Some("2"));
        check("ingress-ports", json!({"spec": {"tls": [{}]}}), Some("80, 443"));
        let subjects =
            json!([{"kind": "User", "name": "u"}, {"kind": "ServiceAccount", "name": "a", "namespace": "n"}]);
        check("subject-users", json!({"subjects": subjects}), Some("u"));
        check("subject-accounts", json!({"subjects": subjects}), Some("n/a"));
        check("subject-groups", json!({"subjects": subjects}), None);
        check("requested-time", json!({"spec": {"expirationSeconds": 600}}), Some("10m"));
    }
}
