//! Translates our keys, ranges and entries to etcd's and back: in etcd every key begins with the configured prefix.

use crate::proto::KeyValue;
use bytes::{BufMut, Bytes, BytesMut};
use restow_store::{Entry, Key, KeyRange, Revision, StoreError};

/// Translates keys, ranges and entries.
#[derive(Clone, Debug)]
pub(crate) struct Keyspace {
    prefix: Bytes,
}

/// A range as etcd has it: an empty end means the one key, a single zero byte means no end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EtcdRange {
    pub(crate) key: Bytes,
    pub(crate) range_end: Bytes,
}

impl Keyspace {
    pub(crate) fn new(prefix: &str) -> Self {
        Keyspace { prefix: Bytes::copy_from_slice(prefix.as_bytes()) }
    }

    /// The key in etcd.
    pub(crate) fn key(&self, key: &Key) -> Bytes {
        self.prefixed(key.as_bytes())
    }

    /// A key for reads of which only the revision matters. A user with read permission for the prefix, with or without a
    /// slash at its end, may read it.
    pub(crate) fn any_key(&self) -> Bytes {
        if self.prefix.ends_with(b"/") { self.prefix.clone() } else { self.prefixed(b"/") }
    }

    /// The range in etcd.
    pub(crate) fn range(&self, range: &KeyRange) -> EtcdRange {
        if range.is_empty() {
            return EtcdRange { key: self.impossible_key(), range_end: Bytes::new() };
        }
        // The bare prefix is not one of our keys.
        let start = if range.start().is_empty() { &Bytes::from_static(b"\0") } else { range.start() };
        let range_end = match range.end() {
            Some(end) if end.strip_suffix(b"\0").is_some_and(|key| key == start) => Bytes::new(),
            Some(end) => self.prefixed(end),
            None => KeyRange::prefix(self.prefix.clone()).end().cloned().unwrap_or(Bytes::from_static(b"\0")),
        };
        EtcdRange { key: self.prefixed(start), range_end }
    }

    /// Removes the prefix of a key in etcd.
    pub(crate) fn strip(&self, key: Vec<u8>) -> Result<Key, StoreError> {
        let key = Bytes::from(key);
        let ours = key.strip_prefix(self.prefix.as_ref()).map(|rest| key.slice_ref(rest));
        let reason = match ours.map(Key::new) {
            Some(Ok(key)) => return Ok(key),
            Some(Err(error)) => error.to_string(),
            None => "it does not begin with our prefix".into(),
        };
        Err(StoreError::Corrupted(format!("the key {:?} is not one of ours: {reason}", String::from_utf8_lossy(&key))))
    }

    /// Converts an entry of etcd.
    pub(crate) fn entry(&self, found: KeyValue) -> Result<Entry, StoreError> {
        Ok(Entry {
            key: self.strip(found.key)?,
            value: found.value.into(),
            create_revision: revision(found.create_revision),
            mod_revision: revision(found.mod_revision),
            version: found.version.try_into().unwrap_or_default(),
        })
    }

    /// A key under our prefix that cannot exist, because it contains a zero byte.
    fn impossible_key(&self) -> Bytes {
        let mut key = BytesMut::from(self.any_key().as_ref());
        key.put_u8(0);
        key.freeze()
    }

    fn prefixed(&self, rest: &[u8]) -> Bytes {
        let mut key = BytesMut::with_capacity(self.prefix.len() + rest.len());
        key.put_slice(&self.prefix);
        key.put_slice(rest);
        key.freeze()
    }
}

/// etcd's revisions are never negative.
pub(crate) fn revision(number: i64) -> Revision {
    Revision::new(number.try_into().unwrap_or_default())
}

/// etcd's revisions are `i64`; no store reaches the end of that range.
pub(crate) fn number(value: u64) -> i64 {
    value.try_into().unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key::try_from(text).unwrap()
    }

    fn check(prefix: &str, range: KeyRange, start: &[u8], end: &[u8]) {
        let expected = EtcdRange { key: Bytes::copy_from_slice(start), range_end: Bytes::copy_from_slice(end) };
        assert_eq!(Keyspace::new(prefix).range(&range), expected, "{prefix} {range:?}");
    }

    #[test]
    fn ranges_stay_under_the_prefix() {
        check("", KeyRange::all(), b"\0", b"\0");
        check("/r", KeyRange::all(), b"/r\0", b"/s");
        check("/r", KeyRange::prefix("/pods/"), b"/r/pods/", b"/r/pods0");
        check("/r", KeyRange::prefix(vec![0xff]), b"/r\xff", b"/s");
        check("", KeyRange::prefix(vec![0xff]), b"\xff", b"\0");
        check("/r", KeyRange::exactly(&key("a")), b"/ra", b"");
        check("/r", KeyRange::prefix("a").after(&key("ab")), b"/rab\0", b"/rb");
        check("/r", KeyRange::exactly(&key("a")).after(&key("a")), b"/r/\0", b"");
    }

    #[test]
    fn keys_come_back_without_the_prefix() {
        let keyspace = Keyspace::new("/r");
        assert_eq!(keyspace.strip(keyspace.key(&key("a")).to_vec()), Ok(key("a")));
        for foreign in ["/r", "/other", "/ra\0b"] {
            assert!(matches!(keyspace.strip(foreign.into()), Err(StoreError::Corrupted(_))), "{foreign}");
        }
    }
}
