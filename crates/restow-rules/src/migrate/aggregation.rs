//! Which groups aggregated API servers serve. Nothing can be proven about them.
//!
//! An APIService with a Service makes the API servers proxy requests for its group version. Any server behind the Service
//! may answer: a discovery document comes from one of them, and their number is unknown. Their reports are not fenced
//! across two stores either. So their resources are never proven.

use std::collections::BTreeMap;

/// The APIServices that name a Service, by group; or why they cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aggregation(pub Result<BTreeMap<String, AggregatedService>, String>);

/// The backend of a group version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AggregatedService {
    /// The name of the APIService, such as `v1.example.com`.
    pub api_service: String,
    /// The Service, as in `namespace/name`.
    pub service: String,
}

/// Who serves a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServedBy {
    /// The API servers themselves.
    ApiServers,
    /// Servers behind a Service, with a description.
    Aggregated(String),
    /// Unknown, for this reason.
    Unknown(String),
}

impl Default for Aggregation {
    fn default() -> Self {
        Aggregation(Ok(BTreeMap::new()))
    }
}

impl Aggregation {
    /// Who serves the resources of a group. One aggregated version is enough: its servers may write the same objects.
    pub fn of_group(&self, group: &str) -> ServedBy {
        // The core group cannot be aggregated.
        if group.is_empty() {
            return ServedBy::ApiServers;
        }
        match &self.0 {
            Ok(groups) => match groups.get(group) {
                Some(AggregatedService { api_service, service }) => ServedBy::Aggregated(format!(
                    "the APIService {api_service} passes requests on to the service {service}, and the API servers behind \
                     it cannot be queried one by one, so that nothing can be proven about what they store"
                )),
                None => ServedBy::ApiServers,
            },
            Err(why) => ServedBy::Unknown(format!(
                "the APIServices cannot be listed, so it is unknown whether aggregated API servers serve it: {why}"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_with_a_version_behind_a_service_is_served_by_others() {
        let passed_on = AggregatedService { api_service: "v1.example.com".into(), service: "n/s".into() };
        let aggregation = Aggregation(Ok(BTreeMap::from([("example.com".to_owned(), passed_on)])));
        let ServedBy::Aggregated(words) = aggregation.of_group("example.com") else { panic!("{aggregation:?}") };
        assert!(words.contains("v1.example.com") && words.contains("n/s"), "{words}");
        assert_eq!(aggregation.of_group("apps"), ServedBy::ApiServers);
        assert_eq!(aggregation.of_group(""), ServedBy::ApiServers);
        let unreadable = Aggregation(Err("forbidden".into()));
        assert!(matches!(unreadable.of_group("apps"), ServedBy::Unknown(words) if words.contains("forbidden")));
        assert_eq!(unreadable.of_group(""), ServedBy::ApiServers);
    }
}
