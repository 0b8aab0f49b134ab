//! How a server takes part.

use super::upstream::Elsewhere;
use crate::gates::{Gate, Gates};
use restow_api::ServerId;
use sha2::{Digest, Sha256};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// How a server takes part.
#[derive(Clone, Debug)]
pub struct AgreementConfig {
    /// The server's id: the same after a restart of this instance, another for every other instance.
    pub identity: ServerId,
    /// The name of the machine, to be shown in the lease.
    pub hostname: String,
    /// How long the others wait for a server that does not renew its lease.
    pub lease_duration: Duration,
    /// How often the lease is renewed.
    pub renew_interval: Duration,
    /// Whether the server has an identity lease.
    pub has_identity: bool,
    /// Whether the server reports its storage versions, and writes only what it has reported.
    pub reports: bool,
    /// How it is decided in which version a built-in resource is stored.
    pub storage_versions: StorageVersions,
    /// Where others reach this server, as the lease says; the server's own address where this is nothing.
    pub advertised: Option<SocketAddr>,
    /// Where the server reports too: an aggregated one to the main API server.
    pub elsewhere: Option<Arc<dyn Elsewhere>>,
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

/// How sure it is that a server stores the selected version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Guarantee {
    /// Each write compares it.
    #[default]
    Strict,
    /// The server hears of a change soon.
    Loose,
}

impl AgreementConfig {
    /// With the default times, a server that died is released within 15 seconds: its lease lasts for ten, and the others
    /// look every second.
    pub const LEASE_DURATION: Duration = Duration::from_secs(10);
    /// How often the lease is renewed by default: two renewals may fail before the lease expires.
    pub const RENEW_INTERVAL: Duration = Duration::from_secs(3);

    /// The usual settings for this server, as far as the gates allow.
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
            elsewhere: None,
        }
    }

    /// The id of the instance that these facts tell from every other one: host, address, data.
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
