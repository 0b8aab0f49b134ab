//! Defaults of fields that a client omits. Most are rows of `defaults.txt`; those that depend on other values are named
//! in `defaults/by_type.rs`.

mod by_type;
#[cfg(test)]
mod tests;

use restow_apimachinery::object::Object;
use restow_apimachinery::types::{TypeId, TypeTable};
use restow_tables::checked;
use restow_tables::defaults::{self, When};
use restow_tables::json::Json;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::sync::LazyLock;

static RULES: LazyLock<HashMap<TypeId, Vec<Rule>>> = LazyLock::new(rules);

/// One rule of the table.
#[derive(Debug)]
struct Rule {
    path: Vec<&'static str>,
    /// Whether an empty text counts as set.
    empty_counts: bool,
    value: Value,
    /// The condition of the default.
    when: Option<When<'static>>,
}

/// Sets the defaults of an object of a built-in kind.
pub(super) fn apply(object: &mut Object) {
    let table = TypeTable::shared();
    let Some(kind) = table.kind(object.api_version(), object.kind()) else { return };
    complete(table, kind, object.fields_mut());
}

fn complete(table: &TypeTable, id: TypeId, fields: &mut Map<String, Value>) {
    for rule in RULES.get(&id).into_iter().flatten() {
        let holds = rule.when.as_ref().is_none_or(|when| text_at(fields, &when.path) == Some(when.text));
        if holds {
            set_open(fields, &rule.path, rule);
        }
    }
    by_type::complete(table.package_name(id), table.name(id), fields);
    for (name, value) in fields.iter_mut() {
        let Some(shape) = table.field_shape(id, name) else { continue };
        if let (Some(inner), Value::Object(fields)) = (table.struct_of(shape), &mut *value) {
            complete(table, inner, fields);
            continue;
        }
        let Some(inner) = table.item_shape(shape).and_then(|item| table.struct_of(item)) else { continue };
        for item in value.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
            complete(table, inner, item);
        }
    }
}

/// The text of a field; empty if it is absent.
pub(super) fn text<'a>(fields: &'a Map<String, Value>, name: &str) -> &'a str {
    fields.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn text_at<'a>(fields: &'a Map<String, Value>, path: &[&str]) -> Option<&'a str> {
    let (first, rest) = path.split_first()?;
    rest.iter().try_fold(fields.get(*first)?, |value, step| value.get(*step))?.as_str()
}

/// Sets the field at the path, unless it is set.
fn set_open(fields: &mut Map<String, Value>, path: &[&str], rule: &Rule) {
    let Some((first, rest)) = path.split_first() else { return };
    let slot = fields.entry(*first).or_insert(Value::Null);
    if rest.is_empty() {
        let open = match &*slot {
            Value::Null => true,
            // An empty text counts as unset, except if the default is empty too.
            Value::String(text) => text.is_empty() && rule.value.is_string() && !rule.empty_counts,
            Value::Array(items) => items.is_empty(),
            // An empty struct counts as unset.
            Value::Object(fields) => fields.is_empty() && rule.value.is_object(),
            _ => false,
        };
        if open {
            *slot = rule.value.clone();
        }
        return;
    }
    if slot.is_null() {
        *slot = Value::Object(Map::new());
    }
    if let Some(inner) = slot.as_object_mut() {
        set_open(inner, rest, rule);
    }
}

/// The rows of the table, by type. The build script has checked them.
fn rules() -> HashMap<TypeId, Vec<Rule>> {
    let mut rules: HashMap<TypeId, Vec<Rule>> = HashMap::new();
    for row in checked(defaults::parse(include_str!("defaults.txt"))) {
        let id = checked(TypeTable::shared().type_by_name(row.type_name).ok_or(row.type_name));
        let value = json_value(&row.value);
        rules.entry(id).or_default().push(Rule {
            path: row.path,
            empty_counts: row.keeps_empty,
            value,
            when: row.when,
        });
    }
    rules
}

fn json_value(json: &Json<'_>) -> Value {
    match json {
        Json::Bool(flag) => Value::Bool(*flag),
        Json::Integer(number) => Value::from(*number),
        Json::Text(text) => Value::from(*text),
        Json::List(items) => items.iter().map(json_value).collect(),
        Json::Object(members) => members.iter().map(|(name, value)| (*name, json_value(value))).collect(),
    }
}
