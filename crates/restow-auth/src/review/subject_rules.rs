//! `SelfSubjectRulesReview`: lists the rules of the requesting user.

use crate::posted::Posted;
use crate::rbac::PolicyRule;
use crate::review::ReviewError;
use crate::{Authorizer, User};
use restow_apimachinery::go_syntax::aggregate;
use restow_apimachinery::typed;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Default, Deserialize)]
#[serde(default)]
struct SelfSubjectRulesReviewSpec {
    namespace: String,
}

/// Answers a `SelfSubjectRulesReview` with all rules of the user in the namespace.
pub fn self_subject_rules_review(
    authorizer: &dyn Authorizer,
    user: &User,
    request: &Value,
) -> Result<Value, ReviewError> {
    let Posted { spec: SelfSubjectRulesReviewSpec { namespace }, .. } = typed::read(request)?;
    if namespace.is_empty() {
        return Err(ReviewError::BadRequest("no namespace on request".into()));
    }
    let found = authorizer.rules_for(user, &namespace);
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

/// The rule without its nonResourceURLs.
fn resource_rule(rule: &PolicyRule) -> PolicyRule {
    PolicyRule { non_resource_urls: Vec::new(), ..rule.clone() }
}

fn path_rule(rule: &PolicyRule) -> PolicyRule {
    let (verbs, non_resource_urls) = (rule.verbs.clone(), rule.non_resource_urls.clone());
    PolicyRule { verbs, non_resource_urls, ..PolicyRule::default() }
}
