//! Which API servers there are, and which storage version all of them encode.
//!
//! A cluster shows its API servers in three ways: by their addresses (the EndpointSlices of the service `kubernetes`), by
//! their identity leases, and by the entries in StorageVersions. None of them alone is the truth: a load balancer hides
//! addresses, a lease outlives its server, a report can be left over from an earlier life. So they have to fit together,
//! and where they do not, there is no agreement.

use crate::trigger::Agreement;
use restow_api::StorageVersionHash;
use std::collections::{BTreeMap, BTreeSet};

/// The API servers that a cluster shows. What cannot be read is the reason why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiServers {
    /// Where they are, as the EndpointSlices say; those that are not ready, too.
    pub addresses: Result<BTreeSet<String>, String>,
    /// The name of each identity lease, and who holds it. The holder changes when a server of ours is started anew;
    /// kube-apiserver keeps it, so that only [`super::processes`] tells.
    pub identities: Result<BTreeMap<String, String>, String>,
    /// What else changes when a server comes or goes in an orderly way, by the name of the object: the uid of its lease, the
    /// generation of the EndpointSlice.
    pub marks: BTreeMap<String, String>,
    /// Whether all of them have to be known.
    pub wanted: Wanted,
}

/// Which servers have to be known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wanted {
    /// Every one.
    #[default]
    Every,
    /// Nobody in particular: one address is asked, and nothing is proven by that.
    WhoeverAnswers,
}

impl Default for ApiServers {
    fn default() -> Self {
        ApiServers {
            addresses: Ok(BTreeSet::new()),
            identities: Ok(BTreeMap::new()),
            marks: BTreeMap::new(),
            wanted: Wanted::Every,
        }
    }
}

impl ApiServers {
    /// Why there may be servers that cannot be asked one by one; nothing when all of them can.
    ///
    /// A lease whose server is gone counts as a server until it is removed: nobody else can tell whether that server
    /// still writes.
    pub fn hidden(&self) -> Option<String> {
        if self.wanted == Wanted::WhoeverAnswers {
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
        // An address may be that of a load balancer, so that leases alone say how many there are.
        if identities.is_empty() {
            return Some(
                "no API server holds an identity lease in \"kube-system\" (feature APIServerIdentity), so that it cannot \
                 be told how many there are"
                    .to_owned(),
            );
        }
        // A single server need not say where it is: it is the one that is spoken to.
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

    /// The servers, each as it was started, as far as leases and EndpointSlices tell; nothing where no leases can be read.
    pub fn processes(&self) -> Option<String> {
        let holders: Vec<&str> = self.identities.as_ref().ok()?.values().map(String::as_str).collect();
        let marks = self.marks.iter().map(|(name, mark)| format!(", {name} {mark}"));
        (!holders.is_empty()).then(|| holders.join(", ") + &marks.collect::<String>())
    }

    /// What has changed since `start`, in words: a server that came, went or was started anew.
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
                (Some(_), Some(_)) => Some(format!("the API server {name} was started anew")),
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
    /// This is the storage version.
    Hash(StorageVersionHash),
    /// It serves the resource and does not say how it is stored.
    NoHash,
    /// It does not serve the resource.
    NotServed,
    /// It cannot be asked, for this reason.
    CannotBeAsked(String),
}

/// How the words about a server begin that did not answer.
pub const CANNOT_BE_ASKED: &str = "cannot be asked";

/// Everything that is known about the storage version of one resource.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// Which servers there are.
    pub servers: ApiServers,
    /// What each of them says in its own discovery document.
    pub discovered: Vec<(String, Discovered)>,
    /// What each server reports in the StorageVersion: its id, its encoding version and the hash of that. Nothing where
    /// the resource is not reported.
    pub reported: Option<Vec<(String, String, StorageVersionHash)>>,
    /// The storage version that the CRD names; nothing for a resource without a CRD.
    pub defined: Option<(String, StorageVersionHash)>,
}

/// What the evidence comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Whether all servers encode the same version.
    pub agreement: Agreement,
    /// Who encodes what, for people.
    pub by_server: Vec<(String, String)>,
}

impl Evidence {
    /// Whether every API server that can write is known and encodes the same version, and whether it is the one that
    /// the CRD names.
    pub fn finding(&self) -> Finding {
        let mut said: Vec<(String, String, StorageVersionHash)> = match &self.reported {
            Some(entries) => self.by_report(entries),
            None => self.by_discovery(),
        };
        if let Some((version, hash)) = &self.defined
            && said.iter().all(|(_, _, found)| found == &said[0].2 && !found.is_unknown() && found != hash)
        {
            let words = format!("names {version} as storage version, which no API server shows yet");
            said.push(("the CRD".to_owned(), words, hash.clone()));
        }
        let mut hashes: Vec<StorageVersionHash> = Vec::new();
        for (_, _, hash) in &said {
            if !hashes.contains(hash) {
                hashes.push(hash.clone());
            }
        }
        let is_defined = |hash: &StorageVersionHash| self.defined.as_ref().is_none_or(|(_, defined)| defined == hash);
        let agreement = match hashes.as_slice() {
            [hash] if !hash.is_unknown() && is_defined(hash) => Agreement::Agreed(hash.clone()),
            _ => Agreement::Disagreed(hashes),
        };
        Finding { agreement, by_server: said.into_iter().map(|(server, words, _)| (server, words)).collect() }
    }

    /// A server that reports one version and shows another one is two servers to us. One that holds a lease and does not
    /// report can write anything.
    fn by_report(&self, entries: &[(String, String, StorageVersionHash)]) -> Vec<(String, String, StorageVersionHash)> {
        let mut said = entries.to_vec();
        let reports = |name: &String| entries.iter().any(|(id, _, _)| id == name);
        let unknown = StorageVersionHash::unknown;
        match &self.servers.identities {
            // Where no holder of a lease reports, the servers of another control plane do, such as aggregated ones.
            Ok(identities) if identities.keys().any(reports) => {
                for name in identities.keys().filter(|name| !reports(name)) {
                    said.push((name.clone(), "holds an identity lease and does not report".to_owned(), unknown()));
                }
            }
            Ok(_) => {}
            Err(why) => {
                let words = format!("cannot be told, since the identity leases cannot be read: {why}");
                said.push(("whether every API server reports".to_owned(), words, unknown()));
            }
        }
        for (server, discovered) in &self.discovered {
            if let Discovered::Hash(hash) = discovered
                && entries.iter().all(|(_, _, reported)| reported != hash)
            {
                said.push((server.clone(), format!("shows {hash} in its discovery"), hash.clone()));
            }
        }
        said
    }

    fn by_discovery(&self) -> Vec<(String, String, StorageVersionHash)> {
        let words = |discovered: &Discovered| match discovered {
            Discovered::Hash(hash) => (hash.to_string(), hash.clone()),
            Discovered::NoHash => ("does not say".to_owned(), StorageVersionHash::unknown()),
            Discovered::NotServed => ("does not serve it".to_owned(), StorageVersionHash::unknown()),
            Discovered::CannotBeAsked(why) => (format!("{CANNOT_BE_ASKED}: {why}"), StorageVersionHash::unknown()),
        };
        let mut said: Vec<(String, String, StorageVersionHash)> = Vec::new();
        for (server, discovered) in &self.discovered {
            let (words, hash) = words(discovered);
            said.push((server.clone(), words, hash));
        }
        if let Some(why) = self.servers.hidden() {
            let words = format!("{CANNOT_BE_ASKED}: {why}");
            said.push(("other API servers".to_owned(), words, StorageVersionHash::unknown()));
        }
        said
    }
}

#[cfg(test)]
#[path = "api_servers/tests.rs"]
mod tests;
