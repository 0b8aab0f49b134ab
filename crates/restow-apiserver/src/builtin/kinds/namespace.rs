//! Namespaces: the label with their name, the finalizer that keeps them until they are empty, and their phase.

use crate::resource::strategy::Strategy;
use restow_apimachinery::object::Object;
use serde_json::{Value, json};

/// The finalizers in the specification of a namespace.
const FINALIZERS: [&str; 2] = ["spec", "finalizers"];

pub(super) struct Namespace;

impl Strategy for Namespace {
    fn default(&self, object: &mut Object) {
        label_namespace(object);
    }

    fn initial_status(&self, _object: &Object) -> Option<Value> {
        Some(json!({"phase": "Active"}))
    }

    fn prepare_create(&self, object: &mut Object) {
        add_finalizer(object);
    }

    fn prepare_deletion(&self, object: &mut Object) {
        let mut status = object.get("status").cloned().filter(Value::is_object).unwrap_or_else(|| json!({}));
        status["phase"] = "Terminating".into();
        object.set("status", Some(status));
    }

    fn is_occupied(&self, object: &Object) -> bool {
        object.at(&FINALIZERS).and_then(Value::as_array).is_some_and(|finalizers| !finalizers.is_empty())
    }

    fn subresource_fields(&self, subresource: &str) -> Option<&'static [&'static [&'static str]]> {
        match subresource {
            "status" => Some(&[&["status"], &["metadata"]]),
            "finalize" => Some(&[&FINALIZERS]),
            _ => None,
        }
    }

    /// Only the `finalize` subresource changes the finalizers.
    fn restore_on_update(&self, object: &mut Object, old: &Object) {
        object.set_at(&FINALIZERS, old.at(&FINALIZERS).cloned());
    }
}

/// Sets the label with the name of the namespace.
fn label_namespace(object: &mut Object) {
    let name = object.name().to_string();
    if name.is_empty() {
        return;
    }
    if let Some(labels) = object.metadata_mut().entry("labels").or_insert_with(|| json!({})).as_object_mut() {
        labels.insert("kubernetes.io/metadata.name".into(), name.into());
    }
}

/// Adds the finalizer that keeps a namespace until it is empty.
fn add_finalizer(object: &mut Object) {
    let mut spec = object.get("spec").cloned().filter(Value::is_object).unwrap_or_else(|| json!({}));
    let finalizers = spec["finalizers"].as_array().cloned().unwrap_or_default();
    if !finalizers.iter().any(|finalizer| finalizer == "kubernetes") {
        let mut finalizers = finalizers;
        finalizers.push("kubernetes".into());
        spec["finalizers"] = finalizers.into();
    }
    object.set("spec", Some(spec));
}
