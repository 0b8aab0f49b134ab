//! Runs the example with a main API server, and checks its reports there.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use restow_testkit::{Process, Server, Signal, eventually_blocking};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

const PLANTS: &str = "garden.example.plants";

/// Starts the example, which reports to the main API server.
fn start_garden(folder: &Path, main: &Main) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_garden"));
    Process::spawn_and_read_line(command.arg(folder.join("garden")).arg(&main.0.kubeconfig)).0
}

/// The main API server: `restow up`.
struct Main(Server);

impl Main {
    fn kubectl(&self, arguments: &[&str]) -> String {
        String::from_utf8_lossy(&self.0.try_kubectl(arguments).stdout).to_string()
    }

    /// The status of the StorageVersion of plants; null if it does not exist.
    fn report(&self) -> Value {
        let text = self.kubectl(&["get", "storageversion", PLANTS, "-o", "json", "--ignore-not-found"]);
        serde_json::from_str::<Value>(&text).unwrap_or_default()["status"].take()
    }

    /// The uid of the lease of the garden; empty if it does not exist.
    fn lease(&self) -> String {
        let which = "-l=apiserver.kubernetes.io/identity=garden";
        self.kubectl(&["-n", "kube-system", "get", "leases", which, "-o", "jsonpath={.items[*].metadata.uid}"])
    }
}

#[test]
fn an_aggregated_server_reports_to_the_main_one_and_is_collected_like_all_others() {
    let folder = tempfile::tempdir().unwrap();
    let main = Main(Server::up(folder.path()));
    let garden = start_garden(folder.path(), &main);

    // It printed that it is ready, so it has reported.
    let report = main.report();
    assert_eq!(report["commonEncodingVersion"], "garden.example/v2", "{report}");
    let entry = &report["storageVersions"][0];
    assert_eq!(entry["decodableVersions"], serde_json::json!(["garden.example/v2", "garden.example/v1"]));
    let name =
        main.kubectl(&["-n", "kube-system", "get", "leases", "-l=apiserver.kubernetes.io/identity=garden", "-o=name"]);
    assert_eq!(name.trim(), format!("lease.coordination.k8s.io/{}", entry["apiServerID"].as_str().unwrap()));

    // A removed report is written again.
    main.kubectl(&["delete", "storageversion", PLANTS]);
    eventually_blocking("it is reported again", || main.report()["commonEncodingVersion"] == "garden.example/v2");
    let first = main.lease();
    main.kubectl(&["-n", "kube-system", "delete", "leases", "-l=apiserver.kubernetes.io/identity=garden"]);
    eventually_blocking("it takes another lease", || !["", &first].contains(&main.lease().as_str()));
    eventually_blocking("and is still reported", || main.report()["commonEncodingVersion"] == "garden.example/v2");

    // A server that is suspended for longer than its lease is collected, and registers again.
    garden.pause();
    eventually_blocking("the sleeper is collected", || main.lease().is_empty() && main.report().is_null());
    garden.resume();
    eventually_blocking("the sleeper is back", || main.report()["commonEncodingVersion"] == "garden.example/v2");

    // A clean stop deletes the lease; the reports of the server are collected.
    garden.signal(Signal::INT);
    eventually_blocking("it has left", || main.lease().is_empty());
    eventually_blocking("its report is collected", || main.report().is_null());
}
