//! CEL expressions of policies and of matchConditions.

use restow_schema::cel::{AuthorizationCheck, Authorizer, PER_CALL_LIMIT, Program};
use serde::Deserialize;
use serde_json::Value;

/// The variables of expressions: the values of [`Values::list`] in its order, and the authorizer.
const VARIABLES: [&str; 8] = [
    "object",
    "oldObject",
    "request",
    "params",
    "namespaceObject",
    "variables",
    "authorizer",
    "authorizer.requestResource",
];

/// The variables of matchConditions of webhooks.
pub(super) const WEBHOOK_VARIABLES: [&str; 5] =
    ["object", "oldObject", "request", "authorizer", "authorizer.requestResource"];
/// The variables of policies without parameters.
pub(super) const POLICY_VARIABLES: [&str; 7] =
    ["object", "oldObject", "request", "namespaceObject", "variables", "authorizer", "authorizer.requestResource"];
/// The variables of policies with parameters.
pub(super) const POLICY_VARIABLES_WITH_PARAMS: [&str; 8] = VARIABLES;

/// A compiled expression, or the compile error.
#[derive(Deserialize)]
#[serde(from = "String")]
pub(super) struct Expression {
    /// The expression as it was written.
    pub(super) text: String,
    program: Result<Program, String>,
}

/// The values that an expression is evaluated with.
#[derive(Clone, Copy, Default)]
pub(super) struct Values<'a> {
    pub(super) object: Option<&'a Value>,
    pub(super) old_object: Option<&'a Value>,
    pub(super) request: Option<&'a Value>,
    pub(super) params: Option<&'a Value>,
    pub(super) namespace: Option<&'a Value>,
    pub(super) variables: Option<&'a Value>,
    /// The authorizer, and the attributes of the request itself.
    pub(super) authorizer: Option<(&'a dyn Authorizer, &'a AuthorizationCheck)>,
}

impl Values<'_> {
    /// Missing values are null, as in Kubernetes.
    fn list(&self) -> [Option<&Value>; 6] {
        static NULL: Value = Value::Null;
        [self.object, self.old_object, self.request, self.params, self.namespace, self.variables]
            .map(|value| value.or(Some(&NULL)))
    }
}

impl From<String> for Expression {
    fn from(text: String) -> Self {
        Expression { program: Program::compile(&text, &VARIABLES), text }
    }
}

/// An expression that is missing fails when it is evaluated.
impl Default for Expression {
    fn default() -> Self {
        Expression::from(String::new())
    }
}

impl Expression {
    /// An expression of a mutation.
    pub(super) fn of_mutation(text: String) -> Self {
        Expression { program: Program::compile_change(&text, &VARIABLES), text }
    }

    /// The value of the expression, or the error.
    pub(super) fn evaluate(&self, values: &Values<'_>) -> Result<Value, String> {
        let program = self.program.as_ref().map_err(|error| format!("compilation failed: {error}"))?;
        let evaluated = match values.authorizer {
            Some(authorizer) => program.evaluate_asking(&values.list(), authorizer, PER_CALL_LIMIT),
            None => program.evaluate(&values.list(), PER_CALL_LIMIT),
        };
        evaluated.value.map_err(|error| error.to_string())
    }

    /// Whether the expression is true.
    pub(super) fn holds(&self, values: &Values<'_>) -> Result<bool, String> {
        match self.evaluate(values)? {
            Value::Bool(holds) => Ok(holds),
            other => Err(format!("the expression yields {other} instead of a bool")),
        }
    }
}

/// Conditions that must all hold.
#[derive(Default, Deserialize)]
#[serde(transparent)]
pub(super) struct Conditions(Vec<MatchCondition>);

#[derive(Default, Deserialize)]
#[serde(default)]
struct MatchCondition {
    name: String,
    expression: Expression,
}

impl Conditions {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether all hold. One that does not hold decides, even where another cannot be evaluated.
    pub(super) fn hold(&self, values: &Values<'_>) -> Result<bool, String> {
        let mut failure = None;
        for MatchCondition { name, expression } in &self.0 {
            match expression.holds(values) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error) => failure = failure.or(Some(format!("match condition {name:?}: {error}"))),
            }
        }
        failure.map_or(Ok(true), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use restow_apimachinery::typed;
    use serde_json::json;

    #[test]
    fn changes_are_objects_and_patches() {
        let object = json!({"spec": {"replicas": 5}});
        let values = Values { object: Some(&object), ..Values::default() };
        let check = |text: &str, expected: Option<Value>| {
            assert_eq!(Expression::of_mutation(text.to_string()).evaluate(&values).ok(), expected, "{text}");
        };
        let literal = "Object{spec: Object.spec{replicas: object.spec.replicas + 1, ?paused: optional.none()}}";
        check(literal, Some(json!({"spec": {"replicas": 6}})));
        check("Object{}", Some(json!({})));
        check(
            "[JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('a/b~c'), value: Object.x{y: 1}}]",
            Some(json!([{"op": "add", "path": "/metadata/labels/a~1b~0c", "value": {"y": 1}}])),
        );
        check("[1, 2].map(n, Object.spec.items{n: n})", Some(json!([{"n": 1}, {"n": 2}])));
        check("true ? Object{a: 1} : Object{b: 'x'}", Some(json!({"a": 1})));
        check("Object{a}", None);
        check("JSONPatch.a{b: 1}", None);
        check("other{b: 1}", None);
        assert!(
            Expression::from("Object{}".to_string()).evaluate(&values).is_err(),
            "only policies that change have them"
        );
    }

    #[test]
    fn expressions_see_the_request_and_conditions_must_all_hold() {
        let (object, old) = (json!({"spec": {"replicas": 5}}), Value::Null);
        let values = Values { object: Some(&object), old_object: Some(&old), ..Values::default() };
        let check = |text: &str, expected: Option<bool>| {
            assert_eq!(Expression::from(text.to_string()).holds(&values).ok(), expected, "{text}");
        };
        check("object.spec.replicas <= 5", Some(true));
        check("object.spec.replicas > 5", Some(false));
        check("oldObject == null && params == null", Some(true));
        check("object.spec.missing == 1", None);
        check("object.spec.replicas", None);
        check("object.(", None);
        let conditions = |texts: &[&str]| {
            let list: Vec<Value> = texts.iter().map(|text| json!({"name": "a", "expression": text})).collect();
            typed::read::<Conditions>(&list.into()).unwrap().hold(&values)
        };
        assert_eq!(conditions(&[]), Ok(true));
        assert_eq!(conditions(&["object.spec.missing == 1", "false"]), Ok(false));
        assert!(conditions(&["object.spec.missing == 1", "true"]).is_err());
    }
}
