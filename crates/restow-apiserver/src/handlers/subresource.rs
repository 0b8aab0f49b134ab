//! What lies beneath objects: which part of an object each subresource writes, and those that are actions.

use crate::admission::{self, Operation};
use crate::error::ApiError;
use crate::handlers::{Answer, Call, eviction, review, scale};
use crate::request::body;
use crate::resource::{Origin, Verb};
use crate::storage::object_store::{Change, Decision};
use async_trait::async_trait;
use restow_api::GroupResource;
use restow_apimachinery::object::Object;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::time::Duration;

/// What each subresource that is written like its object takes from what was sent; everything else stays as stored.
const PARTS: [(&str, &[&[&str]]); 5] = [
    ("status", &[&["status"], &["metadata"]]),
    ("approval", &[&["status", "conditions"]]),
    ("finalize", &[&["spec", "finalizers"]]),
    ("ephemeralcontainers", &[&["spec", "ephemeralContainers"]]),
    ("resize", &[&["spec", "resources"]]),
];

/// Where the containers of a pod are that can be resized.
const CONTAINERS: [&[&str]; 2] = [&["spec", "containers"], &["spec", "initContainers"]];

/// Answers a request for a subresource; `None` when it is to be answered as one for its object.
pub(super) async fn answer(call: &Call<'_>) -> Result<Option<Answer>, ApiError> {
    let subresource = call.target.subresource.as_str();
    let (first, _) = subresource.split_once('/').unwrap_or((subresource, ""));
    let known = call.resource.subresource(subresource).or_else(|| match first {
        // What is proxied may have a path of its own.
        "proxy" => call.resource.subresource(first),
        _ => None,
    });
    let known = known.ok_or(ApiError::NoSuchResource)?;
    if !known.verbs.contains(&call.target.verb) {
        return Err(ApiError::MethodNotAllowed);
    }
    match (call.resource.group_resource.resource(), first) {
        (_, "scale") => scale::scale(call).await.map(Some),
        ("serviceaccounts", "token") => review::token(call).await.map(Some),
        ("pods", "binding") => bind(call, &call.target.name).await.map(Some),
        ("pods", "eviction") => eviction::evict(call).await.map(Some),
        (_, name) if PARTS.iter().any(|(part, _)| *part == name) => Ok(None),
        (_, "log" | "exec" | "attach" | "portforward" | "proxy") => unreachable_answer(call).await.map(Some),
        _ => Err(ApiError::NoSuchResource),
    }
}

/// Leaves of what was sent only what this subresource writes; the object itself leaves the status alone.
pub(super) fn keep_part(call: &Call<'_>, object: &mut Object, old: &Object) {
    let name = call.target.subresource.as_str();
    match PARTS.iter().find(|(part, _)| *part == name) {
        Some(("status", _)) if keeps_metadata(call) => {
            let status = object.get("status").cloned();
            *object = old.clone();
            object.set("status", status);
        }
        Some((_, paths)) => {
            let sent = std::mem::replace(object, old.clone());
            for path in *paths {
                set_at(object, path, sent.at(path).cloned());
            }
            if name == "resize" {
                CONTAINERS.iter().for_each(|path| set_at(object, path, resized(&sent, old, path)));
            }
            // Those that a pod belongs to are told by whoever makes it, not by its node.
            if call.resource.group_resource.to_string() == "pods" {
                let owners = old.at(&["metadata", "ownerReferences"]).cloned();
                set_at(object, &["metadata", "ownerReferences"], owners);
                let class = ["status", "qosClass"];
                if object.text(&class).is_empty() {
                    set_at(object, &class, old.at(&class).cloned());
                }
            }
        }
        None => {
            if call.resource.subresource("status").is_some() {
                object.set("status", old.get("status").cloned());
            }
            // What holds a namespace until it is empty is let go by its subresource only.
            if call.resource.origin == Origin::Builtin && call.resource.names.kind == "Namespace" {
                let path = ["spec", "finalizers"];
                set_at(object, &path, old.at(&path).cloned());
            }
        }
    }
}

/// The object before a change, as if what this subresource alone may change had been so before.
pub(super) fn granted<'a>(call: &Call<'_>, object: &Object, old: &'a Object) -> Cow<'a, Object> {
    let mut granted = old.clone();
    match call.target.subresource.as_str() {
        "ephemeralcontainers" => {
            let path = ["spec", "ephemeralContainers"];
            set_at(&mut granted, &path, Some(joined(object, old, &path).into()));
        }
        "resize" => {
            for path in [CONTAINERS[0], CONTAINERS[1], &["spec", "resources"]] {
                let sent = object.at(path).cloned().unwrap_or_default();
                let mut before = old.at(path).cloned().unwrap_or_default();
                match before.as_array_mut().zip(sent.as_array()) {
                    Some((before, sent)) => {
                        for (container, sent) in before.iter_mut().zip(sent) {
                            grant_sizes(&mut container["resources"], &sent["resources"]);
                        }
                    }
                    None => grant_sizes(&mut before, &sent),
                }
                set_at(&mut granted, path, Some(before).filter(|before| !before.is_null()));
            }
        }
        "approval" => {
            let path = ["status", "conditions"];
            set_at(&mut granted, &path, Some(decided(object, old).into()));
        }
        // A certificate is issued once.
        "status" if call.resource.names.kind == "CertificateSigningRequest" => {
            let path = ["status", "certificate"];
            if old.text(&path).is_empty() {
                set_at(&mut granted, &path, object.at(&path).cloned());
            }
        }
        _ => return Cow::Borrowed(old),
    }
    Cow::Owned(granted)
}

/// The containers as they were, in the sizes that were sent. Where they are not the same ones, as they were sent: that is
/// refused later.
fn resized(sent: &Object, old: &Object, path: &[&str]) -> Option<Value> {
    let list = |object: &Object| object.at(path).and_then(Value::as_array).cloned().unwrap_or_default();
    let (sent, mut containers) = (list(sent), list(old));
    let same =
        sent.len() == containers.len() && sent.iter().zip(&containers).all(|(one, other)| one["name"] == other["name"]);
    if !same {
        return Some(sent.into());
    }
    for (container, sent) in containers.iter_mut().zip(&sent) {
        match (container.as_object_mut(), sent.get("resources")) {
            (Some(fields), Some(resources)) => drop(fields.insert("resources".into(), resources.clone())),
            (Some(fields), None) => drop(fields.remove("resources")),
            (None, _) => {}
        }
    }
    old.at(path).map(|_| containers.into())
}

/// Sets what a resize may change: of what is asked for and of what is the limit, processors and memory.
fn grant_sizes(resources: &mut Value, sent: &Value) {
    for part in ["requests", "limits"] {
        for name in ["cpu", "memory"] {
            match sent[part].get(name) {
                Some(size) => resources[part][name] = size.clone(),
                None => {
                    if let Some(sizes) = resources.get_mut(part).and_then(Value::as_object_mut) {
                        sizes.remove(name);
                    }
                }
            }
        }
    }
}

/// A list of things with names, with what was added to it: what was there before stays what it was.
fn joined(object: &Object, old: &Object, path: &[&str]) -> Vec<Value> {
    let list = |object: &Object| object.at(path).and_then(Value::as_array).cloned().unwrap_or_default();
    let (sent, mut all) = (list(object), list(old));
    let new: Vec<Value> = sent.into_iter().filter(|one| !all.iter().any(|old| old["name"] == one["name"])).collect();
    all.extend(new);
    all
}

/// The conditions of a request as whoever decides about it wants them; a decision that was made is not taken back.
fn decided(object: &Object, old: &Object) -> Vec<Value> {
    let path = ["status", "conditions"];
    let of = |object: &Object| object.at(&path).and_then(Value::as_array).cloned().unwrap_or_default();
    let (mut conditions, before) = (of(object), of(old));
    let gone = before.into_iter().filter(|was| !conditions.iter().any(|is| is["type"] == was["type"]));
    let gone: Vec<Value> = gone.collect();
    conditions.extend(gone);
    conditions
}

/// Whether who writes the status has no say in the metadata: so it is with custom resources, their definitions, and some others.
fn keeps_metadata(call: &Call<'_>) -> bool {
    call.resource.origin == Origin::Custom
        || call.resource.strategy.status_alone()
        || call.resource.names.kind == "CustomResourceDefinition"
}

/// Sets a field at the top or one level below it, or removes it.
pub(super) fn set_at(object: &mut Object, path: &[&str], value: Option<Value>) {
    match path {
        [field] => object.set(field, value),
        [outer, inner] => {
            let mut fields = object.get(outer).cloned().filter(Value::is_object).unwrap_or_else(|| json!({}));
            if let Some(fields) = fields.as_object_mut() {
                match value {
                    Some(value) => drop(fields.insert(inner.to_string(), value)),
                    None => drop(fields.remove(*inner)),
                }
            }
            object.set(outer, Some(fields));
        }
        _ => {}
    }
}

/// Lets admission have its say about what is sent to have something done. What comes back is what is to be done.
pub(super) async fn admitted(call: &Call<'_>, sent: Value) -> Result<Object, ApiError> {
    let sent = if sent.is_null() { json!({}) } else { sent };
    let mut sent = Object::from_value(sent)
        .map_err(|_| ApiError::bad_request("the object provided is unrecognized (must be of type object)"))?;
    let own = (&call.version, call.resource.names.kind.as_str());
    let (version, kind) = call.resource.foreign_kind(&call.target.subresource, &call.version).unwrap_or(own);
    sent.set_type(&version.to_string(), kind);
    let object = admission::mutate(&call.admission(), Operation::Create, sent, None).await?;
    admission::validate(&call.admission(), Operation::Create, Some(&object), None).await?;
    Ok(object)
}

/// Assigns a pod to a node. Used for `bindings` too, where the pod is named in the body.
pub(super) async fn bind(call: &Call<'_>, name: &str) -> Result<Answer, ApiError> {
    let binding = admitted(call, body::value(call)?).await?.into_value();
    let given = binding["metadata"]["name"].as_str().unwrap_or_default();
    let name = if name.is_empty() { given } else { name };
    if given != name {
        return Err(ApiError::bad_request("name in URL does not match name in Binding object"));
    }
    let target = &binding["target"];
    let node = target["name"].as_str().unwrap_or_default();
    let problem = match target["kind"].as_str().unwrap_or_default() {
        "" | "Node" if node.is_empty() => Some(restow_apimachinery::field::FieldError::required("target.name", "")),
        "" | "Node" => None,
        other => Some(restow_apimachinery::field::FieldError {
            field: "target.kind".into(),
            rule: restow_apimachinery::field::FieldRule::NotSupported(Value::from(other).to_string()),
            detail: "supported values: \"Node\", \"<empty>\"".into(),
        }),
    };
    if let Some(problem) = problem {
        return Err(ApiError::BadRequest(problem.to_string()));
    }
    let registry = call.handlers.registry();
    let pods = registry.find(&call.version, "pods").ok_or(ApiError::NoSuchResource)?;
    let place = crate::resource::ObjectRef { resource: pods, ..call.place(name) };
    let mut decision = Assignment { name, node, dry_run: call.dry_run()? };
    call.handlers.objects().change(place, &mut decision).await?;
    Ok(Answer::Object { code: 201, object: success(201) })
}

struct Assignment<'a> {
    name: &'a str,
    node: &'a str,
    dry_run: bool,
}

#[async_trait]
impl Decision for Assignment<'_> {
    async fn decide(&mut self, before: Option<&Object>) -> Result<Change, ApiError> {
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
        set_at(&mut pod, &["spec", "nodeName"], Some(self.node.into()));
        let mut conditions = pod.at(&["status", "conditions"]).and_then(Value::as_array).cloned().unwrap_or_default();
        conditions.retain(|condition| condition["type"] != "PodScheduled");
        conditions.push(json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null,
            "lastTransitionTime": crate::resource::object_meta::now()}));
        set_at(&mut pod, &["status", "conditions"], Some(conditions.into()));
        Ok(if self.dry_run { Change::Keep } else { Change::Write(pod) })
    }
}

fn pods() -> Result<GroupResource, ApiError> {
    GroupResource::new("", "pods").map_err(|error| ApiError::Internal(error.to_string()))
}

/// An action that was carried out.
pub(super) fn success(code: u16) -> Object {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code});
    Object::from_value(status).unwrap_or_default()
}

/// What only a node could answer. Nothing here runs on nodes, so the object is looked up and that is said.
async fn unreachable_answer(call: &Call<'_>) -> Result<Answer, ApiError> {
    let name = &call.target.name;
    let entry = call.handlers.objects().get(call.place(name)).await?.ok_or_else(|| call.not_found(name))?;
    let object = call.resource.decode(&entry, &call.version).await?;
    let unavailable = |message: String| ApiError::Unavailable { message, retry_after: Duration::from_secs(1) };
    match call.resource.group_resource.resource() {
        // A pod that runs nowhere has said nothing yet.
        "pods" if call.target.subresource == "log" && object.text(&["spec", "nodeName"]).is_empty() => {
            Ok(Answer::Nothing)
        }
        "pods" if object.text(&["spec", "nodeName"]).is_empty() && call.target.verb != Verb::Delete => {
            Err(ApiError::BadRequest(format!("pod {name} does not have a host assigned")))
        }
        "services" => Err(unavailable(format!("no endpoints available for service {name:?}"))),
        _ => Err(unavailable("this server does not connect to nodes".into())),
    }
}
