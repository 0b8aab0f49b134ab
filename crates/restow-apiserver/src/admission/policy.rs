//! The objects ValidatingAdmissionPolicy and ValidatingAdmissionPolicyBinding, and the evaluation of a policy.

use crate::admission::expression::{Conditions, Expression, Values};
use crate::admission::rule::{AdmissionSubject, MatchPolicy, Rule, matching_version};
use crate::admission::webhook::FailurePolicy;
use restow_api::GroupVersion;
use restow_auth::json::{WrongType, text};
use restow_auth::rbac::LabelSelector;
use serde_json::{Map, Value};

/// A policy.
pub(super) struct Policy {
    pub(super) name: String,
    pub(super) failure_policy: FailurePolicy,
    pub(super) constraints: Constraints,
    pub(super) conditions: Conditions,
    /// The version and kind of its parameters, if it has any.
    pub(super) param_kind: Option<(String, String)>,
    variables: Vec<(String, Expression)>,
    validations: Vec<Validation>,
    annotations: Vec<(String, Expression)>,
}

/// Which requests a policy or a binding matches.
pub(super) struct Constraints {
    rules: Vec<Rule>,
    excluded: Vec<Rule>,
    match_policy: MatchPolicy,
    pub(super) namespaces: LabelSelector,
    pub(super) objects: LabelSelector,
}

/// One validation.
struct Validation {
    expression: Expression,
    message: String,
    message_expression: Option<Expression>,
    reason: String,
}

/// A binding of a policy.
pub(super) struct Binding {
    pub(super) name: String,
    pub(super) policy: String,
    /// `paramRef`; null if there is none.
    pub(super) param_ref: Value,
    pub(super) constraints: Constraints,
    pub(super) actions: Vec<String>,
}

/// A failed validation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Violation {
    pub(super) message: String,
    pub(super) reason: String,
}

impl Policy {
    pub(super) fn read(policy: &Value) -> Result<Self, WrongType> {
        let spec = &policy["spec"];
        let list = |field: &str| spec[field].as_array().into_iter().flatten();
        let string = |value: &Value| value.as_str().unwrap_or_default().to_string();
        let expression = |value: &Value| Expression::compile(value.as_str().unwrap_or_default());
        let kind = &spec["paramKind"];
        Ok(Policy {
            name: string(&policy["metadata"]["name"]),
            failure_policy: match text(spec, "failurePolicy")? {
                "Ignore" => FailurePolicy::Ignore,
                _ => FailurePolicy::Fail,
            },
            constraints: Constraints::read(&spec["matchConstraints"])?,
            conditions: Conditions::read(&spec["matchConditions"]),
            param_kind: kind.is_object().then(|| (string(&kind["apiVersion"]), string(&kind["kind"]))),
            variables: list("variables").map(|it| (string(&it["name"]), expression(&it["expression"]))).collect(),
            validations: list("validations")
                .map(|it| Validation {
                    expression: expression(&it["expression"]),
                    message: string(&it["message"]),
                    message_expression: it["messageExpression"].as_str().map(Expression::compile),
                    reason: string(&it["reason"]),
                })
                .collect(),
            annotations: list("auditAnnotations")
                .map(|it| (string(&it["key"]), expression(&it["valueExpression"])))
                .collect(),
        })
    }

    /// The variables of the policy. One that cannot be evaluated is omitted, and expressions that use it fail.
    pub(super) fn variables(&self, values: &Values<'_>) -> Value {
        let mut found = Map::new();
        for (name, expression) in &self.variables {
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
        let violations = self.validations.iter().filter_map(|validation| self.violation(validation, &values)).collect();
        let annotation = |(key, expression): &(String, Expression)| match expression.evaluate(&values) {
            Ok(Value::String(value)) if !value.is_empty() => Some((format!("{}/{key}", self.name), value)),
            _ => None,
        };
        (violations, self.annotations.iter().filter_map(annotation).collect())
    }

    fn violation(&self, validation: &Validation, values: &Values<'_>) -> Option<Violation> {
        let message = match validation.expression.holds(values) {
            Ok(true) => return None,
            Ok(false) => validation.failure_message(values),
            Err(_) if self.failure_policy == FailurePolicy::Ignore => return None,
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

impl Constraints {
    fn read(value: &Value) -> Result<Self, WrongType> {
        Ok(Constraints {
            rules: Rule::read_all(value, "resourceRules")?,
            excluded: Rule::read_all(value, "excludeResourceRules")?,
            match_policy: if text(value, "matchPolicy")? == "Exact" {
                MatchPolicy::Exact
            } else {
                MatchPolicy::Equivalent
            },
            namespaces: LabelSelector::read(&value["namespaceSelector"])?,
            objects: LabelSelector::read(&value["objectSelector"])?,
        })
    }

    /// The version of the object for the policy; `None` if the request does not match.
    pub(super) fn matching_version<'a>(&self, subject: &AdmissionSubject<'a>) -> Option<&'a GroupVersion> {
        if matching_version(&self.excluded, self.match_policy, subject).is_some() {
            return None;
        }
        matching_version(&self.rules, self.match_policy, subject)
    }

    /// Whether a binding matches the request; one without rules matches every request of its policy.
    pub(super) fn allows(&self, subject: &AdmissionSubject<'_>) -> bool {
        match self.rules.is_empty() && self.excluded.is_empty() {
            true => true,
            false if self.rules.is_empty() => matching_version(&self.excluded, self.match_policy, subject).is_none(),
            false => self.matching_version(subject).is_some(),
        }
    }
}

impl Binding {
    pub(super) fn read(binding: &Value) -> Result<Self, WrongType> {
        let spec = &binding["spec"];
        Ok(Binding {
            name: binding["metadata"]["name"].as_str().unwrap_or_default().to_string(),
            policy: text(spec, "policyName")?.to_string(),
            param_ref: spec["paramRef"].clone(),
            constraints: Constraints::read(&spec["matchResources"])?,
            actions: restow_auth::json::texts(spec, "validationActions")?,
        })
    }

    pub(super) fn has_action(&self, action: &str) -> bool {
        self.actions.iter().any(|known| known == action)
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
    use serde_json::json;

    fn violations(spec: Value, object: &Value) -> Vec<(String, String)> {
        let policy = Policy::read(&json!({"metadata": {"name": "p"}, "spec": spec})).unwrap();
        let (violations, _) = policy.evaluate(&Values { object: Some(object), ..Values::default() });
        violations.into_iter().map(|violation| (violation.reason, violation.message)).collect()
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
