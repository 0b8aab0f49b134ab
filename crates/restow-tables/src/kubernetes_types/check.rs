//! What the build script checks of `kubernetes.types` beyond the form of its lines.

use super::{Field, FieldExtra, Form, ListType, Scalar, ShapeId, Special, TypeId, Types};
use crate::json::Json;
use crate::{TableError, significant_lines};

impl Types {
    /// Checks that the keys of lists are fields of their items, that facts about lists are about lists, and that defaults
    /// fit their types. `text` is what the types were read from.
    ///
    /// # Errors
    /// The first field of which this does not hold.
    pub fn check(&self, text: &str) -> Result<(), TableError> {
        let lines = significant_lines(text).filter(|(_, row)| row.starts_with(' ')).map(|(line, _)| line);
        for (field, line) in self.fields.iter().zip(lines) {
            self.check_field(field).map_err(|problem| TableError::new(line, problem))?;
        }
        Ok(())
    }

    fn check_field(&self, field: &Field) -> Result<(), String> {
        let FieldExtra { merge_key, list_type, list_keys, default, .. } = self.extra(field);
        if field.flags.inline && self.inline_type(field).is_none() {
            return Err("what is inlined must be a struct".into());
        }
        if let Some(text) = default {
            self.check_value(field.shape, &Json::parse(text)?)?;
        }
        if (list_type == Some(ListType::Map)) != list_keys.is_some() {
            return Err("list=map and keys= belong together".into());
        }
        // Kubernetes declares list=atomic of one field that is no list.
        if list_type == Some(ListType::Set) && self.shape_of_item(field.shape).is_none() {
            return Err("list=set is only for lists".into());
        }
        // Some list kinds declare keys that their items lack; nobody patches a list of objects.
        let keys = list_keys.into_iter().flat_map(|keys| keys.split(',')).chain(merge_key);
        for key in keys.filter(|_| field.name != "items") {
            let item = self.shape_of_item(field.shape).ok_or("key= and keys= are only for lists")?;
            if self.shape_inside(item, key).is_none() {
                return Err(format!("the items of {} have no field {key:?}", field.name));
            }
        }
        Ok(())
    }

    /// Whether a value can stand where this type is expected.
    pub(crate) fn check_value(&self, shape: ShapeId, value: &Json<'_>) -> Result<(), String> {
        match (self.target_form(shape), value) {
            (Form::Scalar(Scalar::Bool), Json::Bool(_))
            | (Form::Scalar(Scalar::Int32 | Scalar::Int64 | Scalar::Float64), Json::Integer(_))
            | (Form::Scalar(Scalar::String) | Form::Bytes, Json::Text(_))
            | (Form::Special(Special::Time | Special::MicroTime, _), Json::Text(_))
            | (Form::Special(Special::Quantity | Special::IntOrString, _), Json::Text(_) | Json::Integer(_))
            | (Form::Special(Special::Raw, _), Json::Object(_))
            | (Form::Special(Special::Json, _), _) => Ok(()),
            (Form::List(item) | Form::WrappedList(item), Json::List(items)) => {
                items.iter().try_for_each(|value| self.check_value(item, value))
            }
            (Form::Map(item), Json::Object(members)) => {
                members.iter().try_for_each(|(_, value)| self.check_value(item, value))
            }
            (Form::Struct(id), Json::Object(members)) => members.iter().try_for_each(|(name, value)| {
                let field = self.shape_of_field(id, name);
                self.check_value(field.ok_or_else(|| format!("{} has no field {name:?}", self.type_name(id)))?, value)
            }),
            (form, _) => Err(format!("the value does not fit its type, {}", self.form_name(form))),
        }
    }

    /// A form in words, for errors.
    pub(crate) fn form_name(&self, form: Form) -> String {
        match form {
            Form::Scalar(scalar) => scalar.word().into(),
            Form::Bytes => "bytes".into(),
            Form::Pointer(_) => "a pointer".into(),
            Form::List(_) | Form::WrappedList(_) => "a list".into(),
            Form::Map(_) => "a map".into(),
            Form::Struct(id) => self.type_name(id),
            Form::Special(special, _) => special.word().into(),
        }
    }

    /// The struct of this name, for tables that refer to one.
    pub(crate) fn find_struct(&self, name: &str) -> Result<TypeId, String> {
        let id = self.type_by_name(name).ok_or_else(|| format!("there is no type {name:?} in kubernetes.types"))?;
        let is_struct = matches!(self.entry(id).definition, super::Definition::Struct { .. });
        if is_struct { Ok(id) } else { Err(format!("{name} is not a struct")) }
    }
}
