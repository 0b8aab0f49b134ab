//! `restow torture --processes`, as a test: a short run by default, two minutes with `RESTOW_TEST_LONG=1`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use restow_testkit::{eventually_blocking, output, restow_binary, wait};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::process::{Command, Stdio};

/// A run with its temporary folder in this one.
fn torture(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(restow_binary());
    command.args(["torture", "--processes"]).args(arguments).env("TMPDIR", folder).stdin(Stdio::null());
    command
}

#[test]
fn no_rule_breaks_while_real_processes_are_killed_and_cut_off() {
    let folder = tempfile::tempdir().unwrap();
    let long = std::env::var_os("RESTOW_TEST_LONG").is_some();
    let arguments = if long { ["--minutes", "2", "-o", "json"] } else { ["--minutes", "0.3", "-o", "json"] };
    let output = output(&mut torture(folder.path(), &arguments));
    let (printed, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        panic!("the logs are in {}\n{printed}\n{errors}", folder.keep().display());
    }
    println!("{printed}\n{errors}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let parts = report["parts"].as_array().unwrap();
    assert_eq!(parts.iter().map(|part| &part["store"]).collect::<Vec<_>>(), ["etcd", "aggregated", "embedded"]);
    for part in parts {
        // The aggregated server may be down for most of a short run.
        let (acknowledged, revisions) = if part["store"] == "aggregated" { (0, 5) } else { (10, 100) };
        assert!(part["counts"]["acknowledged"].as_u64() >= Some(acknowledged), "{part}");
        assert!(part["counts"]["revisions"].as_u64() > Some(revisions), "{part}");
        assert!(part["settledAfter"].is_f64(), "{part}");
    }
    assert_eq!(folder.path().read_dir().unwrap().count(), 0, "the temporary folder is removed");
}

#[test]
fn no_rule_breaks_on_two_stock_api_servers() {
    let Some(kube_apiserver) = std::env::var_os("RESTOW_TEST_KUBE_APISERVER") else {
        restow_testkit::skip("set RESTOW_TEST_KUBE_APISERVER to the program kube-apiserver");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    // An odd seed, so that the settling time is short.
    let arguments = ["--seed", "1", "--minutes", "0.5", "-o", "json", "--kube-apiserver"];
    let output = output(torture(folder.path(), &arguments).arg(kube_apiserver));
    let (printed, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        panic!("the logs are in {}\n{printed}\n{errors}", folder.keep().display());
    }
    println!("{printed}\n{errors}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let part = &report["parts"][0];
    assert_eq!(part["store"], "stock API servers on etcd");
    assert!(part["counts"]["acknowledged"].as_u64() > Some(10), "{part}");
    assert!(part["settledAfter"].is_f64(), "{part}");
}

#[test]
fn an_interrupted_torture_leaves_no_processes_or_files() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = torture(folder.path(), &["--store", "etcd"]).spawn().unwrap();
    eventually_blocking("API servers run", || processes_in(folder.path()) > 5);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(wait(&mut child).code(), Some(5));
    assert_eq!(folder.path().read_dir().unwrap().count(), 0, "the temporary folder is removed");
    eventually_blocking("no process is left", || processes_in(folder.path()) == 0);
}

/// How many processes have this folder in their command line.
fn processes_in(folder: &Path) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|process| std::fs::read_to_string(process.path().join("cmdline")).ok());
    lines.filter(|line| line.contains(folder.to_str().unwrap())).count()
}
