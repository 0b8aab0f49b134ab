//! Validates a value by a schema: types, limits, formats, enums, compositions.
//!
//! Nothing is allocated for a valid value. Each level also counts how many of its checks passed, because the errors
//! that are reported for `anyOf` and `oneOf` are those of the branch with the most passed checks.

use serde_json::{Map, Value};

use crate::correlate::Correlated;
use crate::format::Format;
use crate::node::{Additional, Composition, Kind, Limits, Node};
use crate::number::{self, NumberFault};
use crate::path::Path;
use crate::problem::{Problem, ProblemKind};
use restow_apimachinery::go_syntax::{quote, show};

/// The maximum number of levels that are checked for one object, so that a large object with a large composition ends
/// in time.
const MOST_STEPS: u64 = 20_000_000;

/// Validates a resource, or a default at the path `prefix`. With an old value, errors of unchanged parts are ignored.
pub(crate) fn check(node: &Node, value: &Value, old: Option<&Value>, prefix: Option<&str>) -> Vec<Problem> {
    // Most objects are valid; then ratcheting is not needed.
    if old.is_some() && check(node, value, None, prefix).is_empty() {
        return Vec::new();
    }
    let mut validator = Validator { problems: Vec::new(), prefix, steps: 0 };
    let correlated = old.map(|old| Correlated { schema: node, new: value, old });
    validator.ratcheted(node, value, &Path::ROOT, correlated);
    if validator.steps > MOST_STEPS {
        let words = "the object is too large for so many alternatives in its schema";
        validator.problems.push(Problem::invalid("<nil>", "", words));
    }
    remove_repetitions(&mut validator.problems);
    validator.problems
}

fn remove_repetitions(problems: &mut Vec<Problem>) {
    if problems.len() > 1 {
        let mut seen = std::collections::HashSet::new();
        problems.retain(|problem| seen.insert(problem.to_string()));
    }
}

struct Validator<'a> {
    problems: Vec<Problem>,
    prefix: Option<&'a str>,
    steps: u64,
}

impl Validator<'_> {
    fn ratcheted(&mut self, node: &Node, value: &Value, path: &Path<'_>, old: Option<Correlated<'_>>) -> u32 {
        let before = self.problems.len();
        let matches = self.level(node, value, path, old);
        if self.problems.len() > before && old.is_some_and(Correlated::is_unchanged) {
            self.problems.truncate(before);
        }
        matches
    }

    fn level(&mut self, node: &Node, value: &Value, path: &Path<'_>, old: Option<Correlated<'_>>) -> u32 {
        self.steps += 1;
        if self.steps > MOST_STEPS {
            return 0;
        }
        if value.is_null() {
            let mut matches = 0;
            if node.has_types() && !node.nullable {
                self.wrong_type(path, node.type_names(), "null");
            } else {
                matches += 1;
            }
            self.choice(node, value, path);
            return matches;
        }
        let mut matches = 0;
        if node.has_types() || node.format.is_some() {
            matches += 1 + u32::from(self.type_of(node, value, path));
        }
        matches += 2;
        if let Some(composition) = &node.composition {
            matches += self.composition(composition, value, path, old);
        }
        match value {
            Value::String(text) => {
                matches += 1;
                if let Some(limits) = &node.limits {
                    self.text(limits, text, path);
                }
                if let Some(format @ Format::Text(_)) = node.format {
                    matches += 1;
                    if !format.admits(text) {
                        self.wrong_type(path, format.name(), text);
                    }
                }
            }
            Value::Number(number) => {
                matches += 2;
                self.number(node, number, path);
            }
            Value::Array(items) => matches += 2 + self.list(node, items, path, old),
            _ => {}
        }
        matches += 1;
        self.choice(node, value, path);
        if let Value::Object(fields) = value {
            matches += 1 + self.object(node, fields, path, old);
        }
        matches + 1
    }

    /// Whether the level allows the type of the value.
    fn type_of(&mut self, node: &Node, value: &Value, path: &Path<'_>) -> bool {
        let (kind, format) = match value {
            Value::Bool(_) => (Kind::Boolean, ""),
            Value::Number(number) if number.is_i64() => (Kind::Integer, "int64"),
            Value::Number(_) => (Kind::Number, "float64"),
            Value::String(_) => (Kind::String, ""),
            Value::Array(_) => (Kind::Array, ""),
            _ => (Kind::Object, ""),
        };
        let whole_float =
            kind == Kind::Number && node.admits(Kind::Integer) && value.as_f64().is_some_and(number::is_json_integer);
        let fits = node.admits(kind) || whole_float || (kind == Kind::Integer && node.admits(Kind::Number));
        let text_or_list = matches!(kind, Kind::String | Kind::Array);
        match node.format {
            Some(expected) if !text_or_list && !fits && format != expected.name() => {
                self.wrong_type(path, expected.name(), format);
                return false;
            }
            // With a format, only the format of a text is checked (in Kubernetes, also that of a list).
            Some(_) if text_or_list && !node.admits(Kind::Number) && !node.admits(Kind::Integer) => return true,
            _ => {}
        }
        if !fits {
            self.wrong_type(path, node.type_names(), kind.name());
        }
        fits
    }

    fn composition(
        &mut self,
        composition: &Composition,
        value: &Value,
        path: &Path<'_>,
        old: Option<Correlated<'_>>,
    ) -> u32 {
        let mut matches = 0;
        if !composition.any_of.is_empty() {
            let tried = self.branches(&composition.any_of, value, path, old, Stop::AtFirstSuccess);
            matches += tried.matches;
            if tried.succeeded == 0 {
                self.sentence(format!("{} must validate at least one schema (anyOf)", quote(&path.dotted())));
                self.problems.extend(tried.best_failures);
            }
        }
        if !composition.one_of.is_empty() {
            let tried = self.branches(&composition.one_of, value, path, old, Stop::Never);
            if tried.succeeded == 1 {
                matches += tried.matches;
            } else {
                let found = match tried.succeeded {
                    0 => "Found none valid".to_string(),
                    many => format!("Found {many} valid alternatives"),
                };
                let name = quote(&path.dotted());
                self.sentence(format!("{name} must validate one and only one schema (oneOf). {found}"));
                if tried.succeeded == 0 {
                    matches += tried.matches;
                    self.problems.extend(tried.best_failures);
                }
            }
        }
        let mut failed = 0;
        for branch in &composition.all_of {
            let before = self.problems.len();
            matches += self.level(branch, value, path, old);
            failed += usize::from(self.problems.len() > before);
        }
        if failed > 0 {
            let all = if failed == composition.all_of.len() { ". None validated" } else { "" };
            self.sentence(format!("{} must validate all the schemas (allOf){all}", quote(&path.dotted())));
        }
        if let Some(branch) = &composition.not {
            let before = self.problems.len();
            self.level(branch, value, path, old);
            let holds = self.problems.len() == before;
            self.problems.truncate(before);
            if holds {
                self.sentence(format!("{} must not validate the schema (not)", quote(&path.dotted())));
            }
        }
        matches
    }

    fn branches(
        &mut self,
        branches: &[Node],
        value: &Value,
        path: &Path<'_>,
        old: Option<Correlated<'_>>,
        stop: Stop,
    ) -> Tried {
        let mut tried = Tried { succeeded: 0, matches: 0, best_failures: Vec::new() };
        let mut best = None;
        for branch in branches {
            let before = self.problems.len();
            let matches = self.level(branch, value, path, old);
            if self.problems.len() == before {
                tried.succeeded += 1;
                if tried.succeeded == 1 {
                    tried.matches = matches;
                    tried.best_failures.clear();
                }
                if stop == Stop::AtFirstSuccess {
                    break;
                }
                continue;
            }
            let failures = self.problems.split_off(before);
            if tried.succeeded == 0 && best.is_none_or(|best| matches > best) {
                best = Some(matches);
                tried.matches = matches;
                tried.best_failures = failures;
            }
        }
        tried
    }

    fn text(&mut self, limits: &Limits, text: &str, path: &Path<'_>) {
        if limits.max_length.is_none() && limits.min_length.is_none() && limits.pattern.is_none() {
            return;
        }
        let length = || i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
        if let Some(limit) = limits.max_length.filter(|limit| length() > *limit) {
            self.problems.push(Problem::too_long(self.place(path), limit));
        } else if let Some(limit) = limits.min_length.filter(|limit| length() < *limit) {
            self.broken(path, text, &format!("should be at least {limit} chars long"));
        } else if let Some(pattern) = limits.pattern.as_ref().filter(|pattern| !pattern.is_match(text)) {
            self.broken(path, text, &format!("should match '{}'", pattern.source()));
        }
    }

    fn number(&mut self, node: &Node, number: &serde_json::Number, path: &Path<'_>) {
        if node.limits.is_none() && node.format.is_none() && node.kind != Some(Kind::Integer) {
            return;
        }
        for fault in number::faults(node, number, &|| path.dotted()) {
            match fault {
                NumberFault::Value { words, shown } => self.broken(path, shown, &format!("should be {words}")),
                NumberFault::Sentence(words) => self.sentence(words),
                NumberFault::Factor(factor) => {
                    let words =
                        format!("factor MultipleOf declared for {} must be positive: {}", path.dotted(), show(&factor));
                    self.problems.push(Problem::invalid(self.place(path), factor, words));
                }
            }
        }
    }

    fn list(&mut self, node: &Node, items: &[Value], path: &Path<'_>, old: Option<Correlated<'_>>) -> u32 {
        let mut matches = 0;
        if let Some(item) = &node.items {
            let old_items = old.map(Correlated::items);
            for (index, value) in items.iter().enumerate() {
                let old = old_items.as_ref().and_then(|old| old.correlated(value));
                matches += self.ratcheted(item, value, &path.index(index), old);
            }
        }
        let Some(limits) = &node.limits else { return matches };
        let size = i64::try_from(items.len()).unwrap_or(i64::MAX);
        if let Some(limit) = limits.min_items.filter(|limit| size < *limit) {
            self.broken(path, size, &format!("should have at least {limit} items"));
        }
        if let Some(limit) = limits.max_items.filter(|limit| size > *limit) {
            self.problems.push(Problem::too_many(self.place(path), items.len(), limit));
        }
        matches
    }

    fn choice(&mut self, node: &Node, value: &Value, path: &Path<'_>) {
        let Some(limits) = &node.limits else { return };
        if limits.choices.is_empty() || limits.choices.iter().any(|choice| number::equals_choice(value, choice)) {
            return;
        }
        let choices: Vec<String> = limits.choices.iter().map(number::choice_text).collect();
        let place = self.place(path);
        self.problems.push(Problem::not_supported(place, value.clone(), choices.iter().map(String::as_str)));
    }

    fn object(
        &mut self,
        node: &Node,
        fields: &Map<String, Value>,
        path: &Path<'_>,
        old: Option<Correlated<'_>>,
    ) -> u32 {
        let mut matches = 0;
        if let Some(limits) = &node.limits {
            let size = i64::try_from(fields.len()).unwrap_or(i64::MAX);
            if let Some(limit) = limits.min_properties.filter(|limit| size < *limit) {
                self.broken(path, size, &format!("should have at least {limit} properties"));
            }
            if let Some(limit) = limits.max_properties.filter(|limit| size > *limit) {
                self.problems.push(Problem::too_many(self.place(path), fields.len(), limit));
            }
        }
        for (name, value) in fields {
            let (child, here) = match (node.property(name), &node.additional) {
                (Some(child), _) => (child, path.field(name)),
                (None, Additional::Schema(child)) => (child.as_ref(), path.key(name)),
                (None, Additional::Refused) => {
                    let words = format!("{}.{name} in body is a forbidden property", path.dotted());
                    self.problems.push(Problem::invalid(self.place(path), name.as_str(), words));
                    continue;
                }
                _ => continue,
            };
            // The stored object has no `apiVersion` and `kind` at the root, so they always count as changed.
            let type_field = path.is_root() && (name == "kind" || name == "apiVersion");
            let old = old.filter(|_| !type_field).and_then(|old| old.field(name));
            matches += self.ratcheted(child, value, &here, old);
        }
        for name in &node.required {
            if !fields.contains_key(name.as_ref()) {
                let key = path.key(name);
                self.problems.push(Problem::required(self.place(&key), ""));
            }
        }
        matches
    }

    fn wrong_type(&mut self, path: &Path<'_>, expected: &str, actual: &str) {
        let words = format!("{} in body must be of type {expected}: {}", path.dotted(), quote(actual));
        self.problems.push(Problem::type_invalid(self.place(path), actual, words));
    }

    fn broken(&mut self, path: &Path<'_>, value: impl Into<Value>, words: &str) {
        let words = format!("{} in body {words}", path.dotted());
        self.problems.push(Problem::invalid(self.place(path), value, words));
    }

    /// Adds an error whose field is only in its message.
    fn sentence(&mut self, words: String) {
        let place = self.prefix.unwrap_or("<nil>").to_string();
        self.problems.push(Problem {
            kind: ProblemKind::Invalid,
            path: place,
            value: Some(Value::String(String::new())),
            detail: words,
        });
    }

    fn place(&self, path: &Path<'_>) -> String {
        let name = path.dotted();
        let name = name.strip_prefix('.').unwrap_or(&name);
        match self.prefix {
            Some(prefix) if name.is_empty() => prefix.to_string(),
            Some(prefix) => format!("{prefix}.{name}"),
            None if name.is_empty() => "<nil>".to_string(),
            None => name.to_string(),
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Stop {
    AtFirstSuccess,
    Never,
}

/// The result of trying alternatives.
struct Tried {
    succeeded: usize,
    matches: u32,
    best_failures: Vec<Problem>,
}
