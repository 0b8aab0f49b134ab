//! Traversing an object by its type: the types of fields, the merge rules of lists and maps, and empty objects.

use super::merge_rule::MergeRule;
use super::table::{FieldExtra, Form, ListType, MapType, PatchStrategy, ShapeId, TypeId, TypeTable};
use serde_json::{Map, Value};

/// The type of a field together with the field's tags.
#[derive(Clone, Copy, Debug)]
pub struct FieldShape {
    shape: ShapeId,
    extra: FieldExtra,
}

impl TypeTable {
    /// An object of this kind with no fields set.
    pub fn blank(&self, kind: TypeId) -> Value {
        let mut fields = Map::new();
        self.finish(kind, &mut fields);
        Value::Object(fields)
    }

    /// The type of a struct's field.
    pub fn field_shape(&self, id: TypeId, name: &str) -> Option<FieldShape> {
        let field = self.field_by_name(id, name, &mut Vec::new())?;
        Some(FieldShape { shape: field.shape, extra: self.extra(field) })
    }

    /// The type of a field of the object behind `outer`, or of a map's values.
    pub fn inner_shape(&self, outer: FieldShape, name: &str) -> Option<FieldShape> {
        match self.target_form(outer.shape) {
            Form::Struct(id) => self.field_shape(id, name),
            Form::Map(value) => Some(FieldShape { shape: value, extra: FieldExtra::default() }),
            _ => None,
        }
    }

    /// The type of a list's items.
    pub fn item_shape(&self, list: FieldShape) -> Option<FieldShape> {
        match self.target_form(list.shape) {
            Form::List(element) | Form::WrappedList(element) => {
                Some(FieldShape { shape: element, extra: FieldExtra::default() })
            }
            _ => None,
        }
    }

    /// The struct behind a field, if it is one.
    pub fn struct_of(&self, field: FieldShape) -> Option<TypeId> {
        match self.target_form(field.shape) {
            Form::Struct(id) => Some(id),
            _ => None,
        }
    }

    /// The metadata that every object has.
    pub fn metadata_shape(&self) -> Option<FieldShape> {
        self.field_shape(self.kind("v1", "ConfigMap")?, "metadata")
    }

    /// The ownership of a value.
    pub fn merge_rule(&self, field: FieldShape) -> MergeRule {
        let extra = field.extra;
        match self.target_form(field.shape) {
            Form::Struct(id) => match extra.map_type.or(self.entry(id).map_type) {
                Some(MapType::Atomic) => MergeRule::Whole,
                Some(MapType::Granular) | None => MergeRule::Fields,
            },
            Form::Map(_) => match extra.map_type {
                Some(MapType::Atomic) => MergeRule::Whole,
                Some(MapType::Granular) | None => MergeRule::Fields,
            },
            Form::List(_) | Form::WrappedList(_) => list_rule(extra),
            _ => MergeRule::Whole,
        }
    }
}

/// The list type of a list; without one, the merge rule of strategic merge patches.
fn list_rule(extra: FieldExtra) -> MergeRule {
    let keys = |text: &str| MergeRule::Items(text.split(',').map(str::to_string).collect());
    let merged = extra.patch_strategy.is_some_and(PatchStrategy::merges);
    match (extra.list_type, extra.list_keys, extra.merge_key) {
        (Some(ListType::Map), Some(names), _) => keys(names),
        (Some(ListType::Set), _, _) => MergeRule::Values,
        (Some(ListType::Map | ListType::Atomic), _, _) => MergeRule::Whole,
        (None, _, Some(name)) if merged => keys(name),
        (None, _, None) if merged => MergeRule::Values,
        _ => MergeRule::Whole,
    }
}
