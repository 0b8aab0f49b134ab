//! Validation of webhook configurations, admission policies and bindings, with Kubernetes' messages: an expression that does
//! not compile, or a webhook that cannot be called, is refused when it is written.

mod policies;
mod rules;
#[cfg(test)]
mod tests;
mod webhooks;

use restow_apimachinery::field::{FieldError, FieldRule};
use restow_apimachinery::object::Object;
use restow_schema::cel::Program;
use serde_json::Value;

/// All validation errors of a configuration object.
pub(crate) fn problems(object: &Object) -> Vec<FieldError> {
    match object.kind() {
        "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration" => webhooks::problems(object),
        "ValidatingAdmissionPolicy" => policies::policy_problems(object),
        "MutatingAdmissionPolicy" => policies::mutating_problems(object),
        "ValidatingAdmissionPolicyBinding" => policies::binding_problems(object),
        "MutatingAdmissionPolicyBinding" => policies::mutating_binding_problems(object),
        _ => Vec::new(),
    }
}

/// The type that an expression must yield.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Yields {
    Bool,
    Text,
    TextOrNull,
    Anything,
    /// What is merged into an object.
    Object,
    /// A list of operations of a JSON patch.
    Patch,
}

impl Yields {
    /// The error for an expression of another type.
    fn type_error(self, program: &Program) -> Option<String> {
        let found = program.result_type();
        let (fits, wanted) = match self {
            Yields::Bool => (found == "bool", "must evaluate to bool"),
            Yields::Text => (found == "string", "must evaluate to string"),
            Yields::TextOrNull => (matches!(found, "string" | "null"), "must evaluate to one of [string null_type]"),
            Yields::Anything => (true, ""),
            Yields::Object => (false, "must evaluate to Object"),
            Yields::Patch => (found == "list(dyn)", "must evaluate to list(JSONPatch)"),
        };
        (!fits && found != "dyn").then(|| format!("{wanted} but got {found}"))
    }
}

/// The error of an expression with these variables.
fn expression_problem(path: String, text: &str, variables: &[&'static str], yields: Yields) -> Option<FieldError> {
    let compiled = match yields {
        Yields::Object | Yields::Patch => Program::compile_change(text, variables),
        _ => Program::compile(text, variables),
    };
    let complaint = match compiled {
        Err(error) => Some(format!("compilation failed: {error}")),
        Ok(program) => yields.type_error(&program),
    };
    complaint.map(|complaint| FieldError::invalid(path, &text.into(), complaint))
}

/// Errors of matchConditions.
fn condition_problems(conditions: &Value, path: &str, variables: &[&'static str]) -> Vec<FieldError> {
    const MOST: usize = 64;
    let conditions = items(conditions);
    if conditions.len() > MOST {
        let rule = FieldRule::TooMany(conditions.len().to_string());
        return vec![FieldError { field: path.into(), rule, detail: format!("must have at most {MOST} items") }];
    }
    let mut problems = Vec::new();
    for (index, condition) in conditions.iter().enumerate() {
        let at = |field: &str| format!("{path}[{index}].{field}");
        let (name, expression) = (text(&condition["name"]), text(&condition["expression"]));
        match expression.trim() {
            "" => problems.push(FieldError::required(at("expression"), "")),
            _ => problems.extend(expression_problem(at("expression"), expression, variables, Yields::Bool)),
        }
        if name.is_empty() {
            problems.push(FieldError::required(at("name"), ""));
            continue;
        }
        let wrong = restow_apimachinery::names::qualified_name_problems(name).into_iter();
        problems.extend(wrong.map(|detail| FieldError::invalid(at("name"), &name.into(), detail)));
        if conditions[..index].iter().any(|before| before["name"] == name) {
            problems.push(duplicate(at("name"), name));
        }
    }
    problems
}

fn duplicate(path: String, value: &str) -> FieldError {
    FieldError { field: path, rule: FieldRule::Duplicate(Value::from(value).to_string()), detail: String::new() }
}

/// The error for an unsupported value; `supported` is in its order.
fn unsupported(path: impl Into<String>, value: &Value, supported: &[&str]) -> Option<FieldError> {
    if value.as_str().is_some_and(|value| supported.contains(&value)) {
        return None;
    }
    let supported: Vec<String> = supported.iter().map(|value| format!("{value:?}")).collect();
    Some(FieldError {
        field: path.into(),
        rule: FieldRule::NotSupported(Value::from(text(value)).to_string()),
        detail: format!("supported values: {}", supported.join(", ")),
    })
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}
