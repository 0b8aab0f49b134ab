//! The columns of built-in kinds: reading `builtin/columns.txt`, and what stands in a cell.

use super::special;
use crate::printing::duration;
use restow_apimachinery::object::Object;
use restow_apimachinery::selector::selector_text;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::LazyLock;

/// A column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) title: String,
    pub(super) wide: bool,
    pub(super) what: What,
}

/// What stands in a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// The object's name, and how old it is.
    Name,
    Age,
    Path(Vec<String>),
    Text(String),
    /// Something made of the values at a path.
    Of(Function, Vec<String>),
    /// The status of a condition, and the last one that holds.
    State(Vec<String>, String),
    Ended(Vec<String>, String),
    Parts(Box<What>, Box<What>),
    Inside(Box<What>, Box<What>),
    First(Box<What>, Box<What>),
    Ending(Box<What>),
    /// Something that follows from the whole object, by its name.
    Special(String),
}

/// What is made of the values at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    Count,
    True,
    Sum,
    Keys,
    Join,
    Labels,
    Selector,
    Amounts,
    Requested,
    Limited,
    Lower,
    Title,
    Ports,
    Modes,
    Age,
}

const FUNCTIONS: [(&str, Function); 15] = [
    ("count", Function::Count),
    ("true", Function::True),
    ("sum", Function::Sum),
    ("keys", Function::Keys),
    ("join", Function::Join),
    ("labels", Function::Labels),
    ("selector", Function::Selector),
    ("amounts", Function::Amounts),
    ("requested", Function::Requested),
    ("limited", Function::Limited),
    ("lower", Function::Lower),
    ("title", Function::Title),
    ("ports", Function::Ports),
    ("modes", Function::Modes),
    ("age", Function::Age),
];

/// The short forms of access modes.
const MODES: [(&str, &str); 4] =
    [("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")];

static COLUMNS: LazyLock<HashMap<&'static str, Vec<Column>>> =
    LazyLock::new(|| parse(include_str!("../builtin/columns.txt")));
static USUAL: LazyLock<Vec<Column>> = LazyLock::new(|| row(""));

/// The columns of a resource, as in `apps/deployments`.
pub(super) fn columns_of(name: &str) -> &'static [Column] {
    COLUMNS.get(name).unwrap_or(&USUAL)
}

/// What stands in the cell of an object: numbers as such, everything else as text.
pub(super) fn cell(object: &Object, what: &What, now: jiff::Timestamp) -> Value {
    let Some(text) = text(object, what, now) else { return "".into() };
    match (what, text.parse::<i64>()) {
        (What::Name | What::Text(_), _) | (_, Err(_)) => text.into(),
        (_, Ok(number)) => number.into(),
    }
}

/// What a cell says; `None` where there is nothing to say.
fn text(object: &Object, what: &What, now: jiff::Timestamp) -> Option<String> {
    let of = |what: &What| text(object, what, now);
    match what {
        What::Name => Some(object.name().to_string()),
        What::Age => Some(age(&object.meta("creationTimestamp").into(), now).unwrap_or_else(|| "<unknown>".into())),
        What::Path(path) => values(object, path).first().and_then(|value| plain(value)),
        What::Text(text) => Some(text.clone()),
        What::Of(function, path) => function.text(&values(object, path), now),
        What::State(path, kind) => {
            let conditions = values(object, path).into_iter().flat_map(flat);
            conditions.filter(|it| it["type"] == kind.as_str()).find_map(|it| plain(&it["status"]))
        }
        What::Ended(path, otherwise) => {
            let mut conditions = values(object, path).into_iter().flat_map(flat).rev();
            let last = conditions.find(|it| it["status"] == "True");
            last.and_then(|it| plain(&it["type"])).or_else(|| Some(otherwise.clone()))
        }
        What::Parts(part, whole) => {
            let number = |what| of(what).unwrap_or_else(|| "0".into());
            Some(format!("{}/{}", number(part), number(whole)))
        }
        What::Inside(outer, inner) => Some(format!("{}/{}", of(outer)?, of(inner)?)),
        What::First(first, second) => of(first).or_else(|| of(second)),
        What::Ending(_) if object.is_being_deleted() => Some("Terminating".into()),
        What::Ending(what) => of(what),
        What::Special(name) => special::find(name).and_then(|cell| cell(object)),
    }
}

impl Function {
    fn text(self, found: &[&Value], now: jiff::Timestamp) -> Option<String> {
        let fields = || found.first().and_then(|value| value.as_object()).into_iter().flatten();
        let joined = |parts: Vec<String>, between: &str| (!parts.is_empty()).then(|| parts.join(between));
        let items = || found.iter().flat_map(|value| flat(value));
        match self {
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
}

/// What is used of each bound of a quota: of what pods are held to, or of everything else.
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

fn parse(text: &'static str) -> HashMap<&'static str, Vec<Column>> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.map(|line| line.split_once(' ').unwrap_or((line, ""))).map(|(name, rest)| (name, row(rest))).collect()
}

/// The columns that a row names, with the name and the age where they belong.
fn row(text: &str) -> Vec<Column> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let says = |wanted: &str| words.iter().any(|word| word.trim_start_matches(['+', '-']) == wanted);
    let mut columns: Vec<Column> = words.iter().filter_map(|word| column(word)).collect();
    let own = |title: &str, what| Column { title: title.into(), wide: false, what };
    if !says("Name") {
        columns.insert(0, own("Name", What::Name));
    }
    if !says("Age") {
        columns.push(own("Age", What::Age));
    }
    columns
}

fn column(word: &str) -> Option<Column> {
    let (wide, word) = word.strip_prefix('+').map_or((false, word), |word| (true, word));
    let (title, what) = match word {
        "Name" => (word, What::Name),
        "Age" => (word, What::Age),
        _ => word.split_once('=').map(|(title, what)| (title, expression(what)))?,
    };
    Some(Column { title: title.replace('_', " "), wide, what })
}

fn expression(text: &str) -> What {
    let path = |text: &str| text.split('.').map(str::to_string).collect::<Vec<String>>();
    let Some((function, rest)) = text.split_once('(') else { return What::Path(path(text)) };
    let inside = rest.strip_suffix(')').unwrap_or(rest);
    let (first, second) = split_arguments(inside);
    let both = || (Box::new(expression(first)), Box::new(expression(second)));
    if let Some((_, function)) = FUNCTIONS.iter().find(|(name, _)| *name == function) {
        return What::Of(*function, path(inside));
    }
    match (function, both()) {
        ("of", (part, whole)) => What::Parts(part, whole),
        ("in", (outer, inner)) => What::Inside(outer, inner),
        ("first", (first, second)) => What::First(first, second),
        ("ending", (what, _)) => What::Ending(what),
        ("or", (what, _)) => What::First(what, Box::new(What::Text(second.to_string()))),
        ("is", _) => What::Text(inside.to_string()),
        ("special", _) => What::Special(inside.to_string()),
        ("state", _) => What::State(path(first), second.to_string()),
        ("ended", _) => What::Ended(path(first), second.to_string()),
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
    use serde_json::json;

    fn check(expression_text: &str, object: Value, expected: impl Into<Value>) {
        let object = Object::from_value(object).unwrap();
        let now = "2026-01-01T00:02:05Z".parse().unwrap();
        assert_eq!(cell(&object, &expression(expression_text), now), expected.into(), "{expression_text}");
    }

    #[test]
    fn cells_say_what_their_columns_ask() {
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

    #[test]
    fn the_name_is_first_and_the_age_last_unless_a_row_says_otherwise() {
        let titles = |text: &str| row(text).into_iter().map(|column| column.title).collect::<Vec<_>>();
        assert_eq!(titles("A_b=x"), ["Name", "A b", "Age"]);
        assert_eq!(titles("A=x Age +B=y"), ["Name", "A", "Age", "B"]);
        assert_eq!(titles("A=x +Name -Age"), ["A", "Name"]);
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
        for column in COLUMNS.values().flatten() {
            let mut what = &column.what;
            while let What::First(first, _) = what {
                what = first;
            }
            if let What::Special(name) = what {
                assert!(special::find(name).is_some(), "{name}");
            }
        }
        for name in COLUMNS.keys() {
            assert!(known.iter().any(|known| known == name), "{name}");
        }
    }
}
