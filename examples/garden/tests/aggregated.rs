//! Runs the example with a main API server, and checks its reports there.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use restow_testkit::{Process, Server, Signal, eventually_blocking};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

const PLANTS: &str = "garden.example.plants";
/// Selects the identity leases of the garden.
const LEASES: &str = "-l=restow.dev/control-plane=garden";

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

    /// The uids of the leases of the garden.
    fn lease(&self) -> String {
        self.kubectl(&["-n", "kube-system", "get", "leases", LEASES, "-o", "jsonpath={.items[*].metadata.uid}"])
    }

    /// Waits for longer than an identity lease lasts: until one that nobody renews was deleted.
    fn wait_until_a_lease_expires(&self, folder: &Path) {
        let lease = serde_json::json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "witness", "labels": {"apiserver.kubernetes.io/identity": "witness"}},
            "spec": {"holderIdentity": "nobody", "leaseDurationSeconds": 12},
        });
        let file = folder.join("witness.json");
        std::fs::write(&file, lease.to_string()).unwrap();
        self.kubectl(&["-n", "kube-system", "create", "-f", file.to_str().unwrap()]);
        let witness =
            || self.kubectl(&["-n", "kube-system", "get", "lease", "witness", "-o", "name", "--ignore-not-found"]);
        assert!(!witness().is_empty());
        eventually_blocking("the lease that nobody renews is deleted", || witness().is_empty());
    }
}

#[test]
fn what_an_aggregated_server_has_reported_to_the_main_one_stays_as_long_as_it_can_write() {
    let folder = tempfile::tempdir().unwrap();
    let main = Main(Server::up(folder.path()));
    let garden = start_garden(folder.path(), &main);

    // It printed that it is ready, so it has reported.
    let report = main.report();
    assert_eq!(report["commonEncodingVersion"], "garden.example/v2", "{report}");
    let entry = &report["storageVersions"][0];
    assert_eq!(entry["decodableVersions"], serde_json::json!(["garden.example/v2", "garden.example/v1"]));
    let name = main.kubectl(&["-n", "kube-system", "get", "leases", LEASES, "-o=name"]);
    assert_eq!(name.trim(), format!("lease.coordination.k8s.io/{}", entry["apiServerID"].as_str().unwrap()));

    // A removed report is written again.
    main.kubectl(&["delete", "storageversion", PLANTS]);
    eventually_blocking("it is reported again", || main.report()["commonEncodingVersion"] == "garden.example/v2");
    let first = main.lease();
    main.kubectl(&["-n", "kube-system", "delete", "leases", LEASES]);
    eventually_blocking("it takes another lease", || !["", &first].contains(&main.lease().as_str()));
    eventually_blocking("and is still reported", || main.report()["commonEncodingVersion"] == "garden.example/v2");

    // A server that is suspended for longer than a lease may still write to its own store when it resumes.
    garden.pause();
    let paused = main.lease();
    main.wait_until_a_lease_expires(folder.path());
    assert_eq!(main.lease(), paused);
    assert_eq!(main.report()["commonEncodingVersion"], "garden.example/v2");
    garden.resume();

    // The next process on its store takes its place.
    let killed = main.lease();
    drop(garden);
    assert_eq!(main.lease(), killed);
    let garden = start_garden(folder.path(), &main);
    eventually_blocking("only the lease of the next process is there", || {
        let leases = main.lease();
        leases != killed && leases.split(' ').count() == 1
    });
    eventually_blocking("it has reported, and nobody else", || {
        main.report()["storageVersions"].as_array().is_some_and(|entries| entries.len() == 1)
    });

    // A clean stop deletes the lease; the reports of the server are collected.
    garden.signal(Signal::INT);
    eventually_blocking("it has left", || main.lease().is_empty());
    eventually_blocking("its report is collected", || main.report().is_null());
}
