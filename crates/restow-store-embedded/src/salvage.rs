//! Keeps what is left of a damaged store, when that was asked for: never by itself.
//!
//! The engine's files are recovered as a copy, and put aside as they are (`engine.damaged`). What is left of the data
//! decides: keys and history are made to fit it. The revision goes beyond every one that was acknowledged, and counts as
//! compacted, so that no client takes what it knows of the time before for the present.

use crate::account::Account;
use crate::checksums::check_manifests;
use crate::directory::{Directory, OpenError};
use crate::engine::{Background, Durability, Engine, FIRST_REVISION, Failure, explain};
use crate::journal;
use crate::layout::{KeyState, Record, split_data_key, split_revision_key};
use crate::opening::{named, testify};
use crate::rehearsal::{Tables, copy_directory, remove};
use crate::witness::Witness;
use bytes::Bytes;
use restow_store::{Key, Revision};
use std::collections::BTreeMap;

/// How far the revision goes beyond what is found, where it is not known what was acknowledged.
const LEAP: u64 = 1_000_000;
/// The most changes in a batch.
const BATCH: usize = 1000;

/// Replaces the engine's files by what can be recovered of them.
pub(crate) fn salvage(directory: &mut Directory, reason: &str) -> Result<(), OpenError> {
    if !directory.engine().is_dir() {
        return Err(directory.damaged(format!("{reason}; nothing is left of it")));
    }
    let acknowledged = Witness::open(&directory.witness()).ok().map(|(_, account)| account);
    let draft = directory.draft();
    let copied = remove(&draft).and_then(|()| copy_directory(&directory.engine(), &draft, Tables::Owned));
    copied.map_err(|source| OpenError::Io { action: "copy the engine's files to", path: draft.clone(), source })?;
    let account = recover(&draft, acknowledged).map_err(|failure| named(directory, failure))?;
    let aside = (1..).map(|n| directory.path().join(format!("engine.damaged-{n}"))).find(|path| !path.exists());
    let aside = aside.unwrap_or_default();
    directory.rename(&directory.engine(), &aside)?;
    directory.rename(&draft, &directory.engine())?;
    testify(directory, &account)?;
    directory.set_format()?;
    tracing::warn!(
        reason, kept = %account, damaged = %aside.display(),
        "data loss was accepted: the store goes on with what is left; its damaged files were put aside"
    );
    Ok(())
}

fn recover(draft: &std::path::Path, acknowledged: Option<Account>) -> Result<Account, Failure> {
    check_manifests(draft)?;
    let opened = journal::check_lengths(draft).and_then(|()| Engine::open(draft, Background::Works));
    let engine = match opened {
        Err(Failure::Damage(_)) => {
            // A batch that it cannot read is as good as the end of the journal.
            journal::cut_at_damage(draft).map_err(|error| Failure::Disk(error.to_string()))?;
            Engine::open(draft, Background::Works)?
        }
        other => other?,
    };
    let Remains { keys, latest, unreadable } = what_is_left(&engine)?;
    let revision = match acknowledged {
        Some(acknowledged) => acknowledged.revision.max(latest).next(),
        None => Revision::new(latest.get().saturating_add(LEAP)),
    };
    let mut account = Account::of_new_store(revision, revision);
    for (key, state) in &keys {
        account.add(key, state);
    }
    correct(&engine, &keys, &unreadable, &account).map_err(|error| Failure::Disk(explain(&error)))?;
    engine.settle();
    Ok(account)
}

/// What is left of a store.
struct Remains {
    /// The keys, each with the latest of its versions that can be read.
    keys: BTreeMap<Key, KeyState>,
    /// The last revision of all.
    latest: Revision,
    /// The keys in `data` of versions that cannot be read.
    unreadable: Vec<Vec<u8>>,
}

fn what_is_left(engine: &Engine) -> Result<Remains, Failure> {
    let (mut keys, mut unreadable) = (BTreeMap::new(), Vec::new());
    let mut latest = FIRST_REVISION;
    let mut seen: Vec<u8> = Vec::new();
    for guard in engine.data.iter() {
        let (found, bytes) = guard.into_inner().map_err(|error| Failure::of(&error))?;
        let Some((key, revision)) = split_data_key(&found) else { continue };
        latest = latest.max(revision);
        if seen == key {
            continue;
        }
        match Record::decode(&bytes, key, revision) {
            Some(Record::Put { state, .. }) => {
                let key = Key::new(Bytes::copy_from_slice(key));
                keys.insert(key.map_err(|error| Failure::Damage(error.to_string()))?, state);
            }
            Some(Record::Deleted) => {}
            None => {
                tracing::warn!(key = %String::from_utf8_lossy(key), %revision, "an unreadable version was passed over");
                unreadable.push(found.to_vec());
                continue;
            }
        }
        seen = key.to_vec();
    }
    for guard in engine.revisions.iter() {
        let found = guard.key().map_err(|error| Failure::of(&error))?;
        latest = latest.max(split_revision_key(&found).map_or(latest, |(revision, _)| revision));
    }
    Ok(Remains { keys, latest, unreadable })
}

/// Makes what the engine says of the keys, the history and itself fit what is left.
fn correct(
    engine: &Engine,
    keys: &BTreeMap<Key, KeyState>,
    unreadable: &[Vec<u8>],
    account: &Account,
) -> fjall::Result<()> {
    let mut batch = engine.batch(Durability::Repeatable);
    for version in unreadable {
        batch.remove_version(version);
    }
    for guard in engine.keys.iter() {
        let key = guard.key()?;
        if let Ok(key) = Key::new(Bytes::copy_from_slice(&key))
            && !keys.contains_key(&key)
        {
            batch.set_key(&key, None);
        }
    }
    batch.commit()?;
    let mut batch = engine.batch(Durability::Repeatable);
    for (key, state) in keys {
        batch.set_key(key, Some(state));
        if batch.len() >= BATCH {
            std::mem::replace(&mut batch, engine.batch(Durability::Repeatable)).commit()?;
        }
    }
    batch.commit()?;
    let mut batch = engine.batch(Durability::Synced);
    batch.set_account(account);
    batch.commit()
}
