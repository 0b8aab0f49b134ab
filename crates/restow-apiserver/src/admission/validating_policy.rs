//! ValidatingAdmissionPolicy: evaluates the policies whose bindings match a request.

use crate::admission::expression::Values;
use crate::admission::policy::{Binding, ParamKind, ParamRef, ParameterNotFoundAction, Policy, Violation, code_of};
use crate::admission::request::{Request, labels};
use crate::admission::review::Review;
use crate::admission::webhook::FailurePolicy;
use crate::error::ApiError;
use crate::request::options::DryRun;
use crate::resource::Scope;
use restow_api::GroupVersion;
use restow_apimachinery::object::Object;
use restow_store::RangeRequest;
use serde_json::{Value, json};
use std::sync::Arc;

/// The audit annotation for violations with the action `Audit`.
const FAILURES: &str = "validation.policy.admission.k8s.io/validation_failure";

impl Request<'_> {
    /// Validates the request by every policy, in the order of their names.
    pub(super) async fn validate_by_policies(
        &self,
        policies: &[Arc<Policy>],
        bindings: &[Arc<Binding>],
        object: Option<&Object>,
    ) -> Result<(), ApiError> {
        for policy in policies {
            let bindings: Vec<Arc<Binding>> =
                bindings.iter().filter(|it| it.spec.policy_name == policy.metadata.name).cloned().collect();
            if !bindings.is_empty() {
                self.validate_by_policy(policy, &bindings, object).await?;
            }
        }
        Ok(())
    }

    async fn validate_by_policy(
        &self,
        policy: &Policy,
        bindings: &[Arc<Binding>],
        object: Option<&Object>,
    ) -> Result<(), ApiError> {
        let subject = self.subject(object);
        let constraints = &policy.spec.match_constraints;
        let Some(version) = constraints.matching_version(&subject) else { return Ok(()) };
        if !self.is_selected(&constraints.namespace_selector, &constraints.object_selector, object).await? {
            return Ok(());
        }
        let shown = self.converted(object, version).await?;
        let old = self.converted(self.old, version).await?;
        let review = Review {
            subject: &subject,
            version,
            user: &self.call.user,
            namespace: &self.call.target.namespace,
            object: shown.as_ref(),
            old: old.as_ref(),
            dry_run: self.dry_run == DryRun::Yes,
        };
        let request = review.request("");
        let namespace = self.namespace().await?.map(|namespace| namespace.clone().into_value());
        let authorizer = self.authorizer(object);
        let values = Values {
            authorizer: Some((&authorizer, &authorizer.question)),
            object: Some(&request["object"]),
            old_object: Some(&request["oldObject"]),
            request: Some(&request),
            namespace: namespace.as_ref(),
            ..Values::default()
        };
        for binding in bindings {
            let resources = &binding.spec.match_resources;
            if resources.allows(&subject)
                && self.is_selected(&resources.namespace_selector, &resources.object_selector, object).await?
            {
                self.validate_by_binding(policy, binding, values).await?;
            }
        }
        Ok(())
    }

    /// Evaluates one binding, with each of its parameters.
    async fn validate_by_binding(
        &self,
        policy: &Policy,
        binding: &Binding,
        values: Values<'_>,
    ) -> Result<(), ApiError> {
        let params = match self.params_of(policy, binding).await {
            Ok(params) => params,
            Err(_) if policy.spec.failure_policy == FailurePolicy::Ignore => return Ok(()),
            Err(reason) => return self.enforce(policy, binding, &values, vec![failure(reason)]),
        };
        for params in &params {
            let values = Values { params: Some(params), ..values };
            match policy.spec.match_conditions.hold(&values) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(_) if policy.spec.failure_policy == FailurePolicy::Ignore => continue,
                Err(reason) => return self.enforce(policy, binding, &values, vec![failure(reason)]),
            }
            let (violations, annotations) = policy.evaluate(&values);
            annotations.into_iter().for_each(|(key, value)| self.call.annotate(key, value));
            self.enforce(policy, binding, &values, violations)?;
        }
        Ok(())
    }

    /// Executes the validation actions of the binding.
    fn enforce(
        &self,
        policy: &Policy,
        binding: &Binding,
        values: &Values<'_>,
        violations: Vec<Violation>,
    ) -> Result<(), ApiError> {
        let by =
            format!("ValidatingAdmissionPolicy '{}' with binding '{}'", policy.metadata.name, binding.metadata.name);
        if binding.has_action("Audit") && !violations.is_empty() {
            let message: Vec<Value> = violations
                .iter()
                .map(|it| json!({"message": it.message, "policy": policy.metadata.name, "binding": binding.metadata.name, "validationActions": binding.spec.validation_actions}))
                .collect();
            self.call.annotate(FAILURES.into(), Value::from(message).to_string());
        }
        for violation in violations {
            if binding.has_action("Warn") {
                self.call.warn(format!("Validation failed for {by}: {}", violation.message));
            }
            if binding.has_action("Deny") {
                let name = values.request.and_then(|request| request["name"].as_str()).unwrap_or_default();
                return Err(self.denial(&by, name, &violation));
            }
        }
        Ok(())
    }

    fn denial(&self, by: &str, name: &str, violation: &Violation) -> ApiError {
        let resource = &self.call.resource.group_resource;
        let words = format!("{by} denied request: {}", violation.message);
        let quoted = if name.is_empty() { String::new() } else { format!(" {name:?}") };
        let mut details = json!({"kind": resource.resource(), "causes": [{"message": words}]});
        for (field, text) in [("name", name), ("group", resource.group())] {
            if !text.is_empty() {
                details[field] = text.into();
            }
        }
        ApiError::Denied {
            code: code_of(&violation.reason),
            reason: violation.reason.clone(),
            message: format!("{resource}{quoted} is forbidden: {words}"),
            details: Some(details),
        }
    }

    /// The parameters of a policy; null if it has none.
    pub(super) async fn params_of(&self, policy: &Policy, binding: &Binding) -> Result<Vec<Value>, String> {
        let (Some(kind), Some(reference)) = (&policy.spec.param_kind, &binding.spec.param_ref) else {
            return Ok(vec![Value::Null]);
        };
        let params = self.params(kind, reference).await?;
        match params.is_empty() && reference.parameter_not_found_action == ParameterNotFoundAction::Deny {
            true => Err("no params found for policy binding with `Deny` parameterNotFoundAction".into()),
            false => Ok(params),
        }
    }

    /// The parameters that a binding refers to.
    async fn params(&self, kind: &ParamKind, reference: &ParamRef) -> Result<Vec<Value>, String> {
        let ParamKind { api_version: version, kind } = kind;
        let unknown = || format!("failed to find resource referenced by paramKind: '{version}, Kind={kind}'");
        let version: GroupVersion = version.parse().map_err(|_| unknown())?;
        let registry = self.call.admission.core.registry();
        let resources = registry.in_version(&version).ok_or_else(unknown)?;
        let resource = resources.values().find(|it| it.names.kind == *kind).ok_or_else(unknown)?;
        let storage = resource.storage.as_ref().ok_or_else(unknown)?;
        let namespace = match (resource.scope, &reference.namespace) {
            (Scope::Cluster, _) => "",
            (Scope::Namespaced, Some(namespace)) => namespace,
            (Scope::Namespaced, None) => &self.call.target.namespace,
        };
        let entries =
            self.call.admission.core.objects().store().range(RangeRequest::new(storage.range(namespace))).await;
        let entries = entries.map_err(|error| error.to_string())?.entries;
        let objects = resource.decode_all(&entries, &version).await.map_err(|error| error.to_string())?;
        let mut found = Vec::new();
        for object in objects {
            let meant = match &reference.name {
                Some(name) => object.name() == name,
                None => reference.selector.matches(&labels(&object))?,
            };
            if meant {
                found.push(object.into_value());
            }
        }
        Ok(found)
    }
}

fn failure(reason: String) -> Violation {
    Violation { message: format!("failed to configure policy: {reason}"), reason: "Invalid".into() }
}
