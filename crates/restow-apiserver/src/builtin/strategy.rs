//! The rules of built-in kinds, chosen by the words in their row of the table.

use crate::builtin::table::Row;
use crate::names::NameRule;
use crate::object::Object;
use crate::strategy::Strategy;
use serde_json::{Value, json};

/// A built-in kind's rules.
pub(super) struct BuiltinStrategy {
    /// `name-label`, `name-service`, `name-path`: what its objects may be called.
    names: NameRule,
    /// `generation`: its changes are counted.
    generation: bool,
    /// `create-on-update`: replacing an object that does not exist creates it.
    create_on_update: bool,
    /// The status is set by whoever has the status subresource, not by who creates the object; `status-on-create` is
    /// the exception.
    resets_status: bool,
    kind: String,
}

impl BuiltinStrategy {
    pub(super) fn of(row: &Row) -> Self {
        let has = |rule: &str| row.rules.iter().any(|known| known == rule);
        BuiltinStrategy {
            names: match () {
                () if has("name-label") => NameRule::Label,
                () if has("name-service") => NameRule::ServiceLabel,
                () if has("name-path") => NameRule::PathSegment,
                () => NameRule::Subdomain,
            },
            generation: has("generation"),
            create_on_update: has("create-on-update"),
            resets_status: row.subresources.iter().any(|sub| sub.name == "status") && !has("status-on-create"),
            kind: row.kind.clone(),
        }
    }
}

impl Strategy for BuiltinStrategy {
    fn name_rule(&self) -> NameRule {
        self.names
    }

    fn prepare_create(&self, object: &mut Object) {
        if self.resets_status {
            object.set("status", initial_status(&self.kind));
        }
        if self.kind == "Namespace" {
            prepare_namespace(object);
        }
    }

    fn create_on_update(&self) -> bool {
        self.create_on_update
    }

    fn has_generation(&self) -> bool {
        self.generation
    }
}

fn initial_status(kind: &str) -> Option<Value> {
    match kind {
        "Namespace" => Some(json!({"phase": "Active"})),
        "Pod" | "PersistentVolume" | "PersistentVolumeClaim" => Some(json!({"phase": "Pending"})),
        _ => None,
    }
}

/// A namespace cannot go before it has been emptied, and carries its own name as a label.
fn prepare_namespace(object: &mut Object) {
    let mut spec = object.get("spec").cloned().filter(Value::is_object).unwrap_or_else(|| json!({}));
    let finalizers = spec["finalizers"].as_array().cloned().unwrap_or_default();
    if !finalizers.iter().any(|finalizer| finalizer == "kubernetes") {
        let mut finalizers = finalizers;
        finalizers.push("kubernetes".into());
        spec["finalizers"] = finalizers.into();
    }
    object.set("spec", Some(spec));
    let name = object.name().to_string();
    if let Some(labels) = object.metadata_mut().entry("labels").or_insert_with(|| json!({})).as_object_mut() {
        labels.insert("kubernetes.io/metadata.name".into(), name.into());
    }
}
