//! Three servers on one etcd, and what they have reported there.

use crate::bench::agreement::etcd_in;
use crate::bench::apiserver::subject::{Running, client, restow, start};
use crate::pki::{Pki, write_private};
use anyhow::Context;
use restow_api::internal_apiserver::StorageVersion;
use restow_local_etcd::LocalEtcd;
use restow_store::{RangeRequest, Store};
use restow_store_etcd::{EtcdConfig, EtcdStore};
use serde_json::json;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// How many servers there are.
pub(super) const SIZE: usize = 3;

/// What a server is called among the others.
pub(super) fn identity(number: usize) -> String {
    format!("bench-{number}")
}

/// What is reported about one resource.
pub(super) struct Reported {
    pub(super) common: Option<String>,
    pub(super) servers: Vec<String>,
}

/// Files that every server needs: certificates, and how to reach it.
pub(super) struct Files {
    folder: PathBuf,
    pki: Pki,
}

impl Files {
    pub(super) fn make(folder: &Path) -> anyhow::Result<Self> {
        let folder = folder.join("pki");
        let pki = Pki::open(&folder, &[IpAddr::V4(Ipv4Addr::LOCALHOST)])?;
        Ok(Files { folder, pki })
    }

    /// `restow serve` with these files.
    pub(super) fn serve(&self, etcd: &LocalEtcd) -> Command {
        let mut command = restow();
        // That servers disagree for a while is what is measured, and no news.
        command.env("RESTOW_LOG", "error");
        command.args(["serve", "--listen", "127.0.0.1:0", "--etcd-endpoints", &etcd.endpoint()]);
        command.arg("--tls-cert-file").arg(self.folder.join("server.crt"));
        command.arg("--tls-private-key-file").arg(self.folder.join("server.key"));
        command.arg("--client-ca-file").arg(self.folder.join("ca.crt"));
        command
    }

    /// A client of the server at this address that may do everything.
    pub(super) async fn client(&self, address: &str) -> anyhow::Result<kube::Client> {
        let kubeconfig = self.folder.join("bench-kubeconfig");
        write_private(&kubeconfig, &self.pki.kubeconfig(address))?;
        client(&kubeconfig).await
    }
}

/// Three servers on one etcd. They end when this is dropped.
pub(super) struct Fleet {
    servers: [Option<(Running, kube::Client)>; SIZE],
    files: Files,
    store: EtcdStore,
    etcd: LocalEtcd,
    _folder: tempfile::TempDir,
}

impl Fleet {
    pub(super) async fn prepare(directory: &Path) -> anyhow::Result<Self> {
        let (folder, etcd) = etcd_in(directory).await?;
        let config = EtcdConfig { prefix: "/registry".into(), ..EtcdConfig::new(vec![etcd.endpoint()]) };
        let store = EtcdStore::connect(config).await.context("cannot use the etcd that was started")?;
        let files = Files::make(folder.path())?;
        Ok(Fleet { servers: Default::default(), files, store, etcd, _folder: folder })
    }

    /// Starts one server and waits until it says that it is ready.
    pub(super) async fn start(&mut self, number: usize, release: &str, more: &[&str]) -> anyhow::Result<()> {
        let begun = Instant::now();
        let mut command = self.files.serve(&self.etcd);
        command.args(["--release", release, "--identity", &identity(number)]).args(more);
        let (child, address) = start(&mut command)?;
        let client = self.files.client(&address).await?;
        while client.request_text(http::Request::get("/readyz").body(Vec::new())?).await.is_err() {
            anyhow::ensure!(begun.elapsed() < Duration::from_secs(60), "a server does not become ready");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.servers[number] = Some((child, client));
        Ok(())
    }

    /// Asks one server to stop, and waits until it has.
    pub(super) fn stop(&mut self, number: usize) -> anyhow::Result<()> {
        let Some((mut child, _)) = self.servers[number].take() else { return Ok(()) };
        Command::new("kill").arg(child.0.id().to_string()).status().context("cannot stop a server")?;
        child.0.wait()?;
        Ok(())
    }

    /// What is reported, as etcd has it.
    pub(super) async fn reports(&self) -> anyhow::Result<Vec<Reported>> {
        let listed = self.store.range(RangeRequest::prefix("/internal.apiserver.k8s.io/storageversions/")).await?;
        let read = |entry: &restow_store::Entry| {
            let object: StorageVersion = serde_json::from_slice(&entry.value)?;
            let servers = object.status.storage_versions.into_iter().map(|entry| entry.api_server_id).collect();
            Ok(Reported { common: object.status.common_encoding_version, servers })
        };
        listed.entries.iter().map(read).collect()
    }

    /// Defines so many custom resources, and waits until all servers have reported them.
    pub(super) async fn define(&self, count: usize) -> anyhow::Result<()> {
        let (_, client) = self.servers[0].as_ref().context("the first server runs")?;
        let known = self.reports().await?.len();
        for number in 0..count {
            let definition = json!({
                "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                "metadata": {"name": format!("benches{number}.restow.example")},
                "spec": {
                    "group": "restow.example", "scope": "Namespaced",
                    "names": {"plural": format!("benches{number}"), "kind": format!("Bench{number}")},
                    "versions": [{
                        "name": "v1", "served": true, "storage": true,
                        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
                    }],
                },
            });
            let request = http::Request::post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
                .header(http::header::CONTENT_TYPE, "application/json");
            client.request_text(request.body(definition.to_string().into_bytes())?).await?;
        }
        let begun = Instant::now();
        loop {
            // A definition that was just made may not have been reported by anybody yet.
            let complete = self.reports().await?.iter().filter(|report| report.servers.len() == SIZE).count();
            if complete >= known + count {
                return Ok(());
            }
            anyhow::ensure!(begun.elapsed() < Duration::from_secs(60), "not all servers report all resources");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
