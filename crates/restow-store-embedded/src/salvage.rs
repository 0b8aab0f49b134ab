//! Keeps what is left of a damaged store, when that was asked for: never by itself.
//!
//! A new engine is filled with the latest version of each key that can be read, and takes the place of the old one, whose files
//! are kept as they are (`engine.damaged-1`). The revision goes beyond every one that was acknowledged, and counts as
//! compacted, so that no client takes what it knows of the time before for the present.

use crate::account::Account;
use crate::checksums::{check_manifests, check_outlines};
use crate::directory::{Directory, OpenError};
use crate::engine::{Background, Durability, Engine, FIRST_REVISION, Failure, explain, without_panic};
use crate::journal;
use crate::layout::{KeyState, Record, data_key, split_data_key, split_revision_key};
use crate::opening::testify;
use crate::rehearsal::{Rehearsal, Tables, copy_directory, remove};
use crate::witness::Witness;
use bytes::Bytes;
use restow_store::{Key, Revision};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// How far the revision goes beyond what is found, where it is not known what was acknowledged.
const LEAP: u64 = 1_000_000;
/// The bytes of values after which a batch is written.
const BATCH_BYTES: usize = 4 << 20;
/// How many lost keys are named in the log.
const NAMED: usize = 20;

/// Replaces the engine's files by what can be recovered of them.
pub(crate) fn salvage(directory: &mut Directory, reason: &str) -> Result<(), OpenError> {
    if !directory.engine().is_dir() {
        return Err(directory.lost(format!("{reason}; nothing is left of it")));
    }
    let acknowledged = Witness::open(&directory.witness()).ok().map(|(_, account)| account);
    let draft = directory.draft();
    let made = recover(directory, &draft, acknowledged).and_then(|account| Ok((account, keep_damaged(directory)?)));
    let (account, damaged) = made.inspect_err(|_| drop(remove(&draft)))?;
    // From here on the recovered files are the store's. Whatever interrupts this, they or the damaged ones are in place.
    directory.exchange(&draft, &directory.engine())?;
    testify(directory, &account)?;
    directory.set_format()?;
    remove(&draft).map_err(|source| OpenError::Io { action: "remove", path: draft, source })?;
    tracing::warn!(
        reason, kept = %account, damaged,
        "data loss was accepted: the store goes on with what is left; its damaged files were put aside"
    );
    Ok(())
}

/// Copies the damaged files to where nobody touches them. Returns where that is.
fn keep_damaged(directory: &Directory) -> Result<String, OpenError> {
    let copied = || -> io::Result<String> {
        let rehearsal = directory.rehearsal();
        remove(&rehearsal)?;
        copy_directory(&directory.engine(), &rehearsal, Tables::Owned)?;
        for number in 1u64.. {
            let aside = directory.path().join(format!("engine.damaged-{number}"));
            if !aside.exists() {
                std::fs::rename(&rehearsal, &aside)?;
                return Ok(aside.display().to_string());
            }
        }
        Err(io::Error::other("there are too many damaged engines"))
    };
    let failed = |source| OpenError::Io { action: "copy the damaged files of", path: directory.engine(), source };
    copied().map_err(failed)
}

/// Makes a new engine at `draft` of what can be read.
fn recover(directory: &Directory, draft: &Path, acknowledged: Option<Account>) -> Result<Account, OpenError> {
    let failed = |source| OpenError::Io { action: "copy the engine's files to", path: directory.rehearsal(), source };
    remove(draft).map_err(failed)?;
    let copy = Rehearsal::of(&directory.engine(), &directory.rehearsal()).map_err(failed)?;
    let attempt = || {
        let old = open_damaged(copy.path())?;
        fill(&old, &Engine::open(draft, Background::Works)?, acknowledged)
    };
    without_panic(attempt).map_err(|failure| match failure {
        Failure::Damage(reason) => directory.lost(reason),
        Failure::Disk(reason) => OpenError::Engine { directory: directory.path().into(), reason },
    })
}

fn open_damaged(copy: &Path) -> Result<Engine, Failure> {
    check_outlines(&check_manifests(copy)?)?;
    let opened = journal::check_lengths(copy).and_then(|()| Engine::open(copy, Background::Rests));
    match opened {
        Err(Failure::Damage(_)) => {
            // A batch that it cannot read is as good as the end of the journal.
            journal::cut_at_damage(copy).map_err(|error| Failure::Disk(error.to_string()))?;
            Engine::open(copy, Background::Rests)
        }
        other => other,
    }
}

/// Writes the latest version of each key that the old engine has into the new one.
fn fill(old: &Engine, new: &Engine, acknowledged: Option<Account>) -> Result<Account, Failure> {
    let disk = |error: fjall::Error| Failure::Disk(explain(&error));
    let Remains { latest_versions, latest } = what_is_left(old);
    let revision = match acknowledged {
        Some(acknowledged) => acknowledged.revision.max(latest).next(),
        None => Revision::new(latest.get().saturating_add(LEAP)),
    };
    let mut account = Account::of_new_store(revision, revision);
    let mut batch = new.batch(Durability::Repeatable);
    let mut bytes = 0;
    for (key, found) in latest_versions {
        let Some(Record::Put { state, value }) = read(old, &key, found) else { continue };
        bytes += key.as_bytes().len() + value.len();
        batch.put_record(&key, found, &Record::Put { state, value });
        batch.set_key(&key, Some(&state));
        account.add(&key, &state);
        if bytes >= BATCH_BYTES {
            std::mem::replace(&mut batch, new.batch(Durability::Repeatable)).commit().map_err(disk)?;
            bytes = 0;
        }
    }
    batch.commit().map_err(disk)?;
    let mut batch = new.batch(Durability::Synced);
    batch.set_account(&account);
    batch.commit().map_err(disk)?;
    new.settle();
    Ok(account)
}

/// What is left of a store.
struct Remains {
    /// For each key that is there, or was, the revision of its latest version that can be read.
    latest_versions: BTreeMap<Key, Revision>,
    /// The last revision of all.
    latest: Revision,
}

fn what_is_left(engine: &Engine) -> Remains {
    let mut remains = Remains { latest_versions: BTreeMap::new(), latest: FIRST_REVISION };
    // What lies behind a damaged block is reached from the other end.
    if remains.look_through(engine.data.iter()).is_err() {
        let _ = remains.look_through(engine.data.iter().rev());
    }
    // What lies between two damaged blocks is reached by its key.
    let (known, unread) = known_keys(engine);
    let mut lost = Vec::new();
    for (key, state) in known {
        let found = remains.latest_versions.get(&key);
        if found.is_some_and(|found| *found >= state.mod_revision) {
            continue;
        }
        match read(engine, &key, state.mod_revision) {
            Some(_) => drop(remains.latest_versions.insert(key, state.mod_revision)),
            None => lost.push(format!("{key} at revision {}", state.mod_revision)),
        }
    }
    if !lost.is_empty() || unread {
        let named: Vec<_> = lost.iter().take(NAMED).cloned().collect();
        tracing::warn!(count = lost.len(), first = ?named, all_known = !unread, "latest versions of keys are lost");
    }
    for found in engine.revisions.iter().map_while(|guard| guard.key().ok()) {
        let revision = split_revision_key(&found).map_or(FIRST_REVISION, |(revision, _)| revision);
        remains.latest = remains.latest.max(revision);
    }
    remains
}

impl Remains {
    /// Notes every version up to the end, or to where the engine cannot read.
    fn look_through(&mut self, versions: impl Iterator<Item = fjall::Guard>) -> fjall::Result<()> {
        for guard in versions {
            let (found, bytes) = guard.into_inner()?;
            let Some((key, revision)) = split_data_key(&found) else { continue };
            self.latest = self.latest.max(revision);
            if Record::decode(&bytes, key, revision).is_none() {
                tracing::warn!(key = %String::from_utf8_lossy(key), %revision, "an unreadable version was passed over");
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

/// What the engine says that exists, and whether some of that is unreadable.
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

    /// The engine writes its keyspaces out one by one, so that history may be there of versions that were only in the journal.
    /// Compaction would follow it, and remove the version that was kept.
    #[test]
    fn what_is_kept_has_no_history_that_compaction_could_follow() {
        let parent = tempfile::tempdir().unwrap();
        let old = Engine::open(&parent.path().join("old"), Background::Works).unwrap();
        let mut batch = old.batch(Durability::Synced);
        batch.put_version(&key("a"), Revision::new(5), 0, &put(5, "kept"));
        batch.put_version(&key("gone"), Revision::new(6), 0, &put(6, "x"));
        batch.put_version(&key("gone"), Revision::new(7), 0, &Record::Deleted);
        batch.put_version(&key("a"), Revision::new(9), 0, &put(9, "lost"));
        batch.remove_version(&data_key(key("a").as_ref(), Revision::new(9)));
        batch.commit().unwrap();
        let new = Engine::open(&parent.path().join("new"), Background::Works).unwrap();
        let account = fill(&old, &new, None).unwrap();
        assert_eq!((account.keys, account.revision), (1, Revision::new(9 + LEAP)));
        assert_eq!(read(&new, &key("a"), Revision::new(5)), Some(put(5, "kept")));
        assert_eq!((new.data.iter().count(), new.revisions.iter().count()), (1, 0));
        assert!(new.revisions.get(revision_key(Revision::new(9), 0)).unwrap().is_none());
    }
}
