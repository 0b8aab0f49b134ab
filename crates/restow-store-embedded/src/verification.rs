//! Verifies the content of an engine: every key that its fingerprint counts must have its value, and no change since the
//! last compaction may be missing. It reads the whole store, as etcd does when it starts, and writes nothing.

use crate::engine::{Engine, EngineError, FIRST_REVISION, Opened};
use crate::fingerprint::Fingerprint;
use crate::layout::{KeyState, Record, data_key, split_data_key, split_revision_key};
use restow_store::{Key, Revision};
use xxhash_rust::xxh3::xxh3_128;

/// Verifies the engine; the error names the first mismatch.
pub(crate) fn verify(opened: &Opened) -> Result<(), EngineError> {
    let Opened { engine, fingerprint, keys } = opened;
    let mut versions = Versions { keys: keys.iter().peekable(), history: Changes::default() };
    let mut latest: Vec<u8> = Vec::new();
    for guard in engine.data.iter() {
        let location = || format!("the data at or after {}", String::from_utf8_lossy(&latest));
        let (found, bytes) = guard.into_inner().map_err(|error| read_error(location(), &error))?;
        let (key, revision) = split_data_key(&found).ok_or_else(|| damage("a key in the data is unreadable"))?;
        let version = || format!("the version of {} at revision {revision}", String::from_utf8_lossy(key));
        let record = Record::decode(&bytes, key, revision);
        let record = record.ok_or_else(|| damage(&format!("{} is unreadable", version())))?;
        if revision > fingerprint.revision {
            return Err(damage(&format!("{} is later than the last revision", version())));
        }
        if latest != key {
            latest = key.to_vec();
            versions.latest(key, revision, &record)?;
        }
        versions.history.add(fingerprint, key, revision);
    }
    if let Some((key, state)) = versions.keys.next() {
        return Err(missing(key, state));
    }
    let listed = listed_changes(engine, fingerprint)?;
    match listed == versions.history {
        true => Ok(()),
        false => {
            let (listed, found) = (listed.count, versions.history.count);
            Err(damage(&format!("{listed} changes are listed, but {found} were found, or other ones")))
        }
    }
}

struct Versions<'a, Keys: Iterator<Item = &'a (Key, KeyState)>> {
    /// The keys of which no version was read yet.
    keys: std::iter::Peekable<Keys>,
    history: Changes,
}

impl<'a, Keys: Iterator<Item = &'a (Key, KeyState)>> Versions<'a, Keys> {
    /// Compares the latest version of a key with the key's metadata. Keys come in order.
    fn latest(&mut self, key: &[u8], revision: Revision, record: &Record) -> Result<(), EngineError> {
        if let Some((known, state)) = self.keys.next_if(|(known, _)| known.as_ref() < key) {
            return Err(missing(known, state));
        }
        let known = self.keys.next_if(|(known, _)| known.as_ref() == key);
        let fits = match (record, known) {
            (Record::Put { state, .. }, Some((_, known))) => state == known && known.mod_revision == revision,
            (Record::Deleted, None) => true,
            _ => false,
        };
        match fits {
            true => Ok(()),
            false => Err(damage(&format!(
                "the latest version of {} is of revision {revision}, which its metadata does not match",
                String::from_utf8_lossy(key)
            ))),
        }
    }
}

fn missing(key: &Key, state: &KeyState) -> EngineError {
    damage(&format!("the value of {key} at revision {} is missing", state.mod_revision))
}

fn damage(reason: &str) -> EngineError {
    EngineError::Corrupt(reason.into())
}

/// Adds to an error what was read.
fn read_error(location: String, error: &fjall::Error) -> EngineError {
    match EngineError::of(error) {
        EngineError::Io(reason) => EngineError::Io(format!("{location} cannot be read: {reason}")),
        EngineError::Corrupt(reason) => EngineError::Corrupt(format!("{location} is corrupt: {reason}")),
    }
}

/// A set of changes: their number, and the sum of their digests.
#[derive(Debug, Default, PartialEq, Eq)]
struct Changes {
    count: u64,
    digest: u128,
}

impl Changes {
    /// Adds a change, unless a compaction may have removed it.
    fn add(&mut self, fingerprint: &Fingerprint, key: &[u8], revision: Revision) {
        if revision > fingerprint.compacted {
            self.count += 1;
            self.digest = self.digest.wrapping_add(xxh3_128(&data_key(key, revision)));
        }
    }
}

/// The changes since the last compaction that `revisions` lists. There must be no gap.
fn listed_changes(engine: &Engine, fingerprint: &Fingerprint) -> Result<Changes, EngineError> {
    let mut listed = Changes::default();
    let mut last = (fingerprint.compacted.max(FIRST_REVISION), u32::MAX);
    for guard in engine.revisions.iter() {
        let (found, key) = guard.into_inner().map_err(|error| read_error("its history".into(), &error))?;
        let (revision, position) = split_revision_key(&found).ok_or_else(|| damage("a revision is unreadable"))?;
        if revision <= fingerprint.compacted {
            continue;
        }
        let follows = match position {
            0 => revision == last.0.next(),
            _ => revision == last.0 && position == last.1.wrapping_add(1),
        };
        if !follows {
            return Err(damage(&format!("the changes between revision {} and {revision} are missing", last.0)));
        }
        last = (revision, position);
        listed.add(fingerprint, &key, revision);
    }
    match last.0 == fingerprint.revision {
        true => Ok(listed),
        false => Err(damage(&format!(
            "its last change is of revision {}, but should be of {}",
            last.0, fingerprint.revision
        ))),
    }
}
