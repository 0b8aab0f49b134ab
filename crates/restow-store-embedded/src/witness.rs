//! The witness: a small file beside the engine, with the fingerprint of the last acknowledged state.
//!
//! The engine can lose data silently: it truncates its journal at the first frame that it cannot read, and starts empty
//! where it finds no files. The witness is not one of the engine's files, so it still tells what was acknowledged when
//! those files are damaged.
//!
//! It has two slots, each in a sector of its own, which are written alternately, so that a torn write leaves the other slot
//! intact. It is written after the engine has synced a batch and before clients get their responses. The write goes to the
//! operating system, which survives a crash of the process. It is synced only once a second, since a second sync for each
//! batch would halve the throughput of a single writer (docs/decisions/0004). After a power failure the witness may
//! therefore be behind the engine, but never ahead of it.

use crate::directory::{Directory, OpenError};
use crate::fingerprint::{FINGERPRINT_BYTES, Fingerprint};
use crate::layout::read_number;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: &[u8; 8] = b"witness1";
/// The distance between the slots: they are in different sectors and pages.
const SLOT: u64 = 4096;
const SLOTS: u64 = 2;
const SLOT_BYTES: usize = 8 + 8 + FINGERPRINT_BYTES + 8;
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
    /// Writes a new witness to `draft`, then renames it to `path`.
    pub(crate) fn create(draft: &Path, path: &Path, fingerprint: &Fingerprint) -> io::Result<()> {
        match std::fs::remove_file(draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(draft)?;
        for sequence in 0..SLOTS {
            let mut slot = encode(sequence, fingerprint).to_vec();
            slot.resize(SLOT as usize, 0);
            file.write_all(&slot)?;
        }
        file.sync_all()?;
        std::fs::rename(draft, path)
    }

    /// Opens the file and reads the newest slot; `InvalidData` if both are corrupt.
    pub(crate) fn open(path: &Path) -> io::Result<(Self, Fingerprint)> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let mut newest: Option<(u64, Fingerprint)> = None;
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
        let (sequence, fingerprint) = newest.ok_or(io::ErrorKind::InvalidData)?;
        Ok((Witness { file, sequence, unsynced: false, synced: Instant::now() }, fingerprint))
    }

    /// Records the state that is about to be acknowledged.
    pub(crate) fn record(&mut self, fingerprint: &Fingerprint) -> io::Result<()> {
        let sequence = self.sequence + 1;
        self.file.write_all_at(&encode(sequence, fingerprint), sequence % SLOTS * SLOT)?;
        self.sequence = sequence;
        self.unsynced = true;
        if self.synced.elapsed() >= SYNC_INTERVAL { self.sync() } else { Ok(()) }
    }

    /// Makes what was recorded survive a power failure.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.unsynced) {
            self.file.sync_data()?;
            self.synced = Instant::now();
        }
        Ok(())
    }
}

fn encode(sequence: u64, fingerprint: &Fingerprint) -> [u8; SLOT_BYTES] {
    let mut bytes = [0; SLOT_BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..16].copy_from_slice(&sequence.to_be_bytes());
    bytes[16..SLOT_BYTES - 8].copy_from_slice(&fingerprint.encode());
    let sum = xxh3_64(&bytes[..SLOT_BYTES - 8]);
    bytes[SLOT_BYTES - 8..].copy_from_slice(&sum.to_be_bytes());
    bytes
}

fn decode(bytes: &[u8; SLOT_BYTES]) -> Option<(u64, Fingerprint)> {
    let (content, sum) = bytes.split_at(SLOT_BYTES - 8);
    if !content.starts_with(MAGIC) || read_number(sum)? != xxh3_64(content) {
        return None;
    }
    Some((read_number(&content[8..16])?, Fingerprint::decode(&content[16..])?))
}

/// Creates the witness with this fingerprint.
pub(crate) fn write_witness(directory: &Directory, fingerprint: &Fingerprint) -> Result<(), OpenError> {
    let path = directory.witness();
    let made = Witness::create(&path.with_extension("new"), &path, fingerprint);
    made.map_err(|source| OpenError::Io { action: "write", path, source })
}

pub(crate) fn open_witness(directory: &Directory) -> Result<(Witness, Fingerprint), OpenError> {
    Witness::open(&directory.witness()).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => {
            directory.damaged("its file WITNESS, which records what was acknowledged, is missing")
        }
        io::ErrorKind::InvalidData => {
            directory.damaged("its file WITNESS, which records what was acknowledged, is unreadable")
        }
        _ => OpenError::Io { action: "open", path: directory.witness(), source },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use restow_store::Revision;

    fn fingerprint(revision: u64) -> Fingerprint {
        let zero = Revision::ZERO;
        Fingerprint { store: 1, revision: Revision::new(revision), compacted: zero, keys: revision, digest: 0 }
    }

    #[test]
    fn the_newest_slot_counts_and_a_torn_write_leaves_the_other_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("WITNESS");
        Witness::create(&folder.path().join("WITNESS.new"), &path, &fingerprint(1)).unwrap();
        let (mut witness, first) = Witness::open(&path).unwrap();
        assert_eq!(first, fingerprint(1));
        for revision in 2..=5 {
            witness.record(&fingerprint(revision)).unwrap();
            assert_eq!(Witness::open(&path).unwrap().1, fingerprint(revision));
        }
        let torn = witness.sequence % SLOTS * SLOT + 20;
        witness.file.write_all_at(&[0xff; 8], torn).unwrap();
        assert_eq!(Witness::open(&path).unwrap().1, fingerprint(4));
        let other = (witness.sequence + 1) % SLOTS * SLOT;
        witness.file.write_all_at(&[0xff; 8], other).unwrap();
        assert_eq!(Witness::open(&path).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_short_file_is_corrupt() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("WITNESS");
        std::fs::write(&path, b"witness1").unwrap();
        assert_eq!(Witness::open(&path).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(Witness::open(&folder.path().join("absent")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
