//! The columns of built-in kinds, which are rows of `builtin/columns.txt`, and their cells.

use super::special;
use crate::printing::duration;
use restow_apimachinery::object::Object;
use restow_apimachinery::selector::selector_text;
use restow_tables::checked;
use restow_tables::columns::{self, Cell, Column, Function};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::LazyLock;

/// The short forms of access modes.
const MODES: [(&str, &str); 4] =
    [("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")];

static COLUMNS: LazyLock<HashMap<&'static str, Vec<Column<'static>>>> = LazyLock::new(|| {
    let rows = checked(columns::parse(include_str!("../builtin/columns.txt")));
    rows.into_iter().map(|row| (row.resource, row.columns)).collect()
});
static USUAL: LazyLock<Vec<Column<'static>>> = LazyLock::new(columns::usual);

/// The columns of a resource, as in `apps/deployments`.
pub(super) fn columns_of(name: &str) -> &'static [Column<'static>] {
    COLUMNS.get(name).unwrap_or(&USUAL)
}

/// The cell of an object: a number stays a number, everything else is text.
pub(super) fn cell(object: &Object, what: &Cell<'_>, now: jiff::Timestamp) -> Value {
    let Some(text) = text(object, what, now) else { return "".into() };
    match (what, text.parse::<i64>()) {
        (Cell::Name | Cell::Text(_), _) | (_, Err(_)) => text.into(),
        (_, Ok(number)) => number.into(),
    }
}

/// The text of a cell; `None` if it is empty.
fn text(object: &Object, what: &Cell<'_>, now: jiff::Timestamp) -> Option<String> {
    let of = |what: &Cell<'_>| text(object, what, now);
    match what {
        Cell::Name => Some(object.name().to_string()),
        Cell::Age => Some(age(&object.meta("creationTimestamp").into(), now).unwrap_or_else(|| "<unknown>".into())),
        Cell::Path(path) => values(object, path).first().and_then(|value| plain(value)),
        Cell::Text(text) => Some(text.to_string()),
        Cell::Of(function, path) => function_text(*function, &values(object, path), now),
        Cell::State(path, kind) => {
            let conditions = values(object, path).into_iter().flat_map(flat);
            conditions.filter(|it| it["type"] == *kind).find_map(|it| plain(&it["status"]))
        }
        Cell::Ended(path, otherwise) => {
            let mut conditions = values(object, path).into_iter().flat_map(flat).rev();
            let last = conditions.find(|it| it["status"] == "True");
            last.and_then(|it| plain(&it["type"])).or_else(|| Some(otherwise.to_string()))
        }
        Cell::Parts(part, whole) => {
            let number = |what| of(what).unwrap_or_else(|| "0".into());
            Some(format!("{}/{}", number(part), number(whole)))
        }
        Cell::Inside(outer, inner) => Some(format!("{}/{}", of(outer)?, of(inner)?)),
        Cell::First(first, second) => of(first).or_else(|| of(second)),
        Cell::Ending(_) if object.is_being_deleted() => Some("Terminating".into()),
        Cell::Ending(what) => of(what),
        Cell::Special(special) => special::cell(*special)(object),
    }
}

/// Applies a function to the values at a path.
fn function_text(function: Function, found: &[&Value], now: jiff::Timestamp) -> Option<String> {
    let fields = || found.first().and_then(|value| value.as_object()).into_iter().flatten();
    let joined = |parts: Vec<String>, between: &str| (!parts.is_empty()).then(|| parts.join(between));
    let items = || found.iter().flat_map(|value| flat(value));
    match function {
        Function::Count => Some(match found.first() {
            Some(Value::Array(items)) => items.len().to_string(),
            Some(Value::Object(fields)) => fields.len().to_string(),
            _ => "0".into(),
        }),
        Function::True => Some(items().filter(|value| **value == true).count().to_string()),
        Function::Sum => Some(items().filter_map(Value::as_i64).sum::<i64>().to_string()),
        Function::Keys => joined(fields().map(|(name, _)| name.clone()).collect(), ","),
        Function::Join => joined(items().filter_map(plain).collect(), ","),
        Function::Labels => {
            let pairs = fields().map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()));
            joined(pairs.collect(), ",")
        }
        Function::Selector => found.first().map(|value| selector_text(value)).filter(|text| !text.is_empty()),
        Function::Amounts => {
            let pairs = fields().map(|(name, value)| format!("{name}: {}", plain(value).unwrap_or_default()));
            joined(pairs.collect(), ", ")
        }
        Function::Requested => found.first().and_then(|status| joined(quota_shares(status, false), ", ")),
        Function::Limited => found.first().and_then(|status| joined(quota_shares(status, true), ", ")),
        Function::Lower => found.first().and_then(|value| plain(value)).map(|text| text.to_lowercase()),
        Function::Title => found.first().and_then(|value| plain(value)).map(|text| {
            let (first, rest) = text.split_at(text.chars().next().map_or(0, char::len_utf8));
            format!("{}{rest}", first.to_uppercase())
        }),
        Function::Ports => joined(items().map(port).collect(), ","),
        Function::Modes => {
            let short = |mode: &str| MODES.iter().find(|(long, _)| *long == mode).map(|(_, short)| *short);
            joined(items().filter_map(|mode| short(mode.as_str()?)).map(str::to_string).collect(), ",")
        }
        Function::Age => found.first().and_then(|value| age(value, now)),
    }
}

/// The used and hard amounts of a quota: those of limits, or all others.
fn quota_shares(status: &Value, held: bool) -> Vec<String> {
    let bounds = status["hard"].as_object().into_iter().flatten();
    let bounds = bounds.filter(|(name, _)| name.starts_with("limits.") == held);
    let share = |(name, bound): (&String, &Value)| {
        let used = plain(&status["used"][name]).unwrap_or_else(|| "0".into());
        format!("{name}: {used}/{}", plain(bound).unwrap_or_default())
    };
    bounds.map(share).collect()
}

fn port(port: &Value) -> String {
    let protocol = port["protocol"].as_str().unwrap_or("TCP");
    match port["nodePort"].as_i64() {
        Some(node) if node > 0 => format!("{}:{node}/{protocol}", port["port"]),
        _ => format!("{}/{protocol}", port["port"]),
    }
}

fn age(time: &Value, now: jiff::Timestamp) -> Option<String> {
    let time = time.as_str()?.parse::<jiff::Timestamp>().ok()?;
    Some(duration(now.as_second() - time.as_second()))
}

/// The values at a path. The path visits every item of a list.
fn values<'a>(object: &'a Object, path: &[&str]) -> Vec<&'a Value> {
    let Some((first, rest)) = path.split_first() else { return Vec::new() };
    let mut found: Vec<&Value> = object.get(first).into_iter().collect();
    for step in rest {
        found = found.into_iter().flat_map(flat).filter_map(|value| value.get(*step)).collect();
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(expression_text: &str, object: Value, expected: impl Into<Value>) {
        let object = Object::from_value(object).unwrap();
        let now = "2026-01-01T00:02:05Z".parse().unwrap();
        assert_eq!(
            cell(&object, &columns::parse_cell(expression_text).unwrap(), now),
            expected.into(),
            "{expression_text}"
        );
    }

    #[test]
    fn cells_have_the_values_of_their_columns() {
        check("status.phase", json!({"status": {"phase": "Active"}}), "Active");
        check("status.phase", json!({}), "");
        check("or(status.phase,<none>)", json!({}), "<none>");
        check("first(status.reason,status.phase)", json!({"status": {"phase": "Pending"}}), "Pending");
        check("count(data)", json!({"data": {"a": "1", "b": "2"}}), 2);
        check("count(data)", json!({}), 0);
        check("keys(data)", json!({"data": {"a": "1", "b": "2"}}), "a,b");
        check("join(spec.ports.port)", json!({"spec": {"ports": [{"port": 80}, {"port": 443}]}}), "80,443");
        check("of(status.readyReplicas,spec.replicas)", json!({"spec": {"replicas": 3}}), "0/3");
        check("of(true(a.b),count(c.d))", json!({"a": [{"b": true}, {"b": false}], "c": {"d": [1]}}), "1/1");
        check("sum(a.b)", json!({"a": [{"b": 2}, {"b": 3}]}), 5);
        check("or(join(spec.externalIPs),<none>)", json!({"spec": {}}), "<none>");
        check("or(labels(spec.selector),<none>)", json!({"spec": {"selector": {"a": "b", "c": "d"}}}), "a=b,c=d");
        check("selector(spec.selector)", json!({"spec": {"selector": {"matchLabels": {"a": "b"}}}}), "a=b");
        check(
            "ports(a)",
            json!({"a": [{"port": 80, "nodePort": 30080}, {"port": 1, "protocol": "UDP"}]}),
            "80:30080/TCP,1/UDP",
        );
        check("modes(a)", json!({"a": ["ReadWriteOnce", "ReadOnlyMany"]}), "RWO,ROX");
        let quota = json!({"s": {"hard": {"pods": "2", "limits.cpu": "1"}, "used": {"pods": "1"}}});
        check("requested(s)", quota.clone(), "pods: 1/2");
        check("limited(s)", quota, "limits.cpu: 0/1");
        check("title(a)", json!({"a": false}), "False");
        check("lower(a)", json!({"a": "Pod"}), "pod");
        check("in(a.b,a.c)", json!({"a": {"b": "x", "c": "y"}}), "x/y");
        check("age(a)", json!({"a": "2026-01-01T00:00:00Z"}), "2m5s");
        let conditions = json!({"c": [{"type": "A", "status": "True"}, {"type": "B", "status": "False"}]});
        check("state(c,B)", conditions.clone(), "False");
        check("ended(c,None)", conditions, "A");
        check("ending(a)", json!({"a": "x", "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), "Terminating");
    }
}
