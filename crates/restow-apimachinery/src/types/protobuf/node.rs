//! JSON values for encoding to protobuf. They are only read, so most of them are borrowed, and nothing is sorted.

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Number, Value};
use std::borrow::Cow;
use std::fmt;

/// A field that may contain any value and is encoded as its text. There is one for each manager of an object, often
/// larger than the rest of the object.
const VERBATIM: &str = "fieldsV1";

/// A JSON value.
#[derive(Clone, Debug)]
pub(super) enum Node<'a> {
    Null,
    Bool(bool),
    Number(Cow<'a, Number>),
    Text(Cow<'a, str>),
    List(Vec<Node<'a>>),
    Fields(Vec<(Cow<'a, str>, Node<'a>)>),
    /// A value that was not parsed.
    Verbatim(&'a RawValue),
}

impl<'a> Node<'a> {
    /// Parses a text.
    pub(super) fn parse(text: &'a [u8]) -> Result<Self, serde_json::Error> {
        match std::str::from_utf8(text) {
            // Check UTF-8 once, and not again for each text in it.
            Ok(text) => serde_json::from_str(text),
            Err(_) => serde_json::from_slice(text),
        }
    }

    /// The value of a field; null if it is absent, or if this is not an object.
    pub(super) fn get(&self, name: &str) -> &Node<'a> {
        let Node::Fields(fields) = self else { return &Node::Null };
        fields.iter().find(|(known, _)| known == name).map_or(&Node::Null, |(_, value)| value)
    }

    /// The text; empty if this is not a text.
    pub(super) fn text(&self) -> &str {
        if let Node::Text(text) = self { text } else { "" }
    }

    /// The same value, parsed.
    pub(super) fn opened(&self) -> Result<Cow<'_, Node<'a>>, serde_json::Error> {
        Ok(match self {
            Node::Verbatim(raw) => Cow::Owned(Node::parse(raw.get().as_bytes())?),
            node => Cow::Borrowed(node),
        })
    }
}

impl<'a> From<&'a Value> for Node<'a> {
    fn from(value: &'a Value) -> Self {
        match value {
            Value::Null => Node::Null,
            Value::Bool(set) => Node::Bool(*set),
            Value::Number(number) => Node::Number(Cow::Borrowed(number)),
            Value::String(text) => Node::Text(Cow::Borrowed(text)),
            Value::Array(items) => Node::List(items.iter().map(Node::from).collect()),
            Value::Object(fields) => {
                Node::Fields(fields.iter().map(|(name, value)| (Cow::Borrowed(name.as_str()), value.into())).collect())
            }
        }
    }
}

impl Serialize for Node<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Node::Null => serializer.serialize_unit(),
            Node::Bool(set) => serializer.serialize_bool(*set),
            Node::Number(number) => number.serialize(serializer),
            Node::Text(text) => serializer.serialize_str(text),
            Node::List(items) => serializer.collect_seq(items),
            Node::Fields(fields) => serializer.collect_map(fields.iter().map(|(name, value)| (name, value))),
            Node::Verbatim(raw) => raw.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Node<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Node<'de>, E> {
        Ok(Node::Null)
    }

    fn visit_bool<E>(self, set: bool) -> Result<Node<'de>, E> {
        Ok(Node::Bool(set))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Node<'de>, E> {
        Ok(Node::Number(Cow::Owned(number.into())))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Node<'de>, E> {
        Ok(Node::Number(Cow::Owned(number.into())))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Node<'de>, E> {
        Ok(Number::from_f64(number).map_or(Node::Null, |number| Node::Number(Cow::Owned(number))))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Node<'de>, E> {
        Ok(Node::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Node<'de>, E> {
        Ok(Node::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node<'de>, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Node::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node<'de>, A::Error> {
        let mut fields = Vec::new();
        while let Some(Name(name)) = entries.next_key()? {
            let value = match &*name {
                VERBATIM => Node::Verbatim(entries.next_value()?),
                _ => entries.next_value()?,
            };
            fields.push((name, value));
        }
        Ok(Node::Fields(fields))
    }
}

/// The name of a field, borrowed if it has no escapes.
struct Name<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameVisitor;

        impl<'de> Visitor<'de> for NameVisitor {
            type Value = Name<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Owned(text.to_owned())))
            }
        }

        deserializer.deserialize_str(NameVisitor)
    }
}
