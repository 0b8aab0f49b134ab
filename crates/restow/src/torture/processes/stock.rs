//! The flags of `restow torture --processes` for stock API servers.

use anyhow::Context;
use clap::{Args, ValueEnum};
use restow_torture::processes::{Migrator, StockOptions};
use std::path::{Path, PathBuf};

/// Stock API servers.
#[derive(Debug, Args)]
pub(super) struct StockArgs {
    /// The program kube-apiserver: torture a migrator on two of these on the same etcd, instead of Restow's API servers; with --processes.
    ///
    /// Only custom resources are written. A migrator is held to this: storedVersions and StorageStates forget a version only if nothing is stored
    /// in it and no server can write it any more; a migration that succeeds leaves no old object; nothing but the encoding changes; in
    /// the end everything is migrated. A server that was suspended in the middle of a request may write an old version after its own
    /// --request-timeout. No migrator can wait for that, so it is counted and breaks no rule; `restow verify` finds such objects.
    ///
    /// Faults come in bursts of some 25 s, with enough time in between for the settling time of 70 s; with an odd seed requests are
    /// limited to 10 s, and the settling time is 20 s.
    #[arg(long, value_name = "PATH", requires = "processes")]
    kube_apiserver: Option<PathBuf>,
    /// Who migrates on stock API servers; with --kube-apiserver.
    #[arg(long, default_value = "restow", requires = "kube_apiserver")]
    migrator: MigratorArg,
    /// The program kube-controller-manager, for --migrator in-tree.
    #[arg(long, value_name = "PATH", requires = "kube_apiserver", required_if_eq("migrator", "in-tree"))]
    kube_controller_manager: Option<PathBuf>,
    /// The folder with the programs migrator and trigger of kube-storage-version-migrator, for --migrator ksvm.
    #[arg(long, value_name = "DIR", requires = "kube_apiserver", required_if_eq("migrator", "ksvm"))]
    ksvm: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MigratorArg {
    /// Two `restow controller`.
    Restow,
    /// The migrator of Kubernetes itself, in two kube-controller-managers; it is asked after each change of the storage version.
    InTree,
    /// kube-storage-version-migrator.
    Ksvm,
}

impl StockArgs {
    /// What is asked for; `None` for Restow's own API servers.
    pub(super) fn options(&self) -> anyhow::Result<Option<StockOptions>> {
        let Some(kube_apiserver) = &self.kube_apiserver else { return Ok(None) };
        let named = |path: &Option<PathBuf>| existing(path.as_deref().unwrap_or(Path::new("")));
        let migrator = match self.migrator {
            MigratorArg::Restow => Migrator::Restow,
            MigratorArg::InTree => Migrator::InTree { kube_controller_manager: named(&self.kube_controller_manager)? },
            MigratorArg::Ksvm => Migrator::Ksvm { folder: named(&self.ksvm)? },
        };
        Ok(Some(StockOptions { kube_apiserver: existing(kube_apiserver)?, migrator }))
    }
}

fn existing(path: &Path) -> anyhow::Result<PathBuf> {
    path.canonicalize().with_context(|| format!("cannot use {}", path.display()))
}
