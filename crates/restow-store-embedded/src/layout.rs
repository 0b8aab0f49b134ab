//! How things lie in the engine. Changing anything here makes a new format; see [`FORMAT`].
//!
//! | keyspace | key | value |
//! |---|---|---|
//! | `data` | key, a zero byte, the revision inverted | what the key was from that revision on, or that it was deleted |
//! | `revisions` | revision, place in the transaction | the key that was changed |
//! | `keys` | key | what is known of it now, without the value |
//! | `meta` | a name | the account of the store (`account.rs`) |
//!
//! Each record carries a checksum of its key, its revision and its content, so that no other bytes are taken for it. Format 1
//! had none, and kept two numbers in `meta` in place of the account; its records are still read.
//!
//! Keys hold no zero byte, so `data` is ordered by key first, and the inverted revision puts the newest version first.
//! All numbers are big-endian, so that they sort as numbers do.

use bytes::Bytes;
use restow_store::{Entry, Key, Revision};
use xxhash_rust::xxh3::Xxh3Default;

/// The name of this layout. A store that carries another one is refused.
pub(crate) const FORMAT: &str = "restow-embedded-store 2\n";
/// The name of the layout before, which is brought up to this one.
pub(crate) const FORMAT_1: &str = "restow-embedded-store 1\n";

/// The account in `meta`.
pub(crate) const META_ACCOUNT: &str = "account";
/// In format 1, the number in `meta` that says which revision the store is at.
pub(crate) const META_REVISION: &str = "revision";
/// In format 1, the number in `meta` that says which revision the store was last compacted at.
pub(crate) const META_COMPACTED: &str = "compacted";

/// What is known of a key without its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyState {
    pub(crate) create_revision: Revision,
    pub(crate) mod_revision: Revision,
    pub(crate) version: u64,
    /// When the key is to be deleted, in milliseconds since 1970; 0 for never.
    pub(crate) expires_at: u64,
}

/// What a key became at some revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    Put { state: KeyState, value: Bytes },
    Deleted,
}

const STATE_BYTES: usize = 32;
const SUM_BYTES: usize = 8;
/// The records of format 1, which have no checksum.
const TAG_DELETED_1: u8 = 0;
const TAG_PUT_1: u8 = 1;
const TAG_PUT: u8 = 2;
const TAG_DELETED: u8 = 3;

impl KeyState {
    pub(crate) fn entry(&self, key: Key, value: Bytes) -> Entry {
        Entry {
            key,
            value,
            create_revision: self.create_revision,
            mod_revision: self.mod_revision,
            version: self.version,
        }
    }

    pub(crate) fn encode(&self) -> [u8; STATE_BYTES] {
        let mut bytes = [0; STATE_BYTES];
        let numbers = [self.create_revision.get(), self.mod_revision.get(), self.version, self.expires_at];
        for (place, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_be_bytes());
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut numbers = bytes.get(..STATE_BYTES)?.chunks_exact(8).filter_map(read_number);
        Some(KeyState {
            create_revision: Revision::new(numbers.next()?),
            mod_revision: Revision::new(numbers.next()?),
            version: numbers.next()?,
            expires_at: numbers.next()?,
        })
    }
}

impl Record {
    /// The record as the version of this key at this revision.
    pub(crate) fn encode(&self, key: &[u8], revision: Revision) -> Vec<u8> {
        let (tag, size) = match self {
            Record::Deleted => (TAG_DELETED, 0),
            Record::Put { value, .. } => (TAG_PUT, STATE_BYTES + value.len()),
        };
        let mut bytes = Vec::with_capacity(1 + SUM_BYTES + size);
        bytes.push(tag);
        bytes.extend_from_slice(&[0; SUM_BYTES]);
        if let Record::Put { state, value } = self {
            bytes.extend_from_slice(&state.encode());
            bytes.extend_from_slice(value);
        }
        let sum = sum(key, revision, tag, &bytes[1 + SUM_BYTES..]);
        bytes[1..=SUM_BYTES].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    /// Reads the version of this key at this revision; `None` where the bytes are not what was written there.
    pub(crate) fn decode(bytes: &[u8], key: &[u8], revision: Revision) -> Option<Self> {
        let (&tag, rest) = bytes.split_first()?;
        let content = match tag {
            TAG_DELETED_1 | TAG_PUT_1 => rest,
            _ => {
                let (found, content) = rest.split_at_checked(SUM_BYTES)?;
                (read_number(found)? == sum(key, revision, tag, content)).then_some(content)?
            }
        };
        match tag {
            TAG_DELETED_1 | TAG_DELETED if content.is_empty() => Some(Record::Deleted),
            TAG_PUT_1 | TAG_PUT => {
                let value = Bytes::copy_from_slice(content.get(STATE_BYTES..)?);
                Some(Record::Put { state: KeyState::decode(content)?, value })
            }
            _ => None,
        }
    }
}

fn sum(key: &[u8], revision: Revision, tag: u8, content: &[u8]) -> u64 {
    let mut hash = Xxh3Default::new();
    hash.update(&data_key(key, revision));
    hash.update(&[tag]);
    hash.update(content);
    hash.digest()
}

/// The key in `data` of a key's version at `revision`.
pub(crate) fn data_key(key: &[u8], revision: Revision) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(key.len() + 9);
    bytes.extend_from_slice(key);
    bytes.push(0);
    bytes.extend_from_slice(&(!revision.get()).to_be_bytes());
    bytes
}

/// Where the keys that sort at or after `bound` begin in `data`. A bound that ends in a zero byte stands right behind a
/// key, and so behind all versions of it.
pub(crate) fn data_bound(bound: &[u8]) -> Vec<u8> {
    let mut bytes = bound.to_vec();
    if let Some(last @ 0) = bytes.last_mut() {
        *last = 1;
    }
    bytes
}

/// What every key in `data` of this key begins with.
pub(crate) fn data_prefix(key: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(key.len() + 1);
    bytes.extend_from_slice(key);
    bytes.push(0);
    bytes
}

/// Takes a key in `data` apart.
pub(crate) fn split_data_key(bytes: &[u8]) -> Option<(&[u8], Revision)> {
    let (head, revision) = bytes.split_last_chunk::<8>()?;
    let key = head.strip_suffix(&[0])?;
    Some((key, Revision::new(!u64::from_be_bytes(*revision))))
}

/// The key in `revisions` of the change at this place of the transaction at `revision`.
pub(crate) fn revision_key(revision: Revision, place: u32) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&revision.get().to_be_bytes());
    bytes[8..].copy_from_slice(&place.to_be_bytes());
    bytes
}

/// The revision and the place of a key in `revisions`.
pub(crate) fn split_revision_key(bytes: &[u8]) -> Option<(Revision, u32)> {
    let (revision, place) = bytes.split_at_checked(8)?;
    Some((Revision::new(read_number(revision)?), u32::from_be_bytes(place.try_into().ok()?)))
}

/// A number as it lies in `meta`.
pub(crate) fn read_number(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn data_keys_sort_by_key_and_then_newest_first(
            one in prop::collection::vec(1u8..=255, 1..5), other in prop::collection::vec(1u8..=255, 1..5),
            early in 1u64..1000, late in 1u64..1000,
        ) {
            let left = data_key(&one, Revision::new(early));
            let right = data_key(&other, Revision::new(late));
            let expected = one.cmp(&other).then(late.cmp(&early));
            prop_assert_eq!(left.cmp(&right), expected);
            prop_assert_eq!(split_data_key(&left), Some((one.as_slice(), Revision::new(early))));
        }

        #[test]
        fn bounds_divide_versions_as_they_divide_keys(
            keys in prop::collection::vec(prop::collection::vec(1u8..=3, 1..4), 3), revision in 1u64..1000,
        ) {
            let keys: Vec<Key> = keys.into_iter().map(|bytes| Key::new(bytes).unwrap()).collect();
            let after = restow_store::KeyRange::all().after(&keys[0]);
            let prefix = restow_store::KeyRange::prefix(keys[1].as_bytes().clone());
            let version = data_key(keys[2].as_ref(), Revision::new(revision));
            for range in [after, prefix, restow_store::KeyRange::exactly(&keys[0])] {
                let within = version >= data_bound(range.start())
                    && range.end().is_none_or(|end| version < data_bound(end));
                prop_assert_eq!(within, range.contains(&keys[2]));
            }
        }

        #[test]
        fn records_come_back(value in prop::collection::vec(any::<u8>(), 0..50), numbers in any::<[u64; 4]>()) {
            let state = KeyState {
                create_revision: Revision::new(numbers[0]), mod_revision: Revision::new(numbers[1]),
                version: numbers[2], expires_at: numbers[3],
            };
            let record = Record::Put { state, value: value.into() };
            let at = Revision::new(7);
            let bytes = record.encode(b"key", at);
            prop_assert_eq!(Record::decode(&bytes, b"key", at), Some(record));
            prop_assert_eq!(Record::decode(&bytes, b"other", at), None);
            prop_assert_eq!(Record::decode(&bytes, b"key", at.next()), None);
            for bit in 0..bytes.len() * 8 {
                let mut damaged = bytes.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                // Without its tag a record is one of format 1, or none.
                prop_assert!(bit < 8 || Record::decode(&damaged, b"key", at).is_none(), "bit {}", bit);
            }
        }

        #[test]
        fn damaged_records_are_recognised_or_read_as_something(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            // No input may panic.
            let _ = Record::decode(&bytes, b"key", Revision::new(1));
            let _ = split_data_key(&bytes);
            let _ = split_revision_key(&bytes);
        }
    }

    #[test]
    fn a_deletion_is_a_record_too() {
        let (key, at) = (b"key".as_slice(), Revision::new(2));
        let bytes = Record::Deleted.encode(key, at);
        assert_eq!(Record::decode(&bytes, key, at), Some(Record::Deleted));
        assert_eq!(Record::decode(&bytes, key, at.next()), None);
        assert_eq!(Record::decode(&[7], key, at), None);
        assert_eq!(Record::decode(&[], key, at), None);
    }

    #[test]
    fn records_of_format_1_are_read() {
        let (key, at) = (b"key".as_slice(), Revision::new(2));
        assert_eq!(Record::decode(&[TAG_DELETED_1], key, at), Some(Record::Deleted));
        let state = KeyState { create_revision: at, mod_revision: at, version: 1, expires_at: 0 };
        let mut bytes = vec![TAG_PUT_1];
        bytes.extend_from_slice(&state.encode());
        bytes.extend_from_slice(b"value");
        assert_eq!(Record::decode(&bytes, key, at), Some(Record::Put { state, value: "value".into() }));
    }
}
