//! OpenAPI documents of version 2 as protobuf, which Go clients request.
//!
//! Only the parts that our documents contain are encoded: the info, and the definitions of kinds. Values of any type,
//! such as defaults and extensions, are encoded as text.

use super::ProtobufError;
use super::wire::Writer;
use serde_json::{Map, Value};

/// The encoding of a field of a schema.
enum Form {
    Text,
    Texts,
    Number,
    Whole,
    Truth,
    Any,
    Anys,
    /// One or several texts, in a message of their own.
    Type,
    /// A schema, in a message of its own.
    Items,
    /// A schema or a boolean, in a message of its own.
    Additional,
    Schemas,
    /// Schemas by name, in a message of their own.
    Properties,
}

/// The fields of a schema, with their numbers on the wire.
const SCHEMA: [(&str, u16, Form); 26] = [
    ("$ref", 1, Form::Text),
    ("format", 2, Form::Text),
    ("title", 3, Form::Text),
    ("description", 4, Form::Text),
    ("default", 5, Form::Any),
    ("multipleOf", 6, Form::Number),
    ("maximum", 7, Form::Number),
    ("exclusiveMaximum", 8, Form::Truth),
    ("minimum", 9, Form::Number),
    ("exclusiveMinimum", 10, Form::Truth),
    ("maxLength", 11, Form::Whole),
    ("minLength", 12, Form::Whole),
    ("pattern", 13, Form::Text),
    ("maxItems", 14, Form::Whole),
    ("minItems", 15, Form::Whole),
    ("uniqueItems", 16, Form::Truth),
    ("maxProperties", 17, Form::Whole),
    ("minProperties", 18, Form::Whole),
    ("required", 19, Form::Texts),
    ("enum", 20, Form::Anys),
    ("additionalProperties", 21, Form::Additional),
    ("type", 22, Form::Type),
    ("items", 23, Form::Items),
    ("allOf", 24, Form::Schemas),
    ("properties", 25, Form::Properties),
    ("example", 30, Form::Any),
];
/// The number of the field with the extensions of a schema.
const EXTENSIONS: u16 = 31;

/// Encodes a document of version 2.
pub fn encode_openapi_v2(document: &Value) -> Result<Vec<u8>, ProtobufError> {
    let mut writer = Writer::default();
    writer.bytes(1, text(&document["swagger"]));
    writer.message(2, |info| {
        info.bytes(1, text(&document["info"]["title"]));
        info.bytes(2, text(&document["info"]["version"]));
        Ok(())
    })?;
    writer.message(8, |_| Ok(()))?;
    writer.message(9, |definitions| named_schemas(definitions, &document["definitions"]))?;
    Ok(writer.finish())
}

fn text(value: &Value) -> &[u8] {
    value.as_str().unwrap_or_default().as_bytes()
}

fn named_schemas(writer: &mut Writer, schemas: &Value) -> Result<(), ProtobufError> {
    for (name, value) in schemas.as_object().into_iter().flatten() {
        writer.message(1, |named| {
            named.bytes(1, name.as_bytes());
            named.message(2, |inner| schema(inner, value))
        })?;
    }
    Ok(())
}

fn schema(writer: &mut Writer, value: &Value) -> Result<(), ProtobufError> {
    let Some(fields) = value.as_object() else { return Ok(()) };
    for (name, number, form) in &SCHEMA {
        if let Some(value) = fields.get(*name) {
            field(writer, *number, form, value)?;
        }
    }
    extensions(writer, fields)
}

fn field(writer: &mut Writer, number: u16, form: &Form, value: &Value) -> Result<(), ProtobufError> {
    let all = value.as_array().map(Vec::as_slice).unwrap_or_default();
    match form {
        Form::Text => writer.bytes(number, text(value)),
        Form::Texts => all.iter().for_each(|item| writer.bytes(number, text(item))),
        Form::Number => writer.fixed64(number, value.as_f64().unwrap_or_default().to_bits()),
        Form::Whole => writer.varint(number, value.as_u64().unwrap_or_default()),
        Form::Truth => writer.varint(number, u64::from(value == true)),
        Form::Any => any(writer, number, value)?,
        Form::Anys => all.iter().try_for_each(|item| any(writer, number, item))?,
        Form::Type => writer.message(number, |types| {
            let one = std::slice::from_ref(value);
            let kinds = if value.is_array() { all } else { one };
            kinds.iter().for_each(|kind| types.bytes(1, text(kind)));
            Ok(())
        })?,
        Form::Items => writer.message(number, |items| items.message(1, |inner| schema(inner, value)))?,
        Form::Additional => writer.message(number, |item| match value.as_bool() {
            Some(allowed) => {
                item.varint(2, u64::from(allowed));
                Ok(())
            }
            None => item.message(1, |inner| schema(inner, value)),
        })?,
        Form::Schemas => all.iter().try_for_each(|item| writer.message(number, |inner| schema(inner, item)))?,
        Form::Properties => writer.message(number, |properties| named_schemas(properties, value))?,
    }
    Ok(())
}

fn extensions(writer: &mut Writer, fields: &Map<String, Value>) -> Result<(), ProtobufError> {
    for (name, value) in fields.iter().filter(|(name, _)| name.starts_with("x-")) {
        writer.message(EXTENSIONS, |named| {
            named.bytes(1, name.as_bytes());
            any(named, 2, value)
        })?;
    }
    Ok(())
}

/// A value of any type, as YAML (which includes JSON).
fn any(writer: &mut Writer, number: u16, value: &Value) -> Result<(), ProtobufError> {
    writer.message(number, |any| {
        any.bytes(2, format!("{value}\n").as_bytes());
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn openapi_v2_documents_are_encoded_as_protobuf() {
        let document = json!({"swagger": "2.0", "info": {"title": "K", "version": "v1"}, "paths": {}, "definitions": {
            "a": {"type": "object", "required": ["b"], "properties": {"b": {"type": "array", "items": {"$ref": "#/c"}}},
                "x-y": {"z": 1}}}});
        let found = encode_openapi_v2(&document).unwrap();
        let property = b"\x0a\x01b\x12\x14\xb2\x01\x07\x0a\x05array\xba\x01\x07\x0a\x05\x0a\x03#/c";
        let mut schema = b"\x9a\x01\x01b\xb2\x01\x08\x0a\x06object".to_vec();
        schema.extend([0xca, 0x01, property.len() as u8 + 2, 0x0a, property.len() as u8]);
        schema.extend(property);
        schema.extend(b"\xfa\x01\x11\x0a\x03x-y\x12\x0a\x12\x08{\"z\":1}\n");
        let mut expected = b"\x0a\x032.0\x12\x07\x0a\x01K\x12\x02v1\x42\x00\x4a".to_vec();
        expected.extend([schema.len() as u8 + 7, 0x0a, schema.len() as u8 + 5, 0x0a, 0x01, b'a', 0x12]);
        expected.push(schema.len() as u8);
        expected.extend(schema);
        assert_eq!(found, expected);
    }
}
