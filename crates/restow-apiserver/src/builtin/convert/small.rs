//! Kinds that have a conversion of one or two fields and no other rules.

use super::version_of;
use restow_apimachinery::object::Object;
use serde_json::{Map, Value, json};

/// A label that no pod has. It expresses "none" in versions where an empty selector means "all", and "all" where it
/// means "none".
const EMPTY_SELECTOR: &str = "pdb.kubernetes.io/deprecated-v1beta1-empty-selector-match";

pub(super) fn runtime_class(object: &mut Object, source: &str, target: &str) -> Result<(), String> {
    const NAMES: [(&str, &str); 3] =
        [("runtimeHandler", "handler"), ("overhead", "overhead"), ("scheduling", "scheduling")];
    let old = |version: &str| version_of(version) == "v1alpha1";
    if old(source) && !old(target) {
        let spec = object.fields_mut().remove("spec").unwrap_or_default();
        NAMES.iter().for_each(|(nested, flat)| object.set(flat, spec.get(*nested).cloned()));
    } else if old(target) && !old(source) {
        let moved = NAMES.iter().filter_map(|(nested, flat)| Some((nested, object.fields_mut().remove(*flat)?)));
        let spec: Map<String, Value> = moved.map(|(name, value)| (name.to_string(), value)).collect();
        object.set("spec", Some(spec.into()));
    }
    Ok(())
}

pub(super) fn pod_disruption_budget(object: &mut Object, _source: &str, target: &str) -> Result<(), String> {
    let expression = |operator: &str| json!({"matchExpressions": [{"key": EMPTY_SELECTOR, "operator": operator}]});
    let Some(selector) = object.fields_mut().get_mut("spec").and_then(|spec| spec.get_mut("selector")) else {
        return Ok(());
    };
    // The presence or absence of a label that no pod has expresses what an empty selector means in the other version.
    let (empty, opposite) = match version_of(target) {
        "v1beta1" => (expression("DoesNotExist"), expression("Exists")),
        _ => (expression("Exists"), expression("DoesNotExist")),
    };
    if *selector == json!({}) {
        *selector = empty;
    } else if *selector == opposite {
        *selector = json!({});
    }
    Ok(())
}

pub(super) fn lease_candidate(object: &mut Object, _source: &str, target: &str) -> Result<(), String> {
    let Some(spec) = object.fields_mut().get_mut("spec").and_then(Value::as_object_mut) else { return Ok(()) };
    if version_of(target) == "v1alpha1" {
        let strategies: Vec<Value> = spec.remove("strategy").into_iter().collect();
        spec.insert("preferredStrategies".into(), strategies.into());
    } else if let Some(Value::Array(strategies)) = spec.remove("preferredStrategies")
        && let Some(first) = strategies.into_iter().next()
    {
        spec.insert("strategy".into(), first);
    }
    Ok(())
}

pub(super) fn storage_version_migration(object: &mut Object, source: &str, target: &str) -> Result<(), String> {
    let (from, to) = match (version_of(source), version_of(target)) {
        ("v1alpha1", _) => ("lastUpdateTime", "lastTransitionTime"),
        (_, "v1alpha1") => ("lastTransitionTime", "lastUpdateTime"),
        _ => return Ok(()),
    };
    let conditions = object.fields_mut().get_mut("status").and_then(|status| status.get_mut("conditions"));
    for condition in conditions.and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut) {
        if let Some(time) = condition.remove(from) {
            condition.insert(to.into(), time);
        }
    }
    Ok(())
}

/// The first alpha versions of these kinds have little in common with the later ones.
pub(super) fn dropped_alphas(_object: &mut Object, source: &str, target: &str) -> Result<(), String> {
    let lasting = |version: &str| matches!(version_of(version), "v1alpha3" | "v1beta1");
    match lasting(source) && lasting(target) {
        true => Ok(()),
        false => Err("this version was replaced without a conversion; delete the object and create it anew".into()),
    }
}
