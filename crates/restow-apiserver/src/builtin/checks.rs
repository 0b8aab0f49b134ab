//! What the values of single fields of built-in types may be, with Kubernetes' words. It is rows of `checks.txt`, which hold
//! wherever a type occurs; what depends on several fields at once is in `checks/special.rs`, and what depends on the kind
//! of the object in `validation.rs`.

mod special;
#[cfg(test)]
mod tests;
mod values;

use restow_apimachinery::field::{FieldError, FieldRule};
use restow_apimachinery::object::Object;
use restow_apimachinery::types::{TypeId, TypeTable};
use serde_json::{Map, Value};
use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

type Fields = Map<String, Value>;

static CHECKS: LazyLock<HashMap<TypeId, Vec<Check>>> = LazyLock::new(|| parse(include_str!("checks.txt")));
/// The types in which, or below which, there is something to check.
static CONCERNED: LazyLock<HashSet<TypeId>> = LazyLock::new(concerned);

/// One row of the table.
#[derive(Debug)]
struct Check {
    steps: Vec<Step>,
    unset: Unset,
    rule: Rule,
    /// The words of the table, where they differ from the rule's own.
    detail: Option<&'static str>,
    /// The text that must stand at a path.
    when: Option<(Vec<&'static str>, &'static str)>,
}

/// One step of a path.
#[derive(Debug)]
struct Step {
    name: &'static str,
    items: Items,
}

/// Whether a step leads to the items of a list, and whether the problem is told of the item or of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Items {
    None,
    Each,
    AsOne,
}

/// What is done about a value that is not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unset {
    /// Nothing, and nothing about an empty text or a zero either: they say the same.
    Passes,
    /// Nothing, but an empty text or a zero is a value.
    PassesIfMissing,
    /// It is an empty text, or a zero.
    Counts,
}

#[derive(Debug)]
enum Rule {
    /// There must be something.
    Needed,
    /// It must be set.
    Present,
    /// One of these.
    OneOf(Vec<&'static str>),
    /// A number from here to there.
    Within(Option<i64>, Option<i64>),
    /// A text of a certain form.
    Text(fn(&str) -> Vec<String>),
    /// The number of a port, or its name.
    Port,
    /// A number, or a share in percent; and whether that ends at a hundred.
    Share(bool),
    /// Labels, or what selects them.
    Labels,
    /// A list without two items that are the same, or that have the same in this field.
    Unique(Option<&'static str>),
    /// One of these fields.
    AnyOf(Vec<&'static str>),
}

/// Everything that is wrong with an object of a built-in kind.
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
        let holds = check.when.as_ref().is_none_or(|(path, text)| text_at(fields, path) == *text);
        if holds {
            check.follow(&check.steps, fields, path, found);
        }
    }
    special::examine(table.package_name(id), table.name(id), fields, path, found);
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

fn below(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_string() } else { format!("{path}.{name}") }
}

/// The text at a path; empty where there is none.
fn text_at<'a>(fields: &'a Fields, path: &[&str]) -> &'a str {
    let Some((first, rest)) = path.split_first() else { return "" };
    let first = fields.get(*first);
    let value = rest.iter().fold(first, |value, step| value.and_then(|value| value.get(*step)));
    value.and_then(Value::as_str).unwrap_or_default()
}

/// Whether there is nothing in a value that could be meant.
fn is_unset(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Number(number)) => number.as_i64() == Some(0),
        Some(Value::Array(items)) => items.is_empty(),
        Some(_) => false,
    }
}

impl Check {
    /// Goes to where the row leads, and checks what is there.
    fn follow(&self, steps: &[Step], fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
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

    fn arrive(&self, rest: &[Step], value: Option<&Value>, at: &str, found: &mut Vec<FieldError>) {
        if rest.is_empty() {
            self.examine(value, at, found);
        } else if let Some(Value::Object(fields)) = value {
            self.follow(rest, fields, at, found);
        }
    }

    /// Checks the fields of a value themselves.
    fn examine_fields(&self, fields: &Fields, at: &str, found: &mut Vec<FieldError>) {
        if let Rule::AnyOf(names) = &self.rule
            && names.iter().all(|name| fields.get(*name).is_none_or(Value::is_null))
        {
            found.push(FieldError::required(at, self.detail.unwrap_or_default()));
        }
    }

    fn examine(&self, value: Option<&Value>, at: &str, found: &mut Vec<FieldError>) {
        let missing = match self.rule {
            Rule::Needed => is_unset(value),
            Rule::Present => value.is_none_or(Value::is_null),
            _ => false,
        };
        if missing {
            found.push(FieldError::required(at, self.detail.unwrap_or_default()));
            return;
        }
        let skipped = match self.unset {
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
        let worded = |detail: String| self.detail.map_or(detail, str::to_string);
        match &self.rule {
            Rule::OneOf(supported) if !supported.contains(&text()) => {
                found.push(super::validation::unsupported(at, text(), supported))
            }
            Rule::Within(low, high) => {
                let number = value.as_i64().unwrap_or_default();
                let outside = low.is_some_and(|low| number < low) || high.is_some_and(|high| number > high);
                if outside {
                    found.push(FieldError::invalid(at, &number.into(), worded(values::bounds(*low, *high))));
                }
            }
            Rule::Text(problems) => {
                let problems = problems(text()).into_iter().map(worded);
                found.extend(problems.map(|problem| FieldError::invalid(at, &text().into(), problem)));
            }
            Rule::Port => found.extend(
                values::port(value).into_iter().map(|(value, problem)| FieldError::invalid(at, &value, problem)),
            ),
            Rule::Share(whole) => {
                found.extend(values::share(value, *whole).map(|problem| FieldError::invalid(at, value, problem)));
            }
            Rule::Labels => {
                for (key, label) in value.as_object().into_iter().flatten() {
                    let label = label.as_str().unwrap_or_default();
                    let keys = restow_apimachinery::names::qualified_name_problems(key);
                    found
                        .extend(keys.into_iter().map(|problem| FieldError::invalid(at, &key.as_str().into(), problem)));
                    let labels = restow_apimachinery::names::label_value_problems(label);
                    found.extend(labels.into_iter().map(|problem| FieldError::invalid(at, &label.into(), problem)));
                }
            }
            Rule::Unique(field) => {
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
            Rule::Needed | Rule::Present | Rule::OneOf(_) | Rule::AnyOf(_) => {}
        }
    }
}

/// The types that have rows or special checks, and those that hold them.
fn concerned() -> HashSet<TypeId> {
    let table = TypeTable::shared();
    let special = table.ids().filter(|id| special::knows(table.package_name(*id), table.name(*id)));
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

/// Reads the table. A line that makes no sense is left out, and a test finds it.
fn parse(text: &'static str) -> HashMap<TypeId, Vec<Check>> {
    let mut checks: HashMap<TypeId, Vec<Check>> = HashMap::new();
    for line in rows(text) {
        if let Some((id, check)) = parse_line(line) {
            checks.entry(id).or_default().push(check);
        }
    }
    checks
}

fn rows(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}

fn parse_line(line: &'static str) -> Option<(TypeId, Check)> {
    let condition = line.rsplit_once(" when ").filter(|(_, when)| when.contains('=') && !when.contains(' '));
    let (line, when) = condition.map_or((line, None), |(line, when)| (line, Some(when)));
    let (line, detail) = line.split_once(" : ").map_or((line, None), |(line, detail)| (line, Some(detail)));
    let mut words = line.split_whitespace();
    let id = TypeTable::shared().type_by_name(words.next()?)?;
    let path = words.next()?;
    let (path, unset) = match path.strip_suffix('!') {
        Some(path) => (path, Unset::Counts),
        None => path.strip_suffix('?').map_or((path, Unset::Passes), |path| (path, Unset::PassesIfMissing)),
    };
    let steps = if path == "." { Vec::new() } else { path.split('.').map(parse_step).collect() };
    let rule = parse_rule(words.next()?, words.collect())?;
    let when = match when {
        None => None,
        Some(text) => {
            let (path, text) = text.split_once('=')?;
            Some((path.split('.').collect(), text))
        }
    };
    Some((id, Check { steps, unset, rule, detail, when }))
}

fn parse_step(step: &'static str) -> Step {
    match (step.strip_suffix("[]"), step.strip_suffix("[*]")) {
        (Some(name), _) => Step { name, items: Items::Each },
        (_, Some(name)) => Step { name, items: Items::AsOne },
        _ => Step { name: step, items: Items::None },
    }
}

fn parse_rule(name: &str, words: Vec<&'static str>) -> Option<Rule> {
    let bound = |word: &str| if word == "*" { Some(None) } else { word.parse().ok().map(Some) };
    Some(match name {
        "needed" => Rule::Needed,
        "present" => Rule::Present,
        // An empty text is written as "".
        "one-of" => Rule::OneOf(words.into_iter().map(|word| if word == "\"\"" { "" } else { word }).collect()),
        "within" => Rule::Within(bound(words.first()?)?, bound(words.get(1)?)?),
        "port" => Rule::Port,
        "share" => Rule::Share(words.first() == Some(&"whole")),
        "labels" => Rule::Labels,
        "unique" => Rule::Unique(words.first().copied()),
        "any-of" => Rule::AnyOf(words),
        other => Rule::Text(values::text_rule(other)?),
    })
}
