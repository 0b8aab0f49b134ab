//! The rules of built-in kinds, chosen by the words in their row of the table.

use crate::builtin::table::Row;
use crate::builtin::{addresses, checks, defaults, validation};
use crate::crd::CrdStrategy;
use crate::release::Release;
use crate::resource::object_meta;
use crate::resource::strategy::{ScaleFields, ScaleSelector, Strategy};
use restow_apimachinery::field::FieldError;
use restow_apimachinery::names::NameRule;
use restow_apimachinery::object::Object;
use restow_apimachinery::types::TypeTable;
use restow_store::Mutation;
use restow_tables::resources::Rule;
use serde_json::{Value, json};
use std::sync::Arc;

/// The rules of a row's kind.
pub(super) fn of(row: &Row, release: Release) -> Arc<dyn Strategy> {
    match row.rules.contains(&Rule::CustomResourceDefinition) {
        true => Arc::new(CrdStrategy),
        false => Arc::new(BuiltinStrategy::of(row, release)),
    }
}

/// The seconds that a pod has to end when it does not say.
const DEFAULT_GRACE: i64 = 30;

/// The kinds whose deletion is answered with what was deleted.
const RETURNED: [&str; 18] = [
    "Namespace",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "Pod",
    "PodTemplate",
    "ResourceQuota",
    "Service",
    "ServiceAccount",
    "DeviceClass",
    "ResourceClaim",
    "ResourceClaimTemplate",
    "ResourcePoolStatusRequest",
    "ResourceSlice",
    "CSIDriver",
    "CSINode",
    "StorageClass",
    "VolumeAttachment",
    "VolumeAttributesClass",
];

/// A built-in kind's rules.
struct BuiltinStrategy {
    /// `name-label`, `name-service`, `name-path`: what its objects may be called.
    names: NameRule,
    /// `generation`: its changes are counted.
    generation: bool,
    /// `create-on-update`: replacing an object that does not exist creates it.
    create_on_update: bool,
    /// `unconditional-update`: an object can be replaced without its resource version.
    unconditional_update: bool,
    /// `status-alone`: who writes the status writes nothing else.
    status_alone: bool,
    /// The status is set by whoever has the status subresource, not by who creates the object; `status-on-create` is
    /// the exception.
    resets_status: bool,
    kind: String,
}

impl BuiltinStrategy {
    fn of(row: &Row, release: Release) -> Self {
        let has = |rule: Rule| row.rules.contains(&rule);
        BuiltinStrategy {
            names: match () {
                () if has(Rule::NameLabel) => NameRule::Label,
                () if has(Rule::NameService) && release < Release::RELAXED_SERVICE_NAMES => NameRule::ServiceLabel,
                () if has(Rule::NameService) => NameRule::Label,
                () if has(Rule::NamePath) => NameRule::PathSegment,
                () => NameRule::Subdomain,
            },
            generation: has(Rule::Generation),
            create_on_update: has(Rule::CreateOnUpdate),
            unconditional_update: has(Rule::UnconditionalUpdate),
            status_alone: has(Rule::StatusAlone),
            resets_status: row.subresources.iter().any(|sub| sub.name == "status") && !has(Rule::StatusOnCreate),
            kind: row.kind.clone(),
        }
    }
}

impl Strategy for BuiltinStrategy {
    fn name_rule(&self) -> NameRule {
        self.names
    }

    fn default(&self, object: &mut Object) {
        defaults::apply(object);
        if self.kind == "Namespace" {
            label_namespace(object);
        }
    }

    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        problems(object)
    }

    fn validate_update(&self, object: &Object, old: &Object) -> Vec<FieldError> {
        let mut found = problems(object);
        // What was so before, be it by the leave of an earlier version, does not stand in the way of other changes.
        if !found.is_empty() {
            let before = problems(old);
            found.retain(|problem| !before.contains(problem));
        }
        found
    }

    fn validate_change(&self, object: &Object, granted: &Object) -> Vec<FieldError> {
        let changes = validation::change_problems(object, granted);
        if changes.is_empty() {
            return changes;
        }
        // What is set by default only since the object was stored is no change that somebody makes.
        let mut completed = granted.clone();
        defaults::apply(&mut completed);
        validation::change_problems(object, &completed)
    }

    fn prepare_create(&self, object: &mut Object) {
        if self.resets_status {
            let status = initial_status(object);
            object.set("status", status);
        }
        match self.kind.as_str() {
            "Namespace" => prepare_namespace(object),
            "Job" => prepare_job(object),
            "DaemonSet" => count_template(object, 1),
            "PersistentVolume" => {
                let mut status = object.get("status").cloned().unwrap_or_else(|| json!({}));
                status["lastPhaseTransitionTime"] = object_meta::now().into();
                object.set("status", Some(status));
            }
            _ => {}
        }
    }

    fn prepare_update(&self, object: &mut Object, old: &Object) {
        match self.kind.as_str() {
            "Service" => addresses::keep(object, old),
            "DaemonSet" => {
                let template = &["spec", "template"];
                let before = old.annotation(TEMPLATE_GENERATION).and_then(|text| text.parse::<i64>().ok());
                let changed = object.at(template) != old.at(template);
                count_template(object, before.unwrap_or_default() + i64::from(changed));
            }
            // Whoever wants another certificate asks anew.
            "CertificateSigningRequest" => object.set("spec", old.get("spec").cloned()),
            _ => {}
        }
    }

    fn alongside(&self, old: Option<&Object>, new: Option<&Object>) -> Vec<Mutation> {
        match self.kind.as_str() {
            "Service" => addresses::alongside(old, new),
            "Lease" => crate::storage_version::mark_server_joined(old, new),
            _ => Vec::new(),
        }
    }

    fn prepare_deletion(&self, object: &mut Object) {
        if self.kind == "Namespace" {
            let mut status = object.get("status").cloned().filter(Value::is_object).unwrap_or_else(|| json!({}));
            status["phase"] = "Terminating".into();
            object.set("status", Some(status));
        }
    }

    /// A pod that runs on a node is given time to end.
    fn grace_period(&self, object: &Object, requested: Option<i64>) -> i64 {
        let ended = matches!(object.text(&["status", "phase"]), "Failed" | "Succeeded");
        if self.kind != "Pod" || object.text(&["spec", "nodeName"]).is_empty() || ended {
            return 0;
        }
        let usual = object.at(&["spec", "terminationGracePeriodSeconds"]).and_then(Value::as_i64);
        match requested.or(usual).unwrap_or(DEFAULT_GRACE) {
            seconds if seconds < 0 => 1,
            seconds => seconds,
        }
    }

    fn is_occupied(&self, object: &Object) -> bool {
        let finalizers = object.at(&["spec", "finalizers"]).and_then(Value::as_array);
        self.kind == "Namespace" && finalizers.is_some_and(|finalizers| !finalizers.is_empty())
    }

    fn orphans_dependents(&self) -> bool {
        matches!(self.kind.as_str(), "Job" | "ReplicationController")
    }

    fn returns_deleted(&self) -> bool {
        RETURNED.contains(&self.kind.as_str())
    }

    fn scale(&self, _api_version: &str) -> Option<ScaleFields> {
        let path = |steps: &[&str]| steps.iter().map(|step| step.to_string()).collect::<Vec<_>>();
        let selector = match self.kind.as_str() {
            "Deployment" | "ReplicaSet" | "StatefulSet" => ScaleSelector::Selector(path(&["spec", "selector"])),
            "ReplicationController" => ScaleSelector::Labels(path(&["spec", "selector"])),
            _ => return None,
        };
        let (replicas, status_replicas) = (path(&["spec", "replicas"]), path(&["status", "replicas"]));
        Some(ScaleFields { replicas, status_replicas, selector })
    }

    fn create_on_update(&self) -> bool {
        self.create_on_update
    }

    fn status_alone(&self) -> bool {
        self.status_alone
    }

    fn unconditional_update(&self) -> bool {
        self.unconditional_update
    }

    fn has_generation(&self) -> bool {
        self.generation
    }
}

/// Everything that is wrong with an object.
fn problems(object: &Object) -> Vec<FieldError> {
    let mut problems = validation::problems(object);
    problems.extend(checks::problems(object));
    problems
}

/// The status of a new object: what its type has when nothing is known, and how its life begins.
fn initial_status(object: &Object) -> Option<Value> {
    match object.kind() {
        "Namespace" => Some(json!({"phase": "Active"})),
        "PersistentVolume" | "PersistentVolumeClaim" => Some(json!({"phase": "Pending"})),
        "Pod" => {
            let mut status = json!({"phase": "Pending", "qosClass": quality_of_service(object)});
            if object.at(&["spec", "schedulingGates"]).and_then(Value::as_array).is_some_and(|gates| !gates.is_empty())
            {
                status["conditions"] = json!([{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
                    "message": "Scheduling is blocked due to non-empty scheduling gates",
                    "lastProbeTime": null, "lastTransitionTime": object_meta::now()}]);
            }
            Some(status)
        }
        kind => {
            let kind = TypeTable::shared().kind(object.api_version(), kind)?;
            TypeTable::shared().blank(kind).get("status").cloned()
        }
    }
}

/// How a pod is treated when its node runs short, which follows from what its containers ask for.
fn quality_of_service(pod: &Object) -> &'static str {
    let containers = ["containers", "initContainers"].into_iter();
    let containers = containers.filter_map(|field| pod.at(&["spec", field])?.as_array()).flatten();
    // What a pod says of itself counts more than what its containers do.
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

/// A namespace cannot go before it has been emptied.
fn prepare_namespace(object: &mut Object) {
    let mut spec = object.get("spec").cloned().filter(Value::is_object).unwrap_or_else(|| json!({}));
    let finalizers = spec["finalizers"].as_array().cloned().unwrap_or_default();
    if !finalizers.iter().any(|finalizer| finalizer == "kubernetes") {
        let mut finalizers = finalizers;
        finalizers.push("kubernetes".into());
        spec["finalizers"] = finalizers.into();
    }
    object.set("spec", Some(spec));
}

/// A job finds its pods by its own unique id, unless somebody chose the labels by hand.
fn prepare_job(object: &mut Object) {
    let (name, uid) = (object.name().to_string(), object.uid().to_string());
    let mut spec = object.get("spec").cloned().unwrap_or_default();
    if spec["manualSelector"] == true {
        return;
    }
    for (key, value) in [
        ("batch.kubernetes.io/controller-uid", &uid),
        ("batch.kubernetes.io/job-name", &name),
        ("controller-uid", &uid),
        ("job-name", &name),
    ] {
        spec["template"]["metadata"]["labels"][key] = value.as_str().into();
    }
    spec["selector"]["matchLabels"]["batch.kubernetes.io/controller-uid"] = uid.into();
    let labels = spec["template"]["metadata"]["labels"].clone();
    object.set("spec", Some(spec));
    // What says nothing of its own labels has those of its template.
    if object.metadata().and_then(|fields| fields.get("labels")).is_none_or(|own| own == &json!({})) {
        object.metadata_mut().insert("labels".into(), labels);
    }
}

/// Where a daemon set counts the changes of its template.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

fn count_template(object: &mut Object, count: i64) {
    let annotations = object.metadata_mut().entry("annotations").or_insert_with(|| json!({}));
    if let Some(annotations) = annotations.as_object_mut() {
        annotations.insert(TEMPLATE_GENERATION.into(), count.to_string().into());
    }
}

/// A namespace carries its own name as a label.
fn label_namespace(object: &mut Object) {
    let name = object.name().to_string();
    if name.is_empty() {
        return;
    }
    if let Some(labels) = object.metadata_mut().entry("labels").or_insert_with(|| json!({})).as_object_mut() {
        labels.insert("kubernetes.io/metadata.name".into(), name.into());
    }
}
