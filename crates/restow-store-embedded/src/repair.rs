//! Repairs a damaged store with data loss, if the user asked for it (`--accept-data-loss`), never by itself.
//!
//! A new engine is filled with the latest readable version of each key, and replaces the old one, whose files are kept
//! unchanged (`engine.damaged-1`). The new revision is greater than every acknowledged one, and counts as compacted, so that
//! clients must list again and cannot resume watches from before the loss.

use crate::checksums::{check_footers, check_manifests};
use crate::directory::{Directory, OpenError};
use crate::engine::{Background, Durability, Engine, EngineError, FIRST_REVISION, catch_panic, explain};
use crate::fingerprint::Fingerprint;
use crate::journal;
use crate::layout::{KeyState, Record, data_key, split_data_key, split_revision_key};
use crate::recovery_copy::{RecoveryCopy, TableFiles, copy_directory, remove};
use crate::witness::{Witness, write_witness};
use bytes::Bytes;
use restow_store::{Key, Revision};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// By how much the revision grows, if it is not known which one was acknowledged last.
const REVISION_GAP: u64 = 1_000_000;
/// The size at which a batch is written.
const BATCH_BYTES: usize = 4 << 20;
/// How many lost keys the log names.
const MAX_KEYS_LOGGED: usize = 20;

/// Replaces the engine by one with the readable data.
pub(crate) fn repair(directory: &mut Directory, reason: &str) -> Result<(), OpenError> {
    if !directory.engine().is_dir() {
        return Err(directory.unrecoverable(format!("{reason}; none of its data is left")));
    }
    let acknowledged = Witness::open(&directory.witness()).ok().map(|(_, fingerprint)| fingerprint);
    let draft = directory.new_engine();
    let made = copy_readable(directory, &draft, acknowledged)
        .and_then(|fingerprint| Ok((fingerprint, keep_damaged(directory)?)));
    let (fingerprint, damaged) = made.inspect_err(|_| drop(remove(&draft)))?;
    // From here on the new engine is the store's. If this is interrupted, either the new or the damaged one is in place.
    directory.exchange(&draft, &directory.engine())?;
    write_witness(directory, &fingerprint)?;
    directory.set_format()?;
    remove(&draft).map_err(|source| OpenError::Io { action: "remove", path: draft, source })?;
    tracing::warn!(
        reason, kept = %fingerprint, damaged,
        "repaired a damaged store with data loss, as requested; the damaged files are kept"
    );
    Ok(())
}

/// Copies the damaged files to a directory of their own. Returns its path.
fn keep_damaged(directory: &Directory) -> Result<String, OpenError> {
    let copied = || -> io::Result<String> {
        let recovery_copy = directory.recovery_copy();
        remove(&recovery_copy)?;
        copy_directory(&directory.engine(), &recovery_copy, TableFiles::Owned)?;
        for number in 1u64.. {
            let kept = directory.path().join(format!("engine.damaged-{number}"));
            if !kept.exists() {
                std::fs::rename(&recovery_copy, &kept)?;
                return Ok(kept.display().to_string());
            }
        }
        Err(io::Error::other("there are too many copies of damaged engines"))
    };
    let failed = |source| OpenError::Io { action: "copy the damaged files of", path: directory.engine(), source };
    copied().map_err(failed)
}

/// Creates a new engine at `draft` with the readable data.
fn copy_readable(
    directory: &Directory,
    draft: &Path,
    acknowledged: Option<Fingerprint>,
) -> Result<Fingerprint, OpenError> {
    let failed =
        |source| OpenError::Io { action: "copy the engine's files to", path: directory.recovery_copy(), source };
    remove(draft).map_err(failed)?;
    let copy = RecoveryCopy::of(&directory.engine(), &directory.recovery_copy()).map_err(failed)?;
    let attempt = || {
        let old = open_damaged(copy.path())?;
        fill(&old, &Engine::open(draft, Background::Enabled)?, acknowledged)
    };
    catch_panic(attempt).map_err(|failure| match failure {
        EngineError::Corrupt(reason) => directory.unrecoverable(reason),
        EngineError::Io(reason) => OpenError::Engine { directory: directory.path().into(), reason },
    })
}

fn open_damaged(copy: &Path) -> Result<Engine, EngineError> {
    check_footers(&check_manifests(copy)?)?;
    let opened = journal::check_lengths(copy).and_then(|()| Engine::open(copy, Background::Disabled));
    match opened {
        Err(EngineError::Corrupt(_)) => {
            // The journal ends at the first batch that cannot be read.
            journal::truncate_at_corruption(copy).map_err(|error| EngineError::Io(error.to_string()))?;
            Engine::open(copy, Background::Disabled)
        }
        other => other,
    }
}

/// Writes the latest readable version of each key into the new engine.
fn fill(old: &Engine, new: &Engine, acknowledged: Option<Fingerprint>) -> Result<Fingerprint, EngineError> {
    let disk = |error: fjall::Error| EngineError::Io(explain(&error));
    let Readable { latest_versions, latest } = readable_versions(old);
    let revision = match acknowledged {
        Some(acknowledged) => acknowledged.revision.max(latest).next(),
        None => Revision::new(latest.get().saturating_add(REVISION_GAP)),
    };
    let mut fingerprint = Fingerprint::of_new_store(revision, revision);
    let mut batch = new.batch(Durability::Buffered);
    let mut bytes = 0;
    for (key, found) in latest_versions {
        let Some(Record::Put { state, value }) = read(old, &key, found) else { continue };
        bytes += key.as_bytes().len() + value.len();
        batch.put_record(&key, found, &Record::Put { state, value });
        batch.set_key(&key, Some(&state));
        fingerprint.add(&key, &state);
        if bytes >= BATCH_BYTES {
            std::mem::replace(&mut batch, new.batch(Durability::Buffered)).commit().map_err(disk)?;
            bytes = 0;
        }
    }
    batch.commit().map_err(disk)?;
    let mut batch = new.batch(Durability::Synced);
    batch.set_fingerprint(&fingerprint);
    batch.commit().map_err(disk)?;
    new.flush();
    Ok(fingerprint)
}

/// The readable data of a store.
struct Readable {
    /// For each key, deleted ones too, the revision of its latest readable version.
    latest_versions: BTreeMap<Key, Revision>,
    /// The last revision that was found.
    latest: Revision,
}

fn readable_versions(engine: &Engine) -> Readable {
    let mut readable = Readable { latest_versions: BTreeMap::new(), latest: FIRST_REVISION };
    // Data after a corrupt block is reached from the other end.
    if readable.scan(engine.data.iter()).is_err() {
        let _ = readable.scan(engine.data.iter().rev());
    }
    // Data between two corrupt blocks is reached by its key.
    let (known, unread) = known_keys(engine);
    let mut lost = Vec::new();
    for (key, state) in known {
        let found = readable.latest_versions.get(&key);
        if found.is_some_and(|found| *found >= state.mod_revision) {
            continue;
        }
        match read(engine, &key, state.mod_revision) {
            Some(_) => drop(readable.latest_versions.insert(key, state.mod_revision)),
            None => lost.push(format!("{key} at revision {}", state.mod_revision)),
        }
    }
    if !lost.is_empty() || unread {
        let named: Vec<_> = lost.iter().take(MAX_KEYS_LOGGED).cloned().collect();
        tracing::warn!(count = lost.len(), first = ?named, all_known = !unread, "the latest versions of some keys are lost");
    }
    for found in engine.revisions.iter().map_while(|guard| guard.key().ok()) {
        let revision = split_revision_key(&found).map_or(FIRST_REVISION, |(revision, _)| revision);
        readable.latest = readable.latest.max(revision);
    }
    readable
}

impl Readable {
    /// Collects versions up to the end, or to the first one that cannot be read.
    fn scan(&mut self, versions: impl Iterator<Item = fjall::Guard>) -> fjall::Result<()> {
        for guard in versions {
            let (found, bytes) = guard.into_inner()?;
            let Some((key, revision)) = split_data_key(&found) else { continue };
            self.latest = self.latest.max(revision);
            if Record::decode(&bytes, key, revision).is_none() {
                tracing::warn!(key = %String::from_utf8_lossy(key), %revision, "skipped an unreadable version");
                continue;
            }
            if let Ok(key) = Key::new(Bytes::copy_from_slice(key)) {
                let latest = self.latest_versions.entry(key).or_insert(revision);
                *latest = revision.max(*latest);
            }
        }
        Ok(())
    }
}

/// The existing keys according to the keyspace `keys`, and whether some of it is unreadable.
fn known_keys(engine: &Engine) -> (BTreeMap<Key, KeyState>, bool) {
    let mut known = BTreeMap::new();
    let mut look = |keys: &mut dyn Iterator<Item = fjall::Guard>| -> fjall::Result<()> {
        for guard in keys {
            let (key, state) = guard.into_inner()?;
            if let (Ok(key), Some(state)) = (Key::new(Bytes::copy_from_slice(&key)), KeyState::decode(&state)) {
                known.insert(key, state);
            }
        }
        Ok(())
    };
    let unread = look(&mut engine.keys.iter()).is_err();
    if unread {
        let _ = look(&mut engine.keys.iter().rev());
    }
    (known, unread)
}

/// A version, if it can be read.
fn read(engine: &Engine, key: &Key, revision: Revision) -> Option<Record> {
    let bytes = engine.data.get(data_key(key.as_ref(), revision)).ok().flatten()?;
    Record::decode(&bytes, key.as_ref(), revision)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::revision_key;

    fn key(name: &str) -> Key {
        Key::try_from(name).unwrap()
    }

    fn put(revision: u64, value: &str) -> Record {
        let at = Revision::new(revision);
        let state = KeyState { create_revision: at, mod_revision: at, version: 1, expires_at: 0 };
        Record::Put { state, value: value.to_string().into() }
    }

    /// The engine flushes its keyspaces one by one, so `revisions` may list versions that were only in the journal and are
    /// lost. A compaction would follow that list, and remove the version that was kept.
    #[test]
    fn a_repaired_store_has_no_history_that_compaction_could_follow() {
        let parent = tempfile::tempdir().unwrap();
        let old = Engine::open(&parent.path().join("old"), Background::Enabled).unwrap();
        let mut batch = old.batch(Durability::Synced);
        batch.put_version(&key("a"), Revision::new(5), 0, &put(5, "kept"));
        batch.put_version(&key("gone"), Revision::new(6), 0, &put(6, "x"));
        batch.put_version(&key("gone"), Revision::new(7), 0, &Record::Deleted);
        batch.put_version(&key("a"), Revision::new(9), 0, &put(9, "lost"));
        batch.remove_version(&data_key(key("a").as_ref(), Revision::new(9)));
        batch.commit().unwrap();
        let new = Engine::open(&parent.path().join("new"), Background::Enabled).unwrap();
        let fingerprint = fill(&old, &new, None).unwrap();
        assert_eq!((fingerprint.keys, fingerprint.revision), (1, Revision::new(9 + REVISION_GAP)));
        assert_eq!(read(&new, &key("a"), Revision::new(5)), Some(put(5, "kept")));
        assert_eq!((new.data.iter().count(), new.revisions.iter().count()), (1, 0));
        assert!(new.revisions.get(revision_key(Revision::new(9), 0)).unwrap().is_none());
    }
}
