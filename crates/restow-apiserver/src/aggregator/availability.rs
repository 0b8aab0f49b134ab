//! Decides from a service and its EndpointSlices whether the server behind an APIService can be reached, and where.

use crate::aggregator::api_service::{BackendSpec, Condition};
use serde_json::Value;
use std::time::Duration;

/// How long a condition holds when the store cannot be read: a failed read says nothing about the server.
const KEPT: Duration = Duration::from_secs(30);
/// The label with the service of a slice.
const OF_SERVICE: &str = "kubernetes.io/service-name";

/// The service of an APIService and its EndpointSlices, as they are stored.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Observation {
    /// The service; `None` if it does not exist.
    pub(super) service: Option<Value>,
    /// The slices of the service.
    pub(super) slices: Vec<Value>,
}

/// What was found about the server behind an APIService.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Location {
    /// It may be at these addresses, `host:port`, in a fixed order.
    At(Vec<String>),
    /// It cannot be reached; this condition says why.
    Nowhere(Condition),
}

/// Whether a slice belongs to a service.
pub(super) fn is_of(slice: &Value, service: &str) -> bool {
    slice["metadata"]["labels"][OF_SERVICE] == service
}

/// Where the server of an APIService is.
pub(super) fn locate(spec: &BackendSpec, observed: &Observation) -> Location {
    let BackendSpec { name, namespace, port, .. } = spec;
    let nowhere = |reason: &str, message: String| Location::Nowhere(Condition::new("False", reason, message));
    let Some(service) = &observed.service else {
        return nowhere("ServiceNotFound", format!("service/{name} in {namespace:?} is not present"));
    };
    let external = service["spec"]["externalName"].as_str().unwrap_or_default();
    if service["spec"]["type"] == "ExternalName" {
        return Location::At(vec![format!("{external}:{port}")]);
    }
    let ports = service["spec"]["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
    let Some(found) = ports.iter().find(|candidate| candidate["port"] == u64::from(*port)) else {
        let message = format!("service/{name} in {namespace:?} is not listening on port {port}");
        return nowhere("ServicePortError", message);
    };
    let port_name = found["name"].as_str().unwrap_or_default();
    if observed.slices.is_empty() {
        let message = format!("cannot find endpointslices for service/{name} in {namespace:?}");
        return nowhere("EndpointsNotFound", message);
    }
    let mut addresses: Vec<String> = observed.slices.iter().flat_map(|slice| addresses(slice, port_name)).collect();
    addresses.sort();
    addresses.dedup();
    match addresses.is_empty() {
        false => Location::At(addresses),
        true => {
            let message = format!(
                "endpointslices for service/{name} in {namespace:?} have no addresses with port name {port_name:?}"
            );
            nowhere("MissingEndpoints", message)
        }
    }
}

/// The condition while the store cannot be read.
pub(super) fn cannot_be_checked(spec: &BackendSpec, error: &str) -> Condition {
    let message = format!("service/{} in {:?} cannot be checked due to: {error}", spec.name, spec.namespace);
    Condition::new("Unknown", "EndpointsAccessError", message)
}

/// The condition after the store could not be read for some time: the one before, if it has not become too old.
pub(super) fn while_unreadable(before: Option<Condition>, since: Duration, unknown: Condition) -> Condition {
    before.filter(|_| since < KEPT).unwrap_or(unknown)
}

/// The condition after a check of the server's discovery.
pub(super) fn checked(outcome: Result<(), String>) -> Condition {
    match outcome {
        Ok(()) => Condition::new("True", "Passed", "all checks passed".into()),
        Err(message) => Condition::new("False", "FailedDiscoveryCheck", message),
    }
}

/// The addresses of the ready endpoints in a slice that has this port.
fn addresses(slice: &Value, port_name: &str) -> Vec<String> {
    let ports = slice["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
    let named = ports.iter().find(|port| port["name"].as_str().unwrap_or_default() == port_name);
    let Some(port) = named.and_then(|port| port["port"].as_u64()) else { return Vec::new() };
    let endpoints = slice["endpoints"].as_array().map(Vec::as_slice).unwrap_or_default();
    let ready = endpoints.iter().filter(|endpoint| endpoint["conditions"]["ready"] != false);
    ready.filter_map(|endpoint| endpoint["addresses"][0].as_str()).map(|address| joined(address, port)).collect()
}

fn joined(address: &str, port: u64) -> String {
    if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregator::api_service::Verification;
    use serde_json::json;

    fn check(service: Option<Value>, slices: &[Value], expected: Result<&[&str], (&str, &str)>) {
        let verification = Verification::Skip;
        let spec = BackendSpec { namespace: "n".into(), name: "s".into(), port: 443, verification };
        let observed = Observation { service, slices: slices.to_vec() };
        let expected = match expected {
            Ok(addresses) => Location::At(addresses.iter().map(|address| address.to_string()).collect()),
            Err((reason, message)) => Location::Nowhere(Condition::new("False", reason, message.into())),
        };
        assert_eq!(locate(&spec, &observed), expected);
    }

    fn service(ports: Value) -> Option<Value> {
        Some(json!({"spec": {"type": "ClusterIP", "ports": ports}}))
    }

    fn slice(port_name: &str, endpoints: Value) -> Value {
        json!({"ports": [{"name": port_name, "port": 8443}], "endpoints": endpoints})
    }

    #[test]
    fn the_reasons_and_messages_are_those_of_kubernetes() {
        let https = || service(json!([{"name": "https", "port": 443}]));
        check(None, &[], Err(("ServiceNotFound", "service/s in \"n\" is not present")));
        let other = service(json!([{"name": "https", "port": 80}]));
        check(other, &[], Err(("ServicePortError", "service/s in \"n\" is not listening on port 443")));
        check(https(), &[], Err(("EndpointsNotFound", "cannot find endpointslices for service/s in \"n\"")));
        let missing = "endpointslices for service/s in \"n\" have no addresses with port name \"https\"";
        let ready = json!([{"addresses": ["10.0.0.1"]}]);
        check(https(), &[slice("http", ready)], Err(("MissingEndpoints", missing)));
        let unready = json!([{"addresses": ["10.0.0.1"], "conditions": {"ready": false}}]);
        check(https(), &[slice("https", unready)], Err(("MissingEndpoints", missing)));
    }

    #[test]
    fn the_ready_endpoints_of_all_slices_are_found() {
        let https = || service(json!([{"name": "https", "port": 443}]));
        let one = slice(
            "https",
            json!([
                {"addresses": ["10.0.0.2"], "conditions": {"ready": true}},
                {"addresses": ["10.0.0.9"], "conditions": {"ready": false}},
                {"addresses": ["10.0.0.1"]},
            ]),
        );
        let other = slice("https", json!([{"addresses": ["fd00::1"], "conditions": {}}]));
        check(https(), &[one, other], Ok(&["10.0.0.1:8443", "10.0.0.2:8443", "[fd00::1]:8443"]));
        let unnamed = json!({"ports": [{"port": 8443}], "endpoints": [{"addresses": ["10.0.0.1"]}]});
        check(service(json!([{"port": 443}])), &[unnamed], Ok(&["10.0.0.1:8443"]));
        let external = json!({"spec": {"type": "ExternalName", "externalName": "api.example.com"}});
        check(Some(external), &[], Ok(&["api.example.com:443"]));
    }

    #[test]
    fn a_condition_becomes_unknown_only_when_the_store_cannot_be_read_for_long() {
        let (passed, unknown) = (checked(Ok(())), Condition::new("Unknown", "EndpointsAccessError", String::new()));
        let check = |before: Option<&Condition>, seconds: u64, expected: &Condition| {
            let since = Duration::from_secs(seconds);
            assert_eq!(while_unreadable(before.cloned(), since, unknown.clone()), *expected, "{seconds}");
        };
        check(Some(&passed), 0, &passed);
        check(Some(&passed), 29, &passed);
        check(Some(&passed), 30, &unknown);
        check(None, 0, &unknown);
    }
}
