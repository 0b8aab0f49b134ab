//! `restow status` and `restow verify`: on a running server, on etcd itself, and on the data of a stopped server.

use crate::custom_resources::{crontab, storage_version};
use restow_testkit::{Cluster, On, Server, eventually_blocking, restow_binary, restow_output, run};
use std::process::Command;

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_agrees_is_shown_and_proven() {
    for on in [On::Embedded, On::Etcd] {
        let cluster = Cluster::one(on).await;
        cluster.kubectl(&["create", "configmap", "a"]);
        let kubeconfig = cluster.servers[0].kubeconfig.to_str().unwrap();
        let (status, text) = restow_output(&["status", "--kubeconfig", kubeconfig]);
        assert_eq!(status.status.code(), Some(0), "{on:?} {text}");
        assert!(text.contains("endpointslices.discovery.k8s.io"), "{text}");
        let (one, text) = restow_output(&["status", "configmaps", "-o", "json", "--kubeconfig", kubeconfig]);
        assert_eq!(one.status.code(), Some(0), "{on:?} {text}");
        let value: serde_json::Value = serde_json::from_slice(&one.stdout).unwrap();
        assert_eq!(value["resources"][0]["storageVersion"], "v1", "{value}");
        let (verify, text) = restow_output(&["verify", "--kubeconfig", kubeconfig]);
        assert_eq!(verify.status.code(), Some(0), "{on:?} {text}");
        assert!(text.contains("Nothing old is stored"), "{text}");
        let (unknown, text) = restow_output(&["status", "nonsense", "--kubeconfig", kubeconfig]);
        assert_eq!(unknown.status.code(), Some(1), "{text}");
        assert!(text.contains("kubectl api-resources -o name"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_in_an_old_version_are_found_in_the_data_of_a_stopped_server() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::up(folder.path());
    server.kubectl(&["create", "configmap", "a"]);
    let data = folder.path().join("data");
    let (in_use, text) = restow_output(&["verify", "--data-dir", data.to_str().unwrap()]);
    assert_eq!(in_use.status.code(), Some(1), "{text}");
    assert!(text.contains("in use"), "{text}");
    server.stop();
    let (stopped, text) = restow_output(&["verify", "--data-dir", data.to_str().unwrap()]);
    assert_eq!(stopped.status.code(), Some(0), "{text}");
    assert!(text.contains("configmaps"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_disagree_are_shown_side_by_side() {
    let cluster = Cluster::on_etcd(&["1.30", "1.31"]).await;
    let kubeconfig = cluster.servers[0].kubeconfig.to_str().unwrap();
    let (status, text) = restow_output(&["status", "endpointslices", "--kubeconfig", kubeconfig]);
    assert_eq!(status.status.code(), Some(4), "{text}");
    assert!(text.contains("v1beta1") && text.contains("do not agree"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_the_storage_version_is_migrated_and_proven_without_a_further_command() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::up_with(folder.path(), &[]);
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_string()
    };
    let (old, new) = (storage_version(true, false), storage_version(false, true));
    server.kubectl(&["apply", "-f", &file("old.yaml", &old)]);
    server.kubectl(&["wait", "--for=condition=Established", "crd/crontabs.stable.example.com"]);
    let objects: Vec<String> = (0..50).map(|number| crontab("v1", &format!("job-{number}"), "{replicas: 1}")).collect();
    server.kubectl(&["apply", "-f", &file("objects.yaml", &objects.join("---\n"))]);
    // While the controller still checks CRDs that it has not seen before, the guard refuses this.
    let new = file("new.yaml", &new);
    eventually_blocking("the storage version to be changed", || {
        server.try_kubectl(&["apply", "-f", &new]).status.success()
    });
    let stored = ["get", "crd", "crontabs.stable.example.com", "-o", "jsonpath={.status.storedVersions}"];
    eventually_blocking("the stored versions to be trimmed", || server.kubectl(&stored) == r#"["v2"]"#);
    let kubeconfig = server.kubeconfig.to_str().unwrap();
    let (verify, text) = restow_output(&["verify", "crontabs.stable.example.com", "--kubeconfig", kubeconfig]);
    assert_eq!(verify.status.code(), Some(0), "{text}");
    assert!(text.contains("v2: 50"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn verify_through_api_works_without_access_to_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::up(folder.path());
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_string()
    };
    server.kubectl(&["apply", "-f", &file("old.yaml", &storage_version(true, false))]);
    server.kubectl(&["wait", "--for=condition=Established", "crd/crontabs.stable.example.com"]);
    let objects: Vec<String> = (0..60).map(|number| crontab("v1", &format!("job-{number}"), "{replicas: 1}")).collect();
    server.kubectl(&["apply", "-f", &file("objects.yaml", &objects.join("---\n"))]);
    let kubeconfig = server.kubeconfig.to_str().unwrap();
    let ask = || restow_output(&["verify", "crontabs", "--through-api", "-o", "json", "--kubeconfig", kubeconfig]);
    let (current, text) = ask();
    assert_eq!(current.status.code(), Some(0), "{text}");
    let found: serde_json::Value = serde_json::from_slice(&current.stdout).unwrap();
    assert_eq!(found["resources"][0]["current"], 60, "{found}");

    server.kubectl(&["apply", "-f", &file("new.yaml", &storage_version(false, true))]);
    let (status, text) = restow_output(&["status", "crontabs", "--kubeconfig", kubeconfig]);
    assert_eq!(status.status.code(), Some(0), "{text}");
    assert!(text.contains("v1,v2") && text.contains("restow migrate crontabs.stable.example.com"), "{text}");
    let (old, text) = ask();
    assert_eq!(old.status.code(), Some(3), "{text}");
    let found: serde_json::Value = serde_json::from_slice(&old.stdout).unwrap();
    let rewritten = found["resources"][0]["rewritten"].as_u64().unwrap();
    assert!((1..30).contains(&rewritten), "it ends when it has found one: {found}");
    let (verify, text) = restow_output(&["verify", "crontabs", "--kubeconfig", kubeconfig]);
    assert_eq!(verify.status.code(), Some(3), "{text}");
    let (migrated, text) = restow_output(&["migrate", "crontabs.stable.example.com", "--kubeconfig", kubeconfig]);
    assert_eq!(migrated.status.code(), Some(0), "{text}");
    let (current, text) = ask();
    assert_eq!(current.status.code(), Some(0), "{text}");

    for arguments in
        [&["verify", "--through-api"][..], &["verify", "nonsense"], &["verify", "nonsense", "--through-api"]]
    {
        let (refused, text) = restow_output(&[arguments, &["--kubeconfig", kubeconfig]].concat());
        assert!(matches!(refused.status.code(), Some(1 | 2)), "{arguments:?} {text}");
    }
    let (unknown, text) = restow_output(&["status", "--kubeconfig", kubeconfig, "--context", "elsewhere"]);
    assert_eq!(unknown.status.code(), Some(1), "{text}");
    assert!(text.contains("kubectl config get-contexts"), "{text}");
}

#[test]
fn restow_works_as_a_kubectl_plugin_with_shell_completion() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["kubectl-restow", "kubectl_complete-restow"] {
        std::os::unix::fs::symlink(restow_binary(), folder.path().join(name)).unwrap();
    }
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let kubectl = |arguments: &[&str]| run(Command::new("kubectl").args(arguments).env("PATH", &path));
    assert!(kubectl(&["restow", "explain", "fence"]).starts_with("FENCE"));
    assert!(kubectl(&["restow", "status", "--help"]).contains("Usage: kubectl restow status"));
    let completed = kubectl(&["__complete", "restow", "ver"]);
    assert!(completed.starts_with("verify\t"), "{completed}");
    for shell in ["bash", "zsh", "fish"] {
        let script = run(Command::new(restow_binary()).args(["completion", shell]));
        assert!(script.contains("through-api") && !script.contains("\x1b"), "{shell}");
    }
    let topics: serde_json::Value = serde_json::from_str(&restow_output(&["explain", "-o", "json"]).1).unwrap();
    assert_eq!(topics[0]["name"], "storage-version");
}
