//! Which resources can be managed at all.
//!
//! Most aggregated API servers do not publish or report the storage versions of their resources. They keep the objects in a
//! store of their own, and nothing can be proven about them. That is not a disagreement, because it never ends.

use super::Observation;
use restow_api::GroupResource;
use restow_api::internal_apiserver::StorageVersion;
use restow_rules::migrate::aggregation::{AggregatedGroup, ServedBy};
use restow_rules::migrate::api_servers::RequiredServers;

impl Observation {
    /// Whether the storage version of a resource is published: in a server's discovery document, in the servers' reports,
    /// or in its CRD. If a server cannot be queried, it may be the one that publishes it.
    pub fn is_managed(&self, name: &GroupResource, has_crd: bool) -> bool {
        self.not_managed_because(name, has_crd).is_none()
    }

    /// Why a resource is not managed, as a sentence about its API servers; `None` if it is managed.
    ///
    /// Resources of aggregated API servers are managed if these servers report what they store, or if nothing is going to be
    /// proven anyway.
    pub fn not_managed_because(&self, name: &GroupResource, has_crd: bool) -> Option<String> {
        if let Some(group) = self.aggregated_group(name) {
            let described = group.describe();
            return match (self.is_reported(name), has_crd) {
                (false, _) => Some(format!(
                    "{described}, and the API servers behind it cannot be queried one by one and do not report what they store"
                )),
                (true, true) => Some(format!("{described}, and a CRD defines it too")),
                (true, false) if self.shows_no_hash(name) => {
                    Some(format!("{described}, and the API servers behind it do not publish the storageVersionHash"))
                }
                (true, false) => None,
            };
        }
        let is_told = self.hashes(name).any(|has_hash| has_hash);
        let is_managed = has_crd || self.is_reported(name) || is_told;
        (!is_managed).then(|| "their API servers do not publish the storage version".to_owned())
    }

    /// Which aggregated API servers serve a resource, as text; `None` where none do.
    pub fn aggregated(&self, name: &GroupResource) -> Option<String> {
        self.aggregated_group(name).map(|group| group.describe())
    }

    fn aggregated_group(&self, name: &GroupResource) -> Option<AggregatedGroup> {
        match self.aggregation.of_group(name.group()) {
            ServedBy::Aggregated(group) if self.servers.required == RequiredServers::All => Some(group),
            _ => None,
        }
    }

    fn is_reported(&self, name: &GroupResource) -> bool {
        let report = self.reported.get(&StorageVersion::name_for(name));
        report.is_some_and(|report| !report.status.storage_versions.is_empty())
    }

    /// Whether some server shows the resource, and none shows its hash.
    fn shows_no_hash(&self, name: &GroupResource) -> bool {
        self.hashes(name).next().is_some() && !self.hashes(name).any(|has_hash| has_hash)
    }

    /// Whether there is a hash, for each server that shows the resource.
    fn hashes(&self, name: &GroupResource) -> impl Iterator<Item = bool> {
        self.answered().filter_map(|(_, discovery)| discovery.resources.get(name)).map(|found| found.hash.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discovery::{Discovery, StoredResource};
    use restow_api::StorageVersionHash;
    use restow_rules::migrate::aggregation::Aggregation;
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

    fn observation(hashes: &[Option<&str>]) -> Observation {
        Observation {
            instances: Vec::new(),
            servers: Default::default(),
            discoveries: hashes.iter().map(|hash| ("a".to_owned(), Ok(discovery(*hash)))).collect(),
            reported: BTreeMap::new(),
            aggregation: Aggregation::default(),
        }
    }

    #[test]
    fn a_resource_that_no_server_gives_a_hash_of_is_not_managed() {
        let name: GroupResource = "networkpolicies.projectcalico.org".parse().unwrap();
        assert!(!observation(&[None, None]).is_managed(&name, false));
        assert!(observation(&[None, Some("x=")]).is_managed(&name, false), "they disagree, which is something else");
        assert!(observation(&[None]).is_managed(&name, true), "a CRD whose storage version is not served");
        let one = ApiServers { required: RequiredServers::Any, ..ApiServers::default() };
        let aggregated = Observation { aggregation: aggregated(), ..observation(&[Some("x=")]) };
        let aggregated = Observation { servers: one, ..aggregated };
        assert!(aggregated.is_managed(&name, false), "nothing is going to be proven");
    }

    /// A Service serves the group.
    fn aggregated() -> Aggregation {
        let group = AggregatedGroup {
            services: BTreeMap::from([("v3.projectcalico.org".to_owned(), "calico/api".to_owned())]),
            addresses: Ok(Default::default()),
            marks: BTreeMap::new(),
        };
        Aggregation(Ok(BTreeMap::from([("projectcalico.org".to_owned(), group)])))
    }

    #[test]
    fn a_resource_of_aggregated_servers_is_managed_if_they_report_it_and_publish_the_hash() {
        let name: GroupResource = "networkpolicies.projectcalico.org".parse().unwrap();
        let report = |entries: serde_json::Value| -> BTreeMap<String, StorageVersion> {
            let name = "projectcalico.org.networkpolicies";
            let report = serde_json::json!({"metadata": {"name": name}, "status": {"storageVersions": entries}});
            BTreeMap::from([(name.to_owned(), serde_json::from_value(report).unwrap())])
        };
        let entry = serde_json::json!([{"apiServerID": "a", "encodingVersion": "projectcalico.org/v3"}]);
        let observation =
            |hash: Option<&str>, reported| Observation { aggregation: aggregated(), reported, ..observation(&[hash]) };
        let reported = || report(entry.clone());
        for (observation, has_crd, words) in [
            (observation(Some("x="), reported()), false, None),
            (observation(Some("x="), reported()), true, Some("a CRD defines it too")),
            (observation(None, reported()), false, Some("do not publish the storageVersionHash")),
            (observation(Some("x="), report(serde_json::json!([]))), false, Some("do not report what they store")),
            (observation(Some("x="), BTreeMap::new()), true, Some("service calico/api")),
        ] {
            let because = observation.not_managed_because(&name, has_crd);
            assert_eq!(because.is_some(), words.is_some(), "{because:?} {words:?}");
            assert!(because.unwrap_or_default().contains(words.unwrap_or_default()), "{words:?}");
        }
        let unread = Observation { discoveries: Vec::new(), ..observation(None, reported()) };
        assert!(unread.is_managed(&name, false), "a document that cannot be read may have the hash");
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
