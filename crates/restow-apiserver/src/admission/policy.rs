//! Policies (ValidatingAdmissionPolicy, MutatingAdmissionPolicy) and their bindings, and the evaluation of validations.

use crate::admission::expression::{Conditions, Expression, Values};
use crate::admission::mutating_policy::Mutation;
use crate::admission::rule::{AdmissionSubject, MatchPolicy, Rule, matching_version};
use crate::admission::webhook::{FailurePolicy, Metadata, ReinvocationPolicy};
use restow_api::GroupVersion;
use restow_apimachinery::meta_v1::LabelSelector;
use serde::Deserialize;
use serde_json::{Map, Value};

/// A policy. Its expressions are compiled when it is read.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Policy {
    pub(super) metadata: Metadata,
    pub(super) spec: PolicySpec,
}

/// The spec of a policy. `validations` and `auditAnnotations` are for validating ones, `mutations` and `reinvocationPolicy` for
/// mutating ones.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PolicySpec {
    pub(super) failure_policy: FailurePolicy,
    pub(super) match_constraints: MatchResources,
    pub(super) match_conditions: Conditions,
    /// The version and kind of its parameters, if it has any.
    pub(super) param_kind: Option<ParamKind>,
    variables: Vec<Variable>,
    validations: Vec<Validation>,
    audit_annotations: Vec<AuditAnnotation>,
    pub(super) mutations: Vec<Mutation>,
    pub(super) reinvocation_policy: ReinvocationPolicy,
}

/// The kind of a policy's parameters.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ParamKind {
    pub(super) api_version: String,
    pub(super) kind: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Variable {
    name: String,
    expression: Expression,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Validation {
    expression: Expression,
    message: String,
    message_expression: Option<Expression>,
    reason: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AuditAnnotation {
    key: String,
    value_expression: Expression,
}

/// Which requests a policy or a binding matches.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct MatchResources {
    resource_rules: Vec<Rule>,
    exclude_resource_rules: Vec<Rule>,
    match_policy: MatchPolicy,
    pub(super) namespace_selector: LabelSelector,
    pub(super) object_selector: LabelSelector,
}

/// A binding of a policy.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Binding {
    pub(super) metadata: Metadata,
    pub(super) spec: BindingSpec,
}

/// The spec of a binding.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct BindingSpec {
    pub(super) policy_name: String,
    pub(super) param_ref: Option<ParamRef>,
    pub(super) match_resources: MatchResources,
    pub(super) validation_actions: Vec<String>,
}

/// The parameters that a binding refers to: one by its name, or all that are selected.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ParamRef {
    pub(super) name: Option<String>,
    pub(super) namespace: Option<String>,
    pub(super) selector: LabelSelector,
    pub(super) parameter_not_found_action: ParameterNotFoundAction,
}

/// What happens if there are no parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) enum ParameterNotFoundAction {
    Allow,
    #[default]
    #[serde(other)]
    Deny,
}

/// A failed validation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Violation {
    pub(super) message: String,
    pub(super) reason: String,
}

impl Policy {
    /// The variables of the policy. One that cannot be evaluated is omitted, and expressions that use it fail.
    pub(super) fn variables(&self, values: &Values<'_>) -> Value {
        let mut found = Map::new();
        for Variable { name, expression } in &self.spec.variables {
            let so_far = Value::Object(std::mem::take(&mut found));
            let value = expression.evaluate(&Values { variables: Some(&so_far), ..*values });
            if let Value::Object(fields) = so_far {
                found = fields;
            }
            if let Ok(value) = value {
                found.insert(name.clone(), value);
            }
        }
        Value::Object(found)
    }

    /// The failed validations, and the audit annotations.
    pub(super) fn evaluate(&self, values: &Values<'_>) -> (Vec<Violation>, Vec<(String, String)>) {
        let variables = self.variables(values);
        let values = Values { variables: Some(&variables), ..*values };
        let violations =
            self.spec.validations.iter().filter_map(|validation| self.violation(validation, &values)).collect();
        let annotation = |it: &AuditAnnotation| match it.value_expression.evaluate(&values) {
            Ok(Value::String(value)) if !value.is_empty() => {
                Some((format!("{}/{}", self.metadata.name, it.key), value))
            }
            _ => None,
        };
        (violations, self.spec.audit_annotations.iter().filter_map(annotation).collect())
    }

    fn violation(&self, validation: &Validation, values: &Values<'_>) -> Option<Violation> {
        let message = match validation.expression.holds(values) {
            Ok(true) => return None,
            Ok(false) => validation.failure_message(values),
            Err(_) if self.spec.failure_policy == FailurePolicy::Ignore => return None,
            Err(error) => format!("expression '{}' resulted in error: {error}", validation.expression.text),
        };
        let reason = if validation.reason.is_empty() { "Invalid" } else { &validation.reason };
        Some(Violation { message, reason: reason.to_string() })
    }
}

impl Validation {
    fn failure_message(&self, values: &Values<'_>) -> String {
        if let Some(Ok(Value::String(text))) = self.message_expression.as_ref().map(|words| words.evaluate(values)) {
            let text = text.trim();
            if !text.is_empty() && !text.contains('\n') {
                return text.to_string();
            }
        }
        match self.message.trim() {
            "" => format!("failed expression: {}", self.expression.text.trim()),
            message => message.to_string(),
        }
    }
}

impl MatchResources {
    /// The version of the object for the policy; `None` if the request does not match.
    pub(super) fn matching_version<'a>(&self, subject: &AdmissionSubject<'a>) -> Option<&'a GroupVersion> {
        if matching_version(&self.exclude_resource_rules, self.match_policy, subject).is_some() {
            return None;
        }
        matching_version(&self.resource_rules, self.match_policy, subject)
    }

    /// Whether a binding matches the request; one without rules matches every request of its policy.
    pub(super) fn allows(&self, subject: &AdmissionSubject<'_>) -> bool {
        match self.resource_rules.is_empty() && self.exclude_resource_rules.is_empty() {
            true => true,
            false if self.resource_rules.is_empty() => {
                matching_version(&self.exclude_resource_rules, self.match_policy, subject).is_none()
            }
            false => self.matching_version(subject).is_some(),
        }
    }
}

impl Binding {
    pub(super) fn has_action(&self, action: &str) -> bool {
        self.spec.validation_actions.iter().any(|known| known == action)
    }
}

/// The code that goes with the reason of a violation.
pub(super) fn code_of(reason: &str) -> u16 {
    match reason {
        "Unauthorized" => 401,
        "Forbidden" => 403,
        "RequestEntityTooLarge" => 413,
        _ => 422,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use restow_apimachinery::typed;
    use serde_json::json;

    fn violations(spec: Value, object: &Value) -> Vec<(String, String)> {
        let policy = json!({"metadata": {"name": "p"}, "spec": spec});
        let policy: Policy = typed::read(&policy).unwrap();
        let (violations, _) = policy.evaluate(&Values { object: Some(object), ..Values::default() });
        violations.into_iter().map(|violation| (violation.reason, violation.message)).collect()
    }

    #[test]
    fn mutations_are_apply_configurations_unless_they_are_json_patches() {
        let expressions = json!({"applyConfiguration": {"expression": "Object{}"}, "jsonPatch": {"expression": "[]"}});
        for (patch_type, is_patch) in [("JSONPatch", true), ("ApplyConfiguration", false), ("Other", false)] {
            let mut mutation = expressions.clone();
            mutation["patchType"] = patch_type.into();
            let policy = json!({"spec": {"mutations": [mutation, null], "reinvocationPolicy": "IfNeeded"}});
            let PolicySpec { mutations, reinvocation_policy, .. } = typed::read::<Policy>(&policy).unwrap().spec;
            assert_eq!(reinvocation_policy, ReinvocationPolicy::IfNeeded);
            match &mutations[..] {
                [Mutation::Patch(expression), Mutation::Configuration(_)] if is_patch => {
                    assert_eq!(expression.text, "[]")
                }
                [Mutation::Configuration(expression), Mutation::Configuration(_)] if !is_patch => {
                    assert_eq!(expression.text, "Object{}");
                }
                _ => panic!("{patch_type}"),
            }
        }
    }

    #[test]
    fn violations_have_the_message_of_the_policy() {
        let object = json!({"metadata": {"name": "a"}, "spec": {"replicas": 7}});
        let expected = |reason: &str, message: &str| vec![(reason.to_string(), message.to_string())];
        let spec = |validation: Value| json!({"variables": [{"name": "n", "expression": "object.spec.replicas"}], "validations": [validation]});
        let rule = "variables.n <= 5";
        assert_eq!(violations(spec(json!({"expression": "variables.n == 7"})), &object), []);
        assert_eq!(
            violations(spec(json!({"expression": rule})), &object),
            expected("Invalid", "failed expression: variables.n <= 5")
        );
        assert_eq!(
            violations(spec(json!({"expression": rule, "message": "too many", "reason": "Forbidden"})), &object),
            expected("Forbidden", "too many")
        );
        let computed =
            json!({"expression": rule, "message": "x", "messageExpression": "'at most 5, not ' + string(variables.n)"});
        assert_eq!(violations(spec(computed), &object), expected("Invalid", "at most 5, not 7"));
        let broken = violations(spec(json!({"expression": "object.spec.none == 1"})), &object);
        assert!(broken[0].1.starts_with("expression 'object.spec.none == 1' resulted in error: "), "{broken:?}");
        let ignored = json!({"failurePolicy": "Ignore", "validations": [{"expression": "object.spec.none == 1"}]});
        assert_eq!(violations(ignored, &object), []);
    }
}
