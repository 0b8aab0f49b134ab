//! `restow webhook`: the guard where there are no admission policies.

use super::{GROUP, PLURAL, Widgets, eventually};
use kube::api::{Patch, PatchParams};
use restow_testkit::{Cluster, On, restow_binary};
use serde_json::{Value, json};
use std::process::{Child, Command, Stdio};

struct Webhook(Child);

impl Drop for Webhook {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn patch(widgets: &Widgets, patch: Value) -> Result<(), String> {
    let name = format!("{PLURAL}.{GROUP}");
    let patched = widgets.crds().patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await;
    patched.map(|_| ()).map_err(|error| error.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_webhook_guards_the_storage_version_and_renews_its_certificates() {
    let cluster = Cluster::one(On::Embedded).await;
    let widgets = Widgets::new(&cluster.servers[0], 1).await;
    let _webhook = Webhook(
        Command::new(restow_binary())
            .args(["webhook", "--listen", "127.0.0.1:0", "--host", "127.0.0.1", "--namespace", "kube-system"])
            .args(["--certificate-lifetime", "9", "--kubeconfig"])
            .arg(&widgets.kubeconfig)
            .stdout(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let configurations = widgets.api(
        "admissionregistration.k8s.io",
        "v1",
        "ValidatingWebhookConfiguration",
        "validatingwebhookconfigurations",
    );
    let trusted = async || {
        let found = configurations.get_opt("storage-version-guard.restow.dev").await.unwrap();
        found.map(|found| found.data["webhooks"][0]["clientConfig"]["caBundle"].clone())
    };
    eventually("the guard has registered itself", async || trusted().await.is_some()).await;
    let first = trusted().await;
    let mark = |value: Value| json!({"metadata": {"annotations": {"ksvm.sigs.k8s.io/migrating": value}}});
    patch(&widgets, mark(json!("true"))).await.unwrap();
    let versions = |version: &str| json!({"spec": {"versions": super::versions(version)}});
    // A new configuration takes a moment to be in force. Changing back and forth is allowed as long as it is not.
    let mut next = ["v2", "v1"].into_iter().cycle();
    let mut refusal = String::new();
    eventually("the guard is in force", async || match patch(&widgets, versions(next.next().unwrap())).await {
        Ok(()) => false,
        Err(error) => {
            refusal = error;
            true
        }
    })
    .await;
    assert!(refusal.contains("cannot be changed while the stored objects are being migrated"), "{refusal}");
    patch(&widgets, json!({"spec": {"names": {"shortNames": ["wd"]}}})).await.unwrap();

    eventually("the certificates are renewed", async || trusted().await != first).await;
    let storage = widgets.crd().await.data["spec"]["versions"][0]["storage"] == true;
    let other = if storage { "v2" } else { "v1" };
    let refused = patch(&widgets, versions(other)).await.unwrap_err();
    assert!(refused.contains("cannot be changed"), "with the new certificate, too: {refused}");
    patch(&widgets, mark(Value::Null)).await.unwrap();
    patch(&widgets, versions(other)).await.unwrap();
}
