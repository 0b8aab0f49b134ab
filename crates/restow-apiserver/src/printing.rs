//! Tables for people: which columns a kind has, and what stands in them.

use crate::object::Object;
use crate::resource::Resource;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::LazyLock;

/// A column between the name and the age.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Column {
    title: String,
    wide: bool,
    what: What,
}

/// What stands in a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Path(Vec<String>),
    Count(Vec<String>),
    Keys(Vec<String>),
    Join(Vec<String>),
    Of(Box<What>, Box<What>),
    Or(Box<What>, String),
}

static COLUMNS: LazyLock<HashMap<&'static str, Vec<Column>>> =
    LazyLock::new(|| parse(include_str!("builtin/columns.txt")));

/// Objects as a `Table`, each row with the object's metadata.
pub(crate) fn table(resource: &Resource, objects: &[Object], metadata: Value) -> Value {
    if let Some(custom) = &resource.custom {
        return crate::custom::table(&custom.columns, objects, &metadata);
    }
    let columns = columns_of(resource);
    let mut definitions = vec![definition("Name", "name", 0)];
    definitions.extend(columns.iter().map(|column| definition(&column.title, "", i32::from(column.wide))));
    definitions.push(definition("Age", "", 0));
    let now = jiff::Timestamp::now();
    let rows: Vec<Value> = objects
        .iter()
        .map(|object| {
            let mut cells: Vec<Value> = vec![object.name().into()];
            cells.extend(columns.iter().map(|column| cell(object, &column.what)));
            cells.push(age(object, now).into());
            json!({"cells": cells, "object": metadata_only(object)})
        })
        .collect();
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
        "columnDefinitions": definitions, "rows": rows,
    })
}

/// An object's metadata as an object of its own.
pub(crate) fn metadata_only(object: &Object) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object.get("metadata")})
}

fn columns_of(resource: &Resource) -> &'static [Column] {
    let group = match resource.group_resource.group() {
        "" => "core",
        group => group,
    };
    let name = format!("{group}/{}", resource.group_resource.resource());
    COLUMNS.get(name.as_str()).map(Vec::as_slice).unwrap_or_default()
}

fn definition(title: &str, format: &str, priority: i32) -> Value {
    json!({"name": title, "type": "string", "format": format, "description": title, "priority": priority})
}

fn cell(object: &Object, what: &What) -> Value {
    match text(object, what) {
        Some(text) => text.into(),
        None => "".into(),
    }
}

/// What a cell says; `None` where there is nothing to say.
fn text(object: &Object, what: &What) -> Option<String> {
    match what {
        What::Path(path) => values(object, path).first().and_then(|value| plain(value)),
        What::Count(path) => {
            let count = values(object, path).first().map_or(0, |value| match value {
                Value::Array(items) => items.len(),
                Value::Object(fields) => fields.len(),
                _ => 0,
            });
            Some(count.to_string())
        }
        What::Keys(path) => {
            let found = values(object, path);
            let fields = found.first()?.as_object()?;
            Some(fields.keys().map(String::as_str).collect::<Vec<_>>().join(","))
        }
        What::Join(path) => {
            let found: Vec<String> = values(object, path).into_iter().flat_map(flat).filter_map(plain).collect();
            (!found.is_empty()).then(|| found.join(","))
        }
        What::Of(part, whole) => {
            let number = |what| text(object, what).unwrap_or_else(|| "0".into());
            Some(format!("{}/{}", number(part), number(whole)))
        }
        What::Or(what, otherwise) => text(object, what).or_else(|| Some(otherwise.clone())),
    }
}

/// The values at a path, which goes through every item of a list that it meets.
fn values<'a>(object: &'a Object, path: &[String]) -> Vec<&'a Value> {
    let Some((first, rest)) = path.split_first() else { return Vec::new() };
    let mut found: Vec<&Value> = object.get(first).into_iter().collect();
    for step in rest {
        found = found.into_iter().flat_map(flat).filter_map(|value| value.get(step.as_str())).collect();
    }
    found
}

/// The items of a list, or the value itself.
fn flat(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(items) => items.iter().collect(),
        other => vec![other],
    }
}

fn plain(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) if text.is_empty() => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

fn age(object: &Object, now: jiff::Timestamp) -> String {
    match object.meta("creationTimestamp").parse::<jiff::Timestamp>() {
        Ok(created) => duration(now.as_second() - created.as_second()),
        Err(_) => "<unknown>".into(),
    }
}

/// A time span in as few words as people need: two units where it is short, one where it is long.
pub(crate) fn duration(seconds: i64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let pair = |large: i64, unit: &str, small: i64, small_unit: &str| match small {
        0 => format!("{large}{unit}"),
        small => format!("{large}{unit}{small}{small_unit}"),
    };
    match seconds {
        ..0 => "0s".into(),
        0..120 => format!("{seconds}s"),
        120..600 => pair(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => pair(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => pair(days, "d", hours % 24, "h"),
        691_200..63_072_000 => format!("{days}d"),
        63_072_000..252_288_000 => pair(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

fn parse(text: &'static str) -> HashMap<&'static str, Vec<Column>> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let rows = lines.filter_map(|line| {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        Some((name, words.filter_map(column).collect()))
    });
    rows.collect()
}

fn column(word: &str) -> Option<Column> {
    let (title, what) = word.split_once('=')?;
    let (wide, title) = match title.strip_prefix('+') {
        Some(title) => (true, title),
        None => (false, title),
    };
    // A dash within a word, as in Up-to-date, is a dash; before a capital letter it is a space.
    let mut spaced = String::new();
    let mut letters = title.chars().peekable();
    while let Some(letter) = letters.next() {
        let space = letter == '-' && letters.peek().is_some_and(|next| next.is_uppercase()) && !title.ends_with("IP");
        spaced.push(if space { ' ' } else { letter });
    }
    Some(Column { title: spaced, wide, what: expression(what) })
}

fn expression(text: &str) -> What {
    let path = |text: &str| text.split('.').map(str::to_string).collect::<Vec<String>>();
    let Some((function, rest)) = text.split_once('(') else { return What::Path(path(text)) };
    let inside = rest.strip_suffix(')').unwrap_or(rest);
    let (first, second) = split_arguments(inside);
    match function {
        "count" => What::Count(path(inside)),
        "keys" => What::Keys(path(inside)),
        "join" => What::Join(path(inside)),
        "of" => What::Of(Box::new(expression(first)), Box::new(expression(second))),
        "or" => What::Or(Box::new(expression(first)), second.to_string()),
        _ => What::Path(path(text)),
    }
}

/// The arguments on both sides of the comma that stands in no further parentheses.
fn split_arguments(text: &str) -> (&str, &str) {
    let mut depth = 0;
    for (offset, letter) in text.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => return (&text[..offset], &text[offset + 1..]),
            _ => {}
        }
    }
    (text, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(expression_text: &str, object: Value, expected: Option<&str>) {
        let object = Object::from_value(object).unwrap();
        assert_eq!(text(&object, &expression(expression_text)).as_deref(), expected, "{expression_text}");
    }

    #[test]
    fn cells_say_what_their_columns_ask() {
        check("status.phase", json!({"status": {"phase": "Active"}}), Some("Active"));
        check("status.phase", json!({}), None);
        check("or(status.phase,<none>)", json!({}), Some("<none>"));
        check("count(data)", json!({"data": {"a": "1", "b": "2"}}), Some("2"));
        check("count(data)", json!({}), Some("0"));
        check("keys(data)", json!({"data": {"a": "1", "b": "2"}}), Some("a,b"));
        check("join(spec.ports.port)", json!({"spec": {"ports": [{"port": 80}, {"port": 443}]}}), Some("80,443"));
        check("of(status.readyReplicas,spec.replicas)", json!({"spec": {"replicas": 3}}), Some("0/3"));
        check("of(count(a.b),count(c.d))", json!({"c": {"d": [1]}}), Some("0/1"));
        check("or(join(spec.externalIPs),<none>)", json!({"spec": {}}), Some("<none>"));
    }

    #[test]
    fn every_row_of_the_columns_names_a_resource_that_exists() {
        let config = crate::builtin::RuntimeConfig { all_alphas: true, all_betas: true, versions: Vec::new() };
        let resources = crate::builtin::resources(crate::release::Release::NEWEST, &config).unwrap();
        let known: Vec<String> = resources
            .iter()
            .map(|resource| match resource.group_resource.group() {
                "" => format!("core/{}", resource.group_resource.resource()),
                group => format!("{group}/{}", resource.group_resource.resource()),
            })
            .collect();
        for name in COLUMNS.keys() {
            assert!(known.iter().any(|known| known == name), "{name}");
        }
    }

    #[test]
    fn ages_are_short() {
        for (seconds, expected) in [
            (-5, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (601, "10m"),
            (7300, "121m"),
            (10_800, "3h"),
            (11_000, "3h3m"),
            (30_000, "8h"),
            (180_000, "2d2h"),
            (700_000, "8d"),
            (63_072_000 + 86_400, "2y1d"),
            (400_000_000, "12y"),
        ] {
            assert_eq!(duration(seconds), expected, "{seconds}");
        }
    }
}
