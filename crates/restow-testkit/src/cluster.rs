//! Restow API servers that share one store: the embedded store of one server, or an etcd of their own.

use crate::etcd::{LocalEtcd, start_etcd};
use crate::server::{Pki, Server};
use std::path::PathBuf;

/// Which store a server runs on.
#[derive(Clone, Copy, Debug)]
pub enum On {
    /// The embedded store, with `restow up`.
    Embedded,
    /// An etcd, with `restow serve`.
    Etcd,
}

/// Servers that share one store. They end when this is dropped.
pub struct Cluster {
    /// The servers, in the order in which they were started.
    pub servers: Vec<Server>,
    folder: tempfile::TempDir,
    etcd: Option<LocalEtcd>,
}

impl Cluster {
    /// One server on this store.
    pub async fn one(on: On) -> Self {
        match on {
            On::Embedded => {
                let folder = tempfile::tempdir().unwrap();
                let server = Server::up(folder.path());
                Cluster { servers: vec![server], folder, etcd: None }
            }
            On::Etcd => Self::on_etcd(&["1.37"]).await,
        }
    }

    /// Servers of these releases on one etcd.
    pub async fn on_etcd(releases: &[&str]) -> Self {
        let etcd = start_etcd().await;
        let folder = tempfile::tempdir().unwrap();
        let mut cluster = Cluster { servers: Vec::new(), folder, etcd: Some(etcd) };
        for release in releases {
            cluster.join(release);
        }
        cluster
    }

    /// Starts one more server on the etcd.
    pub fn join(&mut self, release: &str) {
        let kubeconfig = self.folder.path().join(format!("kubeconfig-{}", self.servers.len()));
        let pki = Pki::create(self.folder.path().join("pki"));
        let server = Server::start(&mut pki.serve(&self.etcd_endpoint(), release), kubeconfig);
        std::fs::copy(pki.kubeconfig(&server.address), &server.kubeconfig).unwrap();
        self.servers.push(server);
    }

    /// Suspends the etcd. It does not respond until it is resumed.
    pub fn pause_etcd(&self) {
        self.etcd.as_ref().unwrap().pause().unwrap();
    }

    /// Resumes the etcd.
    pub fn resume_etcd(&self) {
        self.etcd.as_ref().unwrap().resume().unwrap();
    }

    /// The endpoint of the etcd, for tests that read it directly.
    pub fn etcd_endpoint(&self) -> String {
        self.etcd.as_ref().unwrap().endpoint()
    }

    /// Runs kubectl against the first server.
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        self.servers[0].kubectl(arguments)
    }

    /// The CA of the certificate with which the servers pass requests on to the API servers behind them.
    pub fn front_proxy_ca(&self) -> PathBuf {
        let pki = if self.etcd.is_some() { "pki" } else { "data/pki" };
        self.folder.path().join(pki).join("front-proxy-ca.crt")
    }

    /// Creates a file with this text, for kubectl to read.
    pub fn file(&self, name: &str, text: &str) -> String {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_string()
    }
}
