//! Validation of admission policies and their bindings.

use super::rules::{rule_problems, selector_problems};
use super::{Yields, condition_problems, duplicate, expression_problem, items, text, unsupported};
use crate::admission::expression::{POLICY_VARIABLES, POLICY_VARIABLES_WITH_PARAMS};
use restow_api::GroupVersion;
use restow_apimachinery::field::FieldError;
use restow_apimachinery::names::qualified_name_problems;
use restow_apimachinery::object::Object;
use serde_json::Value;

/// The reasons that a validation can give.
const REASONS: [&str; 4] = ["Forbidden", "Invalid", "RequestEntityTooLarge", "Unauthorized"];

/// The variables of the expressions of a policy.
fn variables_of(spec: &Value) -> &'static [&'static str] {
    if spec["paramKind"].is_null() { &POLICY_VARIABLES } else { &POLICY_VARIABLES_WITH_PARAMS }
}

/// Errors in the fields that all policies have.
fn common_problems(spec: &Value) -> Vec<FieldError> {
    let variables = variables_of(spec);
    let mut problems = Vec::new();
    if !spec["failurePolicy"].is_null() {
        problems.extend(unsupported("spec.failurePolicy", &spec["failurePolicy"], &["Fail", "Ignore"]));
    }
    problems.extend(param_kind_problems(&spec["paramKind"]));
    match &spec["matchConstraints"] {
        Value::Null => problems.push(FieldError::required("spec.matchConstraints", "")),
        constraints => {
            problems.extend(match_problems(constraints, "spec.matchConstraints"));
            if items(&constraints["resourceRules"]).is_empty() {
                problems.push(FieldError::required("spec.matchConstraints.resourceRules", ""));
            }
        }
    }
    problems.extend(condition_problems(&spec["matchConditions"], "spec.matchConditions", variables));
    problems.extend(variable_problems(&spec["variables"], variables));
    problems
}

/// Errors of a MutatingAdmissionPolicy.
pub(super) fn mutating_problems(object: &Object) -> Vec<FieldError> {
    let spec = object.get("spec").unwrap_or(&Value::Null);
    let mut problems = common_problems(spec);
    let rules = items(&spec["matchConstraints"]["resourceRules"]).iter();
    for operation in rules.flat_map(|rule| items(&rule["operations"])).filter(|operation| *operation == "DELETE") {
        let path = "spec.matchConstraints.resourceRules.operations";
        problems.extend(unsupported(path, operation, &["*", "CONNECT", "CREATE", "UPDATE"]));
    }
    if items(&spec["mutations"]).is_empty() {
        problems.push(FieldError::required("spec.mutations", "mutations must contain at least one item"));
    }
    for (index, mutation) in items(&spec["mutations"]).iter().enumerate() {
        problems.extend(mutation_problems(mutation, &format!("spec.mutations[{index}]"), variables_of(spec)));
    }
    match &spec["reinvocationPolicy"] {
        Value::Null => problems.push(FieldError::required("spec.reinvocationPolicy", "")),
        policy => problems.extend(unsupported("spec.reinvocationPolicy", policy, &["IfNeeded", "Never"])),
    }
    problems
}

fn mutation_problems(mutation: &Value, path: &str, variables: &[&'static str]) -> Vec<FieldError> {
    let kind = text(&mutation["patchType"]);
    let (wanted, other, yields) = match kind {
        "" => return vec![FieldError::required(format!("{path}.patchType"), "")],
        "ApplyConfiguration" => ("applyConfiguration", "jsonPatch", Yields::Object),
        "JSONPatch" => ("jsonPatch", "applyConfiguration", Yields::Patch),
        _ => {
            let known = &["ApplyConfiguration", "JSONPatch"];
            return unsupported(format!("{path}.patchType"), &mutation["patchType"], known).into_iter().collect();
        }
    };
    let mut problems = Vec::new();
    let expression = text(&mutation[wanted]["expression"]);
    if mutation[wanted].is_null() {
        let detail = format!("must be specified when patchType is {kind}");
        problems.push(FieldError::required(format!("{path}.{wanted}"), detail));
    } else if expression.trim().is_empty() {
        problems.push(FieldError::required(format!("{path}.{wanted}.expression"), "expression is not specified"));
    } else {
        problems.extend(expression_problem(format!("{path}.{wanted}.expression"), expression, variables, yields));
    }
    if !mutation[other].is_null() {
        let detail = format!("must not be specified when patchType is {kind}");
        let shown = format!("{{{other}}}");
        problems.push(FieldError::invalid(format!("{path}.{other}"), &shown.as_str().into(), detail));
    }
    problems
}

/// Errors of a ValidatingAdmissionPolicy.
pub(super) fn policy_problems(object: &Object) -> Vec<FieldError> {
    let spec = object.get("spec").unwrap_or(&Value::Null);
    let variables = variables_of(spec);
    let mut problems = common_problems(spec);
    if items(&spec["validations"]).is_empty() && items(&spec["auditAnnotations"]).is_empty() {
        let detail = "validations or auditAnnotations must contain at least one item";
        problems
            .extend(["validations", "auditAnnotations"].map(|it| FieldError::required(format!("spec.{it}"), detail)));
    }
    for (index, validation) in items(&spec["validations"]).iter().enumerate() {
        problems.extend(validation_problems(validation, &format!("spec.validations[{index}]"), variables));
    }
    problems.extend(annotation_problems(object.name(), &spec["auditAnnotations"], variables));
    problems
}

/// Errors of a ValidatingAdmissionPolicyBinding.
pub(super) fn binding_problems(object: &Object) -> Vec<FieldError> {
    let actions = object.at(&["spec", "validationActions"]).unwrap_or(&Value::Null);
    let mut problems = mutating_binding_problems(object);
    problems.extend(action_problems(actions, "spec.validationActions"));
    problems
}

/// Errors of a MutatingAdmissionPolicyBinding.
pub(super) fn mutating_binding_problems(object: &Object) -> Vec<FieldError> {
    let spec = object.get("spec").unwrap_or(&Value::Null);
    let mut problems = Vec::new();
    if text(&spec["policyName"]).is_empty() {
        problems.push(FieldError::required("spec.policyName", ""));
    }
    if !spec["paramRef"].is_null() {
        problems.extend(param_reference_problems(&spec["paramRef"], "spec.paramRef"));
    }
    problems.extend(match_problems(&spec["matchResources"], "spec.matchResources"));
    problems
}

fn param_kind_problems(kind: &Value) -> Vec<FieldError> {
    if kind.is_null() {
        return Vec::new();
    }
    let mut problems = Vec::new();
    let version = text(&kind["apiVersion"]);
    if version.is_empty() {
        problems.push(FieldError::required("spec.paramKind.apiVersion", ""));
    } else if version.parse::<GroupVersion>().is_err() {
        let detail = format!("unexpected GroupVersion string: {version}");
        problems.push(FieldError::invalid("spec.paramKind.apiVersion", &version.into(), detail));
    }
    if text(&kind["kind"]).is_empty() {
        problems.push(FieldError::required("spec.paramKind.kind", ""));
    }
    problems
}

fn match_problems(constraints: &Value, path: &str) -> Vec<FieldError> {
    let mut problems = Vec::new();
    if !constraints["matchPolicy"].is_null() {
        let policy = &constraints["matchPolicy"];
        problems.extend(unsupported(format!("{path}.matchPolicy"), policy, &["Equivalent", "Exact"]));
    }
    for field in ["namespaceSelector", "objectSelector"] {
        problems.extend(selector_problems(&constraints[field], &format!("{path}.{field}")));
    }
    for field in ["resourceRules", "excludeResourceRules"] {
        for (index, rule) in items(&constraints[field]).iter().enumerate() {
            problems.extend(rule_problems(rule, &format!("{path}.{field}[{index}]")));
        }
    }
    problems
}

fn variable_problems(list: &Value, variables: &[&'static str]) -> Vec<FieldError> {
    let mut problems = Vec::new();
    for (index, variable) in items(list).iter().enumerate() {
        let at = |field: &str| format!("spec.variables[{index}].{field}");
        let (name, expression) = (text(&variable["name"]), text(&variable["expression"]));
        if name.is_empty() {
            problems.push(FieldError::required(at("name"), "name is not specified"));
        } else if !is_identifier(name) {
            problems.push(FieldError::invalid(at("name"), &name.into(), "must be a valid CEL identifier"));
        }
        match expression.trim() {
            "" => problems.push(FieldError::required(at("expression"), "expression is not specified")),
            _ => problems.extend(expression_problem(at("expression"), expression, variables, Yields::Anything)),
        }
    }
    problems
}

fn is_identifier(name: &str) -> bool {
    let mut letters = name.chars();
    letters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
}

fn validation_problems(validation: &Value, path: &str, variables: &[&'static str]) -> Vec<FieldError> {
    let at = |field: &str| format!("{path}.{field}");
    let mut problems = Vec::new();
    let expression = text(&validation["expression"]);
    match expression.trim() {
        "" => problems.push(FieldError::required(at("expression"), "expression is not specified")),
        _ => problems.extend(expression_problem(at("expression"), expression, variables, Yields::Bool)),
    }
    if let Some(words) = validation["messageExpression"].as_str() {
        match words.trim() {
            "" => problems.push(FieldError::invalid(
                at("messageExpression"),
                &words.into(),
                "must be non-empty if specified",
            )),
            _ => problems.extend(expression_problem(at("messageExpression"), words, variables, Yields::Text)),
        }
    }
    if let Some(message) = validation["message"].as_str() {
        let complaint = match message {
            message if message.trim().is_empty() => Some("message must be non-empty if specified"),
            message if message.contains('\n') => Some("must not contain line breaks"),
            _ => None,
        };
        problems.extend(complaint.map(|complaint| FieldError::invalid(at("message"), &message.into(), complaint)));
    }
    if !validation["reason"].is_null() {
        // Kubernetes accepts the last one, but does not list it as supported.
        let known = unsupported(at("reason"), &validation["reason"], &REASONS[..3]);
        problems.extend(known.filter(|_| validation["reason"] != REASONS[3]));
    }
    problems
}

fn annotation_problems(policy: &str, list: &Value, variables: &[&'static str]) -> Vec<FieldError> {
    let mut problems = Vec::new();
    for (index, annotation) in items(list).iter().enumerate() {
        let at = |field: &str| format!("spec.auditAnnotations[{index}].{field}");
        let key = text(&annotation["key"]);
        let whole = format!("{policy}/{key}");
        let wrong = qualified_name_problems(&whole).into_iter();
        problems.extend(wrong.map(|detail| FieldError::invalid(at("key"), &whole.as_str().into(), detail)));
        if items(list)[..index].iter().any(|before| before["key"] == key) {
            problems.push(duplicate(at("key"), key));
        }
        let value = text(&annotation["valueExpression"]);
        match value.trim() {
            "" => problems.push(FieldError::required(at("valueExpression"), "valueExpression is not specified")),
            _ => problems.extend(expression_problem(at("valueExpression"), value, variables, Yields::TextOrNull)),
        }
    }
    problems
}

fn param_reference_problems(reference: &Value, path: &str) -> Vec<FieldError> {
    let at = |field: &str| format!("{path}.{field}");
    let mut problems = Vec::new();
    match (text(&reference["name"]).is_empty(), reference["selector"].is_null()) {
        (true, true) => problems.push(FieldError::required(path, "one of name or selector must be specified")),
        (false, false) => {
            let detail = "name and selector are mutually exclusive";
            problems.extend(["name", "selector"].map(|field| FieldError::forbidden(at(field), detail)));
        }
        _ => problems.extend(selector_problems(&reference["selector"], &at("selector"))),
    }
    match &reference["parameterNotFoundAction"] {
        Value::Null => problems.push(FieldError::required(at("parameterNotFoundAction"), "")),
        action => problems.extend(unsupported(at("parameterNotFoundAction"), action, &["Allow", "Deny"])),
    }
    problems
}

fn action_problems(actions: &Value, path: &str) -> Vec<FieldError> {
    let listed = items(actions);
    if listed.is_empty() {
        return vec![FieldError::required(path, "")];
    }
    let mut problems = Vec::new();
    for (index, action) in listed.iter().enumerate() {
        problems.extend(unsupported(format!("{path}[{index}]"), action, &["Audit", "Deny", "Warn"]));
        if listed[..index].contains(action) {
            problems.push(duplicate(format!("{path}[{index}]"), text(action)));
        }
    }
    if ["Deny", "Warn"].iter().all(|action| listed.iter().any(|listed| listed == action)) {
        let detail = "must not contain both Deny and Warn (repeating the same validation failure information in the \
                      API response and headers serves no purpose)";
        problems.push(FieldError::invalid(path, actions, detail));
    }
    problems
}
