//! Looks whether everything that an engine should hold is there: every key that its account counts, the value of each, and
//! every change since the last compaction. It reads the whole store, as a start of etcd does, and writes nothing.

use crate::account::Account;
use crate::engine::{Engine, FIRST_REVISION, Failure, Opened};
use crate::layout::{KeyState, Record, data_key, split_data_key, split_revision_key};
use restow_store::{Key, Revision};
use xxhash_rust::xxh3::xxh3_128;

/// Checks the engine; says what does not fit.
pub(crate) fn inspect(opened: &Opened) -> Result<(), Failure> {
    let Opened { engine, account, keys } = opened;
    let mut versions = Versions { keys: keys.iter().peekable(), history: Changes::default() };
    let mut latest: Vec<u8> = Vec::new();
    for guard in engine.data.iter() {
        let place = || format!("what is stored at or behind {}", String::from_utf8_lossy(&latest));
        let (found, bytes) = guard.into_inner().map_err(|error| at(place(), &error))?;
        let (key, revision) = split_data_key(&found).ok_or_else(|| damage("a key in the data is unreadable"))?;
        let version = || format!("the version of {} at revision {revision}", String::from_utf8_lossy(key));
        let record = Record::decode(&bytes, key, revision);
        let record = record.ok_or_else(|| damage(&format!("{} is unreadable", version())))?;
        if revision > account.revision {
            return Err(damage(&format!("{} is later than the last one", version())));
        }
        if latest != key {
            latest = key.to_vec();
            versions.latest(key, revision, &record)?;
        }
        versions.history.add(account, key, revision);
    }
    if let Some((key, state)) = versions.keys.next() {
        return Err(missing(key, state));
    }
    let listed = listed_changes(engine, account)?;
    match listed == versions.history {
        true => Ok(()),
        false => {
            let (listed, found) = (listed.count, versions.history.count);
            Err(damage(&format!("{listed} changes are listed, and {found} are there, or others")))
        }
    }
}

struct Versions<'a, Keys: Iterator<Item = &'a (Key, KeyState)>> {
    /// The keys of which no version was seen yet.
    keys: std::iter::Peekable<Keys>,
    history: Changes,
}

impl<'a, Keys: Iterator<Item = &'a (Key, KeyState)>> Versions<'a, Keys> {
    /// Looks at the latest version of a key. Keys come in order.
    fn latest(&mut self, key: &[u8], revision: Revision, record: &Record) -> Result<(), Failure> {
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
                "the latest version of {} is of revision {revision}, and another one should be",
                String::from_utf8_lossy(key)
            ))),
        }
    }
}

fn missing(key: &Key, state: &KeyState) -> Failure {
    damage(&format!("the value of {key} at revision {} is missing", state.mod_revision))
}

fn damage(reason: &str) -> Failure {
    Failure::Damage(reason.into())
}

/// Says where the engine failed.
fn at(place: String, error: &fjall::Error) -> Failure {
    match Failure::of(error) {
        Failure::Disk(reason) => Failure::Disk(format!("{place} cannot be read: {reason}")),
        Failure::Damage(reason) => Failure::Damage(format!("{place} is damaged: {reason}")),
    }
}

/// Changes, by number and by the sum of their digests, in any order.
#[derive(Debug, Default, PartialEq, Eq)]
struct Changes {
    count: u64,
    digest: u128,
}

impl Changes {
    /// Counts a change, unless compaction may have removed it.
    fn add(&mut self, account: &Account, key: &[u8], revision: Revision) {
        if revision > account.compacted {
            self.count += 1;
            self.digest = self.digest.wrapping_add(xxh3_128(&data_key(key, revision)));
        }
    }
}

/// The changes since the last compaction as `revisions` lists them, which must leave no gap.
fn listed_changes(engine: &Engine, account: &Account) -> Result<Changes, Failure> {
    let mut listed = Changes::default();
    let mut last = (account.compacted.max(FIRST_REVISION), u32::MAX);
    for guard in engine.revisions.iter() {
        let (found, key) = guard.into_inner().map_err(|error| at("its history".into(), &error))?;
        let (revision, place) = split_revision_key(&found).ok_or_else(|| damage("a revision is unreadable"))?;
        if revision <= account.compacted {
            continue;
        }
        let follows = match place {
            0 => revision == last.0.next(),
            _ => revision == last.0 && place == last.1.wrapping_add(1),
        };
        if !follows {
            return Err(damage(&format!("the changes between revision {} and {revision} are missing", last.0)));
        }
        last = (revision, place);
        listed.add(account, &key, revision);
    }
    match last.0 == account.revision {
        true => Ok(listed),
        false => {
            Err(damage(&format!("its last change is of revision {}, and should be of {}", last.0, account.revision)))
        }
    }
}
