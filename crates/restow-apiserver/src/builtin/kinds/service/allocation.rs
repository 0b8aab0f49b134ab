//! ClusterIP and node port allocation: each address and each port belongs to one Service at a time.
//!
//! A key in the store names the Service that has an address or a port. The transaction that writes a Service also writes the
//! keys of what it takes and deletes those of what it releases ([`key_changes`]). It compares that nobody has written these
//! keys since they were read ([`allocate`]), so two Services cannot take the same at once. A key is ignored when its Service
//! does not have the address or port, as earlier versions left such keys.

use crate::core::Core;
use crate::error::ApiError;
use crate::request::Request;
use crate::resource::ObjectRef;
use rand::Rng;
use restow_api::GroupVersion;
use restow_apimachinery::field::FieldError;
use restow_apimachinery::object::Object;
use restow_store::{Compare, Entry, Key, Mutation, Put, RangeRequest, Revision, StoreExt, Txn};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::Ipv4Addr;

/// The first address of the range 10.96.0.0/12, and the number of addresses.
const FIRST: u32 = 0x0a60_0000;
const COUNT: u32 = 1 << 20;
/// The first address that is allocated dynamically; lower ones are for Services that set one.
const FIRST_DYNAMIC: u32 = 256;
const NODE_PORTS: std::ops::RangeInclusive<i64> = 30_000..=32_767;
/// The number of random candidates.
const ATTEMPTS: usize = 64;
/// The maximum number of addresses and ports that a Service can take in one transaction, which compares each of them.
const MAX_CLAIMS: usize = 100;

/// An address or port that only one Service at a time can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Claim {
    Address(Ipv4Addr),
    Port(i64),
}

/// Allocates the addresses and ports that a Service needs and does not have. Returns the conditions of its transaction;
/// if they fail, allocate again. The Service keeps the allocations of `old`.
pub(crate) async fn allocate(
    core: &Core,
    call: &Request,
    object: &mut Object,
    old: Option<&Object>,
) -> Result<Vec<Compare>, ApiError> {
    let kind = object.text(&["spec", "type"]).to_string();
    if kind == "ExternalName" {
        return Ok(Vec::new());
    }
    let mut claims =
        Claims { core, call, owner: owner(object), own: old.map(held).unwrap_or_default(), seen: Vec::new() };
    let mut spec = object.get("spec").cloned().unwrap_or_default();
    let address = match spec["clusterIP"].as_str().unwrap_or_default() {
        "" => free_address(&mut claims).await?,
        "None" => "None".to_string(),
        wanted => wanted_address(&mut claims, object, wanted).await?,
    };
    spec["clusterIP"] = address.as_str().into();
    spec["clusterIPs"] = json!([address]);
    // The endpoints of a headless Service without a selector may be of either family.
    let by_hand = address == "None" && spec["selector"].as_object().is_none_or(serde_json::Map::is_empty);
    if spec["ipFamilyPolicy"].is_null() {
        let dual = by_hand && spec["ipFamilies"].is_null();
        spec["ipFamilyPolicy"] = if dual { "RequireDualStack" } else { "SingleStack" }.into();
    }
    if spec["ipFamilies"].is_null() {
        let dual = spec["ipFamilyPolicy"] != "SingleStack" && address == "None";
        spec["ipFamilies"] = if dual { json!(["IPv4", "IPv6"]) } else { json!(["IPv4"]) };
    }
    allocate_ports(&mut claims, object, &kind, &mut spec).await?;
    object.set("spec", Some(spec));
    claims.conditions(object)
}

async fn allocate_ports(
    claims: &mut Claims<'_>,
    object: &Object,
    kind: &str,
    spec: &mut Value,
) -> Result<(), ApiError> {
    let needs_ports = kind == "NodePort" || (kind == "LoadBalancer" && spec["allocateLoadBalancerNodePorts"] != false);
    let ports = spec.get_mut("ports").and_then(Value::as_array_mut);
    for (index, port) in ports.into_iter().flatten().enumerate() {
        match port["nodePort"].as_i64().unwrap_or_default() {
            0 if needs_ports => port["nodePort"] = free_port(claims).await?.into(),
            0 => {}
            wanted => wanted_port(claims, object, index, wanted).await?,
        }
    }
    Ok(())
}

/// The keys that change with a Service: those that it takes and those that it releases.
pub(super) fn key_changes(old: Option<&Object>, new: Option<&Object>) -> Vec<Mutation> {
    let (before, after) = (old.map(held).unwrap_or_default(), new.map(held).unwrap_or_default());
    let put = |key: Key, owner: &str| Mutation::Put(Put { key, value: owner.to_string().into(), time_to_live: None });
    let owner = new.map(owner).unwrap_or_default();
    let taken = after.difference(&before).filter_map(|claim| Some(put(claim.key().ok()?, &owner)));
    let released = before.difference(&after).filter_map(|claim| Some(Mutation::Delete(claim.key().ok()?)));
    released.chain(taken).collect()
}

async fn free_address(claims: &mut Claims<'_>) -> Result<String, ApiError> {
    for _ in 0..ATTEMPTS {
        let address = Ipv4Addr::from(FIRST + restow_host::random().random_range(FIRST_DYNAMIC..COUNT - 1));
        if claims.take(Claim::Address(address)).await? {
            return Ok(address.to_string());
        }
    }
    Err(ApiError::Internal("no free address was found in 10.96.0.0/12".into()))
}

async fn wanted_address(claims: &mut Claims<'_>, object: &Object, wanted: &str) -> Result<String, ApiError> {
    let call = claims.call;
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
    match claims.take(Claim::Address(parsed)).await? {
        true => Ok(wanted.to_string()),
        false => Err(refused(format!("failed to allocate IP {wanted}: provided IP is already allocated"))),
    }
}

async fn free_port(claims: &mut Claims<'_>) -> Result<i64, ApiError> {
    for _ in 0..ATTEMPTS {
        let port = restow_host::random().random_range(NODE_PORTS);
        if claims.take(Claim::Port(port)).await? {
            return Ok(port);
        }
    }
    Err(ApiError::Internal("no free node port was found".into()))
}

async fn wanted_port(claims: &mut Claims<'_>, object: &Object, index: usize, wanted: i64) -> Result<(), ApiError> {
    let (first, last) = NODE_PORTS.into_inner();
    let problem = match () {
        () if !NODE_PORTS.contains(&wanted) => {
            format!("provided port is not in the valid range. The range of valid ports is {first}-{last}")
        }
        () if claims.take(Claim::Port(wanted)).await? => return Ok(()),
        () => "provided port is already allocated".to_string(),
    };
    let field = format!("spec.ports[{index}].nodePort");
    Err(claims.call.invalid(object.name(), vec![FieldError::invalid(field, &wanted.into(), problem)]))
}

/// The addresses and ports of a Service.
fn held(service: &Object) -> BTreeSet<Claim> {
    let address = service.text(&["spec", "clusterIP"]).parse().ok().map(Claim::Address);
    let ports = service.at(&["spec", "ports"]).and_then(Value::as_array);
    let ports = ports.into_iter().flatten().filter_map(|port| port["nodePort"].as_i64()).filter(|port| *port != 0);
    address.into_iter().chain(ports.map(Claim::Port)).collect()
}

/// The name of a Service in the keys.
fn owner(service: &Object) -> String {
    format!("{}/{}", service.namespace(), service.name())
}

impl Claim {
    fn key(self) -> Result<Key, ApiError> {
        let key = match self {
            Claim::Address(address) => format!("/restow/addresses/{address}"),
            Claim::Port(port) => format!("/restow/node-ports/{port}"),
        };
        Key::try_from(key).map_err(|error| ApiError::Internal(error.to_string()))
    }
}

/// The allocations of one Service in progress.
struct Claims<'a> {
    core: &'a Core,
    call: &'a Request,
    owner: String,
    /// The allocations that it has already.
    own: BTreeSet<Claim>,
    /// The new allocations, each with the revision of its key when it was read.
    seen: Vec<(Claim, Revision)>,
}

impl Claims<'_> {
    /// Takes an address or a port, unless another Service has it.
    async fn take(&mut self, claim: Claim) -> Result<bool, ApiError> {
        if self.own.contains(&claim) || self.seen.iter().any(|(known, _)| *known == claim) {
            return Ok(true);
        }
        let current = self.core.objects().store().get(&claim.key()?).await?;
        if let Some(entry) = &current
            && let Some(holder) = holder(self.core, entry).await?
            && owner(&holder) != self.owner
            && held(&holder).contains(&claim)
        {
            return Ok(false);
        }
        self.seen.push((claim, current.map_or(Revision::ZERO, |entry| entry.mod_revision)));
        Ok(true)
    }

    /// The conditions of the transaction that writes the Service.
    fn conditions(&self, object: &Object) -> Result<Vec<Compare>, ApiError> {
        if self.seen.len() > MAX_CLAIMS {
            let problem = format!("must not take more than {MAX_CLAIMS} node ports at once; add them in several steps");
            let problem = FieldError::invalid("spec.ports", &self.seen.len().into(), problem);
            return Err(self.call.invalid(object.name(), vec![problem]));
        }
        let compare = |(claim, revision): &(Claim, Revision)| Ok(Compare::mod_revision(&claim.key()?, *revision));
        self.seen.iter().map(compare).collect()
    }
}

/// The Service in a key's value, if it exists.
async fn holder(core: &Core, entry: &Entry) -> Result<Option<Object>, ApiError> {
    let owner = String::from_utf8_lossy(&entry.value).to_string();
    let (namespace, name) = owner.split_once('/').unwrap_or_default();
    let version = GroupVersion::new("", "v1").map_err(|error| ApiError::Internal(error.to_string()))?;
    let registry = core.registry();
    let Some(resource) = registry.find(&version, "services").filter(|_| !name.is_empty()) else { return Ok(None) };
    let object_ref = ObjectRef { resource, version: &version, namespace, name };
    match core.objects().get(object_ref).await? {
        Some(entry) => Ok(Some(resource.decode(&entry, &version).await?)),
        None => Ok(None),
    }
}

/// The conditions for a Service that this server creates itself. An error names the Service that has the address or
/// port.
pub(crate) async fn claim(core: &Core, service: &Object) -> Result<Vec<Compare>, ApiError> {
    let mut conditions = Vec::new();
    for claim in held(service) {
        let key = claim.key()?;
        let current = core.objects().store().get(&key).await?;
        if let Some(entry) = &current
            && let Some(other) = holder(core, entry).await?
            && owner(&other) != owner(service)
            && held(&other).contains(&claim)
        {
            let (own, other) = (owner(service), owner(&other));
            return Err(ApiError::Internal(format!(
                "{own} needs {claim:?}, which service {other} has; change that service"
            )));
        }
        conditions.push(Compare::mod_revision(&key, current.map_or(Revision::ZERO, |entry| entry.mod_revision)));
    }
    Ok(conditions)
}

/// Writes missing keys. Earlier versions did not write them in the same transaction, and restored stores may lack them.
pub(crate) async fn repair(core: &Core) -> Result<(), ApiError> {
    let version = GroupVersion::new("", "v1").map_err(|error| ApiError::Internal(error.to_string()))?;
    let registry = core.registry();
    let Some(resource) = registry.find(&version, "services") else { return Ok(()) };
    let Some(storage) = &resource.storage else { return Ok(()) };
    let store = core.objects().store();
    for entry in store.range(RangeRequest::new(storage.range(""))).await?.entries {
        // Reads of the Service report the error.
        let Ok(service) = resource.decode(&entry, &version).await else { continue };
        for claim in held(&service) {
            let key = claim.key()?;
            let current = store.get(&key).await?;
            if let Some(known) = &current
                && let Some(other) = holder(core, known).await?
                && held(&other).contains(&claim)
            {
                if owner(&other) != owner(&service) {
                    let services = [owner(&other), owner(&service)].join(" and ");
                    tracing::error!(services, ?claim, "two services have the same address or port; change one of them");
                }
                continue;
            }
            let revision = current.map_or(Revision::ZERO, |known| known.mod_revision);
            let txn = Txn::new()
                .when(Compare::mod_revision(&entry.key, entry.mod_revision))
                .when(Compare::mod_revision(&key, revision))
                .put(&key, owner(&service));
            // When the comparison fails, another server has written the key with the Service.
            store.txn(txn).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(address: &str, ports: &[i64]) -> Object {
        let ports: Vec<Value> = ports.iter().map(|port| json!({"port": 1, "nodePort": port})).collect();
        let metadata = json!({"namespace": "default", "name": "web"});
        Object::from_value(json!({"metadata": metadata, "spec": {"clusterIP": address, "ports": ports}})).unwrap()
    }

    #[test]
    fn the_keys_of_a_service_change_with_its_addresses_and_ports() {
        let check = |old: Option<Object>, new: Option<Object>, expected: &[&str]| {
            let told = key_changes(old.as_ref(), new.as_ref()).into_iter().map(|mutation| match mutation {
                Mutation::Put(put) => format!("+{}={}", put.key, String::from_utf8_lossy(&put.value)),
                Mutation::Delete(key) => format!("-{key}"),
            });
            let told: Vec<String> = told.map(|told| told.replace("/restow/", "").replace('"', "")).collect();
            assert_eq!(told, expected);
        };
        let first = || service("10.96.1.1", &[30_001, 30_001]);
        check(None, Some(first()), &["+addresses/10.96.1.1=default/web", "+node-ports/30001=default/web"]);
        check(Some(first()), Some(first()), &[]);
        check(
            Some(first()),
            Some(service("10.96.1.1", &[30_002, 0])),
            &["-node-ports/30001", "+node-ports/30002=default/web"],
        );
        check(Some(first()), Some(service("None", &[])), &["-addresses/10.96.1.1", "-node-ports/30001"]);
        check(Some(first()), None, &["-addresses/10.96.1.1", "-node-ports/30001"]);
    }
}
