//! Runs the example behind a main API server, moves its storage version, and migrates its objects with `restow`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use restow_testkit::{Cluster, On, Process, Signal, eventually_blocking, kubectl_command, output, restow_output};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

const PLANTS: &str = "plants.garden.example";
/// How many plants there are. `restow verify` stops after a few that it found in the old version.
const COUNT: u64 = 40;
/// No server has older requests that these would have to wait for.
const MIGRATE: [&str; 4] = ["migrate", PLANTS, "--settling-time", "1"];
const VERIFY: [&str; 5] = ["verify", "--through-api", PLANTS, "--settling-time", "1"];

/// The example in a folder.
struct Garden {
    process: Process,
    kubeconfig: PathBuf,
}

impl Garden {
    /// Starts it with this storage version, so that the main API server may pass requests on to it.
    fn start(folder: &Path, stored: &str, main: &Cluster, reports: Reports) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_garden"));
        command.arg(folder);
        if reports == Reports::ToMain {
            command.arg(&main.servers[0].kubeconfig);
        }
        command.arg("--requestheader-client-ca-file").arg(main.front_proxy_ca()).args(["--stored", stored]);
        let (process, line) = Process::spawn_and_read_line(&mut command);
        assert!(line.starts_with("try: kubectl"), "the server printed {line:?}");
        Garden { process, kubeconfig: folder.join("kubeconfig") }
    }

    fn port(&self) -> u16 {
        let text = std::fs::read_to_string(&self.kubeconfig).unwrap();
        let address = text.lines().find_map(|line| line.trim().strip_prefix("server: https://127.0.0.1:")).unwrap();
        address.parse().unwrap()
    }

    /// How many plants its store has in each version.
    fn stored(&self) -> Vec<(String, u64)> {
        let output = output(&mut kubectl_command(&self.kubeconfig, &["get", "--raw", "/debug/stored-versions"]));
        let census: Value = serde_json::from_slice(&output.stdout).unwrap();
        let rows = census["rows"].as_array().unwrap().iter().filter(|row| row["kind"] == "Plant");
        rows.map(|row| (row["version"].as_str().unwrap().to_owned(), row["count"].as_u64().unwrap())).collect()
    }

    /// Stops it. A server that ends in this way deletes its leases.
    fn stop(mut self) {
        self.process.signal(Signal::INT);
        assert!(self.process.wait().success());
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reports {
    ToMain,
    ToNobody,
}

/// Makes the main API server pass requests for plants on to these gardens.
fn publish(main: &Cluster, gardens: &[&Garden]) {
    let slice = |(number, garden): (usize, &&Garden)| {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {
                "name": format!("garden-{number}"), "namespace": "default",
                "labels": {"kubernetes.io/service-name": "garden"},
            },
            "endpoints": [{"addresses": ["127.0.0.1"]}], "ports": [{"name": "https", "port": garden.port()}],
        })
    };
    let api_service = |version: &str| {
        json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": format!("{version}.garden.example")},
            "spec": {
                "group": "garden.example", "version": version, "groupPriorityMinimum": 2000, "versionPriority": 15,
                "insecureSkipTLSVerify": true, "service": {"name": "garden", "namespace": "default"},
            },
        })
    };
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "garden", "namespace": "default"},
        "spec": {"ports": [{"name": "https", "port": 443}]},
    });
    let mut items: Vec<Value> = gardens.iter().enumerate().map(slice).collect();
    items.extend([service, api_service("v1"), api_service("v2")]);
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    main.kubectl(&["apply", "-f", &main.file("garden.json", &list.to_string())]);
}

/// The result of a command of `restow` for the main API server.
fn restow(main: &Cluster, arguments: &[&str]) -> (Option<i32>, String) {
    let kubeconfig = main.servers[0].kubeconfig.to_str().unwrap();
    let (output, text) = restow_output(&[arguments, &["--kubeconfig", kubeconfig]].concat());
    (output.status.code(), text)
}

/// What `restow status` shows of plants.
fn status(main: &Cluster) -> Value {
    let kubeconfig = main.servers[0].kubeconfig.to_str().unwrap();
    let (output, text) = restow_output(&["status", "-o", "json", "--kubeconfig", kubeconfig]);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {text}"));
    let resources = found["resources"].as_array().unwrap();
    resources.iter().find(|resource| resource["resource"] == PLANTS).cloned().unwrap_or_default()
}

#[track_caller]
fn check(main: &Cluster, arguments: &[&str], code: i32, words: &[&str]) {
    let (found, text) = restow(main, arguments);
    assert_eq!(found, Some(code), "{arguments:?} {text}");
    for word in words {
        assert!(text.contains(word), "{arguments:?} {text} lacks {word:?}");
    }
}

/// Checks that neither a migration nor a verification proves anything, for this reason.
#[track_caller]
fn check_nothing_is_proven(main: &Cluster, words: &[&str]) {
    check(main, &["migrate", PLANTS, "--wait", "0"], 4, words);
    check(main, &VERIFY, 4, words);
}

fn plants() -> String {
    let plant = |number| {
        json!({
            "apiVersion": "garden.example/v1", "kind": "Plant", "metadata": {"name": format!("plant-{number}")},
            "spec": {"size": "3x4"},
        })
    };
    json!({"apiVersion": "v1", "kind": "List", "items": (0..COUNT).map(plant).collect::<Vec<_>>()}).to_string()
}

async fn the_storage_version_of_an_aggregated_server_is_moved_and_its_objects_are_migrated(on: On) {
    let (main, folder) = (Cluster::one(on).await, tempfile::tempdir().unwrap());
    let (first, second) = (folder.path().join("first"), folder.path().join("second"));
    let old = Garden::start(&first, "v1", &main, Reports::ToMain);
    publish(&main, &[&old]);
    for version in ["v1", "v2"] {
        main.kubectl(&["wait", "--for=condition=Available", &format!("apiservice/{version}.garden.example")]);
    }
    main.kubectl(&["apply", "-f", &main.file("plants.json", &plants())]);
    assert_eq!(old.stored(), [("v1".to_owned(), COUNT)]);
    let shown = status(&main);
    assert_eq!((&shown["storageVersion"], &shown["isManaged"]), (&json!("v1"), &json!(true)), "{shown}");
    assert!(shown["aggregated"].as_str().unwrap().contains("default/garden"), "{shown}");

    old.stop();
    let new = Garden::start(&first, "v2", &main, Reports::ToMain);
    publish(&main, &[&new]);
    eventually_blocking("the upgraded garden alone reports", || status(&main)["storageVersion"] == "v2");
    eventually_blocking("requests are passed on to it", || {
        main.servers[0].try_kubectl(&["get", PLANTS, "plant-0"]).status.success()
    });
    assert_eq!(new.stored(), [("v1".to_owned(), COUNT)]);
    // The main server's store has no plants, and that says nothing.
    check(&main, &["verify", PLANTS], 4, &["--through-api"]);
    check(&main, &VERIFY, 3, &["some were stored in another version"]);
    check(&main, &MIGRATE, 0, &["Succeeded"]);
    assert_eq!(new.stored(), [("v2".to_owned(), COUNT)]);
    check(&main, &VERIFY, 0, &["every object was left unchanged"]);

    // A server that does not report may write anything.
    let silent = Garden::start(&second, "v2", &main, Reports::ToNobody);
    publish(&main, &[&new, &silent]);
    check_nothing_is_proven(&main, &["1 reports, but the EndpointSlices name 2", "default/garden"]);
    assert!(status(&main)["disagreement"].as_str().unwrap().contains("not each of them reports"));
    silent.stop();
    let behind = Garden::start(&second, "v1", &main, Reports::ToMain);
    publish(&main, &[&new, &behind]);
    check_nothing_is_proven(&main, &["garden.example/v1", "garden.example/v2"]);
    behind.stop();
    // Nor is anything known if a request reaches the one or the other of two stores.
    let apart = Garden::start(&second, "v2", &main, Reports::ToMain);
    publish(&main, &[&new, &apart]);
    check_nothing_is_proven(&main, &["do not all store it in the same place"]);
    apart.stop();
    main.kubectl(&["delete", "endpointslice", "garden-1"]);
    eventually_blocking("its report is collected", || status(&main)["disagreement"].is_null());
    check(&main, &MIGRATE, 0, &["Succeeded"]);

    // Without a report nothing is known, whatever discovery shows.
    new.stop();
    let silent = Garden::start(&first, "v2", &main, Reports::ToNobody);
    publish(&main, &[&silent]);
    eventually_blocking("nobody reports", || status(&main)["isManaged"] == false);
    check(&main, &["migrate", PLANTS, "--wait", "0"], 4, &["NotManaged", "do not report what they store"]);
    check(&main, &["verify", "--through-api", PLANTS], 4, &["do not report what they store"]);
    check(&main, &["status"], 0, &["Not managed", "do not report what they store", PLANTS]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_aggregated_resource_is_migrated_behind_a_server_on_the_embedded_store() {
    the_storage_version_of_an_aggregated_server_is_moved_and_its_objects_are_migrated(On::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_aggregated_resource_is_migrated_behind_a_server_on_etcd() {
    the_storage_version_of_an_aggregated_server_is_moved_and_its_objects_are_migrated(On::Etcd).await;
}
