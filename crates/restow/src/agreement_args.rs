//! The flags of a server among others on the same store: feature gates, identity, lease, storage versions.

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use restow_api::{GroupVersion, ServerId};
use restow_apiserver::builtin::RuntimeConfig;
use restow_apiserver::{AgreementConfig, Gate, Gates, Guarantee, StorageVersions};
use std::time::Duration;

/// How the server coordinates with others on the same store.
#[derive(Clone, Debug, Args)]
pub(crate) struct AgreementArgs {
    /// Feature gates to turn on or off, as in StorageVersionAPI=true,StorageVersionHash=false.
    #[arg(long, value_name = "GATE=BOOL,...", default_value = "")]
    feature_gates: String,
    /// The identity of this server: unique among the servers, and the same after a restart [default: derived from the host name,
    /// the address and the data. Set it where --listen has port 0; otherwise each start counts as another server, and the
    /// others wait until the earlier lease has expired].
    #[arg(long, value_name = "NAME")]
    identity: Option<ServerId>,
    /// The lease duration: after how many seconds without a renewal the others continue without this server.
    #[arg(long, value_name = "SECONDS", default_value_t = AgreementConfig::LEASE_DURATION.as_secs())]
    identity_lease_duration_seconds: u64,
    /// How often this server renews its lease, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = AgreementConfig::RENEW_INTERVAL.as_secs())]
    identity_lease_renew_seconds: u64,
    /// How the storage version of built-in resources is chosen: `report`, each server stores the version that its release
    /// prefers; `vote`, all store the version that they have voted for.
    #[arg(long, value_name = "HOW", default_value = "report")]
    storage_versions: Mode,
    /// The guarantee that a voting server stores the selected version: `strict`, each write compares it; `loose`, the server
    /// watches it.
    #[arg(long, value_name = "GUARANTEE", default_value = "strict")]
    storage_version_guarantee: GuaranteeArg,
}

/// How the storage version of built-in resources is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    Report,
    Vote,
}

/// The guarantee that a voting server stores the selected version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum GuaranteeArg {
    Strict,
    Loose,
}

impl AgreementArgs {
    /// The feature gates.
    pub(crate) fn gates(&self) -> anyhow::Result<Gates> {
        let mut gates = Gates::default();
        // --storage-versions=vote turns the gate on, unless --feature-gates turns it off.
        gates.set(Gate::StorageVersionVoting, self.storage_versions == Mode::Vote);
        gates.apply(&self.feature_gates).context("--feature-gates cannot be understood")?;
        if self.storage_versions == Mode::Vote {
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
            (Mode::Report, _) => StorageVersions::Report,
            (Mode::Vote, GuaranteeArg::Strict) => StorageVersions::Vote(Guarantee::Strict),
            (Mode::Vote, GuaranteeArg::Loose) => StorageVersions::Vote(Guarantee::Loose),
        }
    }

    /// Whether the flag --identity was given.
    pub(crate) fn has_identity(&self) -> bool {
        self.identity.is_some()
    }

    /// The configuration. `facts` identify this server among others, together with the host name.
    pub(crate) fn config(&self, facts: &[&str]) -> anyhow::Result<AgreementConfig> {
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

/// The runtime configuration with the API groups that feature gates add. What the user has set has precedence.
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

/// The name of this machine, or `localhost` where it is unknown.
fn hostname() -> String {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = kernel.or_else(|| std::env::var("HOSTNAME").ok()).unwrap_or_default();
    match name.trim() {
        "" => "localhost".to_string(),
        name => name.to_string(),
    }
}
