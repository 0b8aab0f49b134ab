//! The strategy of built-in kinds: the rule words of their row in `resources.txt`, the tables of defaults and checks, and the
//! rules of the kind's file in `kinds/`.

use crate::builtin::table::ResourceRow;
use crate::builtin::{checks, defaults, kinds, validation};
use crate::crd::CrdStrategy;
use crate::release::Release;
use crate::resource::Verb;
use crate::resource::strategy::{Connection, ScaleFields, Strategy, SubresourceAction};
use jiff::Timestamp;
use restow_apimachinery::field::FieldError;
use restow_apimachinery::names::NameRule;
use restow_apimachinery::object::Object;
use restow_apimachinery::types::TypeTable;
use restow_store::Mutation;
use restow_tables::resources::StrategyRule;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// The rules of a row's kind.
pub(super) fn of(row: &ResourceRow, release: Release) -> Arc<dyn Strategy> {
    match row.rules.contains(&StrategyRule::CustomResourceDefinition) {
        true => Arc::new(CrdStrategy),
        false => Arc::new(BuiltinStrategy::of(row, release)),
    }
}

/// The kinds for which the response to a deletion is the deleted object.
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

/// The rules of a built-in kind.
struct BuiltinStrategy {
    /// `name-label`, `name-service`, `name-path`: the validation rule of names.
    names: NameRule,
    /// `generation`: changes are counted.
    generation: bool,
    /// `create-on-update`: an update of an object that does not exist creates it.
    create_on_update: bool,
    /// `unconditional-update`: an object can be replaced without its resource version.
    unconditional_update: bool,
    /// `status-alone`: a write of the status leaves all metadata as stored.
    status_alone: bool,
    /// A create does not set the status, which has a subresource; `status-on-create` is the exception.
    resets_status: bool,
    returns_deleted: bool,
    /// The rules of the kind's file.
    rules: &'static dyn Strategy,
}

impl BuiltinStrategy {
    fn of(row: &ResourceRow, release: Release) -> Self {
        let has = |rule: StrategyRule| row.rules.contains(&rule);
        BuiltinStrategy {
            names: match () {
                () if has(StrategyRule::NameLabel) => NameRule::Label,
                () if has(StrategyRule::NameService) && release < Release::RELAXED_SERVICE_NAMES => {
                    NameRule::ServiceLabel
                }
                () if has(StrategyRule::NameService) => NameRule::Label,
                () if has(StrategyRule::NamePath) => NameRule::PathSegment,
                () => NameRule::Subdomain,
            },
            generation: has(StrategyRule::Generation),
            create_on_update: has(StrategyRule::CreateOnUpdate),
            unconditional_update: has(StrategyRule::UnconditionalUpdate),
            status_alone: has(StrategyRule::StatusAlone),
            resets_status: row.subresources.iter().any(|sub| sub.name == "status")
                && !has(StrategyRule::StatusOnCreate),
            returns_deleted: RETURNED.contains(&row.kind.as_str()),
            rules: kinds::rules(row.group_resource.group(), &row.kind),
        }
    }
}

impl BuiltinStrategy {
    /// All validation errors of an object.
    fn problems(&self, object: &Object) -> Vec<FieldError> {
        let mut problems = self.rules.validate_create(object);
        problems.extend(checks::problems(object));
        problems
    }
}

impl Strategy for BuiltinStrategy {
    fn name_rule(&self) -> NameRule {
        self.names
    }

    fn default(&self, object: &mut Object) {
        defaults::apply(object);
        self.rules.default(object);
    }

    fn prepare_create(&self, object: &mut Object) {
        if self.resets_status {
            let status = self.rules.initial_status(object).or_else(|| empty_status(object));
            object.set("status", status);
        }
        self.rules.prepare_create(object);
    }

    fn prepare_update(&self, object: &mut Object, old: &Object) {
        self.rules.prepare_update(object, old);
    }

    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        self.problems(object)
    }

    fn validate_update(&self, object: &Object, old: &Object) -> Vec<FieldError> {
        let mut found = self.problems(object);
        // An error that the stored object has already does not prevent other changes.
        if !found.is_empty() {
            let before = self.problems(old);
            found.retain(|problem| !before.contains(problem));
        }
        found
    }

    fn validate_change(&self, object: &Object, baseline: &Object) -> Vec<FieldError> {
        let changes = validation::change_problems(self.rules, object, baseline);
        if changes.is_empty() {
            return changes;
        }
        // A default that is newer than the stored object does not count as a change.
        let mut completed = baseline.clone();
        defaults::apply(&mut completed);
        validation::change_problems(self.rules, object, &completed)
    }

    fn additional_mutations(&self, old: Option<&Object>, new: Option<&Object>) -> Vec<Mutation> {
        self.rules.additional_mutations(old, new)
    }

    fn prepare_deletion(&self, object: &mut Object) {
        self.rules.prepare_deletion(object);
    }

    fn grace_period(&self, object: &Object, requested: Option<i64>) -> i64 {
        self.rules.grace_period(object, requested)
    }

    fn is_occupied(&self, object: &Object) -> bool {
        self.rules.is_occupied(object)
    }

    fn orphans_dependents(&self) -> bool {
        self.rules.orphans_dependents()
    }

    fn returns_deleted(&self) -> bool {
        self.returns_deleted
    }

    fn deletion_warning(&self) -> Option<&'static str> {
        self.rules.deletion_warning()
    }

    fn finish_deletion(&self, object: &mut Object, now: Timestamp) {
        self.rules.finish_deletion(object, now);
    }

    fn time_to_live(&self) -> Option<Duration> {
        self.rules.time_to_live()
    }

    fn subresource_fields(&self, subresource: &str) -> Option<&'static [&'static [&'static str]]> {
        self.rules.subresource_fields(subresource)
    }

    fn restore_on_update(&self, object: &mut Object, old: &Object) {
        self.rules.restore_on_update(object, old);
    }

    fn prepare_subresource(&self, subresource: &str, object: &mut Object, sent: &Object, old: &Object) {
        self.rules.prepare_subresource(subresource, object, sent, old);
    }

    fn with_permitted_changes(&self, subresource: &str, object: &Object, old: &Object) -> Option<Object> {
        self.rules.with_permitted_changes(subresource, object, old)
    }

    fn subresource_action(&self, subresource: &str) -> Option<SubresourceAction> {
        self.rules.subresource_action(subresource)
    }

    fn connection(&self, subresource: &str, verb: Verb, object: &Object) -> Connection {
        self.rules.connection(subresource, verb, object)
    }

    fn unsupported_field_label(&self, field: &str) -> String {
        self.rules.unsupported_field_label(field)
    }

    fn scale(&self, api_version: &str) -> Option<ScaleFields> {
        self.rules.scale(api_version)
    }

    fn create_on_update(&self) -> bool {
        self.create_on_update
    }

    fn status_update_keeps_metadata(&self) -> bool {
        self.status_alone
    }

    fn unconditional_update(&self) -> bool {
        self.unconditional_update
    }

    fn has_generation(&self) -> bool {
        self.generation
    }
}

/// The status of this type with no field set.
fn empty_status(object: &Object) -> Option<Value> {
    let table = TypeTable::shared();
    let kind = table.kind(object.api_version(), object.kind())?;
    table.blank(kind).get("status").cloned()
}
