//! Reconciles an object with the default policy: adds missing rules, subjects, labels and annotations, and keeps the
//! additions of users. Objects whose annotation forbids it are not changed.

use crate::bootstrap::AUTOUPDATE_ANNOTATION;
use crate::rbac::{PolicyRule, uncovered};
use restow_apimachinery::typed;
use serde_json::{Map, Value, json};

/// The write that an object needs.
#[derive(Clone, Debug, PartialEq)]
pub enum Reconciliation {
    /// The object does not exist: create it.
    Create(Value),
    /// Something is missing in the object: update it.
    Update(Value),
    /// The binding refers to another role, and `roleRef` is immutable: delete the binding and create this one.
    Recreate(Value),
}

impl Reconciliation {
    /// The object to write.
    pub fn object(&self) -> &Value {
        match self {
            Reconciliation::Create(object) | Reconciliation::Update(object) | Reconciliation::Recreate(object) => {
                object
            }
        }
    }
}

/// The write after which the existing object allows at least what the wanted one allows. `None` if it does already, if
/// its annotation forbids updates, or if it is malformed.
pub fn reconcile(existing: Option<&Value>, wanted: &Value) -> Option<Reconciliation> {
    let Some(existing) = existing else { return Some(Reconciliation::Create(wanted.clone())) };
    let annotation = existing.pointer("/metadata/annotations").and_then(|all| all.get(AUTOUPDATE_ANNOTATION));
    if annotation.and_then(Value::as_str) == Some("false") {
        return None;
    }
    if wanted.get("roleRef") != existing.get("roleRef") {
        return Some(Reconciliation::Recreate(wanted.clone()));
    }
    let mut completed = existing.clone();
    for map in ["labels", "annotations"] {
        add_entries(&mut completed, wanted, map);
    }
    if wanted.get("roleRef").is_some() {
        add_subjects(&mut completed, wanted);
    } else {
        add_rules(&mut completed, wanted)?;
        reconcile_aggregation_rule(&mut completed, wanted);
    }
    (completed != *existing).then_some(Reconciliation::Update(completed))
}

/// Adds missing labels or annotations; existing values are kept.
fn add_entries(object: &mut Value, wanted: &Value, map: &str) {
    let Some(entries) = wanted.pointer(&format!("/metadata/{map}")).and_then(Value::as_object) else { return };
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    let own = metadata.entry(map).or_insert(Value::Null);
    if own.is_null() {
        *own = Value::Object(Map::new());
    }
    let Some(own) = own.as_object_mut() else { return };
    for (key, value) in entries {
        own.entry(key).or_insert_with(|| value.clone());
    }
}

fn add_rules(object: &mut Value, wanted: &Value) -> Option<()> {
    let missing = uncovered(&rules(object)?, &rules(wanted)?);
    append(object, "rules", missing.iter().map(|rule| json!(rule)).collect());
    Some(())
}

fn add_subjects(object: &mut Value, wanted: &Value) {
    let mut missing: Vec<Value> = Vec::new();
    for subject in list(wanted, "subjects") {
        let present = |own: &Value| {
            ["kind", "apiGroup", "namespace", "name"].iter().all(|field| text(own, field) == text(subject, field))
        };
        if !list(object, "subjects").iter().chain(&missing).any(present) {
            missing.push(subject.clone());
        }
    }
    append(object, "subjects", missing);
}

/// Adds missing selectors. Removes the aggregation rule of a role that must not have one: aggregation would overwrite its
/// rules again and again.
fn reconcile_aggregation_rule(object: &mut Value, wanted: &Value) {
    let is_aggregate = |role: &Value| role.get("aggregationRule").is_some_and(|rule| !rule.is_null());
    if !is_aggregate(wanted) {
        if is_aggregate(object)
            && let Some(fields) = object.as_object_mut()
        {
            fields.remove("aggregationRule");
        }
        return;
    }
    if !is_aggregate(object) {
        object["aggregationRule"] = json!({});
    }
    let own = list(&object["aggregationRule"], "clusterRoleSelectors");
    let wanted = list(&wanted["aggregationRule"], "clusterRoleSelectors");
    let missing = wanted.iter().filter(|selector| !own.contains(selector)).cloned().collect();
    append(&mut object["aggregationRule"], "clusterRoleSelectors", missing);
}

fn rules(role: &Value) -> Option<Vec<PolicyRule>> {
    list(role, "rules").iter().map(|rule| typed::read(rule).ok()).collect()
}

fn append(object: &mut Value, field: &str, items: Vec<Value>) {
    if items.is_empty() {
        return;
    }
    match object.get_mut(field).and_then(Value::as_array_mut) {
        Some(own) => own.extend(items),
        None => object[field] = Value::Array(items),
    }
}

fn list<'a>(object: &'a Value, field: &str) -> &'a [Value] {
    object.get(field).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object.get(field).and_then(Value::as_str).unwrap_or_default()
}
