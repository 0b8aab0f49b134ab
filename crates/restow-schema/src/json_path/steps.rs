//! JSONPath of printer columns: parsed once, evaluated often.

use serde_json::Value;

/// A parsed path.
#[derive(Clone, Debug, PartialEq)]
pub struct JsonPath {
    steps: Vec<Step>,
}

/// An invalid path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct JsonPathError(String);

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Fields(Vec<String>),
    Indices(Vec<i64>),
    Slice { from: Option<i64>, to: Option<i64>, by: i64 },
    All,
    Descend,
    Filter { path: Vec<Step>, operator: Operator, value: Option<Value> },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Operator {
    Exists,
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// The maximum number of values that a path returns.
const MOST_RESULTS: usize = 10_000;

impl JsonPath {
    /// Parses a path such as `.status.conditions[?(@.type=="Ready")].status`. Braces around it are ignored.
    pub fn parse(text: &str) -> Result<JsonPath, JsonPathError> {
        let text = text.trim();
        let text = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')).unwrap_or(text);
        let text = text.strip_prefix('$').unwrap_or(text);
        let mut parser = Parser { rest: text, depth: 0 };
        let steps = parser.steps(&[])?;
        match parser.rest {
            "" => Ok(JsonPath { steps }),
            rest => Err(JsonPathError(format!("unexpected {rest:?} in a path"))),
        }
    }

    /// All values at the path.
    pub fn find<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        walk(&self.steps, value)
    }
}

fn walk<'a>(steps: &[Step], value: &'a Value) -> Vec<&'a Value> {
    let mut current = vec![value];
    for step in steps {
        let mut next = Vec::new();
        for value in current {
            apply(step, value, &mut next);
            next.truncate(MOST_RESULTS);
        }
        current = next;
    }
    current
}

fn apply<'a>(step: &Step, value: &'a Value, out: &mut Vec<&'a Value>) {
    match step {
        Step::Fields(names) => out.extend(names.iter().filter_map(|name| value.get(name))),
        Step::Indices(indices) => {
            let Some(items) = value.as_array() else { return };
            let place = |index: i64| if index < 0 { items.len() as i64 + index } else { index };
            out.extend(indices.iter().filter_map(|index| items.get(usize::try_from(place(*index)).ok()?)));
        }
        Step::Slice { from, to, by } => {
            let Some(items) = value.as_array() else { return };
            let length = items.len() as i64;
            let bound = |index: i64| if index < 0 { (length + index).max(0) } else { index.min(length) };
            let (from, to) = (bound(from.unwrap_or(0)), bound(to.unwrap_or(length)));
            let count = usize::try_from(to - from).unwrap_or(0);
            let step = usize::try_from(*by).unwrap_or(1).max(1);
            out.extend(items.iter().skip(usize::try_from(from).unwrap_or(0)).take(count).step_by(step));
        }
        Step::All => out.extend(children(value)),
        Step::Descend => {
            let mut pending = vec![value];
            while let Some(value) = pending.pop() {
                if out.len() >= MOST_RESULTS {
                    return;
                }
                out.push(value);
                let mut below: Vec<&Value> = children(value).collect();
                below.reverse();
                pending.extend(below);
            }
        }
        Step::Filter { path, operator, value: literal } => {
            out.extend(children(value).filter(|item| {
                walk(path, item).first().is_some_and(|found| holds(*operator, found, literal.as_ref()))
            }));
        }
    }
}

fn children(value: &Value) -> Box<dyn Iterator<Item = &Value> + '_> {
    match value {
        Value::Array(items) => Box::new(items.iter()),
        Value::Object(fields) => Box::new(fields.values()),
        _ => Box::new(std::iter::empty()),
    }
}

fn holds(operator: Operator, found: &Value, literal: Option<&Value>) -> bool {
    let Some(literal) = literal else { return true };
    let order = match (found, literal) {
        (Value::String(left), Value::String(right)) => Some(left.cmp(right)),
        (Value::Number(left), Value::Number(right)) => {
            left.as_f64().zip(right.as_f64()).and_then(|(left, right)| left.partial_cmp(&right))
        }
        (left, right) if left == right => Some(std::cmp::Ordering::Equal),
        _ => None,
    };
    match operator {
        Operator::Exists => true,
        Operator::Equal => order.is_some_and(|order| order.is_eq()),
        Operator::NotEqual => !order.is_some_and(|order| order.is_eq()),
        Operator::Less => order.is_some_and(|order| order.is_lt()),
        Operator::LessOrEqual => order.is_some_and(|order| order.is_le()),
        Operator::Greater => order.is_some_and(|order| order.is_gt()),
        Operator::GreaterOrEqual => order.is_some_and(|order| order.is_ge()),
    }
}

struct Parser<'a> {
    rest: &'a str,
    depth: usize,
}

impl Parser<'_> {
    /// Parses steps until the end or until one of `stops` begins.
    fn steps(&mut self, stops: &[&str]) -> Result<Vec<Step>, JsonPathError> {
        let mut steps = Vec::new();
        while !self.rest.is_empty() && !stops.iter().any(|stop| self.rest.starts_with(stop)) {
            if self.eat("..") {
                steps.push(Step::Descend);
                if !self.rest.starts_with('[') {
                    steps.push(self.name());
                }
            } else if self.eat(".") {
                if !self.rest.starts_with('[') && !self.rest.is_empty() {
                    steps.push(self.name());
                }
            } else if self.eat("[") {
                steps.push(self.bracket()?);
            } else if steps.is_empty() {
                steps.push(self.name());
            } else {
                return Err(JsonPathError(format!("unexpected {:?} in a path", self.rest)));
            }
        }
        Ok(steps)
    }

    /// Parses a name after a dot. A backslash escapes the next character.
    fn name(&mut self) -> Step {
        let mut name = String::new();
        let mut characters = self.rest.char_indices();
        let mut end = self.rest.len();
        while let Some((index, character)) = characters.next() {
            match character {
                '\\' => name.extend(characters.next().map(|(_, escaped)| escaped)),
                '.' | '[' | ']' | ')' | ' ' | '=' | '!' | '<' | '>' | '}' => {
                    end = index;
                    break;
                }
                plain => name.push(plain),
            }
        }
        self.rest = self.rest.get(end..).unwrap_or_default();
        if name == "*" { Step::All } else { Step::Fields(vec![name]) }
    }

    fn bracket(&mut self) -> Result<Step, JsonPathError> {
        self.skip_spaces();
        let step = if self.eat("*") {
            Step::All
        } else if self.eat("?(") {
            self.filter()?
        } else if self.rest.starts_with(['\'', '"']) {
            let mut names = vec![self.quoted()?];
            while self.eat(",") {
                self.skip_spaces();
                names.push(self.quoted()?);
            }
            Step::Fields(names)
        } else {
            self.indices()?
        };
        self.skip_spaces();
        if self.eat("]") { Ok(step) } else { Err(JsonPathError("unterminated array".to_string())) }
    }

    fn indices(&mut self) -> Result<Step, JsonPathError> {
        let end = self.rest.find(']').ok_or_else(|| JsonPathError("unterminated array".to_string()))?;
        let (body, rest) = self.rest.split_at(end);
        self.rest = rest;
        let invalid = || JsonPathError(format!("invalid array index {body}"));
        let number = |text: &str| text.trim().parse::<i64>().map_err(|_| invalid());
        if !body.contains(':') {
            return Ok(Step::Indices(body.split(',').map(number).collect::<Result<_, _>>()?));
        }
        let mut bounds = [None, None, None];
        for (place, part) in body.split(':').enumerate() {
            let bound = bounds.get_mut(place).ok_or_else(invalid)?;
            if !part.trim().is_empty() {
                *bound = Some(number(part)?);
            }
        }
        let [from, to, by] = bounds;
        match by.unwrap_or(1) {
            by if by > 0 => Ok(Step::Slice { from, to, by }),
            _ => Err(invalid()),
        }
    }

    fn filter(&mut self) -> Result<Step, JsonPathError> {
        self.depth += 1;
        if self.depth > 8 {
            return Err(JsonPathError("filters are nested too deeply".to_string()));
        }
        self.skip_spaces();
        if !self.eat("@") {
            return Err(JsonPathError("a filter begins with @".to_string()));
        }
        let path = self.steps(&["==", "!=", "<", ">", ")", " "])?;
        self.skip_spaces();
        let operators = [
            ("==", Operator::Equal),
            ("!=", Operator::NotEqual),
            ("<=", Operator::LessOrEqual),
            (">=", Operator::GreaterOrEqual),
            ("<", Operator::Less),
            (">", Operator::Greater),
        ];
        let operator = operators.into_iter().find(|(text, _)| self.eat(text)).map(|(_, operator)| operator);
        let value = match operator {
            Some(_) => {
                self.skip_spaces();
                Some(self.literal()?)
            }
            None => None,
        };
        self.skip_spaces();
        if !self.eat(")") {
            return Err(JsonPathError("unterminated filter".to_string()));
        }
        self.depth -= 1;
        Ok(Step::Filter { path, operator: operator.unwrap_or(Operator::Exists), value })
    }

    fn literal(&mut self) -> Result<Value, JsonPathError> {
        if self.rest.starts_with(['\'', '"']) {
            return self.quoted().map(Value::String);
        }
        let end = self.rest.find([')', ' ']).unwrap_or(self.rest.len());
        let (text, rest) = self.rest.split_at(end);
        self.rest = rest;
        serde_json::from_str(text).map_err(|_| JsonPathError(format!("{text:?} is not a literal")))
    }

    fn quoted(&mut self) -> Result<String, JsonPathError> {
        let quote = self.rest.chars().next().unwrap_or('\'');
        let mut text = String::new();
        let mut characters = self.rest.char_indices().skip(1);
        while let Some((index, character)) = characters.next() {
            match character {
                '\\' => text.extend(characters.next().map(|(_, escaped)| escaped)),
                end if end == quote => {
                    self.rest = self.rest.get(index + 1..).unwrap_or_default();
                    return Ok(text);
                }
                plain => text.push(plain),
            }
        }
        Err(JsonPathError("unterminated quoted string".to_string()))
    }

    fn eat(&mut self, text: &str) -> bool {
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn skip_spaces(&mut self) {
        self.rest = self.rest.trim_start();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn json_paths_find_the_values_of_printer_columns() {
        let object = json!({
            "metadata": {"labels": {"app.kubernetes.io/name": "web"}},
            "spec": {"replicas": 3, "items": [{"a": 1}, {"a": 2}, {"a": 3}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Other", "status": "False"}]},
        });
        let cases = [
            (".spec.replicas", json!([3])),
            (".status.conditions[?(@.type==\"Ready\")].status", json!(["True"])),
            (".status.conditions[?(@.type == 'Ready')].status", json!(["True"])),
            (".status.conditions[0].type", json!(["Ready"])),
            (".status.conditions[-1:].type", json!(["Other"])),
            (".status.conditions[-1].type", json!(["Other"])),
            (".spec.items[*].a", json!([1, 2, 3])),
            (".spec.items[0:2].a", json!([1, 2])),
            (".spec.items[?(@.a>1)].a", json!([2, 3])),
            (".metadata.labels.app\\.kubernetes\\.io/name", json!(["web"])),
            (".metadata.labels['app.kubernetes.io/name']", json!(["web"])),
            ("{.spec..a}", json!([1, 2, 3])),
            (".spec.missing.deep", json!([])),
        ];
        for (path, expected) in cases {
            let found = JsonPath::parse(path).unwrap();
            assert_eq!(json!(found.find(&object)), expected, "{path}");
        }
    }

    #[test]
    fn invalid_json_paths_are_refused() {
        for path in [".a[", ".a[x]", ".a[?(@.b==]", ".a['b", ".a[0:1:0]", ".a[?(b)]"] {
            assert!(JsonPath::parse(path).is_err(), "{path}");
        }
    }
}
