//! The demo, as a test: everything that it claims is checked while it runs, and it ends with an error when a claim is false.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use restow_local_etcd::LocalEtcd;
use restow_store::{RangeRequest, Store};
use restow_store_etcd::{EtcdConfig, EtcdStore};
use restow_testkit::{output, wait};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// The demo with these arguments, with its temporary folders in this one.
fn demo(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_restow"));
    command.args(["demo", "--fast", "--objects", "60"]).args(arguments).env("TMPDIR", folder);
    command
}

fn plays_to_the_end(arguments: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let output = output(&mut demo(folder.path(), arguments));
    let (told, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{told}\n{errors}");
    assert!(told.contains("This is the fence."), "{told}");
    assert!(told.contains("none failed, none was lost."), "{told}");
    assert!(!told.contains('\x1b'), "no colours where nobody sees them");
    assert_eq!(errors, "", "a story that goes well leaves nothing to complain about");
    assert_eq!(folder.path().read_dir().unwrap().count(), 0, "the temporary folder is removed");
}

/// Everything that is in etcd.
async fn keys(etcd: &LocalEtcd) -> Vec<String> {
    let config = EtcdConfig { prefix: String::new(), ..EtcdConfig::new(vec![etcd.endpoint()]) };
    let all = EtcdStore::connect(config).await.unwrap().range(RangeRequest::prefix("/")).await.unwrap();
    all.entries.iter().map(|entry| entry.key.to_string()).collect()
}

#[test]
fn everything_that_the_demo_claims_is_true() {
    plays_to_the_end(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_that_the_demo_claims_is_true_of_processes_on_etcd() {
    let etcd = LocalEtcd::start().await.unwrap();
    plays_to_the_end(&["--etcd-endpoints", &etcd.endpoint()]);
    assert_eq!(keys(&etcd).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_when_it_is_interrupted() {
    let etcd = LocalEtcd::start().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    for arguments in [&[][..], &["--etcd-endpoints", &etcd.endpoint()]] {
        let mut child = demo(folder.path(), arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        // The most awkward moment: one server is suspended, with a write in its hands.
        assert!(lines.any(|line| line.contains("woke up too late")), "the story did not get that far");
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let rest: Vec<String> = lines.collect();
        assert_eq!(wait(&mut child).code(), Some(5), "{rest:?}");
        assert_eq!(folder.path().read_dir().unwrap().count(), 0, "{arguments:?}");
    }
    assert_eq!(keys(&etcd).await, Vec::<String>::new());
}
