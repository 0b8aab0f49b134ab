//! kube-storage-version-migrator's own binaries on our server, where `RESTOW_TEST_KSVM` names the folder they are in.

use super::{GROUP, KIND, Widgets, eventually, install};
use restow_api::storage_version_hash;
use restow_testkit::{Cluster, On};
use serde_json::json;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kube_storage_version_migrator_works_on_restow() {
    let Some(folder) = std::env::var_os("RESTOW_TEST_KSVM").map(PathBuf::from) else {
        restow_testkit::skip(
            "set RESTOW_TEST_KSVM to a folder with kube-storage-version-migrator's migrator and trigger",
        );
        return;
    };
    let cluster = Cluster::one(On::Embedded).await;
    install(&cluster.servers[0]);
    let widgets = Widgets::new(&cluster.servers[0], 30).await;
    widgets.store_in("v2").await;
    let start = |name: &str, flags: &[&str]| {
        let mut command = Command::new(folder.join(name));
        command.arg("--kubeconfig").arg(&widgets.kubeconfig).args(flags).stderr(Stdio::null());
        Running(command.spawn().unwrap())
    };
    let _trigger = start("trigger", &[]);
    let _migrator = start("migrator", &["--kube-api-qps=200", "--kube-api-burst=1000"]);
    let only = json!([storage_version_hash(GROUP, "v2", KIND)]);
    eventually("its state says that only the new version is stored", async || widgets.persisted().await == only).await;
    assert_eq!(widgets.census().await["v2"], 30);
}
