//! What may I do: `SelfSubjectRulesReview`.

use crate::json::{object, text};
use crate::rbac::PolicyRule;
use crate::review::ReviewError;
use crate::{Authorizer, User};
use restow_apimachinery::go_syntax::aggregate;
use serde_json::{Value, json};

/// Answers a `SelfSubjectRulesReview`: all that I may do in the namespace.
pub fn self_subject_rules_review(
    authorizer: &dyn Authorizer,
    user: &User,
    request: &Value,
) -> Result<Value, ReviewError> {
    let spec = object(request, "spec")?.unwrap_or(&Value::Null);
    let namespace = text(spec, "namespace")?;
    if namespace.is_empty() {
        return Err(ReviewError::BadRequest("no namespace on request".into()));
    }
    let found = authorizer.rules_for(user, namespace);
    let with_resources = found.rules.iter().filter(|rule| !rule.resources.is_empty());
    let with_paths = found.rules.iter().filter(|rule| !rule.non_resource_urls.is_empty());
    let mut status = json!({
        "resourceRules": with_resources.map(resource_rule).collect::<Vec<_>>(),
        "nonResourceRules": with_paths.map(path_rule).collect::<Vec<_>>(),
        "incomplete": false,
    });
    if !found.errors.is_empty() {
        status["evaluationError"] = json!(aggregate(&found.errors));
    }
    let kind_of = |field: &str| request.get(field).cloned().unwrap_or(Value::Null);
    Ok(json!({
        "apiVersion": kind_of("apiVersion"), "kind": kind_of("kind"), "metadata": {}, "spec": {}, "status": status,
    }))
}

/// The part of a rule about resources, even if it is about paths too.
fn resource_rule(rule: &PolicyRule) -> Value {
    PolicyRule { non_resource_urls: Vec::new(), ..rule.clone() }.to_value()
}

fn path_rule(rule: &PolicyRule) -> Value {
    let (verbs, non_resource_urls) = (rule.verbs.clone(), rule.non_resource_urls.clone());
    PolicyRule { verbs, non_resource_urls, ..PolicyRule::default() }.to_value()
}
