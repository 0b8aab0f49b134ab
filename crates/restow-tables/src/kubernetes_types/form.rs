//! What a type expression means once its names are resolved, and where a path of field names leads.

use super::{Definition, Field, Scalar, Shape, ShapeId, Special, TypeId, Types};

/// A type expression with aliases resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A basic type.
    Scalar(Scalar),
    /// Bytes.
    Bytes,
    /// A pointer to a type.
    Pointer(ShapeId),
    /// A list of items.
    List(ShapeId),
    /// A list in JSON, a message with one repeated field in protobuf.
    WrappedList(ShapeId),
    /// A map of text to values.
    Map(ShapeId),
    /// A struct.
    Struct(TypeId),
    /// A type with an encoding of its own.
    Special(Special, TypeId),
}

impl Types {
    /// A type expression with its names resolved.
    pub fn form(&self, shape: ShapeId) -> Form {
        match self.shape(shape) {
            Shape::Scalar(scalar) => Form::Scalar(scalar),
            Shape::Bytes => Form::Bytes,
            Shape::Pointer(inner) => Form::Pointer(inner),
            Shape::List(element) => Form::List(element),
            Shape::Map { value, .. } => Form::Map(value),
            Shape::Named(id) => match self.entry(id).definition {
                Definition::Struct { .. } => Form::Struct(id),
                Definition::Scalar(scalar) => Form::Scalar(scalar),
                Definition::Alias(target) => self.form(target),
                Definition::WrappedList(target) => match self.form(target) {
                    Form::List(element) => Form::WrappedList(element),
                    other => other,
                },
                Definition::Special(special) => Form::Special(special, id),
            },
        }
    }

    /// Finds out which fields JSON has even if they are not set: Go's `omitempty` never omits a struct.
    pub(super) fn resolve_unset(&mut self) {
        for index in 0..self.fields.len() {
            let Field { shape, flags, .. } = self.fields[index];
            let is_omitted = match self.form(shape) {
                Form::Struct(_) | Form::Special(..) => flags.omit_zero,
                _ => flags.omit_empty || flags.omit_zero,
            };
            self.fields[index].flags.written_unset = !is_omitted;
        }
    }

    /// The form behind any number of pointers.
    pub fn target_form(&self, shape: ShapeId) -> Form {
        match self.form(shape) {
            Form::Pointer(inner) => self.target_form(inner),
            form => form,
        }
    }

    /// The type of a struct's field, also of an inlined one.
    pub fn shape_of_field(&self, id: TypeId, name: &str) -> Option<ShapeId> {
        self.field_by_name(id, name, &mut Vec::new()).map(|field| field.shape)
    }

    /// The type of a field of the struct behind `outer`, or of a map's values.
    pub fn shape_inside(&self, outer: ShapeId, name: &str) -> Option<ShapeId> {
        match self.target_form(outer) {
            Form::Struct(id) => self.shape_of_field(id, name),
            Form::Map(value) => Some(value),
            _ => None,
        }
    }

    /// The type of a list's items.
    pub fn shape_of_item(&self, list: ShapeId) -> Option<ShapeId> {
        match self.target_form(list) {
            Form::List(element) | Form::WrappedList(element) => Some(element),
            _ => None,
        }
    }

    /// Where a path of field names leads, from a struct; or which step leads nowhere.
    pub(crate) fn follow(&self, id: TypeId, path: &[&str]) -> Result<ShapeId, String> {
        let missing = |step: &str| format!("{} has no field {step:?}", self.type_name(id));
        let [first, rest @ ..] = path else { return Err("the path is empty".into()) };
        let mut at = self.shape_of_field(id, first).ok_or_else(|| missing(first))?;
        for step in rest {
            at = self.shape_inside(at, step).ok_or_else(|| missing(&path.join(".")))?;
        }
        Ok(at)
    }

    /// A type's name with its package, as in `core/v1.Container`.
    pub fn type_name(&self, id: TypeId) -> String {
        format!("{}.{}", self.package(id).name, self.name(id))
    }
}
