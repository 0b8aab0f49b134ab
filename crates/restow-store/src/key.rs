//! Keys and ranges of keys, checked at construction: every back end can store them.

use bytes::Bytes;
use std::fmt;
use thiserror::Error;

/// A key: between 1 and [`Key::MAX_BYTES`] bytes, none of them zero. Keys are ordered byte by byte.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Bytes);

/// Why some bytes are not a [`Key`].
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum InvalidKey {
    /// A key needs at least one byte.
    #[error("a key must not be empty")]
    Empty,
    /// The key is longer than [`Key::MAX_BYTES`].
    #[error("a key may have at most {max} bytes, this one has {0}", max = Key::MAX_BYTES)]
    TooLong(usize),
    /// Zero bytes are reserved for the back ends, which use them as a separator after a key.
    #[error("a key must not contain a zero byte (found at offset {0})")]
    ZeroByte(usize),
}

impl Key {
    /// The longest key that a store accepts. Kubernetes' own keys stay well below 1 KiB.
    pub const MAX_BYTES: usize = 4096;

    /// Checks the bytes and makes a key of them.
    pub fn new(bytes: impl Into<Bytes>) -> Result<Self, InvalidKey> {
        let bytes = bytes.into();
        if bytes.is_empty() {
            return Err(InvalidKey::Empty);
        }
        if bytes.len() > Self::MAX_BYTES {
            return Err(InvalidKey::TooLong(bytes.len()));
        }
        match bytes.iter().position(|byte| *byte == 0) {
            Some(offset) => Err(InvalidKey::ZeroByte(offset)),
            None => Ok(Key(bytes)),
        }
    }

    /// The key's bytes.
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// A key is ordered, compared and hashed as its bytes are.
impl std::borrow::Borrow<[u8]> for Key {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl TryFrom<&str> for Key {
    type Error = InvalidKey;

    fn try_from(text: &str) -> Result<Self, InvalidKey> {
        Key::new(Bytes::copy_from_slice(text.as_bytes()))
    }
}

impl TryFrom<String> for Key {
    type Error = InvalidKey;

    fn try_from(text: String) -> Result<Self, InvalidKey> {
        Key::new(text)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&String::from_utf8_lossy(&self.0), f)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&String::from_utf8_lossy(&self.0), f)
    }
}

/// A contiguous range of keys, from a start (included) to an end (excluded), or without an end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyRange {
    start: Bytes,
    end: Option<Bytes>,
}

impl KeyRange {
    /// Every key of the store.
    pub fn all() -> Self {
        KeyRange { start: Bytes::new(), end: None }
    }

    /// This key and no other.
    pub fn exactly(key: &Key) -> Self {
        KeyRange { start: key.0.clone(), end: Some(successor(&key.0)) }
    }

    /// Every key that begins with these bytes. An empty prefix is the whole store.
    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        let start = prefix.into();
        let end = end_of_prefix(&start);
        KeyRange { start, end }
    }

    /// The part of this range that follows `key`: where the next page of a list begins.
    pub fn after(&self, key: &Key) -> Self {
        KeyRange { start: successor(&key.0).max(self.start.clone()), end: self.end.clone() }
    }

    /// Whether `key` is in this range.
    pub fn contains(&self, key: &Key) -> bool {
        key.0 >= self.start && self.end.as_ref().is_none_or(|end| key.0 < *end)
    }

    /// Whether no key can be in this range.
    pub fn is_empty(&self) -> bool {
        self.end.as_ref().is_some_and(|end| self.start >= *end)
    }

    /// The first bytes of the range (included).
    pub fn start(&self) -> &Bytes {
        &self.start
    }

    /// The bytes that end the range (excluded); none when it runs to the end of the store.
    pub fn end(&self) -> Option<&Bytes> {
        self.end.as_ref()
    }
}

/// The smallest bytes that sort after `bytes`.
fn successor(bytes: &Bytes) -> Bytes {
    let mut next = Vec::with_capacity(bytes.len() + 1);
    next.extend_from_slice(bytes);
    next.push(0);
    next.into()
}

/// The smallest bytes that sort after everything that begins with `prefix`; none when nothing does.
fn end_of_prefix(prefix: &[u8]) -> Option<Bytes> {
    let last = prefix.iter().rposition(|byte| *byte != 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(text: &str) -> Key {
        Key::try_from(text).unwrap()
    }

    #[test]
    fn a_key_is_checked_at_construction() {
        assert_eq!(Key::try_from("").unwrap_err(), InvalidKey::Empty);
        assert_eq!(Key::try_from("a\0b").unwrap_err(), InvalidKey::ZeroByte(1));
        assert_eq!(Key::new(vec![b'a'; 4097]).unwrap_err(), InvalidKey::TooLong(4097));
        assert!(Key::new(vec![b'a'; 4096]).is_ok());
    }

    #[test]
    fn a_prefix_of_the_highest_bytes_has_no_end() {
        assert_eq!(KeyRange::prefix(vec![0xff, 0xff]).end(), None);
        assert_eq!(KeyRange::prefix(vec![b'a', 0xff]).end().unwrap().as_ref(), b"b");
        assert!(KeyRange::prefix("").contains(&key("anything")));
    }

    #[test]
    fn after_a_key_comes_its_first_descendant() {
        let rest = KeyRange::prefix("/a/").after(&key("/a/b"));
        assert!(!rest.contains(&key("/a/b")));
        assert!(rest.contains(&key("/a/b\u{1}")));
        assert!(rest.contains(&key("/a/c")));
        assert!(!rest.contains(&key("/b")));
        assert!(KeyRange::exactly(&key("/a")).after(&key("/a")).is_empty());
    }

    proptest! {
        #[test]
        fn a_prefix_range_holds_exactly_the_keys_with_that_prefix(
            prefix in prop::collection::vec(1u8..=255, 0..4),
            bytes in prop::collection::vec(1u8..=255, 1..6),
        ) {
            let candidate = Key::new(bytes.clone()).unwrap();
            prop_assert_eq!(KeyRange::prefix(prefix.clone()).contains(&candidate), bytes.starts_with(&prefix));
        }
    }
}
