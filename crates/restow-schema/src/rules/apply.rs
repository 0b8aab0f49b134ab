//! Applying rules to objects.

use std::cell::OnceCell;

use serde_json::Value;

use super::ValidationRule;
use crate::cel::{EvalError, Evaluation, PER_CALL_LIMIT, Val};
use crate::correlate::{Correlated, OldItems};
use crate::node::{Additional, Kind, Node};
use crate::path::Path;
use crate::problem::Problem;

/// The cost limit of all rules on one object.
const BUDGET: u64 = 10_000_000;
/// The maximum length of a message from an expression.
const LONGEST_MESSAGE: usize = 5 * 1024;

/// Applies all rules of a schema. With an old object, transition rules apply, and errors of unchanged parts are
/// ignored.
pub(crate) fn check(node: &Node, value: &Value, old: Option<&Value>) -> Vec<Problem> {
    if !node.below.rules {
        return Vec::new();
    }
    let mut applier = Applier { problems: Vec::new(), budget: BUDGET, exhausted: false };
    let ratchet = Ratchet { here: old.map(|old| Correlated { schema: node, new: value, old }), above: None };
    applier.level(node, value, old, &Path::ROOT, ratchet);
    applier.problems
}

struct Applier {
    problems: Vec<Problem>,
    budget: u64,
    exhausted: bool,
}

/// The correlated old value of a value, or of its nearest parent that has one.
#[derive(Clone, Copy)]
struct Ratchet<'a> {
    here: Option<Correlated<'a>>,
    above: Option<Above<'a>>,
}

/// A parent value, and whether it is unchanged. All its children need this, so it is computed once.
#[derive(Clone, Copy)]
struct Above<'a> {
    value: Correlated<'a>,
    is_unchanged: &'a OnceCell<bool>,
}

impl<'a> Ratchet<'a> {
    fn is_unchanged(self) -> bool {
        match (self.here, self.above) {
            (Some(here), _) => here.is_unchanged(),
            (None, Some(above)) => *above.is_unchanged.get_or_init(|| above.value.is_unchanged()),
            (None, None) => false,
        }
    }

    fn field(self, name: &str, is_unchanged: &'a OnceCell<bool>) -> Ratchet<'a> {
        match self.here {
            None => self,
            // The stored object has no `apiVersion` and `kind` at the root, so they always count as changed.
            Some(_) if self.above.is_none() && (name == "apiVersion" || name == "kind") => {
                Ratchet { here: None, above: None }
            }
            Some(here) => Ratchet { here: here.field(name), above: Some(Above { value: here, is_unchanged }) },
        }
    }

    fn item(self, old: Option<Correlated<'a>>, is_unchanged: &'a OnceCell<bool>) -> Ratchet<'a> {
        match self.here {
            None => self,
            Some(here) => Ratchet { here: old, above: Some(Above { value: here, is_unchanged }) },
        }
    }
}

impl Applier {
    fn level<'a>(
        &mut self,
        node: &'a Node,
        value: &'a Value,
        old: Option<&'a Value>,
        path: &Path<'_>,
        ratchet: Ratchet<'a>,
    ) {
        if value.is_null() || self.exhausted || !node.below.rules {
            return;
        }
        if !node.rules.is_empty() {
            self.rules(node, value, old.filter(|old| !old.is_null()), path, ratchet);
        }
        let is_unchanged = OnceCell::new();
        match value {
            Value::Object(fields) => {
                for (name, field) in fields {
                    if self.exhausted {
                        return;
                    }
                    let (child, here) = match (node.property(name), &node.additional) {
                        (Some(child), _) => (child, path.field(name)),
                        (None, Additional::Schema(child)) => (child.as_ref(), path.key(name)),
                        _ => continue,
                    };
                    if child.below.rules {
                        let old = old.and_then(|old| old.get(name));
                        self.level(child, field, old, &here, ratchet.field(name, &is_unchanged));
                    }
                }
            }
            Value::Array(items) => {
                let Some(child) = node.items.as_deref().filter(|child| child.below.rules) else { return };
                let old_items = OldItems::new(node, old.and_then(Value::as_array).map(Vec::as_slice));
                for (index, item) in items.iter().enumerate() {
                    if self.exhausted {
                        return;
                    }
                    let here = ratchet.here.and_then(|_| old_items.correlated(item));
                    let old = old_items.matching(item);
                    self.level(child, item, old, &path.index(index), ratchet.item(here, &is_unchanged));
                }
            }
            _ => {}
        }
    }

    fn rules(&mut self, node: &Node, value: &Value, old: Option<&Value>, path: &Path<'_>, ratchet: Ratchet<'_>) {
        for rule in &node.rules {
            if rule.uses_old && old.is_none() && !rule.optional_old {
                continue;
            }
            if self.budget == 0 {
                self.stop(
                    node,
                    path,
                    "validation failed due to running out of cost budget, no further validation rules will be run"
                        .to_string(),
                );
                return;
            }
            let old = old.map(|old| Val::from_json(old, Some(node)));
            let old = if rule.optional_old { Some(old.map_or(Val::Optional(None), Val::some)) } else { old };
            let variables = [Some(Val::from_json(value, Some(node))), old];
            let mut evaluation = Evaluation::new(&variables, PER_CALL_LIMIT);
            let outcome = evaluation.run(rule.program.code());
            let cost = evaluation.cost();
            if cost > self.budget {
                self.stop(
                    node,
                    path,
                    "validation failed due to running out of cost budget, no further validation rules will be run"
                        .to_string(),
                );
                return;
            }
            self.budget -= cost;
            match outcome {
                Ok(Val::Bool(true)) => {}
                Ok(_) => {
                    let detail = self.message(rule, &variables);
                    if rule.uses_old || !ratchet.is_unchanged() {
                        self.problems.push(broken(node, rule, value, path, detail));
                    }
                }
                Err(error) => self.failed(node, rule, path, &error),
            }
            if self.exhausted {
                return;
            }
        }
    }

    /// The message of a failed rule: from its message expression if that succeeds, else the fixed message.
    fn message<'a>(&mut self, rule: &'a ValidationRule, variables: &'a [Option<Val<'a>>]) -> String {
        if let Some(program) = &rule.message_program {
            let mut evaluation = Evaluation::new(variables, PER_CALL_LIMIT.min(self.budget));
            let outcome = evaluation.run(program.code());
            self.budget = self.budget.saturating_sub(evaluation.cost());
            if let Ok(Val::Text(text)) = outcome {
                let text = text.as_str().trim();
                if !text.is_empty() && text.len() <= LONGEST_MESSAGE && !text.contains('\n') {
                    return text.to_string();
                }
            }
        }
        match rule.message.trim() {
            "" => format!("failed rule: {}", rule.text.trim()),
            message => message.to_string(),
        }
    }

    fn failed(&mut self, node: &Node, rule: &ValidationRule, path: &Path<'_>, error: &EvalError) {
        let name = match rule.message.trim() {
            "" => rule.text.trim(),
            message => message,
        };
        let words = match error {
            error if error.to_string().starts_with("no such overload") => format!(
                "'{error}': call arguments did not match a supported operator, function or macro signature for rule: {name}"
            ),
            EvalError::CostExceeded => {
                let words = format!(
                    "'{error}': no further validation rules will be run due to call cost exceeds limit for rule: {name}"
                );
                return self.stop(node, path, words);
            }
            _ => format!("{error} evaluating rule: {name}"),
        };
        self.problems.push(Problem::invalid(path.in_brackets(), type_name(node), words));
    }

    fn stop(&mut self, node: &Node, path: &Path<'_>, words: String) {
        self.exhausted = true;
        self.problems.push(Problem::invalid(path.in_brackets(), type_name(node), words));
    }
}

fn type_name(node: &Node) -> &'static str {
    node.kind.map_or("", Kind::name)
}

fn broken(node: &Node, rule: &ValidationRule, value: &Value, path: &Path<'_>, detail: String) -> Problem {
    let mut place = path.in_brackets();
    if !rule.field_path.is_empty() {
        let separator = if path.is_root() || rule.field_path.starts_with('[') { "" } else { "." };
        let before = if path.is_root() { "" } else { place.as_str() };
        place = format!("{before}{separator}{}", rule.field_path);
    }
    let shown = (!matches!(node.kind, Some(Kind::Object | Kind::Array))).then(|| value.clone());
    match rule.reason.as_ref() {
        "FieldValueForbidden" => Problem::forbidden(place, detail),
        "FieldValueRequired" => Problem::required(place, detail),
        "FieldValueDuplicate" => {
            let mut problem = Problem::duplicate(place, Value::Null);
            problem.value = shown;
            problem
        }
        _ => match shown {
            Some(shown) => Problem::invalid(place, shown, detail),
            None => Problem::invalid_omitted(place, detail),
        },
    }
}
