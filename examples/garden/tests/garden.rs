//! Runs the example and uses it with kubectl.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use restow_testkit::{Process, kubectl_command, output};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

struct Garden {
    _process: Process,
    kubeconfig: PathBuf,
}

impl Garden {
    fn start(folder: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_garden"));
        let (process, line) = Process::spawn_and_read_line(command.arg(folder));
        assert!(line.starts_with("try: kubectl"), "the server printed {line:?}");
        Garden { _process: process, kubeconfig: folder.join("kubeconfig") }
    }

    fn kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        let output = output(&mut kubectl_command(&self.kubeconfig, arguments));
        match output.status.success() {
            true => Ok(String::from_utf8(output.stdout).unwrap()),
            false => Err(String::from_utf8_lossy(&output.stderr).to_string()),
        }
    }
}

#[test]
fn a_custom_api_server_serves_two_versions_and_the_hash() {
    let folder = tempfile::tempdir().unwrap();
    let garden = Garden::start(folder.path());
    let fern = folder.path().join("fern.yaml");
    let text = "apiVersion: garden.example/v1\nkind: Plant\nmetadata: {name: fern}\nspec: {size: 30x40, leaves: 7}\n";
    std::fs::write(&fern, text).unwrap();
    let fern = fern.to_str().unwrap();
    garden.kubectl(&["apply", "-f", fern]).unwrap();

    let spec = |resource: &str| {
        let spec = garden.kubectl(&["get", resource, "fern", "-o", "jsonpath={.apiVersion} {.spec}"]).unwrap();
        let (version, spec) = spec.split_once(' ').unwrap();
        (version.to_string(), serde_json::from_str::<Value>(spec).unwrap())
    };
    let (version, shown) = spec("plants");
    assert_eq!(version, "garden.example/v2");
    assert_eq!(shown, serde_json::json!({"leaves": 7, "size": {"height": 30, "width": 40}}));
    let (version, shown) = spec("plants.v1.garden.example");
    assert_eq!(version, "garden.example/v1");
    assert_eq!(shown, serde_json::json!({"leaves": 7, "size": "30x40"}));

    garden.kubectl(&["patch", "pl", "fern", "--type=merge", "-p", r#"{"spec":{"size":{"height":31}}}"#]).unwrap();
    assert_eq!(spec("plants.v1.garden.example").1["size"], "31x40");
    let refused = garden.kubectl(&["patch", "pl", "fern", "--type=merge", "-p", r#"{"spec":{"size":null}}"#]);
    assert!(refused.unwrap_err().contains("spec.size: Required value: say how high"));

    for version in ["v1", "v2"] {
        let document = garden.kubectl(&["get", "--raw", &format!("/apis/garden.example/{version}")]).unwrap();
        let document: Value = serde_json::from_str(&document).unwrap();
        let plants = document["resources"].as_array().unwrap().iter().find(|one| one["name"] == "plants").unwrap();
        let hash = restow_api::storage_version_hash("garden.example", "v2", "Plant");
        assert_eq!(plants["storageVersionHash"], hash, "{version}");
    }
    assert!(garden.kubectl(&["api-resources"]).unwrap().contains("garden.example/v2"));
}

#[test]
fn plants_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let moss = folder.path().join("moss.yaml");
    let text =
        "apiVersion: garden.example/v2\nkind: Plant\nmetadata: {name: moss}\nspec: {size: {height: 1, width: 9}}\n";
    std::fs::write(&moss, text).unwrap();
    let garden = Garden::start(folder.path());
    garden.kubectl(&["create", "-f", moss.to_str().unwrap()]).unwrap();
    drop(garden);
    let garden = Garden::start(folder.path());
    assert_eq!(garden.kubectl(&["get", "plants", "-o", "name"]).unwrap(), "plant.garden.example/moss\n");
    garden.kubectl(&["delete", "plant", "moss"]).unwrap();
    assert_eq!(garden.kubectl(&["get", "plants", "-o", "name"]).unwrap(), "");
}
