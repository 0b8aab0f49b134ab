//! The on-disk layout: keys and values in the engine's keyspaces. Any change here makes a new format; see [`FORMAT`].
//!
//! | keyspace | key | value |
//! |---|---|---|
//! | `data` | key, a zero byte, the inverted revision | a version: metadata and value, or a tombstone |
//! | `revisions` | revision, position in the transaction | the key that was changed |
//! | `keys` | key | its current metadata, without the value |
//! | `meta` | a name | the fingerprint of the store (`fingerprint.rs`), under the name `account` |
//!
//! Each version has a checksum of its key, its revision and its content. Format 1 had none, and two revisions in `meta`
//! instead of the fingerprint; its records are still read.
//!
//! Keys hold no zero byte, so `data` is ordered by key first, and the inverted revision puts the newest version first.
//! All numbers are big-endian, so that they sort numerically.

use bytes::Bytes;
use restow_store::{Entry, Key, Revision};
use xxhash_rust::xxh3::Xxh3Default;

/// The current format. A store with an unknown format is refused.
pub(crate) const FORMAT: &str = "restow-embedded-store 2\n";
/// The previous format, which is upgraded when a store is opened.
pub(crate) const FORMAT_1: &str = "restow-embedded-store 1\n";

/// The fingerprint in `meta`.
pub(crate) const META_FINGERPRINT: &str = "account";
/// In format 1, the latest revision in `meta`.
pub(crate) const META_REVISION: &str = "revision";
/// In format 1, the compacted revision in `meta`.
pub(crate) const META_COMPACTED: &str = "compacted";

/// The metadata of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyState {
    pub(crate) create_revision: Revision,
    pub(crate) mod_revision: Revision,
    pub(crate) version: u64,
    /// When the key expires, in milliseconds since 1970; 0 for never.
    pub(crate) expires_at: u64,
}

/// A version of a key.
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
        for (chunk, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            chunk.copy_from_slice(&number.to_be_bytes());
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
    /// Encodes the version of this key at this revision.
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

    /// Decodes the version of this key at this revision; `None` if the bytes are not what was written there.
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

/// The first key in `data` of the keys at or after `bound`. A bound that ends in a zero byte is the successor of a key, and
/// so sorts after all its versions.
pub(crate) fn data_bound(bound: &[u8]) -> Vec<u8> {
    let mut bytes = bound.to_vec();
    if let Some(last @ 0) = bytes.last_mut() {
        *last = 1;
    }
    bytes
}

/// The prefix of all keys in `data` of this key.
pub(crate) fn data_prefix(key: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(key.len() + 1);
    bytes.extend_from_slice(key);
    bytes.push(0);
    bytes
}

/// The key and the revision of a key in `data`.
pub(crate) fn split_data_key(bytes: &[u8]) -> Option<(&[u8], Revision)> {
    let (head, revision) = bytes.split_last_chunk::<8>()?;
    let key = head.strip_suffix(&[0])?;
    Some((key, Revision::new(!u64::from_be_bytes(*revision))))
}

/// The key in `revisions` of the change at this position of the transaction at `revision`.
pub(crate) fn revision_key(revision: Revision, position: u32) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&revision.get().to_be_bytes());
    bytes[8..].copy_from_slice(&position.to_be_bytes());
    bytes
}

/// The revision and the position of a key in `revisions`.
pub(crate) fn split_revision_key(bytes: &[u8]) -> Option<(Revision, u32)> {
    let (revision, position) = bytes.split_at_checked(8)?;
    Some((Revision::new(read_number(revision)?), u32::from_be_bytes(position.try_into().ok()?)))
}

/// Decodes a number.
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
        fn range_bounds_select_the_versions_of_the_keys_in_the_range(
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
        fn records_round_trip(value in prop::collection::vec(any::<u8>(), 0..50), numbers in any::<[u64; 4]>()) {
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
                // With another tag it is a record of format 1, or none.
                prop_assert!(bit < 8 || Record::decode(&damaged, b"key", at).is_none(), "bit {}", bit);
            }
        }

        #[test]
        fn no_record_makes_decoding_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
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
