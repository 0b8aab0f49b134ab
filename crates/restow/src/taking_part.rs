//! The flags by which a server takes part among others: feature gates, its identity, its lease.

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use restow_api::{GroupVersion, ServerId};
use restow_apiserver::builtin::RuntimeConfig;
use restow_apiserver::{AgreementConfig, Gate, Gates, Guarantee, StorageVersions};
use std::time::Duration;

/// How the server takes part among others on the same store.
#[derive(Clone, Debug, Args)]
pub(crate) struct TakingPart {
    /// Turn features on or off, as in StorageVersionAPI=true,StorageVersionHash=false.
    #[arg(long, value_name = "GATE=BOOL,...", default_value = "")]
    feature_gates: String,
    /// The name of this server among the others; it must stay the same when the server restarts, and no two may have the same
    /// [default: made from the host name, the address and the data; so give a name where --listen has port 0, or each start
    /// counts as another server, and the others wait for the lease of the earlier one to expire].
    #[arg(long, value_name = "NAME")]
    identity: Option<ServerId>,
    /// After how many seconds without a sign of life the others go on without this server.
    #[arg(long, value_name = "SECONDS", default_value_t = AgreementConfig::LEASE_DURATION.as_secs())]
    identity_lease_duration_seconds: u64,
    /// How often this server gives a sign of life, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = AgreementConfig::RENEW_INTERVAL.as_secs())]
    identity_lease_renew_seconds: u64,
    /// How it is decided in which version built-in resources are stored: each server stores what its release prefers, or all
    /// store what was voted for.
    #[arg(long, value_name = "HOW", default_value = "report")]
    storage_versions: How,
    /// How sure it is that a voting server stores the selected version: each write compares it, or the server hears of it soon.
    #[arg(long, value_name = "GUARANTEE", default_value = "strict")]
    storage_version_guarantee: HowSure,
}

/// How it is decided in which version built-in resources are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum How {
    Report,
    Vote,
}

/// How sure it is that a voting server stores the selected version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum HowSure {
    Strict,
    Loose,
}

impl TakingPart {
    /// The gates that are open.
    pub(crate) fn gates(&self) -> anyhow::Result<Gates> {
        let mut gates = Gates::default();
        // Who asks for voting opens its gate, unless the gate is closed by name.
        gates.set(Gate::StorageVersionVoting, self.storage_versions == How::Vote);
        gates.apply(&self.feature_gates).context("--feature-gates cannot be understood")?;
        if self.storage_versions == How::Vote {
            let open = gates.is_on(Gate::StorageVersionVoting) && gates.reports_storage_versions();
            ensure!(
                open,
                "--storage-versions=vote needs the feature gates StorageVersionVoting, StorageVersionAPI and APIServerIdentity"
            );
        }
        Ok(gates)
    }

    fn storage_versions(&self) -> StorageVersions {
        match (self.storage_versions, self.storage_version_guarantee) {
            (How::Report, _) => StorageVersions::Report,
            (How::Vote, HowSure::Strict) => StorageVersions::Vote(Guarantee::Strict),
            (How::Vote, HowSure::Loose) => StorageVersions::Vote(Guarantee::Loose),
        }
    }

    /// Whether the server was given a name of its own.
    pub(crate) fn has_name(&self) -> bool {
        self.identity.is_some()
    }

    /// How the server takes part, given what tells it from others beside the name of its host.
    pub(crate) fn agreement(&self, facts: &[&str]) -> anyhow::Result<AgreementConfig> {
        let (duration, renewal) = (self.identity_lease_duration_seconds, self.identity_lease_renew_seconds);
        ensure!(
            renewal > 0 && renewal < duration,
            "--identity-lease-renew-seconds must be above zero and below --identity-lease-duration-seconds"
        );
        let hostname = hostname();
        let mut all = vec![hostname.as_str()];
        all.extend(facts);
        let identity = self.identity.clone().unwrap_or_else(|| AgreementConfig::identity_of(&all));
        Ok(AgreementConfig {
            lease_duration: Duration::from_secs(duration),
            renew_interval: Duration::from_secs(renewal),
            storage_versions: self.storage_versions(),
            ..AgreementConfig::new(identity, &hostname, &self.gates()?)
        })
    }
}

/// What is served, with what the gates add. What was asked for by name goes before them.
pub(crate) fn with_gates(mut config: RuntimeConfig, gates: &Gates) -> anyhow::Result<RuntimeConfig> {
    for (gate, group) in [
        (Gate::StorageVersionApi, "internal.apiserver.k8s.io"),
        (Gate::StorageVersionVoting, "kube-apiserver.internal.k8s.io"),
    ] {
        if gates.is_on(gate) {
            config.versions.insert(0, (GroupVersion::new(group, "v1alpha1")?, true));
        }
    }
    Ok(config)
}

/// The name of this machine, as far as it is known.
fn hostname() -> String {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = kernel.or_else(|| std::env::var("HOSTNAME").ok()).unwrap_or_default();
    match name.trim() {
        "" => "localhost".to_string(),
        name => name.to_string(),
    }
}
