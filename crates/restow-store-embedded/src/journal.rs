//! Reads the engine's journal, which is its write-ahead log, to find corruption that the engine does not handle.
//!
//! At every start it looks for items with impossible lengths, for which the engine would allocate memory at once. Before a
//! repair it truncates journals at the first corrupt batch, since the engine itself either truncates them without a word, or
//! refuses to read them at all.
//!
//! A journal is a sequence of batches: a start (number of items, sequence number), the items, and an end with a checksum
//! of the items. Zeros follow the last one.

use crate::checksums::take;
use crate::engine::EngineError;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3Default;

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;
const TRAILER: &[u8] = &[b'F', b'J', b'L', 3];
/// The size of an item's header, which precedes its key.
const ITEM_HEAD: usize = 21;
/// The size of a start, and of an end.
const FRAME: usize = 13;
/// The size of an item that clears a keyspace.
const CLEAR_ITEM: usize = 9;
/// Far more than the largest value of any store.
const MAX_VALUE_BYTES: usize = 256 << 20;

/// Truncates every journal of the engine at its first unreadable batch.
pub(crate) fn truncate_at_corruption(engine: &Path) -> io::Result<()> {
    for path in journals(engine)? {
        let whole = intact_length(&fs::read(&path)?);
        OpenOptions::new().write(true).open(&path)?.set_len(whole as u64)?;
    }
    Ok(())
}

/// Fails if a journal has an item that is larger than any value can be.
pub(crate) fn check_lengths(engine: &Path) -> Result<(), EngineError> {
    for path in journals(engine).map_err(|error| EngineError::Io(error.to_string()))? {
        let journal = fs::read(&path);
        let journal =
            journal.map_err(|error| EngineError::Io(format!("{} cannot be read: {error}", path.display())))?;
        if let Some(length) = oversized(&journal) {
            let reason = format!("{} is corrupt: it has an item with a length of {length} bytes", path.display());
            return Err(EngineError::Corrupt(reason));
        }
    }
    Ok(())
}

fn journals(engine: &Path) -> io::Result<Vec<PathBuf>> {
    let paths = fs::read_dir(engine)?.map(|item| item.map(|item| item.path()));
    let is_journal = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "jnl");
    paths.filter(|path| path.as_ref().map_or(true, is_journal)).collect()
}

/// The length of the first item that is too large, among those that the engine would read.
fn oversized(journal: &[u8]) -> Option<usize> {
    let mut rest = journal;
    loop {
        let length = match *rest.first()? {
            START | END => FRAME,
            CLEAR => CLEAR_ITEM,
            ITEM => {
                let value = u32::from_le_bytes(rest.get(13..17)?.try_into().ok()?) as usize;
                let stored = u32::from_le_bytes(rest.get(17..21)?.try_into().ok()?) as usize;
                if value.max(stored) > MAX_VALUE_BYTES {
                    return Some(value.max(stored));
                }
                item_length(rest)?
            }
            _ => return None,
        };
        rest = rest.get(length..)?;
    }
}

/// The length of the intact batches at the beginning of a journal.
fn intact_length(journal: &[u8]) -> usize {
    let mut whole = 0;
    while let Some(batch) = batch_length(&journal[whole..]) {
        whole += batch;
    }
    whole
}

/// The length of the first batch; `None` if there is none, or it is corrupt.
fn batch_length(bytes: &[u8]) -> Option<usize> {
    let mut rest = bytes.strip_prefix(&[START])?;
    let items = u32::from_le_bytes(take(&mut rest)?);
    let _sequence: [u8; 8] = take(&mut rest)?;
    let mut sum = Xxh3Default::new();
    for _ in 0..items {
        let item = item_length(rest)?;
        sum.update(rest.get(..item)?);
        rest = &rest[item..];
    }
    rest = rest.strip_prefix(&[END])?;
    let expected = u64::from_le_bytes(take(&mut rest)?);
    let rest = rest.strip_prefix(TRAILER)?;
    (expected == sum.digest()).then(|| bytes.len() - rest.len())
}

fn item_length(bytes: &[u8]) -> Option<usize> {
    match *bytes.first()? {
        CLEAR => Some(CLEAR_ITEM),
        ITEM => {
            // The tag, the kind of value, the compression, the keyspace; then the lengths of key, value, and value as stored.
            let key = u16::from_le_bytes(bytes.get(11..13)?.try_into().ok()?);
            let stored = u32::from_le_bytes(bytes.get(17..21)?.try_into().ok()?);
            Some(ITEM_HEAD + usize::from(key) + stored as usize)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Background, Durability, Engine};
    use crate::layout::Record;
    use restow_store::{Key, Revision};

    #[test]
    fn a_journal_is_intact_up_to_its_first_corrupt_batch() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("engine");
        let engine = Engine::open(&path, Background::Disabled).unwrap();
        let mut ends = vec![0];
        let whole = || intact_length(&fs::read(path.join("0.jnl")).unwrap());
        for revision in 2..6 {
            let mut batch = engine.batch(Durability::Synced);
            batch.put_version(&Key::try_from("a").unwrap(), Revision::new(revision), 0, &Record::Deleted);
            batch.commit().unwrap();
            assert!(whole() > ends[ends.len() - 1], "the engine has a journal format that this code does not know");
            ends.push(whole());
        }
        drop(engine);
        let mut journal = fs::read(path.join("0.jnl")).unwrap();
        journal.truncate(ends[4] + 64);
        assert_eq!(oversized(&journal), None);
        let mut large = journal.clone();
        // The highest byte of the length of the last item in the last batch: it is followed by its value and by the end.
        let head = |at: &usize| journal[*at] == ITEM && item_length(&journal[*at..]) == Some(ends[4] - FRAME - at);
        let last = (ends[3]..ends[4] - FRAME).rev().find(head).unwrap();
        large[last + 20] = 0x80;
        assert_eq!(oversized(&large).map(|length| length >> 31), Some(1));
        for place in 0..ends[4] {
            let mut damaged = journal.clone();
            damaged[place] ^= 0x10;
            let batch = ends.iter().rposition(|end| *end <= place).unwrap();
            // No checksum covers the sequence number; the fingerprint detects a wrong one.
            let sequence = (ends[batch] + 5..ends[batch] + 13).contains(&place);
            assert_eq!(intact_length(&damaged), if sequence { ends[4] } else { ends[batch] }, "byte {place}");
        }
    }
}
