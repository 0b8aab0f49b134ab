//! The types that decode their JSON themselves: times, quantities, numbers-or-strings, raw JSON, and the schema types
//! of CRDs. In Go, an error in one of them ends the decoding, with the message of that type alone.

use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{IgnoredAny, MapAccess, SeqAccess};
use serde_json::{Number, Value};

use super::walk::{Seed, Target, Walker};
use crate::types::quantity::{QuantityError, canonical_quantity};
use crate::types::table::{Special, TypeId};
use crate::types::time::{self, Precision};

/// A JSON scalar.
pub(super) enum Token {
    Bool(bool),
    Number(Number),
    Text(String),
}

impl Token {
    fn name(&self) -> &'static str {
        match self {
            Token::Bool(_) => "bool",
            Token::Number(_) => "number",
            Token::Text(_) => "string",
        }
    }

    fn into_value(self) -> Value {
        match self {
            Token::Bool(value) => Value::Bool(value),
            Token::Number(number) => Value::Number(number),
            Token::Text(text) => Value::String(text),
        }
    }
}

/// Decodes a scalar into a special type.
pub(super) fn scalar(walker: &mut Walker<'_>, special: Special, token: Token) -> Value {
    let result = match special {
        Special::Time => read_time(token, Precision::Seconds),
        Special::MicroTime => read_time(token, Precision::Microseconds),
        Special::Quantity => read_quantity(token),
        Special::IntOrString => read_int_or_string(token),
        Special::Raw | Special::Json => Ok(token.into_value()),
        Special::SchemaOrBool => match token {
            Token::Bool(value) => Ok(Value::Bool(value)),
            _ => Err("boolean or JSON schema expected".to_owned()),
        },
        // These two ignore unknown values.
        Special::SchemaOrArray | Special::SchemaOrStrings => Ok(Value::Null),
    };
    result.unwrap_or_else(|message| {
        walker.fail(message);
        Value::Null
    })
}

/// Decodes a JSON list into a special type.
pub(super) fn list<'de, A: SeqAccess<'de>>(
    walker: &mut Walker<'_>,
    special: Special,
    id: TypeId,
    mut items: A,
) -> Result<Value, A::Error> {
    match special {
        Special::Raw | Special::Json => Value::deserialize(SeqAccessDeserializer::new(items)),
        Special::SchemaOrArray => {
            let schema = walker.table.sibling(id, "JSONSchemaProps");
            let mut list = Vec::new();
            while let Some(item) = match schema {
                Some(schema) => {
                    walker.apart(|walker| items.next_element_seed(Seed { walker, target: Target::Struct(schema) }))?
                }
                None => items.next_element::<Value>()?,
            } {
                list.push(item);
            }
            Ok(if list.is_empty() { Value::Null } else { Value::Array(list) })
        }
        Special::SchemaOrStrings => {
            let list: Vec<Value> = Vec::deserialize(SeqAccessDeserializer::new(items))?;
            if let Some(other) = list.iter().find(|item| !item.is_string() && !item.is_null()) {
                let found = json_type(other);
                walker.fail(format!("json: cannot unmarshal {found} into Go value of type string"));
            }
            Ok(if list.is_empty() { Value::Null } else { Value::Array(list) })
        }
        _ => {
            while items.next_element::<IgnoredAny>()?.is_some() {}
            walker.fail(misfit(special, "array"));
            Ok(Value::Null)
        }
    }
}

/// Decodes a JSON object into a special type.
pub(super) fn object<'de, A: MapAccess<'de>>(
    walker: &mut Walker<'_>,
    special: Special,
    id: TypeId,
    mut entries: A,
) -> Result<Value, A::Error> {
    match special {
        Special::Raw | Special::Json => Value::deserialize(MapAccessDeserializer::new(entries)),
        Special::SchemaOrBool | Special::SchemaOrArray | Special::SchemaOrStrings => {
            match walker.table.sibling(id, "JSONSchemaProps") {
                Some(schema) => walker.apart(|walker| walker.object(schema, entries)),
                None => Value::deserialize(MapAccessDeserializer::new(entries)),
            }
        }
        _ => {
            while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            walker.fail(misfit(special, "object"));
            Ok(Value::Null)
        }
    }
}

fn read_time(token: Token, precision: Precision) -> Result<Value, String> {
    let Token::Text(text) = token else {
        return Err(format!("json: cannot unmarshal {} into Go value of type string", token.name()));
    };
    let Some(parsed) = time::parse(&text, precision)? else { return Ok(Value::Null) };
    let seconds = parsed.as_nanosecond().div_euclid(1_000_000_000);
    let nanoseconds = parsed.as_nanosecond().rem_euclid(1_000_000_000);
    let written = i64::try_from(seconds)
        .ok()
        .zip(i32::try_from(nanoseconds).ok())
        .and_then(|(seconds, nanoseconds)| time::format(seconds, nanoseconds, precision));
    written.map(Value::String).ok_or_else(|| "Time.MarshalJSON: year outside of range [0,9999]".to_owned())
}

fn read_quantity(token: Token) -> Result<Value, String> {
    let text = match token {
        Token::Text(text) => text,
        Token::Number(number) => number.to_string(),
        Token::Bool(_) => return Err(QuantityError::Format.to_string()),
    };
    canonical_quantity(text.trim()).map(Value::String).map_err(|error| error.to_string())
}

fn read_int_or_string(token: Token) -> Result<Value, String> {
    match token {
        Token::Text(text) => Ok(Value::String(text)),
        Token::Number(number) if number.as_i64().is_some_and(|value| i32::try_from(value).is_ok()) => {
            Ok(Value::Number(number))
        }
        Token::Number(number) => Err(format!("json: cannot unmarshal number {number} into Go value of type int32")),
        Token::Bool(_) => Err(misfit(Special::IntOrString, "bool")),
    }
}

/// The message for a JSON value of the wrong type for a special type.
fn misfit(special: Special, found: &str) -> String {
    match special {
        Special::Quantity => QuantityError::Format.to_string(),
        Special::IntOrString => format!("json: cannot unmarshal {found} into Go value of type int32"),
        Special::SchemaOrBool => "boolean or JSON schema expected".to_owned(),
        _ => format!("json: cannot unmarshal {found} into Go value of type string"),
    }
}

fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
