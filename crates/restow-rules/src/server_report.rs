//! The report of one server about one resource.

use restow_api::internal_apiserver::ServerStorageVersion;
use restow_api::{GroupVersion, ServerId};
use thiserror::Error;

/// One server's own entry. The encoding version and all served versions are decodable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerReport {
    id: ServerId,
    encoding: GroupVersion,
    decodable: Vec<GroupVersion>,
    served: Vec<GroupVersion>,
}

/// Why a report would be refused.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum InvalidReport {
    /// The server would write what it cannot read.
    #[error("the encoding version {0} is not among the decodable versions")]
    EncodingNotDecodable(GroupVersion),
    /// The server would serve what it cannot read.
    #[error("the served version {0} is not among the decodable versions")]
    ServedNotDecodable(GroupVersion),
}

impl ServerReport {
    /// Checks the versions. Duplicates are dropped; the order is kept, because Kubernetes shows it.
    pub fn new(
        id: ServerId,
        encoding: GroupVersion,
        decodable: impl IntoIterator<Item = GroupVersion>,
        served: impl IntoIterator<Item = GroupVersion>,
    ) -> Result<Self, InvalidReport> {
        let decodable = without_repetitions(decodable);
        let served = without_repetitions(served);
        if !decodable.contains(&encoding) {
            return Err(InvalidReport::EncodingNotDecodable(encoding));
        }
        if let Some(version) = served.iter().find(|version| !decodable.contains(version)) {
            return Err(InvalidReport::ServedNotDecodable(version.clone()));
        }
        Ok(ServerReport { id, encoding, decodable, served })
    }

    /// The reporting server.
    pub fn id(&self) -> &ServerId {
        &self.id
    }

    /// The version in which it stores objects.
    pub fn encoding(&self) -> &GroupVersion {
        &self.encoding
    }

    /// Whether this report, once it is stored, lets its server write in a version. **The right to write belongs to the
    /// encoding that was reported**, never to another one that came into force meanwhile.
    pub fn lets_write(&self, encoding: &GroupVersion) -> bool {
        self.encoding == *encoding
    }

    /// The entry on the wire.
    pub fn entry(&self) -> ServerStorageVersion {
        let texts = |versions: &[GroupVersion]| versions.iter().map(GroupVersion::to_string).collect();
        ServerStorageVersion {
            api_server_id: self.id.to_string(),
            encoding_version: self.encoding.to_string(),
            decodable_versions: texts(&self.decodable),
            served_versions: texts(&self.served),
        }
    }
}

fn without_repetitions(versions: impl IntoIterator<Item = GroupVersion>) -> Vec<GroupVersion> {
    let mut kept = Vec::new();
    for version in versions {
        if !kept.contains(&version) {
            kept.push(version);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versions(texts: &[&str]) -> Vec<GroupVersion> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn report(encoding: &str, decodable: &[&str], served: &[&str]) -> Result<ServerReport, InvalidReport> {
        ServerReport::new("a".parse().unwrap(), encoding.parse().unwrap(), versions(decodable), versions(served))
    }

    #[test]
    fn a_server_reads_what_it_writes_and_serves() {
        assert_eq!(report("v1", &["v2"], &[]), Err(InvalidReport::EncodingNotDecodable("v1".parse().unwrap())));
        assert_eq!(report("v1", &["v1"], &["v2"]), Err(InvalidReport::ServedNotDecodable("v2".parse().unwrap())));
        let entry = report("v2", &["v2", "v1", "v2"], &["v1", "v1"]).unwrap().entry();
        assert_eq!(entry.decodable_versions, ["v2", "v1"]);
        assert_eq!(entry.served_versions, ["v1"]);
    }

    #[test]
    fn a_report_lets_its_server_write_only_the_reported_version() {
        let report = report("v1", &["v1", "v2"], &["v1", "v2"]).unwrap();
        assert!(report.lets_write(&"v1".parse().unwrap()));
        assert!(!report.lets_write(&"v2".parse().unwrap()));
    }
}
