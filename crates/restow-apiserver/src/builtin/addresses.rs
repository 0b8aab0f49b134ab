//! The addresses and node ports of services: each belongs to one service at a time.
//!
//! A key in the store says to which service an address belongs. It is taken in a transaction of its own before the
//! service is written, and whoever finds it checks whether that service still has the address, so nothing needs to be
//! given back.

use crate::error::ApiError;
use crate::field::FieldError;
use crate::object::Object;
use crate::verbs::Call;
use rand::Rng;
use restow_store::{Compare, Key, Revision, StoreExt, Txn, TxnOutcome};
use serde_json::{Value, json};
use std::net::Ipv4Addr;

/// The first address of the range, and how many there are: 10.96.0.0/12.
const FIRST: u32 = 0x0a60_0000;
const COUNT: u32 = 1 << 20;
/// The first address that is given out by itself; those below are for services that ask for them.
const FREELY: u32 = 256;
const NODE_PORTS: std::ops::RangeInclusive<i64> = 30_000..=32_767;
/// How often another is tried.
const ATTEMPTS: usize = 64;
/// What a service keeps when whoever replaces it does not name it.
const KEPT: [&str; 4] = ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"];

/// Gives a service what it needs and does not have.
pub(crate) async fn assign(call: &Call<'_>, object: &mut Object) -> Result<(), ApiError> {
    let kind = object.text(&["spec", "type"]).to_string();
    if kind == "ExternalName" {
        return Ok(());
    }
    let mut spec = object.get("spec").cloned().unwrap_or_default();
    let rehearsal = call.dry_run()?;
    let address = match spec["clusterIP"].as_str().unwrap_or_default() {
        "" => free_address(call, object, rehearsal).await?,
        "None" => "None".to_string(),
        wanted => wanted_address(call, object, wanted, rehearsal).await?,
    };
    spec["clusterIP"] = address.as_str().into();
    spec["clusterIPs"] = json!([address]);
    // Where neither the server nor a selector finds the endpoints, they may be of either family.
    let by_hand = address == "None" && spec["selector"].as_object().is_none_or(serde_json::Map::is_empty);
    if spec["ipFamilyPolicy"].is_null() {
        let dual = by_hand && spec["ipFamilies"].is_null();
        spec["ipFamilyPolicy"] = if dual { "RequireDualStack" } else { "SingleStack" }.into();
    }
    if spec["ipFamilies"].is_null() {
        let dual = spec["ipFamilyPolicy"] != "SingleStack" && address == "None";
        spec["ipFamilies"] = if dual { json!(["IPv4", "IPv6"]) } else { json!(["IPv4"]) };
    }
    assign_ports(call, object, &kind, &mut spec, rehearsal).await?;
    object.set("spec", Some(spec));
    Ok(())
}

async fn assign_ports(
    call: &Call<'_>,
    object: &Object,
    kind: &str,
    spec: &mut Value,
    rehearsal: bool,
) -> Result<(), ApiError> {
    let needs_ports = kind == "NodePort" || (kind == "LoadBalancer" && spec["allocateLoadBalancerNodePorts"] != false);
    let ports = spec.get_mut("ports").and_then(Value::as_array_mut);
    for (index, port) in ports.into_iter().flatten().enumerate() {
        match port["nodePort"].as_i64().unwrap_or_default() {
            0 if needs_ports => port["nodePort"] = free_port(call, object, rehearsal).await?.into(),
            0 => {}
            wanted => wanted_port(call, object, index, wanted, rehearsal).await?,
        }
    }
    Ok(())
}

/// Carries over what a client left out of a replacement.
pub(super) fn keep(object: &mut Object, old: &Object) {
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

async fn free_address(call: &Call<'_>, object: &Object, rehearsal: bool) -> Result<String, ApiError> {
    for _ in 0..ATTEMPTS {
        let offset = rand::rng().random_range(FREELY..COUNT - 1);
        let address = Ipv4Addr::from(FIRST + offset).to_string();
        if rehearsal || claim(call, object, "addresses", &address, is_address).await? {
            return Ok(address);
        }
    }
    Err(ApiError::Internal("no free address was found in 10.96.0.0/12".into()))
}

async fn wanted_address(call: &Call<'_>, object: &Object, wanted: &str, rehearsal: bool) -> Result<String, ApiError> {
    let refused = |detail: String| {
        call.invalid(object.name(), vec![FieldError::invalid("spec.clusterIPs", &json!([wanted]), detail)])
    };
    let Ok(parsed) = wanted.parse::<Ipv4Addr>() else {
        let detail = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
        let problem = FieldError::invalid("spec.clusterIPs[0]", &wanted.into(), detail);
        return Err(call.invalid(object.name(), vec![problem]));
    };
    if !(FIRST..FIRST + COUNT).contains(&u32::from(parsed)) {
        return Err(refused(format!(
            "failed to allocate IP {wanted}: the provided network does not match the current range"
        )));
    }
    match rehearsal || claim(call, object, "addresses", wanted, is_address).await? {
        true => Ok(wanted.to_string()),
        false => Err(refused(format!("failed to allocate IP {wanted}: provided IP is already allocated"))),
    }
}

async fn free_port(call: &Call<'_>, object: &Object, rehearsal: bool) -> Result<i64, ApiError> {
    for _ in 0..ATTEMPTS {
        let port = rand::rng().random_range(NODE_PORTS);
        if rehearsal || claim(call, object, "node-ports", &port.to_string(), is_port).await? {
            return Ok(port);
        }
    }
    Err(ApiError::Internal("no free node port was found".into()))
}

async fn wanted_port(
    call: &Call<'_>,
    object: &Object,
    index: usize,
    wanted: i64,
    rehearsal: bool,
) -> Result<(), ApiError> {
    let (first, last) = NODE_PORTS.into_inner();
    let problem = match () {
        () if !NODE_PORTS.contains(&wanted) => {
            format!("provided port is not in the valid range. The range of valid ports is {first}-{last}")
        }
        () if rehearsal || claim(call, object, "node-ports", &wanted.to_string(), is_port).await? => return Ok(()),
        () => "provided port is already allocated".to_string(),
    };
    let field = format!("spec.ports[{index}].nodePort");
    Err(call.invalid(object.name(), vec![FieldError::invalid(field, &wanted.into(), problem)]))
}

fn is_address(service: &Object, address: &str) -> bool {
    service.text(&["spec", "clusterIP"]) == address
}

fn is_port(service: &Object, port: &str) -> bool {
    let ports = service.at(&["spec", "ports"]).and_then(Value::as_array);
    ports.into_iter().flatten().filter_map(|known| known["nodePort"].as_i64()).any(|known| port.parse() == Ok(known))
}

/// Takes something for a service; `false` when another service has it.
async fn claim(
    call: &Call<'_>,
    object: &Object,
    folder: &str,
    what: &str,
    has: fn(&Object, &str) -> bool,
) -> Result<bool, ApiError> {
    let store = call.server.objects().store();
    let key =
        Key::try_from(format!("/restow/{folder}/{what}")).map_err(|error| ApiError::Internal(error.to_string()))?;
    let mine = format!("{}/{}", object.namespace(), object.name());
    let current = store.get(&key).await?;
    if let Some(entry) = &current {
        let holder = String::from_utf8_lossy(&entry.value).to_string();
        if holder == mine {
            return Ok(true);
        }
        let (namespace, name) = holder.split_once('/').unwrap_or_default();
        let place = crate::object_store::Place { namespace, ..call.place(name) };
        if let Some(entry) = call.server.objects().get(place).await?
            && has(&call.resource.decode(&entry, &call.version).await?, what)
        {
            return Ok(false);
        }
    }
    let revision = current.map_or(Revision::ZERO, |entry| entry.mod_revision);
    let txn = Txn::new().when(Compare::mod_revision(&key, revision)).put(&key, mine);
    Ok(matches!(store.txn(txn).await?, TxnOutcome::Committed { .. }))
}
