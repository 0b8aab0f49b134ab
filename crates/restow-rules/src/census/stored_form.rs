//! Recognises a stored value: JSON, Kubernetes' protobuf envelope, or encrypted.

use serde::Deserialize;
use std::borrow::Cow;

/// The prefix of values in Kubernetes' protobuf envelope.
const PROTOBUF_MARK: &[u8] = b"k8s\0";

/// The prefix of values that an API server encrypted.
const ENCRYPTED_MARK: &[u8] = b"k8s:enc:";

/// The form of a stored value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredForm<'v> {
    /// An object in JSON.
    Json {
        /// Its `apiVersion`.
        api_version: Cow<'v, str>,
        /// Its kind.
        kind: Cow<'v, str>,
    },
    /// An object in Kubernetes' protobuf envelope.
    Protobuf {
        /// Its `apiVersion`.
        api_version: Cow<'v, str>,
        /// Its kind.
        kind: Cow<'v, str>,
    },
    /// Encrypted, so its version cannot be seen.
    Encrypted {
        /// The provider and its version, as in `aescbc:v1`.
        provider: Cow<'v, str>,
        /// The name of the key.
        key: Cow<'v, str>,
    },
    /// None of these.
    Other,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TypeMeta<'v> {
    #[serde(borrow)]
    api_version: Cow<'v, str>,
    #[serde(borrow)]
    kind: Cow<'v, str>,
}

impl<'v> StoredForm<'v> {
    /// Recognises a value.
    pub fn of(value: &'v [u8]) -> Self {
        if let Some(rest) = value.strip_prefix(ENCRYPTED_MARK) {
            return Self::encrypted(rest).unwrap_or(StoredForm::Other);
        }
        if let Some(envelope) = value.strip_prefix(PROTOBUF_MARK) {
            return Self::protobuf(envelope).unwrap_or(StoredForm::Other);
        }
        match serde_json::from_slice::<TypeMeta<'v>>(value) {
            Ok(meta) => StoredForm::Json { api_version: meta.api_version, kind: meta.kind },
            Err(_) => StoredForm::Other,
        }
    }

    /// `PROVIDER:VERSION:KEY:` followed by the encrypted data.
    fn encrypted(rest: &'v [u8]) -> Option<Self> {
        let mut parts = rest.splitn(4, |byte| *byte == b':');
        let mut part = || parts.next().and_then(|part| std::str::from_utf8(part).ok());
        let (provider, version, key) = (part()?, part()?, part()?);
        parts.next()?;
        Some(StoredForm::Encrypted { provider: format!("{provider}:{version}").into(), key: key.into() })
    }

    /// The envelope's first field is a message with the `apiVersion` and the kind.
    fn protobuf(envelope: &'v [u8]) -> Option<Self> {
        let meta = text_field(envelope, 1)?;
        let api_version = std::str::from_utf8(text_field(meta, 1)?).ok()?;
        let kind = std::str::from_utf8(text_field(meta, 2)?).ok()?;
        Some(StoredForm::Protobuf { api_version: api_version.into(), kind: kind.into() })
    }
}

/// The uid of an object in JSON or in Kubernetes' protobuf; `None` if the value is neither, or has no uid.
pub fn uid_of(value: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Metadata {
        uid: String,
    }
    #[derive(Deserialize)]
    struct Named {
        metadata: Metadata,
    }
    let uid = match value.strip_prefix(PROTOBUF_MARK) {
        // The envelope's second field is the object, whose first field is its metadata, whose fifth field is the uid.
        Some(envelope) => {
            let uid = text_field(text_field(text_field(envelope, 2)?, 1)?, 5)?;
            std::str::from_utf8(uid).ok()?.to_owned()
        }
        None => serde_json::from_slice::<Named>(value).ok()?.metadata.uid,
    };
    Some(uid).filter(|uid| !uid.is_empty())
}

/// The content of the first length-delimited field with this number in a protobuf message.
fn text_field(mut message: &[u8], wanted: u64) -> Option<&[u8]> {
    while !message.is_empty() {
        let tag = varint(&mut message)?;
        match tag & 7 {
            0 => {
                varint(&mut message)?;
            }
            2 => {
                let length = usize::try_from(varint(&mut message)?).ok()?;
                let (content, rest) = message.split_at_checked(length)?;
                if tag >> 3 == wanted {
                    return Some(content);
                }
                message = rest;
            }
            _ => return None,
        }
    }
    None
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for (index, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f).checked_shl(7 * u32::try_from(index).ok()?)?;
        if byte & 0x80 == 0 {
            *bytes = &bytes[index + 1..];
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_recognised() {
        let json = br#"{"metadata":{"name":"a"},"kind":"Widget","apiVersion":"example.com/v1","spec":{"kind":"x"}}"#;
        assert_eq!(
            StoredForm::of(json),
            StoredForm::Json { api_version: "example.com/v1".into(), kind: "Widget".into() }
        );
        let protobuf = b"k8s\0\n\x0d\n\x02v1\x12\x07Service\x12\x04\n\x02\x08\x01\x1a\0\"\0";
        assert_eq!(StoredForm::of(protobuf), StoredForm::Protobuf { api_version: "v1".into(), kind: "Service".into() });
        let encrypted = b"k8s:enc:aescbc:v1:key-2:\x00\xff\x10";
        assert_eq!(
            StoredForm::of(encrypted),
            StoredForm::Encrypted { provider: "aescbc:v1".into(), key: "key-2".into() }
        );
    }

    #[test]
    fn anything_else_is_other() {
        let cases: [&[u8]; 9] = [
            b"",
            b"7",
            b"null",
            b"{}",
            b"{\"kind\":\"A\"}",
            b"k8s\0",
            b"k8s\0\xff\xff\xff",
            b"k8s:enc:aescbc:v1",
            b"k8s\0\n\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        ];
        for case in cases {
            assert_eq!(StoredForm::of(case), StoredForm::Other, "{case:?}");
        }
    }

    #[test]
    fn uids_are_read_in_both_forms() {
        assert_eq!(uid_of(br#"{"kind":"Namespace","metadata":{"name":"a","uid":"u-1"}}"#).as_deref(), Some("u-1"));
        // A name, a generation, which is a number, and the uid.
        let metadata = b"\n\x01a8\x02*\x03u-1";
        let object = [&[0x0a, metadata.len() as u8][..], metadata].concat();
        let envelope = [b"k8s\0\n\x0f\n\x02v1\x12\x09Namespace\x12", &[object.len() as u8][..], &object].concat();
        let form = StoredForm::Protobuf { api_version: "v1".into(), kind: "Namespace".into() };
        assert_eq!(StoredForm::of(&envelope), form);
        assert_eq!(uid_of(&envelope).as_deref(), Some("u-1"));
        for value in [
            &b""[..],
            b"{}",
            br#"{"metadata":{"uid":""}}"#,
            b"k8s\0",
            b"k8s:enc:aescbc:v1:k:x",
            &envelope[..envelope.len() - 1],
        ] {
            assert_eq!(uid_of(value), None, "{value:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_value_is_too_strange(value in proptest::collection::vec(proptest::num::u8::ANY, 0..64)) {
            let marked = [PROTOBUF_MARK, &value].concat();
            StoredForm::of(&marked);
            uid_of(&marked);
            StoredForm::of(&value);
        }
    }
}
