//! Stores to damage, and the checks afterwards.

use restow_store::{
    Change, Entry, Key, KeyRange, RangeRequest, Revision, Store, StoreError, StoreExt, Txn, WatchRequest,
};
use restow_store_embedded::{EmbeddedConfig, EmbeddedStore, OpenError};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A store as a crash would have left it, and what was acknowledged of it.
pub(crate) struct StoreFixture {
    pub(crate) name: &'static str,
    folder: tempfile::TempDir,
    /// What is stored, and what happened to it since the last compaction.
    entries: Vec<Entry>,
    history: Vec<(Revision, Key, Option<bytes::Bytes>)>,
}

/// What opening a damaged store came to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Whole,
    Refused(String),
}

impl StoreFixture {
    /// Everything is in the journal.
    pub(crate) async fn journal() -> Self {
        let (parent, store) = fresh();
        write(&store, 0..60).await;
        Self::keep("journal", &parent, store).await
    }

    /// Data in tables and in the journal; some keys were deleted, and some history compacted.
    pub(crate) async fn tables() -> Self {
        let (parent, store) = fresh();
        write(&store, 0..60).await;
        drop(store);
        let store = open(&parent.path().join("store")).unwrap();
        write(&store, 40..90).await;
        store.txn(Txn::new().delete(&key(3)).delete(&key(50)).put(&key(4), "again")).await.unwrap();
        store.compact(Revision::new(40)).await.unwrap();
        drop(store);
        let store = open(&parent.path().join("store")).unwrap();
        write(&store, 70..100).await;
        Self::keep("tables", &parent, store).await
    }

    /// Everything is in tables, as after a clean shutdown.
    pub(crate) async fn closed() -> Self {
        let (parent, store) = fresh();
        write(&store, 0..80).await;
        drop(store);
        let store = open(&parent.path().join("store")).unwrap();
        let (entries, history) = (entries(&store).await.unwrap(), history(&store).await.unwrap());
        drop(store);
        let folder = tempfile::tempdir().unwrap();
        copy(&parent.path().join("store"), &folder.path().join("store"));
        StoreFixture { name: "closed", folder, entries, history }
    }

    /// Copies the files of an open store: what a killed process leaves behind.
    async fn keep(name: &'static str, parent: &tempfile::TempDir, store: EmbeddedStore) -> Self {
        let (entries, history) = (entries(&store).await.unwrap(), history(&store).await.unwrap());
        let folder = tempfile::tempdir().unwrap();
        copy(&parent.path().join("store"), &folder.path().join("store"));
        drop(store);
        StoreFixture { name, folder, entries, history }
    }

    /// The store itself, not to be damaged.
    pub(crate) fn directory(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    /// The files of the store, relative to it.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        contents(&self.directory()).into_keys().filter(|path| path.to_str() != Some("LOCK")).collect()
    }

    /// Damages a copy of the store and opens it. Panics if something is missing and the store is opened all the same.
    pub(crate) async fn damaged(&self, what: &str, damage: impl FnOnce(&Path)) -> Outcome {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("store");
        copy(&self.directory(), &directory);
        damage(&directory);
        let before = contents(&directory);
        let what = format!("{}: {what}", self.name);
        match open(&directory) {
            Ok(store) => {
                self.assert_whole(&store, &what).await;
                Outcome::Whole
            }
            Err(error) => {
                let said = error.to_string();
                assert!(said.contains(directory.to_str().unwrap()), "{what}: {said}");
                let after = contents(&directory);
                let paths = before.keys().chain(after.keys());
                let changed = paths.filter(|path| before.get(*path) != after.get(*path));
                let changed: Vec<_> = changed.filter(|path| path.to_str() != Some("LOCK")).collect();
                assert!(changed.is_empty(), "{what}: refused ({said}), and {changed:?} were changed");
                let again = open(&directory).err().map(|error| error.to_string());
                assert_eq!(again.as_deref(), Some(said.as_str()), "{what}: the second start says something else");
                Outcome::Refused(said)
            }
        }
    }

    pub(crate) async fn assert_whole(&self, store: &EmbeddedStore, what: &str) {
        assert_eq!(entries(store).await, Ok(self.entries.clone()), "{what}: opened, and something is missing");
        assert_eq!(history(store).await, Ok(self.history.clone()), "{what}: opened, and its history is another");
    }

    pub(crate) fn entries(&self) -> BTreeMap<Key, Entry> {
        self.entries.iter().map(|entry| (entry.key.clone(), entry.clone())).collect()
    }
}

pub(crate) fn key(n: usize) -> Key {
    Key::try_from(format!("/registry/configmaps/default/{n:04}")).unwrap()
}

pub(crate) fn open(directory: &Path) -> Result<EmbeddedStore, OpenError> {
    EmbeddedStore::open(EmbeddedConfig::new(directory))
}

pub(crate) fn fresh() -> (tempfile::TempDir, EmbeddedStore) {
    let parent = tempfile::tempdir().unwrap();
    let store = open(&parent.path().join("store")).unwrap();
    (parent, store)
}

/// Writes these keys, each in a batch of its own.
pub(crate) async fn write(store: &EmbeddedStore, keys: std::ops::Range<usize>) {
    for n in keys {
        store.put(&key(n), format!("the value of {n}, {}", "x".repeat(n)).into()).await.unwrap();
    }
}

pub(crate) async fn entries(store: &EmbeddedStore) -> Result<Vec<Entry>, StoreError> {
    Ok(store.range(RangeRequest::new(KeyRange::all())).await?.entries)
}

/// Every change since the last compaction.
async fn history(store: &EmbeddedStore) -> Result<Vec<(Revision, Key, Option<bytes::Bytes>)>, StoreError> {
    let latest = store.status().await?.revision;
    let oldest = match store.range(RangeRequest::new(KeyRange::all()).at(Revision::new(1))).await {
        Err(StoreError::Compacted { oldest }) => oldest,
        other => other.map(|_| Revision::new(1))?,
    };
    let mut watch = store.watch(WatchRequest::from(KeyRange::all(), oldest.next())).await?;
    let (mut changes, mut at) = (Vec::new(), oldest);
    while at < latest {
        for event in watch.next().await.unwrap()?.events {
            at = event.revision;
            changes.push(match event.change {
                Change::Put(entry) => (at, entry.key, Some(entry.value)),
                Change::Delete(key) => (at, key, None),
            });
        }
    }
    Ok(changes)
}

/// All files below a directory, with what is in them.
pub(crate) fn contents(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    fn gather(root: &Path, folder: &Path, found: &mut BTreeMap<PathBuf, Vec<u8>>) {
        let Ok(listing) = std::fs::read_dir(folder) else { return };
        for path in listing.map(|item| item.unwrap().path()) {
            match path.is_dir() {
                true => gather(root, &path, found),
                false => drop(found.insert(path.strip_prefix(root).unwrap().into(), std::fs::read(&path).unwrap())),
            }
        }
    }
    let mut found = BTreeMap::new();
    gather(directory, directory, &mut found);
    found
}

/// Copies a store. The zeros that journals are filled up with are left out, as the engine itself cuts them off.
pub(crate) fn copy(from: &Path, to: &Path) {
    for (path, mut bytes) in contents(from) {
        if path.extension().is_some_and(|extension| extension == "jnl") {
            let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            bytes.truncate((used + 64).min(bytes.len()));
        }
        let target = to.join(path);
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        std::fs::write(target, bytes).unwrap();
    }
    // Folders without files are part of it.
    for keyspace in std::fs::read_dir(from.join("engine/keyspaces")).into_iter().flatten() {
        let keyspace = keyspace.unwrap().file_name();
        std::fs::create_dir_all(to.join("engine/keyspaces").join(keyspace).join("tables")).unwrap();
    }
}
