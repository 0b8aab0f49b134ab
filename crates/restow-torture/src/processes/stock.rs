//! A stock control plane: kube-apiservers in place of Restow's API servers, and a migrator on them, Restow's or another one.
//!
//! Less is promised there than on Restow API servers: a kube-apiserver reports nothing before it writes, and no fence stops a request
//! that it began under an older storage version. `rules.rs` says what a migrator can be held to nevertheless.

mod rules;

pub(crate) use rules::{StockRules, Verdict};

use crate::checks::ObjectKey;
use std::path::PathBuf;
use std::time::Duration;

/// The StorageVersionMigrations of Kubernetes itself.
pub(crate) const IN_TREE_MIGRATIONS: &str = "storagemigration.k8s.io.storageversionmigrations";

/// Stock API servers, and who migrates on them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StockOptions {
    /// The program `kube-apiserver`.
    pub kube_apiserver: PathBuf,
    /// Who migrates.
    pub migrator: Migrator,
}

/// Who migrates on stock API servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Migrator {
    /// Two `restow controller`.
    Restow,
    /// The migrator of Kubernetes itself, in two kube-controller-managers. An administrator asks for a migration after each change of
    /// the storage version.
    InTree {
        /// The program `kube-controller-manager`.
        kube_controller_manager: PathBuf,
    },
    /// kube-storage-version-migrator: one `migrator` and one `trigger`, since it has no leader election. The trigger is started again
    /// after changes of the storage version, in place of its look every ten minutes.
    Ksvm {
        /// The folder with both programs.
        folder: PathBuf,
    },
}

/// How long requests may take, and how long Restow's migrator waits for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patience {
    /// `--request-timeout` of kube-apiserver.
    pub(crate) request_timeout: Duration,
    /// `--settling-time` of the controller.
    pub(crate) settling_time: Duration,
}

impl Patience {
    /// The defaults of both programs with an even seed; with an odd one shorter times, so that more migrations end in a run.
    pub(crate) fn of(seed: u64) -> Self {
        let (request_timeout, settling_time) = if seed.is_multiple_of(2) { (60, 70) } else { (10, 20) };
        Patience {
            request_timeout: Duration::from_secs(request_timeout),
            settling_time: Duration::from_secs(settling_time),
        }
    }
}

impl Migrator {
    /// How long no faults happen after some did, so that a migration can end.
    pub(crate) fn calm(&self, seed: u64) -> Duration {
        match self {
            Migrator::Restow => Patience::of(seed).settling_time + Duration::from_secs(40),
            Migrator::InTree { .. } => Duration::from_secs(5),
            // Its trigger goes through all resources, and then through all migrations, with five requests a second.
            Migrator::Ksvm { .. } => Duration::from_secs(240),
        }
    }
}

/// Reads a key of a kube-apiserver, without its prefix; `None` if no rule is about such an object.
pub(crate) fn parse_key(key: &[u8]) -> Option<ObjectKey> {
    let mut parts = std::str::from_utf8(key).ok()?.strip_prefix('/')?.split('/');
    let first = parts.next()?;
    let resource = match first {
        "storageversionmigrations" => IN_TREE_MIGRATIONS.to_owned(),
        // Custom resources and CRDs are stored by their group; other resources only by their plural.
        group if group.contains('.') => format!("{group}.{}", parts.next()?),
        _ => return None,
    };
    let (first, second) = (parts.next()?, parts.next());
    let (namespace, name) = second.map_or(("", first), |name| (first, name));
    Some(ObjectKey::new(&resource, namespace, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_custom_resources_crds_and_migrations_are_read() {
        let parse = |key: &str| parse_key(key.as_bytes()).map(|key| key.to_string());
        for (key, expected) in [
            ("/example.com/widgets/torture/widget-1", "example.com.widgets torture/widget-1"),
            (
                "/apiextensions.k8s.io/customresourcedefinitions/widgets.example.com",
                "apiextensions.k8s.io.customresourcedefinitions /widgets.example.com",
            ),
            ("/migration.k8s.io/storageversionmigrations/m", "migration.k8s.io.storageversionmigrations /m"),
            ("/storageversionmigrations/m", "storagemigration.k8s.io.storageversionmigrations /m"),
        ] {
            assert_eq!(parse(key).as_deref(), Some(expected));
        }
        for key in ["/configmaps/kube-system/a", "/services/specs/default/kubernetes", "/masterleases/10.0.0.1", "x"] {
            assert_eq!(parse(key), None);
        }
    }

    #[test]
    fn the_settling_time_is_longer_than_any_request() {
        for seed in 0..4 {
            let patience = Patience::of(seed);
            assert!(patience.settling_time >= patience.request_timeout + Duration::from_secs(10));
            assert!(Migrator::Restow.calm(seed) > patience.settling_time);
        }
    }
}
