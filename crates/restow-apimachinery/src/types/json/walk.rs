//! Traverses JSON by a type. One traversal decodes, normalizes and collects the problems.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::special::{self, Token};
use super::{Decoded, JsonError};
use crate::field::FieldProblem;
use crate::go_syntax;
use crate::types::table::Form;
use crate::types::table::{Scalar, ShapeId, TypeId, TypeTable};
use crate::untyped::Fields;

/// The maximum number of reported problems, as in Kubernetes.
const MAXIMUM_PROBLEMS: usize = 100;

/// The state of one traversal.
pub(super) struct Walker<'t> {
    pub(super) table: &'t TypeTable,
    problems: Vec<FieldProblem>,
    /// The current path in the format of strict decoding: `spec.containers[0]`.
    path: String,
    /// Whether problems are collected here; Kubernetes ignores those in types that decode themselves.
    strict: bool,
    /// The current path in the format of Go's decoder: the innermost struct, and the names of the fields that lead to
    /// it.
    go_struct: &'static str,
    go_fields: Vec<&'static str>,
    /// The first value of a wrong type. Go continues after it.
    wrong_type: Option<String>,
    /// The first error of a type that decodes itself. Go stops there and reports this one.
    fatal: Option<String>,
}

impl<'t> Walker<'t> {
    pub(super) fn new(table: &'t TypeTable) -> Walker<'t> {
        Walker {
            table,
            problems: Vec::new(),
            path: String::new(),
            strict: true,
            go_struct: "",
            go_fields: Vec::new(),
            wrong_type: None,
            fatal: None,
        }
    }

    pub(super) fn decode<'de, D: Deserializer<'de>>(&mut self, kind: TypeId, source: D) -> Result<Value, D::Error> {
        let value = Seed { walker: self, target: Target::Struct(kind) }.deserialize(source)?;
        if !value.is_null() {
            return Ok(value);
        }
        // Go decodes null into a struct by leaving the struct empty.
        let mut nothing = Map::new();
        self.table.finish(kind, &mut nothing);
        Ok(Value::Object(nothing))
    }

    pub(super) fn into_decoded(self, value: Value) -> Result<Decoded, JsonError> {
        match self.fatal.or(self.wrong_type) {
            Some(message) => Err(JsonError::Type(message)),
            None => Ok(Decoded { value, problems: self.problems }),
        }
    }

    /// Reports a JSON value of the wrong type, with the message of Go's decoder.
    fn mismatch(&mut self, found: &str, target: Target) {
        if self.wrong_type.is_some() {
            return;
        }
        let expected = match target {
            Target::Struct(id) => format!("{}.{}", self.table.package(id).version(), self.table.name(id)),
            Target::Shape(shape) => self.table.go_name(shape),
        };
        let place = match self.go_struct {
            "" => "value".to_owned(),
            name => format!("struct field {name}.{}", self.go_fields.join(".")),
        };
        self.wrong_type = Some(format!("json: cannot unmarshal {found} into Go {place} of type {expected}"));
    }

    pub(super) fn fail(&mut self, message: String) {
        self.fatal.get_or_insert(message);
    }

    fn report(&mut self, problem: fn(String) -> FieldProblem, name: &str) {
        if !self.strict || self.problems.len() >= MAXIMUM_PROBLEMS {
            return;
        }
        let separator = if self.path.is_empty() { "" } else { "." };
        let problem = problem(format!("{}{separator}{name}", self.path));
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    /// Runs a part of the traversal one key or index deeper.
    fn deeper<T>(&mut self, step: Step<'_>, run: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.path.len();
        match step {
            Step::Key(key) => {
                if length > 0 {
                    self.path.push('.');
                }
                self.path.push_str(key);
            }
            Step::Index(index) => self.path.push_str(&format!("[{index}]")),
        }
        let result = run(self);
        self.path.truncate(length);
        result
    }

    /// Runs a part of the traversal as a type that decodes itself: nothing is reported, and errors are final.
    pub(super) fn apart<T>(&mut self, run: impl FnOnce(&mut Self) -> T) -> T {
        let strict = std::mem::replace(&mut self.strict, false);
        let go_struct = std::mem::take(&mut self.go_struct);
        let go_fields = std::mem::take(&mut self.go_fields);
        let wrong_type = self.wrong_type.take();
        let result = run(self);
        if let Some(message) = std::mem::replace(&mut self.wrong_type, wrong_type) {
            self.fail(message);
        }
        self.strict = strict;
        self.go_struct = go_struct;
        self.go_fields = go_fields;
        result
    }

    /// Decodes one field of a struct. Go's decoder names the embedded structs on the path to it.
    fn field<'de, A: MapAccess<'de>>(
        &mut self,
        owner: TypeId,
        name: String,
        object: &mut Fields,
        entries: &mut A,
    ) -> Result<(), A::Error> {
        let depth = self.go_fields.len();
        let Some(field) = self.table.field_by_name(owner, &name, &mut self.go_fields) else {
            self.report(FieldProblem::Unknown, &name);
            return entries.next_value::<IgnoredAny>().map(drop);
        };
        let field = *field;
        if object.contains(&name) {
            self.report(FieldProblem::Duplicate, &name);
        }
        let outer = std::mem::replace(&mut self.go_struct, self.table.name(owner));
        self.go_fields.push(field.name);
        let value = self.deeper(Step::Key(&name), |walker| {
            entries.next_value_seed(Seed { walker, target: Target::Shape(field.shape) })
        });
        self.go_struct = outer;
        self.go_fields.truncate(depth);
        object.insert(name, value?);
        Ok(())
    }

    pub(super) fn object<'de, A: MapAccess<'de>>(&mut self, id: TypeId, mut entries: A) -> Result<Value, A::Error> {
        let mut object = Fields::default();
        while let Some(name) = entries.next_key::<String>()? {
            self.field(id, name, &mut object, &mut entries)?;
        }
        let mut object = object.into_map();
        self.table.finish(id, &mut object);
        Ok(Value::Object(object))
    }

    fn entries<'de, A: MapAccess<'de>>(&mut self, shape: ShapeId, mut entries: A) -> Result<Value, A::Error> {
        let mut object = Fields::default();
        while let Some(key) = entries.next_key::<String>()? {
            if object.contains(&key) {
                self.report(FieldProblem::Duplicate, &key);
            }
            let value = self.deeper(Step::Key(&key), |walker| {
                entries.next_value_seed(Seed { walker, target: Target::Shape(shape) })
            })?;
            object.insert(key, self.or_zero(shape, value));
        }
        Ok(Value::Object(object.into_map()))
    }

    pub(super) fn list<'de, A: SeqAccess<'de>>(&mut self, shape: ShapeId, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            let step = Step::Index(list.len());
            let item =
                self.deeper(step, |walker| items.next_element_seed(Seed { walker, target: Target::Shape(shape) }))?;
            let Some(item) = item else { return Ok(Value::Array(list)) };
            let item = self.or_zero(shape, item);
            list.push(item);
        }
    }

    /// In a list or a map, `null` is the zero value of the element's type.
    fn or_zero(&self, shape: ShapeId, value: Value) -> Value {
        if value.is_null() { self.table.zero(shape) } else { value }
    }
}

enum Step<'k> {
    Key(&'k str),
    Index(usize),
}

/// The target type of a value.
#[derive(Clone, Copy)]
pub(super) enum Target {
    Struct(TypeId),
    Shape(ShapeId),
}

/// Decodes one value. The result `null` means "not set".
pub(super) struct Seed<'w, 't> {
    pub(super) walker: &'w mut Walker<'t>,
    pub(super) target: Target,
}

impl Seed<'_, '_> {
    fn form(&self) -> Form {
        match self.target {
            Target::Struct(id) => Form::Struct(id),
            Target::Shape(shape) => self.walker.table.target_form(shape),
        }
    }

    /// Go follows pointers before it checks the type, so its messages do not contain them.
    fn mismatch(self, found: &str) -> Value {
        let target = match self.target {
            Target::Shape(shape) => Target::Shape(self.walker.table.pointee(shape)),
            target => target,
        };
        self.walker.mismatch(found, target);
        Value::Null
    }

    fn number(self, number: Number) -> Value {
        match self.form() {
            Form::Scalar(Scalar::Int32) if number.as_i64().is_some_and(|value| i32::try_from(value).is_ok()) => {
                Value::Number(number)
            }
            Form::Scalar(Scalar::Int64) if number.is_i64() => Value::Number(number),
            Form::Scalar(Scalar::Float64) => number.as_f64().map_or(Value::Null, go_syntax::float),
            Form::Scalar(Scalar::Int32 | Scalar::Int64) => self.mismatch(&format!("number {number}")),
            Form::Special(special, _) => special::scalar(self.walker, special, Token::Number(number)),
            _ => self.mismatch("number"),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_, '_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_, '_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(match self.form() {
            Form::Scalar(Scalar::Bool) => Value::Bool(value),
            Form::Special(special, _) => special::scalar(self.walker, special, Token::Bool(value)),
            _ => self.mismatch("bool"),
        })
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(self.number(Number::from(value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(self.number(Number::from(value)))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, |number| self.number(number)))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Value, E> {
        self.visit_string(text.to_owned())
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(match self.form() {
            Form::Scalar(Scalar::String) => Value::String(text),
            Form::Bytes => match base64_error(&text) {
                None => Value::String(text),
                Some(message) => {
                    self.walker.wrong_type.get_or_insert(message);
                    Value::Null
                }
            },
            Form::Special(special, _) => special::scalar(self.walker, special, Token::Text(text)),
            _ => self.mismatch("string"),
        })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        match self.form() {
            Form::List(element) | Form::WrappedList(element) => self.walker.list(element, items),
            Form::Special(special, id) => special::list(self.walker, special, id, items),
            _ => {
                while items.next_element::<IgnoredAny>()?.is_some() {}
                Ok(self.mismatch("array"))
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        match self.form() {
            Form::Struct(id) => self.walker.object(id, entries),
            Form::Map(value) => self.walker.entries(value, entries),
            Form::Special(special, id) => special::object(self.walker, special, id, entries),
            _ => {
                while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(self.mismatch("object"))
            }
        }
    }
}

/// Go skips line breaks in base64 text; it reports other errors with their position.
fn base64_error(text: &str) -> Option<String> {
    let stripped;
    let text = if text.contains(['\r', '\n']) {
        stripped = text.replace(['\r', '\n'], "");
        &stripped
    } else {
        text
    };
    let error = STANDARD.decode(text).err()?;
    let position = match error {
        base64::DecodeError::InvalidByte(position, _) => position,
        base64::DecodeError::InvalidLastSymbol { offset, .. } => offset,
        base64::DecodeError::InvalidLength(_) | base64::DecodeError::InvalidPadding => text.len() / 4 * 4,
    };
    Some(format!("illegal base64 data at input byte {position}"))
}
