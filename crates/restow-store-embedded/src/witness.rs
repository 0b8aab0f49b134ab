//! The witness: a small file beside the engine that says what was acknowledged last.
//!
//! The engine forgets silently: it cuts its journal at the first frame that it cannot read, and begins anew where it
//! finds no files. The witness is not among its files, so that nothing of what befalls them hides what they held.
//!
//! It has two slots of one sector each, written in turn, so that a torn write leaves the other one. It is written after
//! the engine has synced and before anybody is answered, and handed to the system: that outlives the process. It is
//! synced once a second only, since a second sync for each batch would halve the speed of a single writer
//! (docs/decisions/0004). After a loss of power the witness may therefore be behind the engine, never ahead of it.

use crate::account::{ACCOUNT_BYTES, Account};
use crate::layout::read_number;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: &[u8; 8] = b"witness1";
/// Far enough apart to be in different sectors and pages.
const SLOT: u64 = 4096;
const SLOTS: u64 = 2;
const SLOT_BYTES: usize = 8 + 8 + ACCOUNT_BYTES + 8;
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// The file, open for writing.
#[derive(Debug)]
pub(crate) struct Witness {
    file: File,
    sequence: u64,
    unsynced: bool,
    synced: Instant,
}

impl Witness {
    /// Writes a witness of its own to `draft`, and gives it its name.
    pub(crate) fn create(draft: &Path, path: &Path, account: &Account) -> io::Result<()> {
        match std::fs::remove_file(draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(draft)?;
        for sequence in 0..SLOTS {
            let mut slot = encode(sequence, account).to_vec();
            slot.resize(SLOT as usize, 0);
            file.write_all(&slot)?;
        }
        file.sync_all()?;
        std::fs::rename(draft, path)
    }

    /// Opens the file and reads what it says; `InvalidData` where it is damaged.
    pub(crate) fn open(path: &Path) -> io::Result<(Self, Account)> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let mut newest: Option<(u64, Account)> = None;
        for slot in 0..SLOTS {
            let mut bytes = [0; SLOT_BYTES];
            match file.read_exact_at(&mut bytes, slot * SLOT) {
                Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error),
                _ => {}
            }
            if let Some(read) = decode(&bytes).filter(|read| newest.is_none_or(|newest| read.0 > newest.0)) {
                newest = Some(read);
            }
        }
        let (sequence, account) = newest.ok_or(io::ErrorKind::InvalidData)?;
        Ok((Witness { file, sequence, unsynced: false, synced: Instant::now() }, account))
    }

    /// Says that this was acknowledged.
    pub(crate) fn note(&mut self, account: &Account) -> io::Result<()> {
        let sequence = self.sequence + 1;
        self.file.write_all_at(&encode(sequence, account), sequence % SLOTS * SLOT)?;
        self.sequence = sequence;
        self.unsynced = true;
        if self.synced.elapsed() >= SYNC_INTERVAL { self.sync() } else { Ok(()) }
    }

    /// Makes what was noted outlive a loss of power.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.unsynced) {
            self.file.sync_data()?;
            self.synced = Instant::now();
        }
        Ok(())
    }
}

fn encode(sequence: u64, account: &Account) -> [u8; SLOT_BYTES] {
    let mut bytes = [0; SLOT_BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..16].copy_from_slice(&sequence.to_be_bytes());
    bytes[16..SLOT_BYTES - 8].copy_from_slice(&account.encode());
    let sum = xxh3_64(&bytes[..SLOT_BYTES - 8]);
    bytes[SLOT_BYTES - 8..].copy_from_slice(&sum.to_be_bytes());
    bytes
}

fn decode(bytes: &[u8; SLOT_BYTES]) -> Option<(u64, Account)> {
    let (content, sum) = bytes.split_at(SLOT_BYTES - 8);
    if !content.starts_with(MAGIC) || read_number(sum)? != xxh3_64(content) {
        return None;
    }
    Some((read_number(&content[8..16])?, Account::decode(&content[16..])?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use restow_store::Revision;

    fn account(revision: u64) -> Account {
        let zero = Revision::ZERO;
        Account { store: 1, revision: Revision::new(revision), compacted: zero, keys: revision, digest: 0 }
    }

    #[test]
    fn the_last_note_counts_and_a_torn_one_leaves_the_one_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("WITNESS");
        Witness::create(&folder.path().join("WITNESS.new"), &path, &account(1)).unwrap();
        let (mut witness, first) = Witness::open(&path).unwrap();
        assert_eq!(first, account(1));
        for revision in 2..=5 {
            witness.note(&account(revision)).unwrap();
            assert_eq!(Witness::open(&path).unwrap().1, account(revision));
        }
        let torn = witness.sequence % SLOTS * SLOT + 20;
        witness.file.write_all_at(&[0xff; 8], torn).unwrap();
        assert_eq!(Witness::open(&path).unwrap().1, account(4));
        let other = (witness.sequence + 1) % SLOTS * SLOT;
        witness.file.write_all_at(&[0xff; 8], other).unwrap();
        assert_eq!(Witness::open(&path).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_short_file_is_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("WITNESS");
        std::fs::write(&path, b"witness1").unwrap();
        assert_eq!(Witness::open(&path).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(Witness::open(&folder.path().join("absent")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
