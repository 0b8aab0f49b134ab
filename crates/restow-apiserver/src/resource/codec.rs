//! The stored encoding of objects: JSON that begins with `apiVersion`, `kind` and `metadata`, in that order.
//!
//! This fixed prefix shows the stored version without parsing. The resource version is the store's revision and is not
//! stored; it is inserted when an object is sent. An object that is requested in its stored version is never parsed.

use crate::error::ApiError;
use bytes::Bytes;
use restow_apimachinery::MAX_DEPTH;
use restow_apimachinery::object::Object;
use restow_apimachinery::types::exceeds_depth;
use restow_apimachinery::untyped;
use restow_store::Revision;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;
use thiserror::Error;

/// The maximum nesting of JSON that the parser accepts.
const READABLE_DEPTH: usize = 127;

/// The object is not stored because it could not be decoded again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the object is nested more than {MAX_DEPTH} levels deep, with its metadata.managedFields")]
pub(crate) struct TooDeep;

impl From<TooDeep> for ApiError {
    fn from(error: TooDeep) -> Self {
        ApiError::BadRequest(error.to_string())
    }
}

/// The fixed prefix of stored objects of one version and kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opening {
    text: String,
}

impl Opening {
    /// The prefix for this `apiVersion` and kind.
    pub fn new(api_version: &str, kind: &str) -> Self {
        Opening {
            text: format!(
                "{{\"apiVersion\":{},\"kind\":{},\"metadata\":{{",
                Value::from(api_version),
                Value::from(kind)
            ),
        }
    }

    /// Whether `stored` is of this version and kind.
    pub fn opens(&self, stored: &[u8]) -> bool {
        stored.starts_with(self.text.as_bytes())
    }

    /// Appends a stored object of this version, with its resource version, to `out`.
    pub fn splice(&self, stored: &[u8], revision: Revision, typed: Typed, out: &mut Vec<u8>) {
        match typed {
            Typed::Yes => out.extend_from_slice(self.text.as_bytes()),
            Typed::No => out.extend_from_slice(b"{\"metadata\":{"),
        }
        out.extend_from_slice(b"\"resourceVersion\":\"");
        out.extend_from_slice(revision.to_string().as_bytes());
        out.push(b'"');
        let rest = &stored[self.text.len()..];
        if rest.first() != Some(&b'}') {
            out.push(b',');
        }
        out.extend_from_slice(rest);
    }
}

impl Opening {
    /// Appends the metadata of a stored object of this version, with its resource version, to `out` as an object of its
    /// own. The rest of the object is not read.
    pub fn splice_metadata(&self, stored: &[u8], revision: Revision, out: &mut Vec<u8>) {
        let metadata = &stored[self.text.len()..];
        let metadata = &metadata[..end_of_object(metadata)];
        out.extend_from_slice(b"{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"meta.k8s.io/v1\",\"metadata\":{");
        out.extend_from_slice(format!("\"resourceVersion\":\"{revision}\"").as_bytes());
        if !metadata.is_empty() {
            out.push(b',');
            out.extend_from_slice(metadata);
        }
        out.extend_from_slice(b"}}");
    }
}

/// The position of the closing brace of an object, given the text after its opening brace.
fn end_of_object(json: &[u8]) -> usize {
    let (mut position, mut depth) = (0, 1usize);
    while let Some(byte) = json.get(position) {
        match byte {
            b'"' => position = end_of_text(json, position + 1),
            b'{' => depth += 1,
            b'}' if depth == 1 => return position,
            b'}' => depth -= 1,
            _ => {}
        }
        position += 1;
    }
    json.len()
}

/// The position of the quote that ends the string that begins at `position`.
fn end_of_text(json: &[u8], mut position: usize) -> usize {
    while let Some(byte) = json.get(position) {
        match byte {
            b'"' => return position,
            b'\\' => position += 2,
            _ => position += 1,
        }
    }
    json.len()
}

/// Whether an object has `apiVersion` and `kind`; items in lists of built-in kinds do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Typed {
    /// With `apiVersion` and `kind`.
    Yes,
    /// Without them.
    No,
}

/// Encodes an object for the store. Equal objects have equal bytes. The resource version is omitted.
///
/// All stored objects pass here, also those from patches, defaults, conversions, webhooks and policies. Objects that
/// could not be decoded again are refused.
pub(crate) fn encode(object: &Object) -> Result<Bytes, TooDeep> {
    if exceeds_depth(object.as_value(), MAX_DEPTH) {
        return Err(TooDeep);
    }
    let mut out = Vec::with_capacity(4096);
    out.extend_from_slice(b"{\"apiVersion\":");
    write_json(&mut out, &Value::from(object.api_version()));
    out.extend_from_slice(b",\"kind\":");
    write_json(&mut out, &Value::from(object.kind()));
    out.extend_from_slice(b",\"metadata\":{");
    let mut first = true;
    for (field, value) in object.metadata().into_iter().flatten() {
        if field == "resourceVersion" || field == "selfLink" || value.is_null() {
            continue;
        }
        if !first {
            out.push(b',');
        }
        first = false;
        write_json(&mut out, field);
        out.push(b':');
        write_json(&mut out, value);
    }
    out.push(b'}');
    for (field, value) in object.fields() {
        if matches!(field.as_str(), "apiVersion" | "kind" | "metadata") {
            continue;
        }
        out.push(b',');
        write_json(&mut out, field);
        out.push(b':');
        write_json(&mut out, value);
    }
    out.push(b'}');
    Ok(out.into())
}

/// Decodes a stored object and sets its resource version.
pub(crate) fn decode(stored: &[u8], revision: Revision) -> Result<Object, serde_json::Error> {
    let (value, _) = untyped::read(stored)?;
    let mut object = Object::from_value(value)
        .map_err(|other| serde::de::Error::custom(format!("expected an object, found {other}")))?;
    object.set_meta("resourceVersion", &revision.to_string());
    Ok(object)
}

/// Whether [`decode`] can decode these bytes, for callers that send them without decoding.
pub(crate) fn check(stored: &[u8]) -> Result<(), serde_json::Error> {
    serde_json::from_slice::<IgnoredAny>(stored)?;
    // `IgnoredAny` skips values without recursion, so it has no limit on nesting; the parser has one. Few brackets cannot be
    // nested deeply, and are counted much faster.
    let brackets = stored.iter().filter(|byte| matches!(byte, b'{' | b'[')).count();
    match brackets > READABLE_DEPTH && deepest(stored) > READABLE_DEPTH {
        true => Err(serde::de::Error::custom("recursion limit exceeded")),
        false => Ok(()),
    }
}

/// The nesting of valid JSON.
fn deepest(json: &[u8]) -> usize {
    let (mut position, mut depth, mut deepest) = (0, 0usize, 0);
    while let Some(byte) = json.get(position) {
        match byte {
            b'"' => position = end_of_text(json, position + 1),
            b'{' | b'[' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        position += 1;
    }
    deepest
}

/// Decodes a stored object without its managed fields and its resource version.
pub(crate) fn decode_briefly(stored: &[u8]) -> Result<Object, serde_json::Error> {
    Object::from_value(untyped::read_briefly(stored)?).map_err(|_| serde::de::Error::custom("expected an object"))
}

/// Decodes only the metadata of a stored object.
pub(crate) fn read_metadata<T: DeserializeOwned>(stored: &[u8]) -> Result<T, serde_json::Error> {
    const FIELD: &[u8] = b"\"metadata\":";
    // Version and kind come before it, and contain no unescaped quotes.
    let field = stored.windows(FIELD.len()).position(|window| window == FIELD);
    let metadata = field.map_or(&stored[..0], |start| &stored[start + FIELD.len()..]);
    T::deserialize(&mut serde_json::Deserializer::from_slice(metadata))
}

fn write_json<T: serde::Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    // Writing JSON values with text keys into memory cannot fail.
    let written = serde_json::to_writer(out, value);
    debug_assert!(written.is_ok());
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(value: Value) -> Object {
        Object::from_value(value).unwrap()
    }

    #[test]
    fn a_decoded_object_has_its_resource_version() {
        let original = object(json!({
            "kind": "ConfigMap", "apiVersion": "v1",
            "data": {"b": "2", "a": "1"},
            "metadata": {"name": "x", "resourceVersion": "7", "labels": {"k": "v"}},
        }));
        let stored = encode(&original).unwrap();
        assert!(Opening::new("v1", "ConfigMap").opens(&stored));
        assert!(!Opening::new("v1", "Secret").opens(&stored));
        assert!(!String::from_utf8_lossy(&stored).contains("resourceVersion"));
        let read = decode(&stored, Revision::new(12)).unwrap();
        assert_eq!(read.resource_version(), "12");
        assert_eq!(read.get("data"), original.get("data"));
        let mut managed = original.clone();
        managed.metadata_mut().insert("managedFields".into(), json!([{"fieldsV1": {"f:data": {}}}]));
        let mut brief = decode_briefly(&encode(&managed).unwrap()).unwrap();
        brief.set_meta("resourceVersion", "12");
        assert_eq!(brief, read);
    }

    #[test]
    fn copying_a_stored_object_equals_decoding_it() {
        let opening = Opening::new("v1", "ConfigMap");
        for metadata in [json!({"name": "x", "namespace": "n"}), json!({})] {
            let stored =
                encode(&object(json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata}))).unwrap();
            let mut out = Vec::new();
            opening.splice(&stored, Revision::new(9), Typed::Yes, &mut out);
            let spliced: Value = serde_json::from_slice(&out).unwrap();
            assert_eq!(spliced, decode(&stored, Revision::new(9)).unwrap().into_value());
            out.clear();
            opening.splice(&stored, Revision::new(9), Typed::No, &mut out);
            let untyped: Value = serde_json::from_slice(&out).unwrap();
            assert_eq!(untyped.get("kind"), None);
            assert_eq!(untyped["metadata"], spliced["metadata"]);
        }
    }

    #[test]
    fn metadata_is_copied_without_the_rest_of_the_object() {
        let opening = Opening::new("v1", "ConfigMap");
        for metadata in [
            json!({"name": "x", "labels": {"a": "b"}, "annotations": {"q": "}\\\"{\"}}", "u": "ü\\"}}),
            json!({"name": "x", "ownerReferences": [{"name": "y"}, {"name": "{"}]}),
            json!({}),
        ] {
            let original =
                object(json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata, "data": {"}": "{"}}));
            let mut out = Vec::new();
            opening.splice_metadata(&encode(&original).unwrap(), Revision::new(9), &mut out);
            let cut: Value = serde_json::from_slice(&out).unwrap();
            let mut expected = metadata.clone();
            expected["resourceVersion"] = "9".into();
            assert_eq!((&cut["metadata"], &cut["kind"]), (&expected, &json!("PartialObjectMetadata")));
        }
    }

    #[test]
    fn equal_objects_have_equal_bytes() {
        let one =
            object(json!({"kind": "K", "apiVersion": "v1", "metadata": {"name": "x", "uid": "u"}, "a": 1, "b": 2}));
        let two =
            object(json!({"b": 2, "a": 1, "metadata": {"uid": "u", "name": "x"}, "apiVersion": "v1", "kind": "K"}));
        assert_eq!(encode(&one), encode(&two));
    }

    #[test]
    fn the_check_accepts_exactly_what_can_be_decoded() {
        let nested = |levels: usize| format!("{}{}", "{\"a[{\\\"\":".repeat(levels) + "[]", "}".repeat(levels));
        let sound = |text: &str| (check(text.as_bytes()).is_ok(), decode(text.as_bytes(), Revision::new(1)).is_ok());
        for (text, expected) in [
            (nested(126), true),
            (nested(127), false),
            (nested(5_000), false),
            ("{".into(), false),
            ("{}}".into(), false),
            ("{\"a\":[1,2]}".into(), true),
        ] {
            assert_eq!(sound(&text), (expected, expected), "{text}");
        }
    }

    #[test]
    fn every_encoded_object_can_be_decoded() {
        let nested = |levels: usize| {
            (0..levels).fold(json!(1), |inner, level| match level % 2 {
                0 => json!([inner]),
                _ => json!({"a": inner}),
            })
        };
        for (levels, fits) in [(MAX_DEPTH - 1, true), (MAX_DEPTH, false), (300, false)] {
            let given =
                object(json!({"kind": "K", "apiVersion": "v1", "metadata": {"name": "x"}, "a": nested(levels)}));
            match encode(&given) {
                Ok(stored) => assert!(fits && decode(&stored, Revision::new(1)).is_ok(), "{levels}"),
                Err(TooDeep) => assert!(!fits, "{levels}"),
            }
        }
    }
}
