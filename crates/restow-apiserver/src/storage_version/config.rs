//! The configuration of storage version registration.

use super::upstream::Upstream;
use crate::gates::{Gate, Gates};
use restow_api::ServerId;
use sha2::{Digest, Sha256};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// How a server registers and reports.
#[derive(Clone, Debug)]
pub struct AgreementConfig {
    /// The server's id: stable across restarts of an instance, unique among instances.
    pub identity: ServerId,
    /// The host name, for a label of the lease.
    pub hostname: String,
    /// The lease duration: a lease that is not renewed for this long has expired.
    pub lease_duration: Duration,
    /// How often the lease is renewed.
    pub renew_interval: Duration,
    /// Whether the server has an identity lease.
    pub has_identity: bool,
    /// Whether the server reports its storage versions, and writes only what it has reported.
    pub reports: bool,
    /// How it is decided in which version a built-in resource is stored.
    pub storage_versions: StorageVersions,
    /// The address at which others reach this server, for an annotation of the lease; by default its own address.
    pub advertised: Option<SocketAddr>,
    /// The main API server that an aggregated server reports to as well.
    pub upstream: Option<Arc<dyn Upstream>>,
}

/// How it is decided in which version a built-in resource is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StorageVersions {
    /// Each server stores what its release prefers, and reports it.
    #[default]
    Report,
    /// All servers store the version that is selected, and report that. It moves when all prefer the same.
    Vote(Guarantee),
}

/// How strictly a server follows the selected version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Guarantee {
    /// Each write compares the selection in its transaction.
    #[default]
    Strict,
    /// The server watches the selection, and follows a change shortly after.
    Loose,
}

impl AgreementConfig {
    /// The default lease duration. With it, the lease of a dead server is collected within 15 seconds: it expires after ten,
    /// and the collector runs every second.
    pub const LEASE_DURATION: Duration = Duration::from_secs(10);
    /// The default renew interval: two renewals may fail before the lease expires.
    pub const RENEW_INTERVAL: Duration = Duration::from_secs(3);

    /// The default settings, as far as the feature gates allow.
    pub fn new(identity: ServerId, hostname: impl Into<String>, gates: &Gates) -> Self {
        AgreementConfig {
            identity,
            hostname: hostname.into(),
            lease_duration: Self::LEASE_DURATION,
            renew_interval: Self::RENEW_INTERVAL,
            has_identity: gates.is_on(Gate::ApiServerIdentity),
            reports: gates.reports_storage_versions(),
            storage_versions: StorageVersions::Report,
            advertised: None,
            upstream: None,
        }
    }

    /// The id of the instance with these facts, such as host, address and data directory.
    pub fn identity_of(facts: &[&str]) -> ServerId {
        let mut hash = Sha256::new();
        for fact in facts {
            // The length keeps two lists apart that only differ in where one fact ends.
            hash.update(fact.len().to_le_bytes());
            hash.update(fact.as_bytes());
        }
        let hex: String = hash.finalize().iter().take(13).map(|byte| format!("{byte:02x}")).collect();
        match ServerId::new(format!("apiserver-{hex}")) {
            Ok(id) => id,
            Err(_) => unreachable!("letters, digits and a dash are a name"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_stable_and_differs_with_every_fact() {
        let id = AgreementConfig::identity_of(&["host", "127.0.0.1:6443", "/data"]);
        assert_eq!(id.as_str().len(), "apiserver-".len() + 26);
        assert_eq!(id, AgreementConfig::identity_of(&["host", "127.0.0.1:6443", "/data"]));
        assert_ne!(id, AgreementConfig::identity_of(&["host", "127.0.0.1:6444", "/data"]));
        assert_ne!(AgreementConfig::identity_of(&["ab", "c"]), AgreementConfig::identity_of(&["a", "bc"]));
    }
}
