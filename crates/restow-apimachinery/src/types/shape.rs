//! Go's names of types, and the JSON of unset values.
//!
//! Kubernetes' JSON is the result of Go's encoder: depending on its type and tags, an unset field is omitted, or
//! written as `null`, `0`, `""` or `{}`. Both decoders build an object from their input and then call
//! [`TypeTable::finish`], so that both return the JSON that a Go server would return.

use serde_json::{Map, Value};

use super::table::{Form, Scalar, Shape, ShapeId, Special, TypeId, TypeTable};

impl TypeTable {
    /// The type expression behind any number of pointers.
    pub fn pointee(&self, shape: ShapeId) -> ShapeId {
        match self.shape(shape) {
            Shape::Pointer(inner) => self.pointee(inner),
            _ => shape,
        }
    }

    /// Go's name of the type, for example `[]v1.Container`.
    pub fn go_name(&self, shape: ShapeId) -> String {
        match self.shape(shape) {
            Shape::Scalar(scalar) => scalar.word().to_owned(),
            Shape::Bytes => "[]uint8".to_owned(),
            Shape::Pointer(inner) => format!("*{}", self.go_name(inner)),
            Shape::List(element) => format!("[]{}", self.go_name(element)),
            Shape::Map { key, value } => format!("map[{}]{}", self.go_name(key), self.go_name(value)),
            Shape::Named(id) => format!("{}.{}", self.package(id).version(), self.name(id)),
        }
    }

    /// The JSON of an unset value.
    pub fn zero(&self, shape: ShapeId) -> Value {
        match self.form(shape) {
            Form::Scalar(Scalar::String) => Value::String(String::new()),
            Form::Scalar(Scalar::Bool) => Value::Bool(false),
            Form::Scalar(_) => Value::from(0),
            Form::Struct(id) => {
                let mut object = Map::new();
                self.finish(id, &mut object);
                Value::Object(object)
            }
            Form::Special(Special::Quantity, _) => Value::from("0"),
            Form::Special(Special::IntOrString, _) => Value::from(0),
            Form::Special(Special::SchemaOrBool, _) => Value::Bool(false),
            _ => Value::Null,
        }
    }

    /// Completes a decoded object as Go's encoder would write it: omits empty fields by their tags, and sets the
    /// others. In `object`, `null` means "not set".
    pub fn finish(&self, id: TypeId, object: &mut Map<String, Value>) {
        // Most types have many fields, and most objects few of them.
        object.retain(|name, value| match self.field_by_name(id, name, &mut Vec::new()) {
            Some(_) if value.is_null() => false,
            Some(field) => !(field.flags.omit_empty && self.is_empty_value(field.shape, value)),
            None => true,
        });
        self.set_unset(id, object);
    }

    /// Sets the fields that are there even if they are not set.
    fn set_unset(&self, id: TypeId, object: &mut Map<String, Value>) {
        for field in self.fields(id) {
            if let Some(inlined) = self.inline_type(field) {
                self.set_unset(inlined, object);
            } else if field.flags.written_unset && !object.contains_key(field.name) {
                object.insert(field.name.to_owned(), self.zero(field.shape));
            }
        }
    }

    /// Whether Go's `omitempty` omits the value. Structs and non-nil pointers are never empty.
    fn is_empty_value(&self, shape: ShapeId, value: &Value) -> bool {
        match (self.form(shape), value) {
            (Form::Scalar(_), Value::String(text)) => text.is_empty(),
            (Form::Scalar(_), Value::Bool(set)) => !set,
            (Form::Scalar(_), Value::Number(number)) => number.as_f64() == Some(0.0),
            (Form::Bytes, Value::String(text)) => text.is_empty(),
            (Form::List(_) | Form::WrappedList(_), Value::Array(items)) => items.is_empty(),
            (Form::Map(_), Value::Object(entries)) => entries.is_empty(),
            _ => false,
        }
    }
}
