//! The `binding` subresource of pods and the `bindings` resource: they assign a pod to a node.

use crate::error::ApiError;
use crate::handlers::{Call, HandlerResponse, subresource};
use crate::request::body;
use crate::resource::{ObjectRef, object_meta};
use crate::storage::object_store::{ObjectChange, ObjectDecision};
use async_trait::async_trait;
use restow_api::GroupResource;
use restow_apimachinery::field::{FieldError, FieldRule};
use restow_apimachinery::object::Object;
use serde_json::{Value, json};

/// Assigns a pod to a node. For `bindings` the name is empty, and the body names the pod.
pub(in crate::handlers) async fn bind(call: &Call<'_>, name: &str) -> Result<HandlerResponse, ApiError> {
    let binding = subresource::admit(call, body::value(call)?).await?.into_value();
    let given = binding["metadata"]["name"].as_str().unwrap_or_default();
    let name = if name.is_empty() { given } else { name };
    if given != name {
        return Err(ApiError::bad_request("name in URL does not match name in Binding object"));
    }
    let target = &binding["target"];
    let node = target["name"].as_str().unwrap_or_default();
    let problem = match target["kind"].as_str().unwrap_or_default() {
        "" | "Node" if node.is_empty() => Some(FieldError::required("target.name", "")),
        "" | "Node" => None,
        other => Some(FieldError {
            field: "target.kind".into(),
            rule: FieldRule::NotSupported(Value::from(other).to_string()),
            detail: "supported values: \"Node\", \"<empty>\"".into(),
        }),
    };
    if let Some(problem) = problem {
        return Err(ApiError::BadRequest(problem.to_string()));
    }
    let registry = call.handlers.registry();
    let pods = registry.find(&call.version, "pods").ok_or(ApiError::NoSuchResource)?;
    let pod = ObjectRef { resource: pods, ..call.object_ref(name) };
    call.handlers.objects().commit(pod, &mut Assignment { name, node }, call.dry_run()?).await?;
    Ok(HandlerResponse::Object { code: 201, object: subresource::success(201) })
}

struct Assignment<'a> {
    name: &'a str,
    node: &'a str,
}

#[async_trait]
impl ObjectDecision for Assignment<'_> {
    async fn decide(&mut self, before: Option<&Object>) -> Result<ObjectChange, ApiError> {
        let refused = |message: String| ApiError::ConflictOn {
            kind: "pods/binding".into(),
            name: self.name.to_string(),
            message,
        };
        let Some(pod) = before else {
            return Err(ApiError::NotFound { resource: pods()?, name: self.name.to_string() });
        };
        let gates = pod.at(&["spec", "schedulingGates"]).and_then(Value::as_array);
        if gates.is_some_and(|gates| !gates.is_empty()) {
            return Err(refused(format!("pod {} has non-empty .spec.schedulingGates", self.name)));
        }
        if pod.is_being_deleted() {
            return Err(refused(format!("pod {} is being deleted, cannot be assigned to a host", self.name)));
        }
        let assigned = pod.text(&["spec", "nodeName"]);
        if !assigned.is_empty() {
            return Err(refused(format!("pod {} is already assigned to node {assigned:?}", self.name)));
        }
        let mut pod = pod.clone();
        pod.set_at(&["spec", "nodeName"], Some(self.node.into()));
        let mut conditions = pod.at(&["status", "conditions"]).and_then(Value::as_array).cloned().unwrap_or_default();
        conditions.retain(|condition| condition["type"] != "PodScheduled");
        conditions.push(json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null,
            "lastTransitionTime": object_meta::now()}));
        pod.set_at(&["status", "conditions"], Some(conditions.into()));
        Ok(ObjectChange::Write(pod))
    }
}

fn pods() -> Result<GroupResource, ApiError> {
    GroupResource::new("", "pods").map_err(|error| ApiError::Internal(error.to_string()))
}
