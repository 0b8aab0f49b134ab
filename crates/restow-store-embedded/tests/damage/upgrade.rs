//! Stores of format 1, which had no witness, no fingerprint and no checksums. `format-1/` was written by the last version
//! that created such stores: one was shut down cleanly, one was not.

use crate::fixture::{contents, copy, entries, key, open, write};
use restow_store::{Entry, KeyRange, RangeRequest, Revision, Store, StoreError, StoreExt};
use restow_store_embedded::OpenError;
use std::path::{Path, PathBuf};

fn format_1(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/damage/format-1").join(name)
}

fn assert_content(entries: &[Entry]) {
    assert_eq!(entries.len(), 14);
    assert!(entries.iter().all(|entry| entry.key != key(3)));
    for entry in entries {
        let n: usize = entry.key.to_string().rsplit('/').next().unwrap().parse().unwrap();
        let expected = if n == 4 { "again".to_string() } else { format!("the value of {n}") };
        assert_eq!(entry.value, expected, "{}", entry.key);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_of_format_1_is_upgraded() {
    for name in ["closed", "open"] {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("store");
        copy(&format_1(name), &directory);
        let store = open(&directory).unwrap();
        assert_content(&entries(&store).await.unwrap());
        assert_eq!(store.status().await.unwrap().revision, Revision::new(17));
        let past = store.range(RangeRequest::new(KeyRange::all()).at(Revision::new(7))).await;
        assert!(matches!(past, Err(StoreError::Compacted { .. })), "{past:?}");
        write(&store, 20..25).await;
        drop(store);
        assert_eq!(std::fs::read_to_string(directory.join("FORMAT")).unwrap(), "restow-embedded-store 2\n");
        assert_eq!(entries(&open(&directory).unwrap()).await.unwrap().len(), 19);
        std::fs::remove_file(directory.join("WITNESS")).unwrap();
        assert!(matches!(open(&directory), Err(OpenError::Damaged { .. })), "from now on there is a witness");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_upgrade_is_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("store");
    copy(&format_1("open"), &directory);
    drop(open(&directory).unwrap());
    // The format is written last.
    std::fs::copy(format_1("open").join("FORMAT"), directory.join("FORMAT")).unwrap();
    let store = open(&directory).unwrap();
    assert_content(&entries(&store).await.unwrap());
    store.put(&key(99), "goes on".into()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_of_format_1_with_missing_files_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("store");
    let lost = ["engine", "engine/keyspaces/1", "engine/keyspaces/2", "engine/keyspaces/3"];
    for lost in lost {
        copy(&format_1("closed"), &directory);
        std::fs::remove_dir_all(directory.join(lost)).unwrap();
        let before = contents(&directory);
        let error = open(&directory).err().map(|error| error.to_string());
        assert!(error.as_ref().is_some_and(|error| error.contains("damaged")), "{lost}: {error:?}");
        let mut after = contents(&directory);
        after.remove(Path::new("LOCK"));
        assert_eq!(
            after.keys().collect::<Vec<_>>(),
            before.keys().filter(|path| path.to_str() != Some("LOCK")).collect::<Vec<_>>()
        );
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
