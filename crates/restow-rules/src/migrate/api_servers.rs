//! Which API servers exist, and which storage version all of them encode.
//!
//! A cluster shows its API servers in three ways: by their addresses (the EndpointSlices of the service `kubernetes`), by
//! their identity leases, and by the entries in StorageVersions. None of them is sufficient: a load balancer hides
//! addresses, a lease outlives its server, an entry can be left over from before a restart. So they have to be consistent,
//! else there is no agreement.

use super::aggregation::{AggregatedGroup, AggregatedServer, ServedBy};
use crate::trigger::EncodingAgreement;
use restow_api::StorageVersionHash;
use std::collections::{BTreeMap, BTreeSet};

/// The label on an identity lease whose server writes under a fence. Only the reports of such servers are sufficient: the
/// report of any other server says nothing about writes that were in flight before it or after a pause.
pub const FENCED_WRITES_LABEL: &str = "restow.dev/fenced-writes";

/// The API servers of a cluster. If something cannot be read, the reason is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiServers {
    /// Their addresses, from the EndpointSlices, including those that are not ready.
    pub addresses: Result<BTreeSet<String>, String>,
    /// The name of each identity lease, and its holder. The holder changes when a Restow API server restarts;
    /// kube-apiserver keeps it, so only [`super::processes`] notices.
    pub identities: Result<BTreeMap<String, String>, String>,
    /// The leases whose servers report before they write, and cannot write once the lease is deleted
    /// ([`FENCED_WRITES_LABEL`]).
    pub fenced: BTreeSet<String>,
    /// The aggregated API servers, by the names of their identity leases.
    pub aggregated: BTreeMap<String, AggregatedServer>,
    /// What else changes when a server joins or leaves gracefully, by the name of the object: the uid of its lease, the
    /// generation of the EndpointSlice.
    pub marks: BTreeMap<String, String>,
    /// Whether all of them have to be known.
    pub required: RequiredServers,
}

/// Which servers have to be known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequiredServers {
    /// Every one.
    #[default]
    All,
    /// No particular one: a single address is queried, and nothing is proven.
    Any,
}

impl Default for ApiServers {
    fn default() -> Self {
        ApiServers {
            addresses: Ok(BTreeSet::new()),
            identities: Ok(BTreeMap::new()),
            fenced: BTreeSet::new(),
            aggregated: BTreeMap::new(),
            marks: BTreeMap::new(),
            required: RequiredServers::All,
        }
    }
}

impl ApiServers {
    /// Why there may be servers that cannot be queried one by one; `None` if all can.
    ///
    /// A lease whose server is gone counts as a server until it is deleted: nobody knows whether that server still writes.
    pub fn unreachable_servers(&self) -> Option<String> {
        if self.required == RequiredServers::Any {
            return None;
        }
        let addresses = match &self.addresses {
            Ok(addresses) => addresses,
            Err(why) => {
                return Some(format!("the EndpointSlices of the service \"kubernetes\" cannot be read: {why}"));
            }
        };
        let identities = match &self.identities {
            Ok(identities) => identities,
            Err(why) => return Some(format!("the identity leases in \"kube-system\" cannot be read: {why}")),
        };
        // An address may be that of a load balancer, so only leases show the number of servers.
        if identities.is_empty() {
            return Some(
                "no API server holds an identity lease in \"kube-system\" (feature APIServerIdentity), so that it cannot \
                 be told how many there are"
                    .to_owned(),
            );
        }
        // A single server needs no endpoint: it is the one that answers.
        if identities.len() <= addresses.len().max(1) {
            return None;
        }
        let names: Vec<&str> = identities.keys().map(String::as_str).collect();
        Some(format!(
            "{} API servers hold identity leases in \"kube-system\" ({}), but the EndpointSlices of the service \
             \"kubernetes\" name {} of them; delete the Lease of a server that is gone for good",
            names.len(),
            names.join(", "),
            addresses.len(),
        ))
    }

    /// Why there may be servers without an identity lease; `None` when each address has one.
    fn servers_without_lease(&self) -> Option<String> {
        let (addresses, identities) = match (&self.addresses, &self.identities) {
            (Ok(addresses), Ok(identities)) => (addresses, identities),
            (Err(why), _) => {
                return Some(format!("the EndpointSlices of the service \"kubernetes\" cannot be read: {why}"));
            }
            (_, Err(why)) => return Some(format!("the identity leases in \"kube-system\" cannot be read: {why}")),
        };
        let is_covered = self.required == RequiredServers::Any || addresses.len() <= identities.len();
        (!is_covered).then(|| {
            let names = |names: Vec<&String>| names.into_iter().cloned().collect::<Vec<_>>().join(", ");
            format!(
                "the EndpointSlices of the service \"kubernetes\" name {} API servers ({}), but {} of them hold identity \
                 leases in \"kube-system\" ({})",
                addresses.len(),
                names(addresses.iter().collect()),
                identities.len(),
                names(identities.keys().collect()),
            )
        })
    }

    /// The servers, each as it was started, as far as leases and EndpointSlices show; `None` if leases cannot be read.
    pub fn processes(&self) -> Option<String> {
        let holders: Vec<&str> = self.identities.as_ref().ok()?.values().map(String::as_str).collect();
        let marks = self.marks.iter().map(|(name, mark)| format!(", {name} {mark}"));
        (!holders.is_empty()).then(|| holders.join(", ") + &marks.collect::<String>())
    }

    /// What has changed since `start`: a server that joined, left or was restarted.
    pub fn change_since(&self, start: &ApiServers) -> Option<String> {
        if let (Ok(before), Ok(after)) = (&start.addresses, &self.addresses)
            && before != after
        {
            return Some(format!("the addresses of the API servers were {before:?}, and now are {after:?}"));
        }
        let (Ok(before), Ok(after)) = (&start.identities, &self.identities) else { return None };
        let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        names
            .into_iter()
            .find_map(|name| match (before.get(name), after.get(name)) {
                (Some(holder), Some(now)) if holder == now => None,
                (Some(_), Some(_)) => Some(format!("the API server {name} was restarted")),
                (None, _) => Some(format!("the API server {name} has joined")),
                (Some(_), None) => Some(format!("the API server {name} has left")),
            })
            .or_else(|| {
                let names: BTreeSet<&String> = start.marks.keys().chain(self.marks.keys()).collect();
                let changed = names.into_iter().find(|name| start.marks.get(*name) != self.marks.get(*name))?;
                Some(format!("an API server came or went: the {changed} was changed"))
            })
    }
}

/// What one server's own discovery document says about a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Discovered {
    /// The storage version.
    Hash(StorageVersionHash),
    /// It serves the resource and does not publish the storage version.
    NoHash,
    /// It does not serve the resource.
    NotServed,
    /// It cannot be queried.
    Unreachable(String),
}

/// The prefix of the message about a server that did not answer.
pub const CANNOT_BE_QUERIED: &str = "cannot be queried";

/// Everything that is known about the storage version of one resource.
#[derive(Clone, Debug)]
pub struct ServerEvidence {
    /// Which servers there are.
    pub servers: ApiServers,
    /// Whether these are the servers that serve it.
    pub served_by: ServedBy,
    /// The discovery document of each of them.
    pub discovered: Vec<(String, Discovered)>,
    /// The entries of the StorageVersion: the server, its encoding version and the hash. `None` if the resource is not
    /// reported.
    pub reported: Option<Vec<ServerVersion>>,
    /// Whether the StorageVersion has a common encoding version. If not, the API servers themselves do not consider this an
    /// agreement.
    pub has_common_version: bool,
    /// The storage version that the CRD names; `None` for a resource without a CRD.
    pub defined: Option<(String, StorageVersionHash)>,
}

/// A server, what it stores for display, and the hash of the storage version.
pub type ServerVersion = (String, String, StorageVersionHash);

/// The result of the evidence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFinding {
    /// Whether all servers encode the same version.
    pub agreement: EncodingAgreement,
    /// What each server encodes, for display.
    pub by_server: Vec<(String, String)>,
    /// Whether fenced reports show it. Else nothing is proven before the settling time has passed, and only if the same
    /// processes answer at the end.
    pub is_fenced: bool,
    /// What must not change until the end, by the name of the object, if aggregated API servers serve the resource.
    pub marks: BTreeMap<String, String>,
}

impl Default for ServerEvidence {
    fn default() -> Self {
        ServerEvidence {
            servers: ApiServers::default(),
            served_by: ServedBy::ApiServers,
            discovered: Vec::new(),
            reported: None,
            has_common_version: true,
            defined: None,
        }
    }
}

impl ServerEvidence {
    /// Whether every API server that can write is known and encodes the same version, which has to be that of the CRD.
    pub fn evaluate(&self) -> ServerFinding {
        let entries = self.reported.as_deref().unwrap_or_default();
        let (mut said, is_fenced, marks) = match &self.served_by {
            ServedBy::Aggregated(group) if self.servers.required == RequiredServers::All => {
                let (said, is_fenced) = self.by_aggregated_servers(group, entries);
                (said, is_fenced, group.marks(&self.servers, entries))
            }
            _ => {
                let (said, is_fenced) = self.by_api_servers(entries);
                (said, is_fenced, BTreeMap::new())
            }
        };
        if let Some((version, hash)) = &self.defined
            && said.iter().all(|(_, _, found)| found == &said[0].2 && !found.is_unknown() && found != hash)
        {
            let words = format!("names {version} as storage version, which no API server shows yet");
            said.push(("the CRD".to_owned(), words, hash.clone()));
        }
        let agreement = self.agreement(&said);
        let by_server = said.into_iter().map(|(server, words, _)| (server, words)).collect();
        ServerFinding { agreement, by_server, is_fenced, marks }
    }

    /// Whether everything that was said names the same version, which has to be that of the CRD.
    fn agreement(&self, said: &[ServerVersion]) -> EncodingAgreement {
        let mut hashes: Vec<StorageVersionHash> = Vec::new();
        for (_, _, hash) in said {
            if !hashes.contains(hash) {
                hashes.push(hash.clone());
            }
        }
        let is_defined = |hash: &StorageVersionHash| self.defined.as_ref().is_none_or(|(_, defined)| defined == hash);
        match hashes.as_slice() {
            [hash] if !hash.is_unknown() && is_defined(hash) => EncodingAgreement::Agreed(hash.clone()),
            _ => EncodingAgreement::Disagreed(hashes),
        }
    }

    /// What the API servers themselves say, and whether their reports are sufficient.
    fn by_api_servers(&self, entries: &[ServerVersion]) -> (Vec<ServerVersion>, bool) {
        let is_fenced = self.is_fenced();
        let mut said = if self.reported.is_some() { self.by_report(entries) } else { Vec::new() };
        said.extend(if is_fenced { self.discovery_mismatches(entries) } else { self.by_discovery() });
        if let ServedBy::Unknown(words) = &self.served_by
            && self.servers.required == RequiredServers::All
        {
            let words = format!("may serve it: {words}");
            said.push(("aggregated API servers".to_owned(), words, StorageVersionHash::unknown()));
        }
        (said, is_fenced)
    }

    /// What aggregated API servers report, and whether that is sufficient. Nothing else is: a discovery document shows what one
    /// of them stores, and it is unknown which.
    fn by_aggregated_servers(&self, group: &AggregatedGroup, entries: &[ServerVersion]) -> (Vec<ServerVersion>, bool) {
        let mut said = group.evaluate(&self.servers, entries);
        let is_fenced = said.len() == entries.len();
        said.extend(self.without_common_version().filter(|_| !entries.is_empty()));
        said.extend(self.discovery_mismatches(entries));
        let silent = self.discovered.iter().filter(|(_, discovered)| *discovered == Discovered::NoHash);
        said.extend(silent.map(|(server, _)| {
            let words = "shows no storageVersionHash in its discovery".to_owned();
            (server.clone(), words, StorageVersionHash::unknown())
        }));
        if self.defined.is_some() {
            let words = "defines it too, so there may be objects that no aggregated API server can read".to_owned();
            said.push(("a CRD".to_owned(), words, StorageVersionHash::unknown()));
        }
        (said, is_fenced)
    }

    /// Whether reports are sufficient: every entry belongs to an API server whose writes are fenced.
    fn is_fenced(&self) -> bool {
        let is_fenced = |(id, _, _): &ServerVersion| {
            self.servers.fenced.contains(id) && self.servers.identities.as_ref().is_ok_and(|all| all.contains_key(id))
        };
        self.reported.as_ref().is_some_and(|entries| !entries.is_empty() && entries.iter().all(is_fenced))
    }

    /// The API servers do not consider the reports an agreement.
    fn without_common_version(&self) -> Option<ServerVersion> {
        let words = "has no commonEncodingVersion".to_owned();
        (!self.has_common_version).then(|| ("the StorageVersion".to_owned(), words, StorageVersionHash::unknown()))
    }

    /// A server with a lease and without an entry can write anything, and so can one with an address and without a lease.
    fn by_report(&self, entries: &[ServerVersion]) -> Vec<ServerVersion> {
        let mut said = entries.to_vec();
        let reports = |name: &String| entries.iter().any(|(id, _, _)| id == name);
        let unknown = StorageVersionHash::unknown;
        match &self.servers.identities {
            // If no holder of a lease reports, the entries belong to another control plane, such as aggregated servers.
            Ok(identities) if identities.keys().any(reports) => {
                for name in identities.keys().filter(|name| !reports(name)) {
                    said.push((name.clone(), "holds an identity lease and does not report".to_owned(), unknown()));
                }
            }
            _ => {}
        }
        said.extend(self.without_common_version());
        if let Some(why) = self.servers.servers_without_lease() {
            said.push(("whether every API server reports".to_owned(), format!("cannot be told: {why}"), unknown()));
        }
        said
    }

    /// A server that reports one version and shows another in discovery counts as two.
    fn discovery_mismatches(&self, entries: &[ServerVersion]) -> Vec<ServerVersion> {
        let is_reported = |hash: &StorageVersionHash| entries.iter().any(|(_, _, reported)| reported == hash);
        let otherwise = self.discovered.iter().filter_map(|(server, discovered)| match discovered {
            Discovered::Hash(hash) if !is_reported(hash) => {
                Some((server.clone(), format!("shows {hash} in its discovery"), hash.clone()))
            }
            _ => None,
        });
        otherwise.collect()
    }

    fn by_discovery(&self) -> Vec<ServerVersion> {
        let words = |discovered: &Discovered| match discovered {
            Discovered::Hash(hash) => (hash.to_string(), hash.clone()),
            Discovered::NoHash => ("does not say".to_owned(), StorageVersionHash::unknown()),
            Discovered::NotServed => ("does not serve it".to_owned(), StorageVersionHash::unknown()),
            Discovered::Unreachable(why) => (format!("{CANNOT_BE_QUERIED}: {why}"), StorageVersionHash::unknown()),
        };
        let mut said: Vec<ServerVersion> = Vec::new();
        for (server, discovered) in &self.discovered {
            let (words, hash) = words(discovered);
            said.push((server.clone(), words, hash));
        }
        if let Some(why) = self.servers.unreachable_servers() {
            let words = format!("{CANNOT_BE_QUERIED}: {why}");
            said.push(("other API servers".to_owned(), words, StorageVersionHash::unknown()));
        }
        said
    }
}

#[cfg(test)]
#[path = "api_servers/tests.rs"]
mod tests;
