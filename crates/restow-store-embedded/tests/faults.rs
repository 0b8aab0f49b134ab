//! Crash and fault tests: the process is killed, the power fails, the disk fails or is full, another process has the lock.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use restow_store::{KeyRange, RangeRequest, Store, StoreError, StoreExt, Txn, WatchRequest};
use restow_store_embedded::{EmbeddedConfig, EmbeddedStore, OpenError};
use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

const WRITER: &str = env!("CARGO_BIN_EXE_restow-store-crash-writer");

fn key(text: &str) -> restow_store::Key {
    restow_store::Key::try_from(text).unwrap()
}

/// A process that writes to a store and prints what was acknowledged.
struct CrashWriter {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl CrashWriter {
    fn start(directory: &Path) -> Self {
        Self::start_as(Command::new(WRITER).arg(directory))
    }

    fn start_as(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        CrashWriter { child, lines }
    }

    /// Waits until it has written something, which takes as long as opening what the last one left behind.
    fn wait_for_first_write(&mut self, acknowledged: &mut [u64]) {
        assert!(self.next_acknowledged(acknowledged), "the writer ended before it wrote anything");
    }

    /// Kills it after a while, and notes the highest counter that each of its tasks had acknowledged.
    fn kill_after(mut self, pause: Duration, acknowledged: &mut [u64]) {
        let mut child = self.child;
        let killer = std::thread::spawn(move || {
            std::thread::sleep(pause);
            child.kill().unwrap();
            child.wait().unwrap()
        });
        while next_acknowledged(&mut self.lines, acknowledged) {}
        let status = killer.join().unwrap();
        assert_eq!(status.signal(), Some(9), "the writer ended by itself");
    }

    fn next_acknowledged(&mut self, acknowledged: &mut [u64]) -> bool {
        next_acknowledged(&mut self.lines, acknowledged)
    }
}

/// Reads one line; false at the end. An incomplete last line is ignored.
fn next_acknowledged(lines: &mut BufReader<ChildStdout>, acknowledged: &mut [u64]) -> bool {
    let mut line = String::new();
    let read = lines.read_line(&mut line).unwrap();
    if let Some((task, counter)) = line.strip_suffix('\n').and_then(|line| line.split_once(' ')) {
        let task: usize = task.parse().unwrap();
        acknowledged[task] = acknowledged[task].max(counter.parse().unwrap());
    }
    read > 0
}

/// Each task writes its counter under two keys in one transaction. After a crash both are equal, and no smaller than
/// what was acknowledged.
async fn check_after_crash(directory: &Path, acknowledged: &[u64]) {
    let store = EmbeddedStore::open(EmbeddedConfig::new(directory)).unwrap();
    for (task, acknowledged) in acknowledged.iter().enumerate() {
        let mut counters = Vec::new();
        for half in ["left", "right"] {
            let entry = store.get(&key(&format!("/{half}/{task}"))).await.unwrap();
            let text = entry.map(|entry| String::from_utf8(entry.value.to_vec()).unwrap());
            counters.push(text.map_or(0, |text| text.split(' ').next().unwrap().parse::<u64>().unwrap()));
        }
        assert_eq!(counters[0], counters[1], "task {task}: a transaction was half written");
        assert!(counters[0] >= *acknowledged, "task {task}: {acknowledged} was acknowledged, {} is there", counters[0]);
    }
    check_history(&store).await;
}

/// Every revision that is not compacted has its change, and replaying them gives what is stored.
async fn check_history(store: &EmbeddedStore) {
    let latest = store.status().await.unwrap().revision;
    let oldest = match store.range(RangeRequest::new(KeyRange::all()).at(restow_store::Revision::new(1))).await {
        Err(StoreError::Compacted { oldest }) => oldest,
        Ok(_) => restow_store::Revision::new(1),
        Err(other) => panic!("{other}"),
    };
    let start = store.range(RangeRequest::new(KeyRange::all()).at(oldest)).await.unwrap().entries;
    let mut replayed: std::collections::BTreeMap<_, _> = start.into_iter().map(|e| (e.key.clone(), e)).collect();
    let mut watch = store.watch(WatchRequest::from(KeyRange::all(), oldest.next())).await.unwrap();
    let mut at = oldest;
    while at < latest {
        for event in watch.next().await.unwrap().unwrap().events {
            assert!(event.revision == at || event.revision == at.next(), "a revision is missing after {at}");
            at = event.revision;
            match event.change {
                restow_store::Change::Put(entry) => replayed.insert(entry.key.clone(), entry),
                restow_store::Change::Delete(key) => replayed.remove(&key),
            };
        }
    }
    let now = store.range(RangeRequest::new(KeyRange::all())).await.unwrap().entries;
    assert_eq!(replayed.into_values().collect::<Vec<_>>(), now);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_when_the_process_is_killed() {
    let rounds = if std::env::var_os("RESTOW_TEST_LONG").is_some() { 120 } else { 12 };
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("store");
    let mut acknowledged = vec![0; 8];
    for round in 0..rounds {
        let pause = Duration::from_millis(rand::random_range(0..400));
        let before: u64 = acknowledged.iter().sum();
        let mut writer = CrashWriter::start(&directory);
        // Some are killed while they still clean up after the one before.
        if round % 6 != 5 {
            writer.wait_for_first_write(&mut acknowledged);
        }
        writer.kill_after(pause, &mut acknowledged);
        let after: u64 = acknowledged.iter().sum();
        check_after_crash(&directory, &acknowledged).await;
        println!("round {round}: killed after {pause:?}, {} writes acknowledged", after - before);
    }
    assert!(acknowledged.iter().sum::<u64>() > 100, "the writers hardly wrote: {acknowledged:?}");
}

/// What a process has synced, by a library that is loaded into it.
struct SyncLog {
    library: PathBuf,
    log: PathBuf,
    /// How long each file was at the beginning, by inode.
    before: HashMap<u64, u64>,
}

impl SyncLog {
    fn begin(folder: &Path, store: &Path) -> Self {
        let library = folder.join("sync_log.so");
        if !library.exists() {
            let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sync_log.c");
            let made = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).output();
            let made = made.expect("a C compiler named cc, which Rust needs too");
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        }
        let log = folder.join("syncs");
        std::fs::write(&log, "").unwrap();
        let before = files(store).into_iter().map(|(_, inode, length)| (inode, length)).collect();
        SyncLog { library, log, before }
    }

    /// Truncates every file to the length up to which it was synced, as a power failure may. Returns how many bytes are lost.
    fn drop_unsynced(&self, store: &Path) -> u64 {
        let mut synced = self.before.clone();
        for line in std::fs::read_to_string(&self.log).unwrap().lines() {
            let (inode, length) = line.split_once(' ').unwrap();
            synced.insert(inode.parse().unwrap(), length.parse().unwrap());
        }
        let mut lost = 0;
        for (path, inode, length) in files(store) {
            let kept = synced.get(&inode).copied().unwrap_or(0).min(length);
            std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(kept).unwrap();
            lost += length - kept;
        }
        lost
    }
}

/// All files of a store, with inode and length.
fn files(store: &Path) -> Vec<(PathBuf, u64, u64)> {
    let Ok(listing) = std::fs::read_dir(store) else { return Vec::new() };
    let mut found = Vec::new();
    for path in listing.map(|item| item.unwrap().path()) {
        let metadata = path.metadata().unwrap();
        match metadata.is_dir() {
            true => found.extend(files(&path)),
            false => found.push((path, metadata.ino(), metadata.len())),
        }
    }
    found
}

/// A kill cannot test this: what a killed process wrote is still in the page cache.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_when_the_power_fails() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("store");
    let mut acknowledged = vec![0; 8];
    let mut lost = 0;
    for round in 0..6 {
        let log = SyncLog::begin(parent.path(), &directory);
        let mut command = Command::new(WRITER);
        command.arg(&directory).env("LD_PRELOAD", &log.library).env("RESTOW_TEST_SYNC_LOG", &log.log);
        let mut writer = CrashWriter::start_as(&mut command);
        writer.wait_for_first_write(&mut acknowledged);
        writer.kill_after(Duration::from_millis(rand::random_range(50..400)), &mut acknowledged);
        let gone = log.drop_unsynced(&directory);
        println!("round {round}: {gone} bytes were written and not synced");
        check_after_crash(&directory, &acknowledged).await;
        lost += gone;
    }
    assert!(acknowledged.iter().sum::<u64>() > 50, "the writers hardly wrote: {acknowledged:?}");
    println!("{lost} bytes were lost in all, and none of them was acknowledged");
}

#[test]
fn a_first_start_may_be_killed_at_any_moment() {
    let parent = tempfile::tempdir().unwrap();
    for round in 0..40 {
        let directory = parent.path().join(format!("store{round}"));
        let pause = Duration::from_micros(rand::random_range(0..20_000));
        CrashWriter::start(&directory).kill_after(pause, &mut [0; 8]);
        let opened = EmbeddedStore::open(EmbeddedConfig::new(&directory));
        assert!(opened.is_ok(), "killed after {pause:?}: {}", opened.err().unwrap());
    }
}

/// Renames the directories that the engine writes tables to, so that flushes fail; or restores them.
fn move_tables(directory: &Path, from: &str, to: &str) {
    for keyspace in std::fs::read_dir(directory.join("engine/keyspaces")).unwrap() {
        let keyspace = keyspace.unwrap().path();
        std::fs::rename(keyspace.join(from), keyspace.join(to)).unwrap();
    }
}

/// Closes the store, or fails if that hangs.
fn close(store: EmbeddedStore) {
    let (done, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(store);
        done.send(()).unwrap();
    });
    wait.recv_timeout(Duration::from_secs(60)).expect("closing the store hangs");
}

#[tokio::test]
async fn a_store_whose_disk_fails_on_closing_is_closed_and_loses_nothing() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("store");
    let store = EmbeddedStore::open(EmbeddedConfig::new(&directory)).unwrap();
    store.put(&key("/a"), "kept".into()).await.unwrap();
    move_tables(&directory, "tables", "gone");
    close(store);
    move_tables(&directory, "gone", "tables");
    let store = EmbeddedStore::open(EmbeddedConfig::new(&directory)).unwrap();
    assert_eq!(store.get(&key("/a")).await.unwrap().unwrap().value, "kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_fails_in_the_background_stops_writes_and_nothing_else() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("store");
    let store = EmbeddedStore::open(EmbeddedConfig::new(&directory)).unwrap();
    store.put(&key("/first"), "kept".into()).await.unwrap();
    move_tables(&directory, "tables", "gone");
    let mut acknowledged = 0;
    let error = loop {
        assert!(acknowledged < 1000, "the engine has not noticed that it cannot write");
        match store.put(&key(&format!("/{acknowledged:04}")), vec![b'x'; 500_000].into()).await {
            Ok(_) => acknowledged += 1,
            Err(error) => break error,
        }
    };
    // The engine had failed before this was written, so it was certainly not written.
    assert!(matches!(&error, StoreError::Unavailable(reason) if reason.contains("read-only")), "{error}");
    assert_eq!(store.get(&key("/first")).await.unwrap().unwrap().value, "kept");
    assert_eq!(store.count(KeyRange::all(), restow_store::At::Latest).await, Ok(acknowledged + 1));
    close(store);

    move_tables(&directory, "gone", "tables");
    let store = EmbeddedStore::open(EmbeddedConfig::new(&directory)).unwrap();
    assert_eq!(store.count(KeyRange::all(), restow_store::At::Latest).await, Ok(acknowledged + 1));
    store.put(&key("/again"), "accepted".into()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_is_repaired_is_written_to_again_without_a_restart() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("store");
    let store = EmbeddedStore::open(EmbeddedConfig::new(&directory)).unwrap();
    store.put(&key("/first"), "kept".into()).await.unwrap();
    assert_eq!(store.ready().await, Ok(()));
    let mut watch = store.watch(WatchRequest::from(KeyRange::all(), restow_store::Revision::new(2))).await.unwrap();
    move_tables(&directory, "tables", "gone");
    let mut acknowledged = 0;
    while store.put(&key(&format!("/{acknowledged:04}")), vec![b'x'; 500_000].into()).await.is_ok() {
        acknowledged += 1;
        assert!(acknowledged < 1000, "the engine has not noticed that it cannot write");
    }
    assert!(matches!(store.ready().await, Err(StoreError::Unavailable(reason)) if reason.contains("read-only")));
    assert_eq!(store.get(&key("/first")).await.unwrap().unwrap().value, "kept", "reads go on");

    move_tables(&directory, "gone", "tables");
    let begun = std::time::Instant::now();
    while store.put(&key("/again"), "accepted".into()).await.is_err() {
        assert!(begun.elapsed() < Duration::from_secs(180), "the store does not recover: {:?}", store.ready().await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(store.ready().await, Ok(()));
    assert_eq!(store.count(KeyRange::all(), restow_store::At::Latest).await, Ok(acknowledged + 2));
    // A watch that was there before sees everything, once.
    let mut seen = Vec::new();
    while seen.last() != Some(&key("/again")) {
        seen.extend(watch.next().await.unwrap().unwrap().events.iter().map(|event| event.key().clone()));
    }
    assert_eq!(seen.len() as u64, acknowledged + 2);
    check_history(&store).await;
    close(store);
    let store = EmbeddedStore::open(EmbeddedConfig::new(&directory)).unwrap();
    assert_eq!(store.count(KeyRange::all(), restow_store::At::Latest).await, Ok(acknowledged + 2));
}

#[tokio::test]
async fn a_second_process_reports_which_process_has_the_lock() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("store");
    let store = EmbeddedStore::open(EmbeddedConfig::new(&directory)).unwrap();
    let output = Command::new(WRITER).arg(&directory).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).to_string();
    assert!(!output.status.success());
    assert!(said.contains("in use by another process") && said.contains(&std::process::id().to_string()), "{said}");
    drop(store);
    drop(EmbeddedStore::open(EmbeddedConfig::new(&directory)).unwrap());
}

#[tokio::test]
async fn a_store_on_a_full_disk_refuses_writes_and_serves_reads() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("store");
    let store = EmbeddedStore::open(EmbeddedConfig::new(&directory)).unwrap();
    store.put(&key("/a"), "kept".into()).await.unwrap();
    drop(store);

    // With a reserve larger than any disk, the disk counts as full.
    let full = EmbeddedConfig { disk_reserve: u64::MAX, ..EmbeddedConfig::new(&directory) };
    let store = EmbeddedStore::open(full).unwrap();
    let error = store.put(&key("/b"), "refused".into()).await.unwrap_err();
    assert!(matches!(&error, StoreError::Full(reason) if reason.contains("free disk space")), "{error}");
    let kept = store.get(&key("/a")).await.unwrap().unwrap();
    assert_eq!(kept.value, "kept");
    store.remove(&key("/a"), kept.mod_revision).await.unwrap();
    drop(store);

    let store = EmbeddedStore::open(EmbeddedConfig::new(&directory)).unwrap();
    assert_eq!(store.get(&key("/b")).await.unwrap(), None);
    store.put(&key("/b"), "accepted".into()).await.unwrap();
}

#[tokio::test]
async fn everything_is_there_after_a_restart() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("store");
    let mut expected = Vec::new();
    for round in 0..3 {
        let store = EmbeddedStore::open(EmbeddedConfig::new(&directory)).unwrap();
        assert_eq!(store.range(RangeRequest::new(KeyRange::all())).await.unwrap().entries, expected);
        for n in 0..50 {
            store.put(&key(&format!("/{n}")), format!("{round}").into()).await.unwrap();
        }
        store.txn(Txn::new().delete(&key(&format!("/{round}")))).await.unwrap();
        if round == 1 {
            store.compact(store.status().await.unwrap().revision).await.unwrap();
        }
        check_history(&store).await;
        expected = store.range(RangeRequest::new(KeyRange::all())).await.unwrap().entries;
    }
}

#[tokio::test]
async fn damage_is_reported_and_not_overwritten() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("store");
    drop(EmbeddedStore::open(EmbeddedConfig::new(&directory)).unwrap());
    std::fs::write(directory.join("FORMAT"), "something else").unwrap();
    let error = EmbeddedStore::open(EmbeddedConfig::new(&directory)).err().unwrap();
    assert!(matches!(error, OpenError::UnknownFormat { .. }), "{error}");
}
