//! Values of expressions. The content of the validated object is borrowed and never copied.

use std::cmp::Ordering;
use std::rc::Rc;

use serde_json::{Map, Value};

use super::collection::{Entries, ListItems, Members};
use super::eval::EvalError;
use super::library::Opaque;
use super::time;
use crate::node::{Kind, ListType, Node};

/// A value.
#[derive(Clone, Debug)]
pub(crate) enum Val<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(Text<'a>),
    Bytes(Rc<[u8]>),
    /// Nanoseconds.
    Duration(i64),
    /// Nanoseconds since 1970.
    Timestamp(i128),
    List(Rc<ListItems<'a>>),
    Map(Rc<Entries<'a>>),
    JsonList(&'a [Value], Option<&'a Node>),
    JsonMap(&'a Map<String, Value>, Option<&'a Node>),
    Type(&'static str),
    Optional(Option<Rc<Val<'a>>>),
    Opaque(Rc<Opaque>),
}

/// A text, borrowed if possible.
#[derive(Clone, Debug)]
pub(crate) enum Text<'a> {
    Borrowed(&'a str),
    Owned(Rc<str>),
}

impl Text<'_> {
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Text::Borrowed(text) => text,
            Text::Owned(text) => text,
        }
    }
}

impl<'a> Val<'a> {
    /// An owned text.
    pub(crate) fn text(text: impl Into<String>) -> Val<'a> {
        Val::Text(Text::Owned(text.into().into()))
    }

    /// An optional with a value.
    pub(crate) fn some(value: Val<'a>) -> Val<'a> {
        Val::Optional(Some(Rc::new(value)))
    }

    /// An owned list; an error if it exceeds the limit.
    pub(crate) fn list(items: Vec<Val<'a>>) -> Result<Val<'a>, EvalError> {
        Ok(Val::List(Rc::new(ListItems::new(items)?)))
    }

    /// A JSON value by its schema: texts of some formats are times, durations or bytes.
    pub(crate) fn from_json(value: &'a Value, node: Option<&'a Node>) -> Val<'a> {
        match value {
            Value::Null => Val::Null,
            Value::Bool(flag) => Val::Bool(*flag),
            Value::Number(number) => match (number.as_i64(), node.and_then(|node| node.kind)) {
                (Some(whole), Some(Kind::Number)) => Val::Double(whole as f64),
                (Some(whole), _) => Val::Int(whole),
                (None, Some(Kind::Integer)) => Val::Int(number.as_f64().unwrap_or_default() as i64),
                (None, _) => Val::Double(number.as_f64().unwrap_or_default()),
            },
            Value::String(text) => Self::from_text(text, node),
            Value::Array(items) => Val::JsonList(items, node),
            Value::Object(fields) => Val::JsonMap(fields, node),
        }
    }

    fn from_text(text: &'a str, node: Option<&'a Node>) -> Val<'a> {
        let format =
            node.filter(|node| node.kind == Some(Kind::String) && !node.int_or_string).and_then(|node| node.format);
        let special = match format.map(|format| format.name()) {
            Some("date-time") => time::parse_timestamp(text).map(Val::Timestamp),
            Some("date") => time::parse_timestamp(&format!("{text}T00:00:00Z")).map(Val::Timestamp),
            Some("duration") => crate::format::parse_duration(text).map(Val::Duration),
            Some("byte") => super::library::decode_base64(text).map(|bytes| Val::Bytes(bytes.into())),
            _ => None,
        };
        special.unwrap_or(Val::Text(Text::Borrowed(text)))
    }

    /// The name of the type.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Val::Null => "null_type",
            Val::Bool(_) => "bool",
            Val::Int(_) => "int",
            Val::Uint(_) => "uint",
            Val::Double(_) => "double",
            Val::Text(_) => "string",
            Val::Bytes(_) => "bytes",
            Val::Duration(_) => "google.protobuf.Duration",
            Val::Timestamp(_) => "google.protobuf.Timestamp",
            Val::List(_) | Val::JsonList(..) => "list",
            Val::Map(_) | Val::JsonMap(..) => "map",
            Val::Type(_) => "type",
            Val::Optional(_) => "optional_type",
            Val::Opaque(opaque) => opaque.type_name(),
        }
    }

    /// The size of a value for its cost: characters, items or entries; one for other values.
    pub(crate) fn size(&self) -> u64 {
        let size = match self {
            Val::Text(text) => text.as_str().chars().count(),
            Val::Bytes(bytes) => bytes.len(),
            Val::List(items) => items.len(),
            Val::Map(entries) => entries.len(),
            Val::JsonList(items, _) => items.len(),
            Val::JsonMap(fields, _) => fields.len(),
            Val::Optional(Some(inner)) => return inner.size(),
            _ => 1,
        };
        size as u64
    }

    /// The items of a list.
    pub(crate) fn items(&self) -> Option<Vec<Val<'a>>> {
        match self {
            Val::List(items) => Some(items.to_vec()),
            Val::JsonList(items, node) => {
                let item = node.and_then(|node| node.items.as_deref());
                Some(items.iter().map(|value| Val::from_json(value, item)).collect())
            }
            _ => None,
        }
    }

    /// The entries of a map.
    pub(crate) fn entries(&self) -> Option<Vec<(Val<'a>, Val<'a>)>> {
        match self {
            Val::Map(entries) => Some(entries.iter().map(|(key, value)| (key.clone(), value.clone())).collect()),
            Val::JsonMap(fields, node) => {
                let entry = |(name, value): (&'a String, &'a Value)| {
                    let child = node.and_then(|node| node.field(name));
                    (Val::Text(Text::Borrowed(name)), Val::from_json(value, child))
                };
                Some(fields.iter().map(entry).collect())
            }
            _ => None,
        }
    }

    /// A field of an object, or an entry of a map, by its name.
    pub(crate) fn field(&self, name: &str) -> Option<Val<'a>> {
        match self {
            Val::JsonMap(fields, node) => {
                let value = fields.get(name)?;
                // In an object with declared properties, null counts as absent.
                if value.is_null() && node.is_some_and(|node| !node.properties.is_empty()) {
                    return None;
                }
                Some(Val::from_json(value, node.and_then(|node| node.field(name))))
            }
            Val::Map(entries) => entries.get(&Val::text(name)).cloned(),
            _ => None,
        }
    }

    /// Whether this is a zero value.
    pub(crate) fn is_zero(&self) -> bool {
        match self {
            Val::Null | Val::Optional(None) => true,
            Val::Bool(flag) => !flag,
            Val::Int(number) | Val::Duration(number) => *number == 0,
            Val::Uint(number) => *number == 0,
            Val::Double(number) => *number == 0.0,
            Val::Text(_) | Val::Bytes(_) | Val::List(_) | Val::Map(_) | Val::JsonList(..) | Val::JsonMap(..) => {
                self.size() == 0
            }
            _ => false,
        }
    }

    /// Equality: numbers by value, lists of type `set` and `map` in any order.
    pub(crate) fn equals(&self, other: &Val<'a>) -> bool {
        match (self, other) {
            (Val::Null, Val::Null) => true,
            (Val::Bool(left), Val::Bool(right)) => left == right,
            (Val::Text(left), Val::Text(right)) => left.as_str() == right.as_str(),
            (Val::Bytes(left), Val::Bytes(right)) => left == right,
            (Val::Duration(left), Val::Duration(right)) => left == right,
            (Val::Timestamp(left), Val::Timestamp(right)) => left == right,
            (Val::Type(left), Val::Type(right)) => left == right,
            (Val::Opaque(left), Val::Opaque(right)) => left == right,
            (Val::Optional(left), Val::Optional(right)) => match (left, right) {
                (Some(left), Some(right)) => left.equals(right),
                (left, right) => left.is_none() && right.is_none(),
            },
            (Val::JsonList(_, node), Val::List(_) | Val::JsonList(..)) | (Val::List(_), Val::JsonList(_, node))
                if is_unordered(*node) =>
            {
                let (left, right) = (self.items().unwrap_or_default(), other.items().unwrap_or_default());
                left.len() == right.len() && {
                    let right = Members::of(right);
                    left.iter().all(|item| right.contains(item))
                }
            }
            (Val::JsonMap(left, left_node), Val::JsonMap(right, right_node)) => {
                let child = |node: Option<&'a Node>, name: &str| node.and_then(|node| node.field(name));
                left.len() == right.len()
                    && left.iter().all(|(name, value)| {
                        right.get(name).is_some_and(|other| {
                            let value = Val::from_json(value, child(*left_node, name));
                            value.equals(&Val::from_json(other, child(*right_node, name)))
                        })
                    })
            }
            (left, right) => left.equals_slowly(right),
        }
    }

    fn equals_slowly(&self, other: &Val<'a>) -> bool {
        if let (Some(left), Some(right)) = (self.items(), other.items()) {
            return left.len() == right.len() && left.iter().zip(&right).all(|(left, right)| left.equals(right));
        }
        if let (Some(left), Some(right)) = (self.entries(), other.entries()) {
            return left.len() == right.len()
                && left.iter().all(|(key, value)| other.get(key).is_some_and(|found| found.equals(value)));
        }
        self.is_number() && other.is_number() && self.compare(other) == Some(Ordering::Equal)
    }

    /// An entry of a map by any key.
    pub(crate) fn get(&self, key: &Val<'a>) -> Option<Val<'a>> {
        match (self, key) {
            (Val::Map(entries), key) => entries.get(key).cloned(),
            (_, Val::Text(name)) => self.field(name.as_str()),
            _ => None,
        }
    }

    fn is_number(&self) -> bool {
        matches!(self, Val::Int(_) | Val::Uint(_) | Val::Double(_))
    }

    /// The order of two values, if there is one.
    pub(crate) fn compare(&self, other: &Val<'a>) -> Option<Ordering> {
        match (self, other) {
            (Val::Bool(left), Val::Bool(right)) => Some(left.cmp(right)),
            (Val::Int(left), Val::Int(right)) => Some(left.cmp(right)),
            (Val::Uint(left), Val::Uint(right)) => Some(left.cmp(right)),
            (Val::Int(left), Val::Uint(right)) => Some(i128::from(*left).cmp(&i128::from(*right))),
            (Val::Uint(left), Val::Int(right)) => Some(i128::from(*left).cmp(&i128::from(*right))),
            (Val::Double(left), Val::Double(right)) => left.partial_cmp(right),
            (Val::Double(left), Val::Int(right)) => left.partial_cmp(&(*right as f64)),
            (Val::Int(left), Val::Double(right)) => (*left as f64).partial_cmp(right),
            (Val::Double(left), Val::Uint(right)) => left.partial_cmp(&(*right as f64)),
            (Val::Uint(left), Val::Double(right)) => (*left as f64).partial_cmp(right),
            (Val::Text(left), Val::Text(right)) => Some(left.as_str().cmp(right.as_str())),
            (Val::Bytes(left), Val::Bytes(right)) => Some(left.cmp(right)),
            (Val::Duration(left), Val::Duration(right)) => Some(left.cmp(right)),
            (Val::Timestamp(left), Val::Timestamp(right)) => Some(left.cmp(right)),
            _ => None,
        }
    }
}

fn is_unordered(node: Option<&Node>) -> bool {
    node.is_some_and(|node| node.list_type != ListType::Atomic)
}
