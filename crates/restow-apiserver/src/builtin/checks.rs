//! Checks of single fields of built-in types, with Kubernetes' messages. They are rows of `checks.txt` and hold wherever a
//! type occurs. Checks of several fields at once are named in `checks/by_type.rs`; checks of whole objects are in `kinds/`.

pub(super) mod by_type;
#[cfg(test)]
mod tests;
pub(super) mod values;

use restow_apimachinery::field::{FieldError, FieldRule};
use restow_apimachinery::object::Object;
use restow_apimachinery::types::{TypeId, TypeTable};
use restow_tables::checked;
use restow_tables::checks::{self, Check as Row, CheckRule, Items, PathStep, Unset};
use serde_json::{Map, Value};
use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

pub(super) type Fields = Map<String, Value>;

static CHECKS: LazyLock<HashMap<TypeId, Vec<Check>>> = LazyLock::new(rows_by_type);
/// The types that have checks, or that contain types with checks.
static CONCERNED: LazyLock<HashSet<TypeId>> = LazyLock::new(concerned);

/// One row of the table.
#[derive(Debug)]
struct Check(Row<'static>);

/// All validation errors of an object of a built-in kind.
pub(super) fn problems(object: &Object) -> Vec<FieldError> {
    let table = TypeTable::shared();
    let mut found = Vec::new();
    if let Some(kind) = table.kind(object.api_version(), object.kind()) {
        examine(table, kind, object.fields(), "", &mut found);
    }
    found
}

fn examine(table: &TypeTable, id: TypeId, fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    if !CONCERNED.contains(&id) {
        return;
    }
    for check in CHECKS.get(&id).into_iter().flatten() {
        let holds = check.0.when.as_ref().is_none_or(|when| text_at(fields, &when.path) == when.text);
        if holds {
            check.follow(&check.0.steps, fields, path, found);
        }
    }
    by_type::examine(table.package_name(id), table.name(id), fields, path, found);
    for (name, value) in fields {
        let Some(shape) = table.field_shape(id, name) else { continue };
        let at = below(path, name);
        if let (Some(inner), Value::Object(fields)) = (table.struct_of(shape), value) {
            examine(table, inner, fields, &at, found);
            continue;
        }
        let Some(inner) = table.item_shape(shape).and_then(|item| table.struct_of(item)) else { continue };
        for (index, item) in value.as_array().into_iter().flatten().enumerate() {
            if let Some(fields) = item.as_object() {
                examine(table, inner, fields, &format!("{at}[{index}]"), found);
            }
        }
    }
}

pub(super) fn below(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_string() } else { format!("{path}.{name}") }
}

/// The text at a path; empty if it is absent.
pub(super) fn text_at<'a>(fields: &'a Fields, path: &[&str]) -> &'a str {
    let Some((first, rest)) = path.split_first() else { return "" };
    let first = fields.get(*first);
    let value = rest.iter().fold(first, |value, step| value.and_then(|value| value.get(*step)));
    value.and_then(Value::as_str).unwrap_or_default()
}

/// Whether a value is unset: absent, null or empty.
pub(super) fn is_unset(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Number(number)) => number.as_i64() == Some(0),
        Some(Value::Array(items)) => items.is_empty(),
        Some(_) => false,
    }
}

impl Check {
    /// Follows the steps of the row's path, and checks the values there.
    fn follow(&self, steps: &[PathStep<'_>], fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
        let Some((step, rest)) = steps.split_first() else {
            return self.examine_fields(fields, path, found);
        };
        let (value, at) = (fields.get(step.name), below(path, step.name));
        if step.items == Items::None {
            return self.arrive(rest, value, &at, found);
        }
        for (index, item) in value.and_then(Value::as_array).into_iter().flatten().enumerate() {
            let item_at = if step.items == Items::Each { format!("{at}[{index}]") } else { at.clone() };
            self.arrive(rest, Some(item), &item_at, found);
        }
    }

    fn arrive(&self, rest: &[PathStep<'_>], value: Option<&Value>, at: &str, found: &mut Vec<FieldError>) {
        if rest.is_empty() {
            self.examine(value, at, found);
        } else if let Some(Value::Object(fields)) = value {
            self.follow(rest, fields, at, found);
        }
    }

    /// Checks the fields of a value.
    fn examine_fields(&self, fields: &Fields, at: &str, found: &mut Vec<FieldError>) {
        if let CheckRule::AnyOf(names) = &self.0.rule
            && names.iter().all(|name| fields.get(*name).is_none_or(Value::is_null))
        {
            found.push(FieldError::required(at, self.0.detail.unwrap_or_default()));
        }
    }

    fn examine(&self, value: Option<&Value>, at: &str, found: &mut Vec<FieldError>) {
        let missing = match self.0.rule {
            CheckRule::Needed => is_unset(value),
            CheckRule::Present => value.is_none_or(Value::is_null),
            _ => false,
        };
        if missing {
            found.push(FieldError::required(at, self.0.detail.unwrap_or_default()));
            return;
        }
        let skipped = match self.0.unset {
            Unset::Passes => is_unset(value),
            Unset::PassesIfMissing => value.is_none_or(Value::is_null),
            Unset::Counts => false,
        };
        if !skipped {
            self.judge(value.unwrap_or(&Value::Null), at, found);
        }
    }

    fn judge(&self, value: &Value, at: &str, found: &mut Vec<FieldError>) {
        let text = || value.as_str().unwrap_or_default();
        let worded = |detail: String| self.0.detail.map_or(detail, str::to_string);
        match &self.0.rule {
            CheckRule::OneOf(supported) if !supported.contains(&text()) => {
                found.push(super::validation::unsupported(at, text(), supported))
            }
            CheckRule::Within(low, high) => {
                let number = value.as_i64().unwrap_or_default();
                let outside = low.is_some_and(|low| number < low) || high.is_some_and(|high| number > high);
                if outside {
                    found.push(FieldError::invalid(at, &number.into(), worded(values::bounds(*low, *high))));
                }
            }
            CheckRule::Text(form) => {
                let problems = values::text_problems(*form)(text()).into_iter().map(worded);
                found.extend(problems.map(|problem| FieldError::invalid(at, &text().into(), problem)));
            }
            CheckRule::Port => found.extend(
                values::port(value).into_iter().map(|(value, problem)| FieldError::invalid(at, &value, problem)),
            ),
            CheckRule::Share { whole } => {
                found.extend(values::share(value, *whole).map(|problem| FieldError::invalid(at, value, problem)));
            }
            CheckRule::Labels => {
                for (key, label) in value.as_object().into_iter().flatten() {
                    let label = label.as_str().unwrap_or_default();
                    let keys = restow_apimachinery::names::qualified_name_problems(key);
                    found
                        .extend(keys.into_iter().map(|problem| FieldError::invalid(at, &key.as_str().into(), problem)));
                    let labels = restow_apimachinery::names::label_value_problems(label);
                    found.extend(labels.into_iter().map(|problem| FieldError::invalid(at, &label.into(), problem)));
                }
            }
            CheckRule::Unique(field) => {
                let mut seen = HashSet::new();
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    let item = field.map_or(item, |field| &item[field]);
                    let at = field.map_or_else(|| format!("{at}[{index}]"), |field| format!("{at}[{index}].{field}"));
                    if !is_unset(Some(item)) && !seen.insert(item.to_string()) {
                        let rule = FieldRule::Duplicate(item.to_string());
                        found.push(FieldError { field: at, rule, detail: String::new() });
                    }
                }
            }
            CheckRule::Needed | CheckRule::Present | CheckRule::OneOf(_) | CheckRule::AnyOf(_) => {}
        }
    }
}

/// The types that have rows or special checks, and the types that contain them.
fn concerned() -> HashSet<TypeId> {
    let table = TypeTable::shared();
    let special = table.ids().filter(|id| by_type::knows(table.package_name(*id), table.name(*id)));
    let mut concerned: HashSet<TypeId> = CHECKS.keys().copied().chain(special).collect();
    loop {
        let holds = |id: &TypeId| {
            let names = table.fields(*id).iter().filter(|field| !field.flags.inline).map(|field| field.name);
            let inlined = table.fields(*id).iter().filter_map(|field| table.inline_type(field));
            let inlined = inlined.flat_map(|id| table.fields(id)).map(|field| field.name);
            names.chain(inlined).filter_map(|name| table.field_shape(*id, name)).any(|shape| {
                let item = table.item_shape(shape).and_then(|item| table.struct_of(item));
                table.struct_of(shape).or(item).is_some_and(|inner| concerned.contains(&inner))
            })
        };
        let more: Vec<TypeId> = table.ids().filter(|id| !concerned.contains(id) && holds(id)).collect();
        if more.is_empty() {
            return concerned;
        }
        concerned.extend(more);
    }
}

/// The rows of the table, by type. The build script has checked them.
fn rows_by_type() -> HashMap<TypeId, Vec<Check>> {
    let mut rows: HashMap<TypeId, Vec<Check>> = HashMap::new();
    for row in checked(checks::parse(include_str!("checks.txt"))) {
        let id = checked(TypeTable::shared().type_by_name(row.type_name).ok_or(row.type_name));
        rows.entry(id).or_default().push(Check(row));
    }
    rows
}
