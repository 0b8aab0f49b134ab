//! The demo, as a test: everything that it claims is checked while it runs, and it ends with an error when a claim is false.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use restow_store::{RangeRequest, Store};
use restow_testkit::{LocalEtcd, etcd_store, output, restow_binary, start_etcd, wait};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// The demo with these arguments, with its temporary folders in this one.
fn demo(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(restow_binary());
    command.args(["demo", "--fast", "--objects", "60"]).args(arguments).env("TMPDIR", folder);
    command
}

fn runs_to_the_end(arguments: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let output = output(&mut demo(folder.path(), arguments));
    let (printed, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{printed}\n{errors}");
    // Sentences are broken into lines anywhere.
    let words = printed.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("This is the fence."), "{printed}");
    assert!(words.contains("none failed, none was lost."), "{printed}");
    assert!(!printed.contains('\x1b'), "no colours without a terminal");
    assert_eq!(errors, "", "a demo that succeeds logs nothing");
    assert_eq!(folder.path().read_dir().unwrap().count(), 0, "the temporary folder is removed");
}

/// Everything that is in etcd.
async fn keys(etcd: &LocalEtcd) -> Vec<String> {
    let all = etcd_store(&etcd.endpoint(), "").await.range(RangeRequest::prefix("/")).await.unwrap();
    all.entries.iter().map(|entry| entry.key.to_string()).collect()
}

#[test]
fn the_checks_of_the_demo_pass() {
    runs_to_the_end(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_checks_of_the_demo_pass_with_processes_on_etcd() {
    let etcd = start_etcd().await;
    runs_to_the_end(&["--etcd-endpoints", &etcd.endpoint()]);
    assert_eq!(keys(&etcd).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_demo_leaves_no_processes_or_files() {
    let etcd = start_etcd().await;
    let folder = tempfile::tempdir().unwrap();
    for arguments in [&[][..], &["--etcd-endpoints", &etcd.endpoint()]] {
        let mut child = demo(folder.path(), arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        // One server is suspended in the middle of a write.
        assert!(lines.any(|line| line.contains("resumes too late")), "the demo did not get that far");
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let rest: Vec<String> = lines.collect();
        assert_eq!(wait(&mut child).code(), Some(5), "{rest:?}");
        assert_eq!(folder.path().read_dir().unwrap().count(), 0, "{arguments:?}");
    }
    assert_eq!(keys(&etcd).await, Vec::<String>::new());
}
