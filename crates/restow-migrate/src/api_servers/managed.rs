//! Which resources can be managed at all.
//!
//! Most aggregated API servers do not publish the storage versions of their resources. They keep the objects in a store of
//! their own, and nothing can be proven about them. That is not a disagreement, because it never ends. The same applies to
//! aggregated servers that do publish them: one of them answers, and how many there are is unknown.

use super::Observation;
use restow_api::GroupResource;
use restow_api::internal_apiserver::StorageVersion;
use restow_rules::migrate::aggregation::ServedBy;
use restow_rules::migrate::api_servers::RequiredServers;

impl Observation {
    /// Whether the storage version of a resource is published: in a server's discovery document, in the servers' reports,
    /// or in its CRD. If a server cannot be queried, it may be the one that publishes it.
    ///
    /// Resources of aggregated API servers are not managed, unless nothing is going to be proven anyway.
    pub fn is_managed(&self, name: &GroupResource, has_crd: bool) -> bool {
        if self.aggregated(name).is_some() {
            return false;
        }
        let is_reported = self
            .reported
            .get(&StorageVersion::name_for(name))
            .is_some_and(|report| !report.status.storage_versions.is_empty());
        let is_told =
            self.answered().filter_map(|(_, discovery)| discovery.resources.get(name)).any(|one| one.hash.is_some());
        has_crd || is_reported || is_told
    }

    /// Which aggregated API servers serve a resource, as text; `None` where none do.
    pub fn aggregated(&self, name: &GroupResource) -> Option<String> {
        match self.aggregation.of_group(name.group()) {
            ServedBy::Aggregated(words) if self.servers.required == RequiredServers::All => Some(words),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discovery::{Discovery, StoredResource};
    use restow_api::StorageVersionHash;
    use restow_rules::migrate::aggregation::{AggregatedService, Aggregation};
    use restow_rules::migrate::api_servers::ApiServers;
    use std::collections::BTreeMap;

    fn discovery(hash: Option<&str>) -> Discovery {
        let resource = StoredResource {
            resource: "networkpolicies.v3.projectcalico.org".parse().unwrap(),
            kind: "NetworkPolicy".into(),
            is_namespaced: true,
            hash: hash.map(StorageVersionHash::new),
        };
        let resources = BTreeMap::from([(resource.resource.group_resource(), resource)]);
        Discovery { resources, ..Discovery::default() }
    }

    #[test]
    fn a_resource_that_no_server_gives_a_hash_of_is_not_managed() {
        let name: GroupResource = "networkpolicies.projectcalico.org".parse().unwrap();
        let observation = |hashes: &[Option<&str>]| Observation {
            instances: Vec::new(),
            servers: Default::default(),
            discoveries: hashes.iter().map(|hash| ("a".to_owned(), Ok(discovery(*hash)))).collect(),
            reported: BTreeMap::new(),
            aggregation: Aggregation::default(),
        };
        assert!(!observation(&[None, None]).is_managed(&name, false));
        assert!(observation(&[None, Some("x=")]).is_managed(&name, false), "they disagree, which is something else");
        assert!(observation(&[None]).is_managed(&name, true), "a CRD whose storage version is not served");
        let passed_on = AggregatedService { api_service: "v3.projectcalico.org".into(), service: "calico/api".into() };
        let aggregation = Aggregation(Ok(BTreeMap::from([("projectcalico.org".to_owned(), passed_on)])));
        let aggregated = Observation { aggregation, ..observation(&[Some("x=")]) };
        assert!(!aggregated.is_managed(&name, true), "whatever they show");
        let one = ApiServers { required: RequiredServers::Any, ..ApiServers::default() };
        assert!(Observation { servers: one, ..aggregated }.is_managed(&name, false));
    }

    #[test]
    fn a_resource_that_servers_report_is_managed_whatever_discovery_says() {
        let name: GroupResource = "networkpolicies.projectcalico.org".parse().unwrap();
        let entry = serde_json::json!({"apiServerID": "a", "encodingVersion": "projectcalico.org/v3"});
        for (entries, expected) in [(vec![entry], true), (vec![], false)] {
            let report = serde_json::from_value(serde_json::json!({
                "metadata": {"name": "projectcalico.org.networkpolicies"}, "status": {"storageVersions": entries},
            }));
            let observation = Observation {
                instances: Vec::new(),
                servers: Default::default(),
                discoveries: vec![("a".to_owned(), Ok(discovery(None)))],
                reported: BTreeMap::from([(StorageVersion::name_for(&name), report.unwrap())]),
                aggregation: Aggregation::default(),
            };
            assert_eq!(observation.is_managed(&name, false), expected);
        }
    }
}
