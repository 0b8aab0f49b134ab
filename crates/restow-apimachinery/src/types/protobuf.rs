//! Kubernetes' protobuf encoding, to and from JSON.
//!
//! An object on the wire is the four bytes `k8s\0` and a `runtime.Unknown` message with the object's apiVersion, kind
//! and encoded fields. In a watch, each event is a length in four bytes and a bare `WatchEvent` message, whose object is
//! such an envelope again.
//!
//! Which fields are written follows Go's generated code, so that a Go client decodes the object it would have got from
//! JSON: a pointer, list, map or byte field is written if it is set; any other field is always written, with its zero
//! value if the JSON does not have it. In the other direction, JSON gets what Go's JSON encoder would write: zero values
//! of `omitempty` fields are left out, other unset fields appear as `null`, `0`, `""` or `{}`.

mod decode;
mod encode;
mod list;
mod node;
mod openapi;
#[cfg(test)]
mod tests;
mod wire;

pub use list::ProtobufList;
pub use openapi::encode_openapi_v2;

use serde_json::{Value, json};

use super::json::exceeds_depth;
use super::table::{TypeId, TypeTable};
use node::Node;
use wire::{Payload, Reader, Writer};

/// The first bytes of every encoded object.
const MAGIC: &[u8; 4] = b"k8s\0";

/// The maximum nesting of messages. The deepest real ones are schemas of CRDs.
const MAXIMUM_DEPTH: usize = 200;

/// Why decoding or encoding failed.
#[derive(Debug, thiserror::Error)]
pub enum ProtobufError {
    /// The bytes do not begin with the magic number.
    #[error("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")]
    Prefix,
    /// The bytes end too early, or are not protobuf.
    #[error("malformed protobuf: {0}")]
    Malformed(&'static str),
    /// Messages are nested too deeply.
    #[error("protobuf messages are nested too deeply")]
    TooDeep,
    /// The object has no `kind`.
    #[error("object has no kind or no apiVersion")]
    MissingKind,
    /// The kind has no protobuf encoding, for example a custom resource.
    #[error("no protobuf form is known for kind {kind:?} in version {api_version:?}")]
    UnknownKind {
        /// The object's apiVersion.
        api_version: String,
        /// The object's kind.
        kind: String,
    },
    /// The object's content is in an encoding other than protobuf.
    #[error("content type {0:?} inside a protobuf envelope is not supported")]
    ContentType(String),
    /// The input is not JSON.
    #[error("malformed JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A value does not fit its field.
    #[error("field {field:?}: {problem}")]
    Value {
        /// The JSON name of the field.
        field: String,
        /// The problem of the value.
        problem: String,
    },
}

/// Whether bytes begin with the magic number.
pub fn is_protobuf(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// Decodes an object with its envelope.
///
/// # Errors
/// The bytes are malformed, or the object's kind is not a built-in one.
pub fn decode_protobuf(bytes: &[u8]) -> Result<Value, ProtobufError> {
    decode_envelope(bytes, 0)
}

/// Encodes an object with its envelope. The object must carry its apiVersion and kind.
///
/// # Errors
/// The object's kind is not a built-in one, or a value does not fit its field.
pub fn encode_protobuf(object: &Value) -> Result<Vec<u8>, ProtobufError> {
    envelope(&node(object)?)
}

/// Encodes an object with its envelope that is there as JSON text.
///
/// # Errors
/// The text is no JSON, the object's kind is not a built-in one, or a value does not fit its field.
pub fn transcode_protobuf(json: &[u8]) -> Result<Vec<u8>, ProtobufError> {
    envelope(&Node::parse(json)?)
}

/// Checks the nesting of a value.
fn node(value: &Value) -> Result<Node<'_>, ProtobufError> {
    match exceeds_depth(value, MAXIMUM_DEPTH) {
        true => Err(ProtobufError::TooDeep),
        false => Ok(value.into()),
    }
}

fn envelope(object: &Node<'_>) -> Result<Vec<u8>, ProtobufError> {
    let (api_version, kind) = (object.get("apiVersion").text(), object.get("kind").text());
    let id = find(api_version, kind)?;
    let mut writer = Writer::default();
    begin(&mut writer, api_version, kind)?;
    writer.message(2, |writer| encode::message(TypeTable::shared(), writer, id, object, 0))?;
    end(&mut writer);
    Ok(writer.finish())
}

/// Begins an envelope. Its content follows.
fn begin(writer: &mut Writer, api_version: &str, kind: &str) -> Result<(), ProtobufError> {
    writer.raw(MAGIC);
    writer.message(1, |writer| {
        writer.bytes(1, api_version.as_bytes());
        writer.bytes(2, kind.as_bytes());
        Ok(())
    })
}

/// Ends an envelope.
fn end(writer: &mut Writer) {
    writer.bytes(3, b"");
    writer.bytes(4, b"");
}

/// Encodes one event of a watch as a frame: its length in four bytes, and the event.
///
/// # Errors
/// The object's kind is not a built-in one, or a value does not fit its field.
pub fn encode_watch_frame(event_type: &str, object: &Value) -> Result<Vec<u8>, ProtobufError> {
    watch_frame(event_type, &encode_protobuf(object)?)
}

/// Encodes one event of a watch about an object that is there as JSON text.
///
/// # Errors
/// The text is no JSON, the object's kind is not a built-in one, or a value does not fit its field.
pub fn transcode_watch_frame(event_type: &str, json: &[u8]) -> Result<Vec<u8>, ProtobufError> {
    watch_frame(event_type, &transcode_protobuf(json)?)
}

fn watch_frame(event_type: &str, object: &[u8]) -> Result<Vec<u8>, ProtobufError> {
    let mut writer = Writer::default();
    writer.raw(&[0; 4]);
    writer.bytes(1, event_type.as_bytes());
    writer.message(2, |writer| {
        writer.bytes(1, object);
        Ok(())
    })?;
    let mut frame = writer.finish();
    let length = u32::try_from(frame.len() - 4).map_err(|_| ProtobufError::Malformed("event of more than 4 GiB"))?;
    frame[..4].copy_from_slice(&length.to_be_bytes());
    Ok(frame)
}

/// Decodes the content of one frame of a watch (without its length) to `{"type": …, "object": …}`.
///
/// # Errors
/// The bytes are malformed, or the object's kind is not a built-in one.
pub fn decode_watch_frame(frame: &[u8]) -> Result<Value, ProtobufError> {
    let mut event_type = String::new();
    let mut object = Value::Null;
    let mut reader = Reader::new(frame);
    while let Some((number, payload)) = reader.next()? {
        match (number, payload) {
            (1, Payload::Bytes(bytes)) => event_type = String::from_utf8_lossy(bytes).into_owned(),
            (2, Payload::Bytes(bytes)) => object = decode::raw(bytes, 0)?,
            _ => {}
        }
    }
    Ok(json!({ "type": event_type, "object": object }))
}

fn decode_envelope(bytes: &[u8], depth: usize) -> Result<Value, ProtobufError> {
    let bytes = bytes.strip_prefix(MAGIC.as_slice()).ok_or(ProtobufError::Prefix)?;
    let mut envelope = Envelope::default();
    let mut reader = Reader::new(bytes);
    while let Some((number, payload)) = reader.next()? {
        match (number, payload) {
            (1, Payload::Bytes(bytes)) => envelope.read_type(bytes)?,
            (2, Payload::Bytes(bytes)) => envelope.raw = bytes,
            (3 | 4, Payload::Bytes(bytes)) if !bytes.is_empty() && !bytes.ends_with(b"vnd.kubernetes.protobuf") => {
                return Err(ProtobufError::ContentType(String::from_utf8_lossy(bytes).into_owned()));
            }
            _ => {}
        }
    }
    let id = find(&envelope.api_version, &envelope.kind)?;
    let mut object = decode::object(TypeTable::shared(), id, envelope.raw, depth)?;
    object.insert("apiVersion".to_owned(), Value::String(envelope.api_version));
    object.insert("kind".to_owned(), Value::String(envelope.kind));
    Ok(Value::Object(object))
}

#[derive(Default)]
struct Envelope<'b> {
    api_version: String,
    kind: String,
    raw: &'b [u8],
}

impl Envelope<'_> {
    fn read_type(&mut self, bytes: &[u8]) -> Result<(), ProtobufError> {
        let mut reader = Reader::new(bytes);
        while let Some((number, payload)) = reader.next()? {
            match (number, payload) {
                (1, Payload::Bytes(bytes)) => self.api_version = String::from_utf8_lossy(bytes).into_owned(),
                (2, Payload::Bytes(bytes)) => self.kind = String::from_utf8_lossy(bytes).into_owned(),
                _ => {}
            }
        }
        Ok(())
    }
}

fn find(api_version: &str, kind: &str) -> Result<TypeId, ProtobufError> {
    if api_version.is_empty() || kind.is_empty() {
        return Err(ProtobufError::MissingKind);
    }
    TypeTable::shared()
        .kind(api_version, kind)
        .ok_or_else(|| ProtobufError::UnknownKind { api_version: api_version.to_owned(), kind: kind.to_owned() })
}
