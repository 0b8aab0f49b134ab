//! The fingerprint of a store's content: its id, revision, compacted revision, number of keys, and a digest of all keys.
//! It is enough to detect that something is missing, out of date, or from another store.
//!
//! Every batch writes the fingerprint of the store after it (`layout.rs`), and the witness file repeats it (`witness.rs`).
//! A fingerprint does not tell *what* is missing; `verification.rs` does.

use crate::layout::{KeyState, read_number};
use restow_store::{Key, Revision};
use std::fmt;
use std::hash::BuildHasher;
use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

/// The size of an encoded fingerprint: its numbers and their checksum.
pub(crate) const FINGERPRINT_BYTES: usize = 64;
const SUM_AT: usize = FINGERPRINT_BYTES - 8;

/// The fingerprint of a store at one revision.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    /// The random id of the store, so that files of another store are recognised.
    pub(crate) store: u128,
    pub(crate) revision: Revision,
    pub(crate) compacted: Revision,
    /// The number of existing keys.
    pub(crate) keys: u64,
    /// The sum of the digests of all keys and their metadata. It is a sum so that a change costs two digests.
    pub(crate) digest: u128,
}

impl Fingerprint {
    /// The fingerprint of a new, empty store.
    pub(crate) fn of_new_store(revision: Revision, compacted: Revision) -> Self {
        let random = || u128::from(std::hash::RandomState::new().hash_one(0u8));
        Fingerprint { store: (random() << 64) | random(), revision, compacted, keys: 0, digest: 0 }
    }

    /// Adds a key.
    pub(crate) fn add(&mut self, key: &Key, state: &KeyState) {
        self.keys = self.keys.wrapping_add(1);
        self.digest = self.digest.wrapping_add(digest(key, state));
    }

    /// Removes a key.
    pub(crate) fn remove(&mut self, key: &Key, state: &KeyState) {
        self.keys = self.keys.wrapping_sub(1);
        self.digest = self.digest.wrapping_sub(digest(key, state));
    }

    pub(crate) fn encode(&self) -> [u8; FINGERPRINT_BYTES] {
        let mut bytes = [0; FINGERPRINT_BYTES];
        bytes[..16].copy_from_slice(&self.store.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.revision.get().to_be_bytes());
        bytes[24..32].copy_from_slice(&self.compacted.get().to_be_bytes());
        bytes[32..40].copy_from_slice(&self.keys.to_be_bytes());
        bytes[40..SUM_AT].copy_from_slice(&self.digest.to_be_bytes());
        let sum = xxh3_64(&bytes[..SUM_AT]);
        bytes[SUM_AT..].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    /// Decodes a fingerprint; `None` if the bytes are corrupt.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; FINGERPRINT_BYTES] = bytes.try_into().ok()?;
        if read_number(&bytes[SUM_AT..])? != xxh3_64(&bytes[..SUM_AT]) {
            return None;
        }
        Some(Fingerprint {
            store: u128::from_be_bytes(bytes[..16].try_into().ok()?),
            revision: Revision::new(read_number(&bytes[16..24])?),
            compacted: Revision::new(read_number(&bytes[24..32])?),
            keys: read_number(&bytes[32..40])?,
            digest: u128::from_be_bytes(bytes[40..SUM_AT].try_into().ok()?),
        })
    }

    /// What an engine with the fingerprint `found` lacks of what was acknowledged according to this fingerprint, the
    /// witness. The engine may be ahead of the witness: by a batch that was not acknowledged, or because a power failure
    /// took the last write of the witness.
    pub(crate) fn missing_in(&self, found: &Fingerprint) -> Option<String> {
        if self.store != found.store {
            return Some("the files of its engine belong to another store".into());
        }
        if found.revision < self.revision {
            return Some(format!("{self} were acknowledged, and only {found} are there"));
        }
        if found.compacted < self.compacted {
            return Some(format!("it was compacted at revision {}, and its engine does not know that", self.compacted));
        }
        if found.revision == self.revision && (found.keys, found.digest) != (self.keys, self.digest) {
            return Some(format!("{self} were acknowledged, and other ones are there"));
        }
        None
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys at revision {}", self.keys, self.revision)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}, compacted at {}, digest {:032x} of store {:032x}", self.compacted, self.digest, self.store)
    }
}

fn digest(key: &Key, state: &KeyState) -> u128 {
    let mut hash = Xxh3Default::new();
    hash.update(key.as_ref());
    // Keys hold no zero byte, so it ends the key.
    hash.update(&[0]);
    hash.update(&state.encode());
    hash.digest128()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fingerprint() -> Fingerprint {
        Fingerprint { store: 7, revision: Revision::new(9), compacted: Revision::new(3), keys: 2, digest: 1 << 100 }
    }

    fn state(revision: u64) -> KeyState {
        let revision = Revision::new(revision);
        KeyState { create_revision: revision, mod_revision: revision, version: 1, expires_at: 0 }
    }

    #[test]
    fn a_fingerprint_round_trips_and_no_flipped_bit_is_accepted() {
        let bytes = fingerprint().encode();
        assert_eq!(Fingerprint::decode(&bytes), Some(fingerprint()));
        for bit in 0..FINGERPRINT_BYTES * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Fingerprint::decode(&damaged), None, "bit {bit}");
        }
        assert_eq!(Fingerprint::decode(&bytes[1..]), None);
    }

    #[test]
    fn the_digest_depends_on_every_change_and_not_on_their_order() {
        let (a, b) = (Key::try_from("a").unwrap(), Key::try_from("b").unwrap());
        let empty = fingerprint();
        let mut one = empty;
        one.add(&a, &state(4));
        one.add(&b, &state(5));
        let mut other = empty;
        other.add(&b, &state(4));
        other.add(&a, &state(4));
        other.remove(&b, &state(4));
        assert_ne!(one, other);
        other.add(&b, &state(5));
        assert_eq!(one, other);
        one.remove(&a, &state(4));
        one.remove(&b, &state(5));
        assert_eq!(one, empty);
    }

    #[test]
    fn an_engine_that_lacks_acknowledged_changes_is_detected() {
        let lacks = |change: fn(&mut Fingerprint)| {
            let mut found = fingerprint();
            change(&mut found);
            fingerprint().missing_in(&found)
        };
        assert_eq!(lacks(|_| {}), None);
        assert_eq!(lacks(|found| found.compacted = Revision::new(4)), None);
        let ahead = |found: &mut Fingerprint| (found.revision, found.keys) = (Revision::new(10), 3);
        assert_eq!(lacks(ahead), None, "a batch that was not acknowledged");
        let behind = lacks(|found| (found.revision, found.keys) = (Revision::new(8), 1)).unwrap();
        assert!(behind.contains("2 keys at revision 9") && behind.contains("only 1 keys at revision 8"), "{behind}");
        assert!(lacks(|found| found.store = 8).unwrap().contains("another store"));
        assert!(lacks(|found| found.digest += 1).is_some());
        assert!(lacks(|found| found.keys += 1).is_some());
        assert!(lacks(|found| found.compacted = Revision::new(2)).is_some());
    }
}
