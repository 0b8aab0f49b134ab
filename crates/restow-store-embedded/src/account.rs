//! What the store holds, in a few numbers: enough to notice that something of it is missing, old or foreign.
//!
//! Every batch carries the account of the store after it (`layout.rs`), and the witness beside the engine repeats it
//! (`witness.rs`). The account does not say what is missing; `inspection.rs` does.

use crate::layout::{KeyState, read_number};
use restow_store::{Key, Revision};
use std::fmt;
use std::hash::BuildHasher;
use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

/// The bytes of an account: its numbers and their checksum.
pub(crate) const ACCOUNT_BYTES: usize = 64;
const SUM_AT: usize = ACCOUNT_BYTES - 8;

/// The account of a store at one revision.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Account {
    /// Drawn when the store is made, so that the files of another one are not taken for its own.
    pub(crate) store: u128,
    pub(crate) revision: Revision,
    pub(crate) compacted: Revision,
    /// How many keys exist.
    pub(crate) keys: u64,
    /// The sum of the digests of all keys and what is known of them. A sum, so that a change costs two digests.
    pub(crate) digest: u128,
}

impl Account {
    /// The account of a new store, in which nothing is.
    pub(crate) fn of_new_store(revision: Revision, compacted: Revision) -> Self {
        let random = || u128::from(std::hash::RandomState::new().hash_one(0u8));
        Account { store: (random() << 64) | random(), revision, compacted, keys: 0, digest: 0 }
    }

    /// Takes a key in.
    pub(crate) fn add(&mut self, key: &Key, state: &KeyState) {
        self.keys = self.keys.wrapping_add(1);
        self.digest = self.digest.wrapping_add(digest(key, state));
    }

    /// Takes a key out.
    pub(crate) fn remove(&mut self, key: &Key, state: &KeyState) {
        self.keys = self.keys.wrapping_sub(1);
        self.digest = self.digest.wrapping_sub(digest(key, state));
    }

    pub(crate) fn encode(&self) -> [u8; ACCOUNT_BYTES] {
        let mut bytes = [0; ACCOUNT_BYTES];
        bytes[..16].copy_from_slice(&self.store.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.revision.get().to_be_bytes());
        bytes[24..32].copy_from_slice(&self.compacted.get().to_be_bytes());
        bytes[32..40].copy_from_slice(&self.keys.to_be_bytes());
        bytes[40..SUM_AT].copy_from_slice(&self.digest.to_be_bytes());
        let sum = xxh3_64(&bytes[..SUM_AT]);
        bytes[SUM_AT..].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    /// Reads an account; `None` where the bytes are none, or damaged.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; ACCOUNT_BYTES] = bytes.try_into().ok()?;
        if read_number(&bytes[SUM_AT..])? != xxh3_64(&bytes[..SUM_AT]) {
            return None;
        }
        Some(Account {
            store: u128::from_be_bytes(bytes[..16].try_into().ok()?),
            revision: Revision::new(read_number(&bytes[16..24])?),
            compacted: Revision::new(read_number(&bytes[24..32])?),
            keys: read_number(&bytes[32..40])?,
            digest: u128::from_be_bytes(bytes[40..SUM_AT].try_into().ok()?),
        })
    }

    /// What an engine with the account `found` lacks of what this account, its witness, says was acknowledged. An engine
    /// may be ahead of its witness: by a batch that was not acknowledged, or whose witness a loss of power took.
    pub(crate) fn missing_in(&self, found: &Account) -> Option<String> {
        if self.store != found.store {
            return Some("the files of its engine belong to another store".into());
        }
        if found.revision < self.revision {
            return Some(format!("{self} were acknowledged, and only {found} are there"));
        }
        if found.compacted < self.compacted {
            return Some(format!("it was compacted at revision {}, and forgot it", self.compacted));
        }
        if found.revision == self.revision && (found.keys, found.digest) != (self.keys, self.digest) {
            return Some(format!("{self} were acknowledged, and others are there"));
        }
        None
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys at revision {}", self.keys, self.revision)
    }
}

impl fmt::Debug for Account {
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

    fn account() -> Account {
        Account { store: 7, revision: Revision::new(9), compacted: Revision::new(3), keys: 2, digest: 1 << 100 }
    }

    fn state(revision: u64) -> KeyState {
        let revision = Revision::new(revision);
        KeyState { create_revision: revision, mod_revision: revision, version: 1, expires_at: 0 }
    }

    #[test]
    fn an_account_comes_back_and_no_flipped_bit_is_read() {
        let bytes = account().encode();
        assert_eq!(Account::decode(&bytes), Some(account()));
        for bit in 0..ACCOUNT_BYTES * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Account::decode(&damaged), None, "bit {bit}");
        }
        assert_eq!(Account::decode(&bytes[1..]), None);
    }

    #[test]
    fn the_order_of_changes_does_not_matter_and_each_of_them_does() {
        let (a, b) = (Key::try_from("a").unwrap(), Key::try_from("b").unwrap());
        let empty = account();
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
    fn what_was_acknowledged_must_be_there() {
        let lacks = |change: fn(&mut Account)| {
            let mut found = account();
            change(&mut found);
            account().missing_in(&found)
        };
        assert_eq!(lacks(|_| {}), None);
        assert_eq!(lacks(|found| found.compacted = Revision::new(4)), None);
        let ahead = |found: &mut Account| (found.revision, found.keys) = (Revision::new(10), 3);
        assert_eq!(lacks(ahead), None, "a batch that was not acknowledged");
        let behind = lacks(|found| (found.revision, found.keys) = (Revision::new(8), 1)).unwrap();
        assert!(behind.contains("2 keys at revision 9") && behind.contains("only 1 keys at revision 8"), "{behind}");
        assert!(lacks(|found| found.store = 8).unwrap().contains("another store"));
        assert!(lacks(|found| found.digest += 1).is_some());
        assert!(lacks(|found| found.keys += 1).is_some());
        assert!(lacks(|found| found.compacted = Revision::new(2)).is_some());
    }
}
