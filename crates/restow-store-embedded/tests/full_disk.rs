//! A disk that runs out of space during a write.

#![allow(clippy::unwrap_used, clippy::panic)]

use restow_store::{Key, KeyRange, RangeRequest, Store, StoreError, StoreExt};
use restow_store_embedded::{EmbeddedConfig, EmbeddedStore};
use restow_testkit::{output, skip};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

fn key(n: usize) -> Key {
    Key::try_from(format!("/{n:06}")).unwrap()
}

/// A small tmpfs, unmounted when it is dropped.
struct Disk(tempfile::TempDir);

impl Disk {
    fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=48m", "restow-test"]).arg(folder.path());
        output(&mut mount).status.success().then_some(Disk(folder))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        output(Command::new("umount").arg("-l").arg(self.0.path()));
    }
}

/// Fills the disk.
fn fill(path: &Path) {
    // dd fails when the disk is full.
    output(Command::new("dd").args(["if=/dev/zero", "bs=256k"]).arg(format!("of={}", path.display())));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_to_a_full_disk_has_an_unknown_outcome_and_the_store_recovers_when_there_is_space() {
    let Some(disk) = Disk::mount() else {
        skip("mounting a tmpfs needs root; run the tests as root to fill a disk");
        return;
    };
    let filler = disk.0.path().join("filler");
    // Without a reserve, so that the file system itself fails.
    let config = EmbeddedConfig { disk_reserve: 0, ..EmbeddedConfig::new(disk.0.path().join("store")) };
    let store = EmbeddedStore::open(config.clone()).unwrap();
    let folder = || std::fs::metadata(disk.0.path().join("store/engine")).unwrap().ino();
    let first_folder = folder();
    let (mut acknowledged, mut unknown) = (BTreeSet::new(), BTreeSet::new());
    let mut next = 0;
    let begun = Instant::now();
    while unknown.len() < 3 {
        assert!(
            begun.elapsed() < Duration::from_secs(300),
            "{} writes were unknown: {:?}",
            unknown.len(),
            store.ready().await
        );
        next += 1;
        match store.put(&key(next), vec![b'x'; 100_000].into()).await {
            Ok(_) => drop(acknowledged.insert(key(next))),
            // The store has seen that the disk is full, or it is being reopened.
            Err(StoreError::Full(_) | StoreError::Unavailable(_)) => {
                drop(std::fs::remove_file(&filler));
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
            Err(StoreError::OutcomeUnknown(_)) => {
                unknown.insert(key(next));
                let ready = store.ready().await;
                assert!(
                    matches!(&ready, Err(StoreError::Unavailable(reason)) if reason.contains("read-only")),
                    "{ready:?}"
                );
                let first = acknowledged.first().unwrap();
                assert!(store.get(first).await.unwrap().is_some(), "reads go on");
                continue;
            }
            Err(other) => panic!("{other}"),
        }
        if acknowledged.len().is_multiple_of(10) {
            fill(&filler);
        }
    }
    drop(std::fs::remove_file(&filler));
    while store.put(&key(0), "room".into()).await.is_err() {
        assert!(begun.elapsed() < Duration::from_secs(300), "the store does not recover: {:?}", store.ready().await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    acknowledged.insert(key(0));
    assert_ne!(folder(), first_folder, "the journals were not rewritten, and the last sync of them has failed");
    let present = check(&store, &acknowledged, &unknown).await;
    drop(store);
    let store = EmbeddedStore::open(config).unwrap();
    assert_eq!(check(&store, &acknowledged, &unknown).await, present, "a restart shows other content");
}

/// Everything acknowledged is there, and nothing that was never written, or refused.
async fn check(store: &EmbeddedStore, acknowledged: &BTreeSet<Key>, unknown: &BTreeSet<Key>) -> BTreeSet<Key> {
    let entries = store.range(RangeRequest::new(KeyRange::all())).await.unwrap().entries;
    let present: BTreeSet<Key> = entries.into_iter().map(|entry| entry.key).collect();
    assert_eq!(acknowledged.difference(&present).collect::<Vec<_>>(), Vec::<&Key>::new(), "these are lost");
    let known: BTreeSet<Key> = acknowledged.union(unknown).cloned().collect();
    assert_eq!(present.difference(&known).collect::<Vec<_>>(), Vec::<&Key>::new(), "these were refused");
    present
}
