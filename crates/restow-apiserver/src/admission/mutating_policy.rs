//! MutatingAdmissionPolicy: applies the mutations of the policies whose bindings match a request.
//!
//! Policies change an object before webhooks do, in the order of their names. Those with
//! `reinvocationPolicy: IfNeeded` are applied again if the object was changed after them.

use crate::admission::expression::{Expression, Values};
use crate::admission::policy::{Binding, Policy};
use crate::admission::request::Request;
use crate::admission::review::Review;
use crate::admission::webhook::{FailurePolicy, ReinvocationPolicy};
use crate::error::ApiError;
use crate::field_manager::Layout;
use crate::request::options::DryRun;
use restow_api::GroupVersion;
use restow_apimachinery::bounded_patch;
use restow_apimachinery::managed_fields::apply;
use restow_apimachinery::object::Object;
use restow_apimachinery::types::TypeTable;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// One mutation.
#[derive(Deserialize)]
#[serde(from = "MutationFields")]
pub(super) enum Mutation {
    /// The expression yields an apply configuration, which is merged into the object.
    Configuration(Expression),
    /// The expression yields a JSON patch.
    Patch(Expression),
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct MutationFields {
    patch_type: PatchType,
    apply_configuration: MutationExpression,
    json_patch: MutationExpression,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct MutationExpression {
    expression: String,
}

#[derive(Default, Deserialize)]
enum PatchType {
    #[serde(rename = "JSONPatch")]
    JsonPatch,
    #[default]
    #[serde(other)]
    ApplyConfiguration,
}

/// Policies and their bindings.
pub(super) struct Policies {
    pub(super) policies: Arc<Vec<Arc<Policy>>>,
    pub(super) bindings: Arc<Vec<Arc<Binding>>>,
}

impl From<MutationFields> for Mutation {
    fn from(fields: MutationFields) -> Self {
        match fields.patch_type {
            PatchType::JsonPatch => Mutation::Patch(Expression::of_mutation(fields.json_patch.expression)),
            PatchType::ApplyConfiguration => {
                Mutation::Configuration(Expression::of_mutation(fields.apply_configuration.expression))
            }
        }
    }
}

impl Policies {
    pub(super) fn is_empty(&self) -> bool {
        self.policies.is_empty() || self.bindings.is_empty()
    }

    /// Applies every policy. Also returns the number of the last one that changed the object.
    pub(super) async fn apply(&self, request: &Request<'_>, mut object: Object) -> Result<(Object, usize), ApiError> {
        let mut last_change = 0;
        for (number, policy) in self.policies.iter().enumerate() {
            if let Some(changed) = request.mutated_by_policy(policy, &self.bindings, &object).await? {
                (object, last_change) = (changed, number);
            }
        }
        Ok((object, last_change))
    }

    /// Applies those of the first policies again that have `reinvocationPolicy: IfNeeded`.
    pub(super) async fn reinvoke(
        &self,
        request: &Request<'_>,
        mut object: Object,
        first: usize,
    ) -> Result<Object, ApiError> {
        let again = |policy: &&Arc<Policy>| policy.spec.reinvocation_policy == ReinvocationPolicy::IfNeeded;
        for policy in self.policies.iter().take(first).filter(again) {
            if let Some(changed) = request.mutated_by_policy(policy, &self.bindings, &object).await? {
                object = changed;
            }
        }
        Ok(object)
    }
}

/// The inputs of one evaluation of a policy.
struct PolicyInputs<'a> {
    policy: &'a Policy,
    binding: &'a Binding,
    version: &'a GroupVersion,
    old: Option<&'a Object>,
    namespace: Option<&'a Value>,
    params: &'a Value,
}

impl Request<'_> {
    /// The object after the mutations of the policy; `None` if it is unchanged.
    async fn mutated_by_policy(
        &self,
        policy: &Policy,
        bindings: &[Arc<Binding>],
        object: &Object,
    ) -> Result<Option<Object>, ApiError> {
        let constraints = &policy.spec.match_constraints;
        let subject = self.subject(Some(object));
        let Some(version) = constraints.matching_version(&subject) else { return Ok(None) };
        if !self.is_selected(&constraints.namespace_selector, &constraints.object_selector, Some(object)).await? {
            return Ok(None);
        }
        let mut shown = self.converted(Some(object), version).await?.unwrap_or_default();
        let old = self.converted(self.old, version).await?;
        let namespace = self.namespace().await?.map(|namespace| namespace.clone().into_value());
        let before = shown.clone();
        for binding in bindings.iter().filter(|binding| binding.spec.policy_name == policy.metadata.name) {
            let resources = &binding.spec.match_resources;
            let selected =
                self.is_selected(&resources.namespace_selector, &resources.object_selector, Some(object)).await?;
            if !selected || !resources.allows(&subject) {
                continue;
            }
            let params = match self.params_of(policy, binding).await {
                Ok(params) => params,
                Err(_) if policy.spec.failure_policy == FailurePolicy::Ignore => continue,
                Err(reason) => {
                    return Err(self.refusal(
                        (policy, binding),
                        object,
                        &[format!("failed to configure policy: {reason}")],
                    ));
                }
            };
            for params in &params {
                let (old, namespace) = (old.as_ref(), namespace.as_ref());
                shown = self.mutated(&PolicyInputs { policy, binding, version, old, namespace, params }, shown)?;
            }
        }
        if shown == before {
            return Ok(None);
        }
        let changed = self.restored(shown).await?;
        Ok((changed != *object).then_some(changed))
    }

    /// The object after all changes of a policy, with one of its parameters.
    fn mutated(&self, inputs: &PolicyInputs<'_>, mut object: Object) -> Result<Object, ApiError> {
        let policy = inputs.policy;
        let lenient = policy.spec.failure_policy == FailurePolicy::Ignore;
        match self.with_values(inputs, &object, |values| policy.spec.match_conditions.hold(values)) {
            Ok(true) => {}
            Ok(false) => return Ok(object),
            Err(_) if lenient => return Ok(object),
            Err(reason) => return Err(self.refusal((policy, inputs.binding), &object, &[reason])),
        }
        let mut failures = Vec::new();
        for mutation in &policy.spec.mutations {
            let (Mutation::Configuration(expression) | Mutation::Patch(expression)) = mutation;
            let yielded = self.with_values(inputs, &object, |values| {
                let variables = policy.variables(values);
                expression.evaluate(&Values { variables: Some(&variables), ..*values })
            });
            let changed = match (mutation, yielded) {
                (_, Err(error)) => Err(format!("expression '{}' resulted in error: {error}", expression.text)),
                (Mutation::Configuration(_), Ok(value)) => self.merged(&object, value, inputs.version),
                (Mutation::Patch(_), Ok(value)) => patched(&object, value),
            };
            match changed {
                Ok(changed) => object = changed,
                Err(reason) => failures.push(reason),
            }
        }
        match failures.is_empty() || lenient {
            true => Ok(object),
            false => Err(self.refusal((policy, inputs.binding), &object, &failures)),
        }
    }

    /// Calls a function with the values for expressions.
    fn with_values<T>(&self, inputs: &PolicyInputs<'_>, object: &Object, act: impl FnOnce(&Values<'_>) -> T) -> T {
        let subject = self.subject(Some(object));
        let review = Review {
            subject: &subject,
            version: inputs.version,
            user: &self.call.user,
            namespace: &self.call.target.namespace,
            object: Some(object),
            old: inputs.old,
            dry_run: self.dry_run == DryRun::Yes,
        };
        let request = review.request("");
        let authorizer = self.authorizer(Some(object));
        act(&Values {
            authorizer: Some((&authorizer, &authorizer.question)),
            object: Some(&request["object"]),
            old_object: Some(&request["oldObject"]),
            request: Some(&request),
            namespace: inputs.namespace,
            params: Some(inputs.params),
            variables: None,
        })
    }

    /// The object with an apply configuration merged into it, by the types of its fields.
    fn merged(&self, object: &Object, configuration: Value, version: &GroupVersion) -> Result<Object, String> {
        let Value::Object(fields) = configuration else { return Err("must evaluate to Object".into()) };
        let foreign = self.subject(None).foreign_kind();
        let foreign = foreign.and_then(|(version, kind)| TypeTable::shared().kind(&version.to_string(), kind));
        let layout = match foreign {
            Some(kind) => Layout::Builtin(kind),
            None => Layout::of(&self.call.resource, &version.to_string()),
        };
        if let Some(path) = apply::atomic_in(layout.root(), &fields) {
            return Err(format!(
                "error applying patch: invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: {path}"
            ));
        }
        let merged = apply::merged(layout.root(), object.fields(), &fields);
        Object::from_value(Value::Object(merged)).map_err(|_| "the object became something else".into())
    }

    fn refusal(&self, (policy, binding): (&Policy, &Binding), object: &Object, reasons: &[String]) -> ApiError {
        let resource = &self.call.resource.group_resource;
        let message = |reason: &String| {
            let (policy, binding) = (&policy.metadata.name, &binding.metadata.name);
            format!("policy '{policy}' with binding '{binding}' denied request: {reason}")
        };
        let messages: Vec<String> = reasons.iter().map(message).collect();
        let causes: Vec<Value> = messages.iter().map(|message| json!({"message": message})).collect();
        let mut details = json!({"kind": resource.resource(), "causes": causes});
        for (field, text) in [("name", self.subject(Some(object)).name), ("group", resource.group())] {
            if !text.is_empty() {
                details[field] = text.into();
            }
        }
        let message = messages.first().cloned().unwrap_or_default();
        ApiError::Denied { code: 403, reason: "Invalid".into(), message, details: Some(details) }
    }
}

/// The object after a JSON patch. If a `test` fails, it changes nothing, which is no failure.
fn patched(object: &Object, operations: Value) -> Result<Object, String> {
    let patch: json_patch::Patch =
        serde_json::from_value(operations).map_err(|error| format!("error applying patch: {error}"))?;
    let mut value = object.as_value().clone();
    match bounded_patch::apply(&mut value, &patch) {
        Ok(()) => Object::from_value(value).map_err(|_| "the object became something else".into()),
        Err(error) if error.is_failed_test() => Ok(object.clone()),
        Err(error) => Err(format!("error applying patch: {error}")),
    }
}
