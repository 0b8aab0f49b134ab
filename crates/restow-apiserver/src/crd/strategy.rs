//! The strategy of CustomResourceDefinitions themselves.

use crate::apiextensions::custom_resource_definition::{CLEANUP, CustomResourceDefinition};
use crate::crd::{validation, version_in_force};
use crate::resource::strategy::Strategy;
use restow_apimachinery::field::FieldError;
use restow_apimachinery::object::Object;
use restow_store::Mutation;
use serde_json::{Value, json};

/// Defaults, validation and deletion of CRDs.
pub(crate) struct CrdStrategy;

impl Strategy for CrdStrategy {
    fn prepare_create(&self, object: &mut Object) {
        default_spec(object);
        object.set("status", None);
        add_stored_version(object);
    }

    fn prepare_update(&self, object: &mut Object, old: &Object) {
        // A write of the status leaves the spec as it is, and sets the stored versions itself.
        if object.get("spec") != old.get("spec") {
            default_spec(object);
            add_stored_version(object);
        }
    }

    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        validation::creation(object)
    }

    fn validate_update(&self, object: &Object, old: &Object) -> Vec<FieldError> {
        validation::update(object, old)
    }

    fn additional_mutations(&self, old: Option<&Object>, new: Option<&Object>) -> Vec<Mutation> {
        version_in_force::additional_mutations(old, new)
    }

    /// A CRD stays until all its objects are deleted.
    fn prepare_deletion(&self, object: &mut Object) {
        if !object.finalizers().contains(&CLEANUP)
            && let Some(finalizers) =
                object.metadata_mut().entry("finalizers").or_insert_with(|| json!([])).as_array_mut()
        {
            finalizers.push(CLEANUP.into());
        }
        let pending = super::status::condition(
            "Terminating",
            "True",
            "InstanceDeletionPending",
            "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
        );
        set_condition(object, pending);
    }

    fn status_update_keeps_metadata(&self) -> bool {
        true
    }
}

/// Sets a condition of a CRD, with the current time.
pub(crate) fn set_condition(
    object: &mut Object,
    condition: crate::apiextensions::custom_resource_definition::CrdCondition,
) {
    let Some(mut status) = CustomResourceDefinition::of(object).map(|crd| crd.status) else { return };
    super::status::set(&mut status, condition, &crate::resource::object_meta::now());
    set_status(object, &status);
}

/// Sets names, conditions and stored versions of a CRD; other fields of its status stay.
pub(crate) fn set_status(object: &mut Object, status: &crate::apiextensions::custom_resource_definition::CrdStatus) {
    let mut value = object.get("status").cloned().filter(Value::is_object).unwrap_or_else(|| json!({}));
    value["conditions"] = json!(status.conditions);
    value["acceptedNames"] = json!(status.accepted_names);
    value["storedVersions"] = json!(status.stored_versions);
    object.set("status", Some(value));
}

/// Sets the defaults of the spec.
fn default_spec(object: &mut Object) {
    let Some(spec) = object.fields_mut().get_mut("spec").and_then(Value::as_object_mut) else { return };
    spec.entry("conversion").or_insert_with(|| json!({"strategy": "None"}));
    let service =
        spec.get_mut("conversion").and_then(|conversion| conversion.pointer_mut("/webhook/clientConfig/service"));
    if let Some(service) = service.and_then(Value::as_object_mut) {
        service.entry("port").or_insert_with(|| 443.into());
    }
    let Some(names) = spec.get_mut("names").and_then(Value::as_object_mut) else { return };
    let kind = names.get("kind").and_then(Value::as_str).unwrap_or_default().to_string();
    let is_missing = |value: Option<&Value>| value.and_then(Value::as_str).is_none_or(str::is_empty);
    if is_missing(names.get("singular")) {
        names.insert("singular".into(), kind.to_lowercase().into());
    }
    if is_missing(names.get("listKind")) && !kind.is_empty() {
        names.insert("listKind".into(), format!("{kind}List").into());
    }
}

/// Adds the storage version to `status.storedVersions`: objects may be stored in it from now on.
fn add_stored_version(object: &mut Object) {
    let Some(crd) = CustomResourceDefinition::of(object) else { return };
    let Some(storage) = crd.storage_version() else { return };
    let mut status = crd.status.clone();
    if !status.stored_versions.iter().any(|stored| stored == storage) {
        status.stored_versions.push(storage.to_string());
    }
    let mut value = object.get("status").cloned().filter(Value::is_object).unwrap_or_else(|| json!({}));
    value["storedVersions"] = json!(status.stored_versions);
    if value.get("acceptedNames").is_none() {
        value["acceptedNames"] = json!(status.accepted_names);
        value["conditions"] = json!(status.conditions);
    }
    object.set("status", Some(value));
}
