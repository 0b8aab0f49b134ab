//! Every exit code of `restow migrate` that its help documents.

use crate::custom_resources::{crontab, storage_version};
use crate::webhook_server::{Reply, Webhook};
use restow_testkit::{Cluster, Server, eventually_blocking, restow_binary};
use serde_json::json;
use std::io::BufRead;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

const CRONTABS: &str = "crontabs.stable.example.com";

/// Reports do not contain keys, so the settling time applies, also with Restow API servers.
const KEY_ROTATION: &[&str] = &["--reason", "key-rotation", "--settling-time", "0"];

fn migrate(kubeconfig: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(restow_binary());
    let output = command.arg("migrate").args(arguments).arg("--kubeconfig").arg(kubeconfig).output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output.status.code(), text)
}

fn apply(server: &Server, name: &str, text: &str) {
    let path = server.kubeconfig.with_file_name(name);
    std::fs::write(&path, text).unwrap();
    server.kubectl(&["apply", "-f", path.to_str().unwrap()]);
}

/// A server with so many objects in v1, of a CRD whose storage version is v2 since.
fn with_old_objects(folder: &Path, count: usize) -> Server {
    let server = Server::up(folder);
    apply(&server, "old.yaml", &storage_version(true, false));
    server.kubectl(&["wait", "--for=condition=Established", &format!("crd/{CRONTABS}")]);
    let objects: Vec<String> =
        (0..count).map(|number| crontab("v1", &format!("job-{number}"), "{replicas: 1}")).collect();
    apply(&server, "objects.yaml", &objects.join("---\n"));
    apply(&server, "new.yaml", &storage_version(false, true));
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_code_0_if_all_is_rewritten_and_1_or_2_if_it_cannot_run() {
    let folder = tempfile::tempdir().unwrap();
    let server = with_old_objects(folder.path(), 5);
    let check = |arguments: &[&str], expected: i32, words: &str| {
        let (code, text) = migrate(&server.kubeconfig, arguments);
        assert_eq!(code, Some(expected), "{arguments:?} {text}");
        assert!(text.contains(words), "{arguments:?} {text}");
    };
    check(&["nonsense.example.com"], 1, "kubectl api-resources -o name");
    check(&["configmaps", "secrets", "--continue-from", "x"], 1, "exactly one resource");
    check(&[], 2, "RESOURCE");
    check(&[CRONTABS, "--all"], 2, "cannot be used with");
    check(&[CRONTABS], 0, "Succeeded");
    check(&[CRONTABS], 0, "Succeeded");

    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let unreachable = folder.path().join("unreachable");
    let text = std::fs::read_to_string(&server.kubeconfig).unwrap();
    std::fs::write(&unreachable, text.replace(&server.address, &closed.to_string())).unwrap();
    let (code, text) = migrate(&unreachable, &[CRONTABS]);
    assert_eq!(code, Some(1), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_code_3_names_the_objects_that_were_refused() {
    let folder = tempfile::tempdir().unwrap();
    let server = with_old_objects(folder.path(), 5);
    let policy = "
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: refusing}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - {apiGroups: [stable.example.com], apiVersions: ['*'], operations: [UPDATE], resources: [crontabs]}
  validations:
  - {expression: \"object.metadata.name != 'job-3'\", message: not this one}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: refusing}
spec: {policyName: refusing, validationActions: [Deny]}
";
    apply(&server, "policy.yaml", policy);
    eventually_blocking("the policy is in force", || {
        !server.try_kubectl(&["annotate", "--overwrite", CRONTABS, "job-3", "a=b", "--dry-run=server"]).status.success()
    });
    let (code, text) = migrate(&server.kubeconfig, &[CRONTABS]);
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("default/job-3") && text.contains("not this one"), "{text}");
    let (code, text) = migrate(&server.kubeconfig, &[CRONTABS, "--dry-run"]);
    assert_eq!(code, Some(3), "{text}");
    let stored = server.kubectl(&["get", "crd", CRONTABS, "-o", "jsonpath={.status.storedVersions}"]);
    assert_eq!(stored, r#"["v1","v2"]"#, "nothing was proven");
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_code_4_names_servers_that_do_not_agree() {
    let cluster = Cluster::on_etcd(&["1.30", "1.31"]).await;
    let (code, text) = migrate(&cluster.servers[0].kubeconfig, &["endpointslices.discovery.k8s.io"]);
    assert_eq!(code, Some(4), "{text}");
    assert!(text.contains("do not agree") && text.contains("v1beta1"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_code_4_for_a_key_rotation_that_rewrote_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let server = with_old_objects(folder.path(), 3);
    // The objects are in an old version, so they are rewritten, with any key.
    let (code, text) = migrate(&server.kubeconfig, &[&[CRONTABS], KEY_ROTATION].concat());
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("others may still need the old key"), "{text}");
    for arguments in [&[CRONTABS][..], &["--all"]] {
        let arguments = [arguments, KEY_ROTATION].concat();
        let (code, text) = migrate(&server.kubeconfig, &arguments);
        assert_eq!(code, Some(4), "{text}");
        assert!(text.contains("Nothing was rewritten") && text.contains("Keep the old key"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_code_4_for_a_key_rotation_with_the_number_of_unchanged_objects() {
    let folder = tempfile::tempdir().unwrap();
    let server = with_old_objects(folder.path(), 5);
    // These are written before the run begins; their key is not known.
    server.kubectl(&["annotate", CRONTABS, "job-1", "job-3", "seen=yes"]);
    let (code, text) = migrate(&server.kubeconfig, &[&[CRONTABS], KEY_ROTATION].concat());
    assert_eq!(code, Some(4), "{text}");
    assert!(text.contains(&format!("2 of 5 {CRONTABS}")) && text.contains("Keep the old key"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_code_6_with_a_single_endpoint_proves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let server = with_old_objects(folder.path(), 3);
    let (code, text) = migrate(&server.kubeconfig, &[CRONTABS, "--one-endpoint", "--settling-time", "0"]);
    assert_eq!(code, Some(6), "{text}");
    assert!(text.contains("nothing is proven"), "{text}");
    let stored = server.kubectl(&["get", "crd", CRONTABS, "-o", "jsonpath={.status.storedVersions}"]);
    assert_eq!(stored, r#"["v1","v2"]"#, "they stay");
    let (code, text) = migrate(&server.kubeconfig, &[CRONTABS]);
    assert_eq!(code, Some(0), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_code_4_names_servers_without_an_address() {
    let folder = tempfile::tempdir().unwrap();
    let server = with_old_objects(folder.path(), 3);
    let lease = "
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata:
  {name: apiserver-elsewhere, namespace: kube-system, labels: {apiserver.kubernetes.io/identity: kube-apiserver}}
spec: {holderIdentity: somebody, leaseDurationSeconds: 3600, renewTime: '2099-01-01T00:00:00.000000Z'}
";
    apply(&server, "lease.yaml", lease);
    let (code, text) = migrate(&server.kubeconfig, &[CRONTABS, "--wait", "0"]);
    assert_eq!(code, Some(4), "{text}");
    assert!(text.contains("apiserver-elsewhere holds an identity lease and does not report"), "{text}");
    server.kubectl(&["delete", "lease", "-n", "kube-system", "apiserver-elsewhere"]);
    let (code, text) = migrate(&server.kubeconfig, &[CRONTABS]);
    assert_eq!(code, Some(0), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_code_5_for_an_interrupted_migration_that_can_be_continued() {
    let folder = tempfile::tempdir().unwrap();
    let server = with_old_objects(folder.path(), 60);
    // Each write takes a while, so that there is a time in which to stop it.
    let webhook = Webhook::start(|review| {
        let answer = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "response": {"uid": review["request"]["uid"], "allowed": true}});
        Reply::Later(Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(200)).await;
            Reply::Json(answer)
        }))
    });
    let webhook = webhook.await;
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "slow"},
        "webhooks": [{
            "name": "slow.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": webhook.url("/"), "caBundle": webhook.ca_bundle},
            "rules": [{"apiGroups": ["stable.example.com"], "apiVersions": ["*"], "operations": ["UPDATE"],
                       "resources": ["crontabs"]}],
        }],
    });
    apply(&server, "webhook.json", &configuration.to_string());
    eventually_blocking("the webhook is in force", || {
        server.kubectl(&["annotate", "--overwrite", CRONTABS, "job-3", "a=b", "--dry-run=server"]);
        !webhook.asked().is_empty()
    });
    let mut command = Command::new(restow_binary());
    command.args(["migrate", CRONTABS, "--max-in-flight", "1", "--kubeconfig"]).arg(&server.kubeconfig);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually_blocking("objects are being rewritten", || !webhook.asked().is_empty());
    let process = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(5), "{text}");
    assert!(text.contains("Stopped"), "{text}");
    server.kubectl(&["delete", "validatingwebhookconfiguration", "slow"]);
    let (code, text) = migrate(&server.kubeconfig, &[CRONTABS]);
    assert_eq!(code, Some(0), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_code_5_for_a_signal_at_the_end_of_the_first_of_two_migrations() {
    let folder = tempfile::tempdir().unwrap();
    let server = with_old_objects(folder.path(), 3);
    let allow = |review: &serde_json::Value| {
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "response": {"uid": review["request"]["uid"], "allowed": true}})
    };
    let webhook = Webhook::start(move |review| Reply::Json(allow(review))).await;
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "trimming"},
        "webhooks": [{
            "name": "trimming.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 30, "clientConfig": {"url": webhook.url("/"), "caBundle": webhook.ca_bundle},
            "rules": [{"apiGroups": ["apiextensions.k8s.io"], "apiVersions": ["*"], "operations": ["UPDATE"],
                       "resources": ["customresourcedefinitions/status"]}],
        }],
    });
    apply(&server, "webhook.json", &configuration.to_string());
    eventually_blocking("the webhook is in force", || {
        let nothing = ["--subresource=status", "--type=merge", "-p", "{\"status\":{}}", "--dry-run=server"];
        server.kubectl(&[&["patch", "crd", CRONTABS][..], &nothing[..]].concat());
        !webhook.asked().is_empty()
    });
    // The last thing that the first migration writes waits until the signal has been noticed.
    let noticed = Arc::new(tokio::sync::Semaphore::new(0));
    let waits = Arc::clone(&noticed);
    let (trimming, is_trimming) = tokio::sync::watch::channel(false);
    webhook.behave(move |review| {
        trimming.send_replace(true);
        let (answer, waits) = (allow(review), Arc::clone(&waits));
        Reply::Later(Box::pin(async move {
            let _noticed = waits.acquire().await;
            Reply::Json(answer)
        }))
    });
    let mut command = Command::new(restow_binary());
    command.args(["migrate", CRONTABS, "secrets"]).args(KEY_ROTATION).arg("--kubeconfig").arg(&server.kubeconfig);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually_blocking("the stored versions are being trimmed", || *is_trimming.borrow());
    let process = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    let mut lines = std::io::BufReader::new(child.stderr.take().unwrap()).lines();
    let said = lines.by_ref().map_while(Result::ok).find(|line| line.contains("stopping"));
    assert!(said.is_some(), "the signal is answered");
    noticed.add_permits(100);
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(5), "{text}");
    assert!(text.contains("Succeeded") && text.contains("secrets: stopped before"), "{text}");
    assert!(text.contains("Keep the old key. Not proven: secrets."), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_code_4_names_a_crd_that_no_server_serves() {
    let folder = tempfile::tempdir().unwrap();
    let server = with_old_objects(folder.path(), 3);
    let unserved = storage_version(true, false).replace("crontabs", "gonetabs").replace("CronTab", "GoneTab");
    apply(&server, "unserved.yaml", &unserved.replace("served: true", "served: false"));
    for arguments in [&["--crds"][..], &["--all"], &["gonetabs.stable.example.com"]] {
        let (code, text) = migrate(&server.kubeconfig, &[arguments, &["--wait", "0"]].concat());
        assert_eq!(code, Some(4), "{arguments:?} {text}");
        assert!(text.contains("gonetabs.stable.example.com: no API server serves the resource"), "{text}");
    }
    let (code, text) = migrate(&server.kubeconfig, &[&["--all", "--wait", "0"], KEY_ROTATION].concat());
    assert_eq!(code, Some(4), "{text}");
    assert!(text.contains("Not proven: gonetabs.stable.example.com."), "{text}");
}
