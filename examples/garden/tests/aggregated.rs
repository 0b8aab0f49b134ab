//! Runs the example beside a main API server, and looks at what it reports there.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use restow_testkit::{drain, next_line, output};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PLANTS: &str = "garden.example.plants";

/// A process that has said its first line, and ends when this is dropped.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Self {
        let mut running = Running(command.stdout(Stdio::piped()).spawn().unwrap());
        let (line, rest) = next_line(BufReader::new(running.0.stdout.take().unwrap()));
        assert!(!line.is_empty(), "{command:?} said nothing");
        drain(rest);
        running
    }

    fn garden(folder: &Path, main: &Main) -> Self {
        Self::start(Command::new(env!("CARGO_BIN_EXE_garden")).arg(folder.join("garden")).arg(&main.kubeconfig))
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The main API server: `restow up`.
struct Main {
    kubeconfig: PathBuf,
    _process: Running,
}

impl Main {
    fn start(folder: &Path) -> Self {
        let restow = Path::new(env!("CARGO_BIN_EXE_garden")).with_file_name("restow");
        assert!(restow.exists(), "this needs the main API server: cargo build --workspace first");
        let data = folder.join("main");
        let mut command = Command::new(restow);
        command.args(["up", "--listen", "127.0.0.1:0", "--controller=false", "--data-dir"]).arg(&data);
        Main { _process: Running::start(&mut command), kubeconfig: data.join("kubeconfig") }
    }

    fn kubectl(&self, arguments: &[&str]) -> String {
        let cache = self.kubeconfig.with_extension("cache");
        let mut command = Command::new("kubectl");
        command.env("KUBECONFIG", &self.kubeconfig).env("KUBECACHEDIR", cache).args(arguments);
        let output = output(&mut command);
        String::from_utf8_lossy(&output.stdout).to_string()
    }

    /// The status of the StorageVersion of plants; null when there is none.
    fn report(&self) -> Value {
        let text = self.kubectl(&["get", "storageversion", PLANTS, "-o", "json", "--ignore-not-found"]);
        serde_json::from_str::<Value>(&text).unwrap_or_default()["status"].take()
    }

    /// The uid of the lease of the garden; empty when there is none.
    fn lease(&self) -> String {
        let which = "-l=apiserver.kubernetes.io/identity=garden";
        self.kubectl(&["-n", "kube-system", "get", "leases", which, "-o", "jsonpath={.items[*].metadata.uid}"])
    }
}

fn eventually(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(120);
    while !holds() {
        assert!(Instant::now() < end, "still not so after two minutes: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn an_aggregated_server_reports_to_the_main_one_and_is_collected_like_all_others() {
    let folder = tempfile::tempdir().unwrap();
    let main = Main::start(folder.path());
    let garden = Running::garden(folder.path(), &main);

    // It said that it is ready, so it has reported.
    let report = main.report();
    assert_eq!(report["commonEncodingVersion"], "garden.example/v2", "{report}");
    let entry = &report["storageVersions"][0];
    assert_eq!(entry["decodableVersions"], serde_json::json!(["garden.example/v2", "garden.example/v1"]));
    let name =
        main.kubectl(&["-n", "kube-system", "get", "leases", "-l=apiserver.kubernetes.io/identity=garden", "-o=name"]);
    assert_eq!(name.trim(), format!("lease.coordination.k8s.io/{}", entry["apiServerID"].as_str().unwrap()));

    // Whatever somebody removes comes back.
    main.kubectl(&["delete", "storageversion", PLANTS]);
    eventually("it is reported again", || main.report()["commonEncodingVersion"] == "garden.example/v2");
    let first = main.lease();
    main.kubectl(&["-n", "kube-system", "delete", "leases", "-l=apiserver.kubernetes.io/identity=garden"]);
    eventually("it takes another lease", || !["", &first].contains(&main.lease().as_str()));
    eventually("and is still reported", || main.report()["commonEncodingVersion"] == "garden.example/v2");

    // A server that sleeps for longer than its lease is collected, and comes back by itself.
    garden.signal(Signal::STOP);
    eventually("the sleeper is collected", || main.lease().is_empty() && main.report().is_null());
    garden.signal(Signal::CONT);
    eventually("the sleeper is back", || main.report()["commonEncodingVersion"] == "garden.example/v2");

    // A clean stop takes the lease along; what the server reported is collected.
    garden.signal(Signal::INT);
    eventually("it has left", || main.lease().is_empty());
    eventually("its report is collected", || main.report().is_null());
}
