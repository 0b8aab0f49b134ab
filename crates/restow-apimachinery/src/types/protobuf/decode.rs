//! Decodes protobuf messages to JSON by the type table.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map, Value};

use super::wire::{Payload, Reader};
use super::{MAXIMUM_DEPTH, ProtobufError, decode_envelope, is_protobuf};
use crate::go_syntax;
use crate::types::quantity::canonical_quantity;
use crate::types::table::Form;
use crate::types::table::{Field, Scalar, ShapeId, Special, TypeId, TypeTable};
use crate::types::time::{self, Precision, ZERO_TIME};

type Object = Map<String, Value>;

/// Decodes a message of a struct type.
pub(super) fn object(table: &TypeTable, id: TypeId, bytes: &[u8], depth: usize) -> Result<Object, ProtobufError> {
    let mut object = Object::new();
    Decoder { table }.message(id, bytes, &mut object, depth)?;
    table.finish(id, &mut object);
    Ok(object)
}

/// Decodes a message whose first field is bytes: JSON, or an encoded object.
pub(super) fn raw(bytes: &[u8], depth: usize) -> Result<Value, ProtobufError> {
    let mut content: &[u8] = &[];
    let mut reader = Reader::new(bytes);
    while let Some((number, payload)) = reader.next()? {
        if let (1, Payload::Bytes(bytes)) = (number, payload) {
            content = bytes;
        }
    }
    if content.is_empty() {
        return Ok(Value::Null);
    }
    if is_protobuf(content) {
        return decode_envelope(content, next(depth)?);
    }
    serde_json::from_slice(content).map_err(|_| ProtobufError::Malformed("embedded JSON is not JSON"))
}

fn next(depth: usize) -> Result<usize, ProtobufError> {
    if depth >= MAXIMUM_DEPTH { Err(ProtobufError::TooDeep) } else { Ok(depth + 1) }
}

struct Decoder<'t> {
    table: &'t TypeTable,
}

impl Decoder<'_> {
    /// Adds a message's fields to an object. An inlined message adds them to the object around it.
    fn message(&self, id: TypeId, bytes: &[u8], object: &mut Object, depth: usize) -> Result<(), ProtobufError> {
        let depth = next(depth)?;
        let mut reader = Reader::new(bytes);
        while let Some((number, payload)) = reader.next()? {
            let Some(field) = self.table.field_by_number(id, number) else { continue };
            match (self.table.inline_type(field), payload) {
                (Some(inlined), Payload::Bytes(bytes)) => self.message(inlined, bytes, object, depth)?,
                (Some(_), _) => return Err(wrong_wire_type(field)),
                (None, payload) => self.field(field, payload, object, depth)?,
            }
        }
        Ok(())
    }

    fn field(
        &self,
        field: &Field,
        payload: Payload<'_>,
        object: &mut Object,
        depth: usize,
    ) -> Result<(), ProtobufError> {
        let earlier = object.remove(field.name);
        let value = match self.table.target_form(field.shape) {
            Form::List(element) => {
                let item = self.value(field, element, payload, None, depth)?;
                match earlier {
                    Some(Value::Array(mut items)) => {
                        items.push(item);
                        Value::Array(items)
                    }
                    _ => Value::Array(vec![item]),
                }
            }
            Form::Map(value) => {
                let mut entries = match earlier {
                    Some(Value::Object(entries)) => entries,
                    _ => Object::new(),
                };
                self.entry(field, value, payload, &mut entries, depth)?;
                Value::Object(entries)
            }
            _ => self.value(field, field.shape, payload, earlier, depth)?,
        };
        object.insert(field.name.to_owned(), value);
        Ok(())
    }

    /// One entry of a map: a message with the key in field 1 and the value in field 2.
    fn entry(
        &self,
        field: &Field,
        shape: ShapeId,
        payload: Payload<'_>,
        entries: &mut Object,
        depth: usize,
    ) -> Result<(), ProtobufError> {
        let Payload::Bytes(bytes) = payload else { return Err(wrong_wire_type(field)) };
        let mut key = String::new();
        let mut value = None;
        let mut reader = Reader::new(bytes);
        while let Some((number, payload)) = reader.next()? {
            match (number, payload) {
                (1, Payload::Bytes(bytes)) => key = String::from_utf8_lossy(bytes).into_owned(),
                (2, payload) => value = Some(self.value(field, shape, payload, None, depth)?),
                _ => {}
            }
        }
        // A missing value is the zero value, except that bytes are then empty and not null.
        let value = value.unwrap_or_else(|| match self.table.form(shape) {
            Form::Bytes => Value::String(String::new()),
            _ => self.table.zero(shape),
        });
        entries.insert(key, value);
        Ok(())
    }

    /// One value. A struct that occurs twice is merged, as protobuf requires.
    fn value(
        &self,
        field: &Field,
        shape: ShapeId,
        payload: Payload<'_>,
        earlier: Option<Value>,
        depth: usize,
    ) -> Result<Value, ProtobufError> {
        Ok(match (self.table.target_form(shape), payload) {
            (Form::Scalar(Scalar::String), Payload::Bytes(bytes)) => {
                Value::String(String::from_utf8_lossy(bytes).into_owned())
            }
            (Form::Scalar(Scalar::Bool), Payload::Varint(value)) => Value::Bool(value != 0),
            (Form::Scalar(Scalar::Int32), Payload::Varint(value)) => Value::from(value as i32),
            (Form::Scalar(Scalar::Int64), Payload::Varint(value)) => Value::from(value as i64),
            (Form::Scalar(Scalar::Float64), Payload::Fixed64(value)) => go_syntax::float(f64::from_bits(value)),
            (Form::Bytes, Payload::Bytes(bytes)) => Value::String(STANDARD.encode(bytes)),
            (Form::WrappedList(element), Payload::Bytes(bytes)) => self.wrapped(field, element, bytes, depth)?,
            (Form::Struct(id), Payload::Bytes(bytes)) => {
                let mut object = match earlier {
                    Some(Value::Object(object)) => object,
                    _ => Object::new(),
                };
                self.message(id, bytes, &mut object, depth)?;
                self.table.finish(id, &mut object);
                Value::Object(object)
            }
            (Form::Special(special, id), Payload::Bytes(bytes)) => self.special(field, special, id, bytes, depth)?,
            _ => return Err(wrong_wire_type(field)),
        })
    }

    fn wrapped(&self, field: &Field, element: ShapeId, bytes: &[u8], depth: usize) -> Result<Value, ProtobufError> {
        let depth = next(depth)?;
        let mut items = Vec::new();
        let mut reader = Reader::new(bytes);
        while let Some((number, payload)) = reader.next()? {
            if number == 1 {
                items.push(self.value(field, element, payload, None, depth)?);
            }
        }
        Ok(Value::Array(items))
    }

    fn special(
        &self,
        field: &Field,
        special: Special,
        id: TypeId,
        bytes: &[u8],
        depth: usize,
    ) -> Result<Value, ProtobufError> {
        match special {
            Special::Time => timestamp(field, bytes, Precision::Seconds),
            Special::MicroTime => timestamp(field, bytes, Precision::Microseconds),
            Special::Quantity => quantity(field, bytes),
            Special::IntOrString => int_or_string(bytes),
            Special::Raw | Special::Json => raw(bytes, depth),
            Special::SchemaOrBool | Special::SchemaOrArray | Special::SchemaOrStrings => {
                self.schema_or(special, id, bytes, next(depth)?)
            }
        }
    }

    /// A schema in one field, or a flag, further schemas, or strings in the other.
    fn schema_or(&self, special: Special, id: TypeId, bytes: &[u8], depth: usize) -> Result<Value, ProtobufError> {
        let schema_type =
            self.table.sibling(id, "JSONSchemaProps").ok_or(ProtobufError::Malformed("no schema type"))?;
        let schema_number = if special == Special::SchemaOrBool { 2 } else { 1 };
        let mut schema = None;
        let mut allows = false;
        let mut list = Vec::new();
        let mut reader = Reader::new(bytes);
        while let Some((number, payload)) = reader.next()? {
            match payload {
                Payload::Bytes(bytes) if number == schema_number => {
                    schema = Some(Value::Object(self.nested(schema_type, bytes, depth)?));
                }
                Payload::Varint(value) if number == 1 => allows = value != 0,
                Payload::Bytes(bytes) if number == 2 && special == Special::SchemaOrArray => {
                    list.push(Value::Object(self.nested(schema_type, bytes, depth)?));
                }
                Payload::Bytes(bytes) if number == 2 => {
                    list.push(Value::String(String::from_utf8_lossy(bytes).into_owned()));
                }
                _ => {}
            }
        }
        Ok(match special {
            Special::SchemaOrBool => schema.unwrap_or(Value::Bool(allows)),
            _ if !list.is_empty() => Value::Array(list),
            _ => schema.unwrap_or(Value::Null),
        })
    }

    fn nested(&self, id: TypeId, bytes: &[u8], depth: usize) -> Result<Object, ProtobufError> {
        let mut object = Object::new();
        self.message(id, bytes, &mut object, depth)?;
        self.table.finish(id, &mut object);
        Ok(object)
    }
}

fn timestamp(field: &Field, bytes: &[u8], precision: Precision) -> Result<Value, ProtobufError> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let mut seconds = 0;
    let mut nanoseconds = 0;
    let mut reader = Reader::new(bytes);
    while let Some((number, payload)) = reader.next()? {
        match (number, payload) {
            (1, Payload::Varint(value)) => seconds = value as i64,
            (2, Payload::Varint(value)) => nanoseconds = value as i32,
            _ => {}
        }
    }
    if seconds == ZERO_TIME {
        return Ok(Value::Null);
    }
    let nanoseconds = nanoseconds.clamp(0, 999_999_999);
    let written = time::format(seconds, nanoseconds, precision);
    written.map(Value::String).ok_or_else(|| wrong_value(field, "time outside of the years that can be written"))
}

fn quantity(field: &Field, bytes: &[u8]) -> Result<Value, ProtobufError> {
    let mut text = String::from("0");
    let mut reader = Reader::new(bytes);
    while let Some((number, payload)) = reader.next()? {
        if let (1, Payload::Bytes(bytes)) = (number, payload) {
            text = String::from_utf8_lossy(bytes).into_owned();
        }
    }
    canonical_quantity(&text).map(Value::String).map_err(|error| wrong_value(field, &error.to_string()))
}

fn int_or_string(bytes: &[u8]) -> Result<Value, ProtobufError> {
    let mut is_string = false;
    let mut number_value = 0;
    let mut text = String::new();
    let mut reader = Reader::new(bytes);
    while let Some((number, payload)) = reader.next()? {
        match (number, payload) {
            (1, Payload::Varint(value)) => is_string = value == 1,
            (2, Payload::Varint(value)) => number_value = value as i32,
            (3, Payload::Bytes(bytes)) => text = String::from_utf8_lossy(bytes).into_owned(),
            _ => {}
        }
    }
    Ok(if is_string { Value::String(text) } else { Value::from(number_value) })
}

fn wrong_wire_type(field: &Field) -> ProtobufError {
    wrong_value(field, "wrong wire type")
}

fn wrong_value(field: &Field, problem: &str) -> ProtobufError {
    ProtobufError::Value { field: field.name.to_owned(), problem: problem.to_owned() }
}
