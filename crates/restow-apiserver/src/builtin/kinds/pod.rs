//! Pods: the status of a new pod, its quality of service, its grace period, and what its subresources write.
//!
//! | more about pods | where |
//! |---|---|
//! | validation of a specification or template | `pod/spec.rs` |
//! | which updates are allowed | `pod/changes.rs` |
//! | defaults and checks of containers, volumes, tolerations | `pod/types.rs` |
//! | `resize` and `ephemeralcontainers` | `pod/subresources.rs` |
//! | admission plugins ServiceAccount, Priority, DefaultTolerationSeconds | `admission/pods.rs` |
//! | `binding`, `eviction` | `handlers/subresource/binding.rs`, `handlers/eviction.rs` |

mod changes;
pub(super) mod spec;
mod subresources;
pub(crate) mod types;

use crate::resource::strategy::{Connection, Strategy, SubresourceAction};
use crate::resource::{Verb, object_meta};
use crate::storage::deletion;
use jiff::Timestamp;
use restow_apimachinery::field::FieldError;
use restow_apimachinery::object::Object;
use serde_json::{Value, json};

/// The grace period in seconds of a pod that does not set one.
const DEFAULT_GRACE: i64 = 30;

pub(super) struct Pod;

impl Strategy for Pod {
    fn initial_status(&self, object: &Object) -> Option<Value> {
        Some(initial_status(object))
    }

    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        let problems = spec::spec_problems(object.get("spec"), "spec", &[]).into_iter();
        problems.chain(spec::gated_problem(object)).collect()
    }

    fn validate_change(&self, object: &Object, baseline: &Object) -> Vec<FieldError> {
        changes::problems(object, baseline)
    }

    /// A pod on a node gets a grace period.
    fn grace_period(&self, object: &Object, requested: Option<i64>) -> i64 {
        let ended = matches!(object.text(&["status", "phase"]), "Failed" | "Succeeded");
        if object.text(&["spec", "nodeName"]).is_empty() || ended {
            return 0;
        }
        let usual = object.at(&["spec", "terminationGracePeriodSeconds"]).and_then(Value::as_i64);
        match requested.or(usual).unwrap_or(DEFAULT_GRACE) {
            seconds if seconds < 0 => 1,
            seconds => seconds,
        }
    }

    /// The response to a deletion shows a grace period of zero.
    fn finish_deletion(&self, object: &mut Object, now: Timestamp) {
        deletion::end_grace(object, now);
    }

    fn subresource_fields(&self, subresource: &str) -> Option<&'static [&'static [&'static str]]> {
        match subresource {
            "status" => Some(&[&["status"], &["metadata"]]),
            "ephemeralcontainers" => Some(&[&["spec", "ephemeralContainers"]]),
            "resize" => Some(&[&["spec", "resources"]]),
            _ => None,
        }
    }

    fn prepare_subresource(&self, subresource: &str, object: &mut Object, sent: &Object, old: &Object) {
        if subresource == "resize" {
            subresources::resize(object, sent, old);
        }
        // The kubelet writes the status. It does not set owners, and may omit the quality of service.
        let owners = ["metadata", "ownerReferences"];
        object.set_at(&owners, old.at(&owners).cloned());
        let class = ["status", "qosClass"];
        if object.text(&class).is_empty() {
            object.set_at(&class, old.at(&class).cloned());
        }
    }

    fn with_permitted_changes(&self, subresource: &str, object: &Object, old: &Object) -> Option<Object> {
        match subresource {
            "ephemeralcontainers" => Some(subresources::with_new_ephemeral_containers(object, old)),
            "resize" => Some(subresources::with_new_sizes(object, old)),
            _ => None,
        }
    }

    fn subresource_action(&self, subresource: &str) -> Option<SubresourceAction> {
        match subresource {
            "binding" => Some(SubresourceAction::Bind),
            "eviction" => Some(SubresourceAction::Evict),
            "log" | "exec" | "attach" | "portforward" | "proxy" => Some(SubresourceAction::Connect),
            _ => None,
        }
    }

    fn connection(&self, subresource: &str, verb: Verb, object: &Object) -> Connection {
        let unassigned = object.text(&["spec", "nodeName"]).is_empty();
        match subresource {
            // A pod without a node has no log yet.
            "log" if unassigned => Connection::Empty,
            _ if unassigned && verb != Verb::Delete => {
                Connection::BadRequest(format!("pod {} does not have a host assigned", object.name()))
            }
            _ => Connection::no_nodes(),
        }
    }
}

/// A template of pods that is stored on its own.
pub(super) struct PodTemplate;

impl Strategy for PodTemplate {
    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        spec::template_problems(object.get("template"), "template", &[])
    }
}

/// A `bindings` object is not stored: creating it assigns a pod to a node.
pub(super) struct Binding;

impl Strategy for Binding {
    fn subresource_action(&self, subresource: &str) -> Option<SubresourceAction> {
        subresource.is_empty().then_some(SubresourceAction::Bind)
    }
}

/// The status of a new pod.
fn initial_status(object: &Object) -> Value {
    let mut status = json!({"phase": "Pending", "qosClass": quality_of_service(object)});
    if object.at(&["spec", "schedulingGates"]).and_then(Value::as_array).is_some_and(|gates| !gates.is_empty()) {
        status["conditions"] = json!([{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
            "lastProbeTime": null, "lastTransitionTime": object_meta::now()}]);
    }
    status
}

/// The quality of service class, from the requests and limits.
fn quality_of_service(pod: &Object) -> &'static str {
    let containers = ["containers", "initContainers"].into_iter();
    let containers = containers.filter_map(|field| pod.at(&["spec", field])?.as_array()).flatten();
    // The resources of the pod take precedence over those of its containers.
    let resources: Vec<&Value> = match pod.at(&["spec", "resources"]) {
        Some(own) => vec![own],
        None => containers.map(|container| &container["resources"]).collect(),
    };
    let asks = |resources: &Value, part: &str, name: &str| !resources[part][name].is_null();
    let names = ["cpu", "memory"];
    let nothing = |resources: &&Value| {
        names.iter().all(|name| !asks(resources, "requests", name) && !asks(resources, "limits", name))
    };
    let fixed = |resources: &&Value| {
        names
            .iter()
            .all(|name| asks(resources, "limits", name) && resources["limits"][*name] == resources["requests"][*name])
    };
    match () {
        () if resources.iter().all(nothing) => "BestEffort",
        () if resources.iter().all(fixed) => "Guaranteed",
        () => "Burstable",
    }
}
