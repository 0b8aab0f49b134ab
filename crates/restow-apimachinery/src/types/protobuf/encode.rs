//! Encodes JSON to protobuf messages by the type table.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use std::borrow::Cow;

use super::node::Node;
use super::wire::Writer;
use super::{MAXIMUM_DEPTH, ProtobufError};
use crate::types::quantity::canonical_quantity;
use crate::types::table::Form;
use crate::types::table::{Field, Scalar, ShapeId, Special, TypeId, TypeTable};
use crate::types::time::{self, Precision};

/// Encodes the fields of a struct. A value that is not an object (an unset value) is encoded as an empty object.
pub(super) fn message(
    table: &TypeTable,
    writer: &mut Writer,
    id: TypeId,
    object: &Node<'_>,
    depth: usize,
) -> Result<(), ProtobufError> {
    if depth >= MAXIMUM_DEPTH {
        return Err(ProtobufError::TooDeep);
    }
    let encoder = Encoder { table, depth: depth + 1 };
    for field in table.fields_by_number(id) {
        if let Some(inlined) = table.inline_type(field) {
            writer.message(field.number, |writer| message(table, writer, inlined, object, depth + 1))?;
            continue;
        }
        encoder.field(writer, field, object.get(field.name))?;
    }
    Ok(())
}

struct Encoder<'t> {
    table: &'t TypeTable,
    depth: usize,
}

/// The number of a field on the wire, and its name for errors.
#[derive(Clone, Copy)]
struct Place {
    number: u16,
    name: &'static str,
}

impl Encoder<'_> {
    fn field(&self, writer: &mut Writer, field: &Field, value: &Node<'_>) -> Result<(), ProtobufError> {
        let place = Place { number: field.number, name: field.name };
        match (self.table.form(field.shape), value) {
            // Only these can be unset in Go; others have at least their zero value.
            (Form::Pointer(_) | Form::List(_) | Form::WrappedList(_) | Form::Map(_) | Form::Bytes, Node::Null) => {
                Ok(())
            }
            _ => self.value(writer, place, field.shape, value),
        }
    }

    fn value(&self, writer: &mut Writer, place: Place, shape: ShapeId, value: &Node<'_>) -> Result<(), ProtobufError> {
        let form = self.table.target_form(shape);
        if let (Node::Verbatim(_), false) = (value, matches!(form, Form::Special(Special::Raw | Special::Json, _))) {
            return self.value(writer, place, shape, &*value.opened()?);
        }
        match form {
            Form::Scalar(scalar) => self.scalar(writer, place, scalar, value),
            Form::Bytes => match value {
                Node::Null => Ok(()),
                Node::Text(text) => {
                    writer.bytes(place.number, &decode_base64(place, text)?);
                    Ok(())
                }
                _ => Err(place.misfit("a base64 string", value)),
            },
            Form::Pointer(inner) => self.value(writer, place, inner, value),
            Form::List(element) => {
                for item in place.items(value)? {
                    self.value(writer, place, element, item)?;
                }
                Ok(())
            }
            Form::WrappedList(element) => writer.message(place.number, |writer| {
                for item in place.items(value)? {
                    self.value(writer, Place { number: 1, ..place }, element, item)?;
                }
                Ok(())
            }),
            Form::Map(element) => self.entries(writer, place, element, value),
            Form::Struct(id) => {
                if !matches!(value, Node::Fields(_) | Node::Null) {
                    return Err(place.misfit("an object", value));
                }
                writer.message(place.number, |writer| message(self.table, writer, id, value, self.depth))
            }
            Form::Special(special, id) => {
                writer.message(place.number, |writer| self.special(writer, place, special, id, value))
            }
        }
    }

    /// Go sorts the keys of a map before it encodes them.
    fn entries(
        &self,
        writer: &mut Writer,
        place: Place,
        element: ShapeId,
        value: &Node<'_>,
    ) -> Result<(), ProtobufError> {
        let entries: &[(Cow<'_, str>, Node<'_>)] = match value {
            Node::Fields(entries) => entries,
            Node::Null => &[],
            _ => return Err(place.misfit("an object", value)),
        };
        let mut sorted: Vec<_> = entries.iter().map(|(key, value)| (&**key, value)).collect();
        sorted.sort_unstable_by_key(|(key, _)| *key);
        for (key, value) in sorted {
            writer.message(place.number, |writer| {
                writer.bytes(1, key.as_bytes());
                self.value(writer, Place { number: 2, ..place }, element, value)
            })?;
        }
        Ok(())
    }

    fn scalar(&self, writer: &mut Writer, place: Place, scalar: Scalar, value: &Node<'_>) -> Result<(), ProtobufError> {
        match (scalar, value) {
            (Scalar::String, Node::Text(text)) => writer.bytes(place.number, text.as_bytes()),
            (Scalar::String, Node::Null) => writer.bytes(place.number, b""),
            (Scalar::Bool, Node::Bool(set)) => writer.varint(place.number, u64::from(*set)),
            (Scalar::Int32 | Scalar::Int64, Node::Number(number)) => {
                let in_range = |number: &i64| scalar == Scalar::Int64 || i32::try_from(*number).is_ok();
                let number = number.as_i64().filter(in_range).ok_or_else(|| place.misfit("an integer", value))?;
                writer.varint(place.number, number as u64);
            }
            (Scalar::Float64, Node::Number(number)) => {
                let number = number.as_f64().ok_or_else(|| place.misfit("a number", value))?;
                writer.fixed64(place.number, number.to_bits());
            }
            (Scalar::Float64, Node::Null) => writer.fixed64(place.number, 0),
            (Scalar::Bool | Scalar::Int32 | Scalar::Int64, Node::Null) => writer.varint(place.number, 0),
            (Scalar::String, _) => return Err(place.misfit("a string", value)),
            (Scalar::Bool, _) => return Err(place.misfit("a boolean", value)),
            (Scalar::Int32 | Scalar::Int64 | Scalar::Float64, _) => return Err(place.misfit("a number", value)),
        }
        Ok(())
    }

    fn special(
        &self,
        writer: &mut Writer,
        place: Place,
        special: Special,
        id: TypeId,
        value: &Node<'_>,
    ) -> Result<(), ProtobufError> {
        match special {
            Special::Time => timestamp(writer, place, value, Precision::Seconds),
            Special::MicroTime => timestamp(writer, place, value, Precision::Microseconds),
            Special::Quantity => quantity(writer, place, value),
            Special::IntOrString => int_or_string(writer, place, value),
            Special::Raw | Special::Json => {
                match value {
                    Node::Null => {}
                    Node::Verbatim(raw) => writer.bytes(1, raw.get().as_bytes()),
                    value => {
                        let json = serde_json::to_vec(value).map_err(|error| place.wrong(error.to_string()))?;
                        writer.bytes(1, &json);
                    }
                }
                Ok(())
            }
            Special::SchemaOrBool | Special::SchemaOrArray | Special::SchemaOrStrings => {
                self.schema_or(writer, place, special, id, value)
            }
        }
    }

    fn schema_or(
        &self,
        writer: &mut Writer,
        place: Place,
        special: Special,
        id: TypeId,
        value: &Node<'_>,
    ) -> Result<(), ProtobufError> {
        let schema = self.table.sibling(id, "JSONSchemaProps").ok_or_else(|| place.misfit("a schema", value))?;
        let is_flag = special == Special::SchemaOrBool;
        match value {
            Node::Fields(_) => {
                if is_flag {
                    writer.varint(1, 1);
                }
                let number = if is_flag { 2 } else { 1 };
                writer.message(number, |writer| message(self.table, writer, schema, value, self.depth))
            }
            Node::Bool(set) if is_flag => {
                writer.varint(1, u64::from(*set));
                Ok(())
            }
            Node::List(items) if !is_flag => {
                for item in items {
                    match (special, item) {
                        (Special::SchemaOrArray, item) => {
                            writer.message(2, |writer| message(self.table, writer, schema, item, self.depth))?;
                        }
                        (_, Node::Text(text)) => writer.bytes(2, text.as_bytes()),
                        _ => return Err(place.misfit("a string", item)),
                    }
                }
                Ok(())
            }
            Node::Null if is_flag => {
                writer.varint(1, 0);
                Ok(())
            }
            Node::Null => Ok(()),
            _ => Err(place.misfit("a schema", value)),
        }
    }
}

impl Place {
    fn items<'n, 'a>(self, value: &'n Node<'a>) -> Result<&'n [Node<'a>], ProtobufError> {
        match value {
            Node::List(items) => Ok(items),
            Node::Null => Ok(&[]),
            _ => Err(self.misfit("a list", value)),
        }
    }

    fn misfit(self, expected: &str, value: &Node<'_>) -> ProtobufError {
        let found = match value {
            Node::Null => "null",
            Node::Bool(_) => "a boolean",
            Node::Number(_) => "a number",
            Node::Text(_) => "a string",
            Node::List(_) => "a list",
            Node::Fields(_) | Node::Verbatim(_) => "an object",
        };
        self.wrong(format!("expected {expected}, found {found}"))
    }

    fn wrong(self, problem: String) -> ProtobufError {
        ProtobufError::Value { field: self.name.to_owned(), problem }
    }
}

fn decode_base64(place: Place, text: &str) -> Result<Vec<u8>, ProtobufError> {
    let decoded = match text.contains(['\r', '\n']) {
        true => STANDARD.decode(text.replace(['\r', '\n'], "")),
        false => STANDARD.decode(text),
    };
    decoded.map_err(|error| place.wrong(error.to_string()))
}

/// Go's zero time is an empty message.
fn timestamp(writer: &mut Writer, place: Place, value: &Node<'_>, precision: Precision) -> Result<(), ProtobufError> {
    let text = match value {
        Node::Null => return Ok(()),
        Node::Text(text) => text,
        _ => return Err(place.misfit("a time", value)),
    };
    let Some(parsed) = time::parse(text, precision).map_err(|problem| place.wrong(problem))? else { return Ok(()) };
    let nanoseconds = parsed.as_nanosecond();
    let seconds = i64::try_from(nanoseconds.div_euclid(1_000_000_000)).unwrap_or_default();
    let fraction = match precision {
        Precision::Seconds => 0,
        Precision::Microseconds => {
            u64::try_from(nanoseconds.rem_euclid(1_000_000_000)).unwrap_or_default() / 1000 * 1000
        }
    };
    writer.varint(1, seconds as u64);
    writer.varint(2, fraction);
    Ok(())
}

fn quantity(writer: &mut Writer, place: Place, value: &Node<'_>) -> Result<(), ProtobufError> {
    let text = match value {
        Node::Null => "0".to_owned(),
        Node::Text(text) => canonical_quantity(text.trim()).map_err(|error| place.wrong(error.to_string()))?,
        Node::Number(number) => {
            canonical_quantity(&number.to_string()).map_err(|error| place.wrong(error.to_string()))?
        }
        _ => return Err(place.misfit("a quantity", value)),
    };
    writer.bytes(1, text.as_bytes());
    Ok(())
}

fn int_or_string(writer: &mut Writer, place: Place, value: &Node<'_>) -> Result<(), ProtobufError> {
    let (kind, number, text) = match value {
        Node::Null => (0, 0, ""),
        Node::Text(text) => (1, 0, &**text),
        Node::Number(number) => match number.as_i64().and_then(|number| i32::try_from(number).ok()) {
            Some(number) => (0, i64::from(number), ""),
            None => return Err(place.misfit("an integer of 32 bits", value)),
        },
        _ => return Err(place.misfit("an integer or a string", value)),
    };
    writer.varint(1, kind);
    writer.varint(2, number as u64);
    writer.bytes(3, text.as_bytes());
    Ok(())
}
