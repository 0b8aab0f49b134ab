//! FlowSchemas and PriorityLevelConfigurations: defaults, and conversion of concurrency shares.

use crate::builtin::convert::version_of;
use restow_apimachinery::object::Object;
use serde_json::{Map, Value, json};

type Fields = Map<String, Value>;

/// The annotation for zero shares in versions where zero means unset.
const ZERO_SHARES: &str = "flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares";
/// The default shares of a priority level.
const DEFAULT_SHARES: i64 = 30;

pub(crate) fn default_flow_schema(fields: &mut Fields) {
    default_number(fields, "matchingPrecedence", 1000);
}

pub(crate) fn default_queuing(fields: &mut Fields) {
    for (name, usual) in [("queues", 64), ("handSize", 8), ("queueLengthLimit", 50)] {
        default_number(fields, name, usual);
    }
}

/// Sets a default for a number that is missing or zero.
fn default_number(fields: &mut Fields, name: &str, usual: i64) {
    if fields.get(name).is_none_or(|number| number.as_i64() == Some(0)) {
        fields.insert(name.into(), usual.into());
    }
}

pub(crate) fn convert_priority_level(object: &mut Object, source: &str, target: &str) -> Result<(), String> {
    let marked = object.annotation(ZERO_SHARES).is_some();
    let Some(limited) = object.fields_mut().get_mut("spec").and_then(|spec| spec.get_mut("limited")) else {
        return Ok(());
    };
    let Some(limited) = limited.as_object_mut() else { return Ok(()) };
    let given = limited.remove(shares_field(source)).and_then(|shares| shares.as_i64()).unwrap_or_default();
    let shares = match version_of(source) {
        "v1" => given,
        "v1beta3" if marked => given,
        _ if given == 0 => DEFAULT_SHARES,
        _ => given,
    };
    limited.insert(shares_field(target).into(), shares.into());
    mark_zero(object, version_of(target) == "v1beta3" && shares == 0);
    Ok(())
}

fn shares_field(api_version: &str) -> &'static str {
    match version_of(api_version) {
        "v1" | "v1beta3" => "nominalConcurrencyShares",
        _ => "assuredConcurrencyShares",
    }
}

fn mark_zero(object: &mut Object, zero: bool) {
    let metadata = object.metadata_mut();
    if zero {
        metadata.entry("annotations").or_insert_with(|| json!({}))[ZERO_SHARES] = "".into();
    } else if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove(ZERO_SHARES);
        if annotations.is_empty() {
            metadata.remove("annotations");
        }
    }
}
