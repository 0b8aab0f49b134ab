//! Events of both groups: how long they are kept, validation, and conversion.

use crate::builtin::checks::by_type::number;
use crate::builtin::checks::{Fields, below, is_unset, text_at};
use crate::resource::strategy::Strategy;
use restow_apimachinery::field::FieldError;
use restow_apimachinery::names::qualified_name_problems;
use restow_apimachinery::object::Object;
use serde_json::Value;
use std::time::Duration;

/// The time to live of an event.
const TIME_TO_LIVE: Duration = Duration::from_secs(3600);

/// The fields with different names in the core group and in events.k8s.io.
const EVENT_FIELDS: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// Events of the core group.
pub(super) struct CoreEvent;

impl Strategy for CoreEvent {
    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        problems(object)
    }

    fn time_to_live(&self) -> Option<Duration> {
        Some(TIME_TO_LIVE)
    }
}

/// Events of events.k8s.io. They are checked by type, in [`check`].
pub(super) struct Event;

impl Strategy for Event {
    fn time_to_live(&self) -> Option<Duration> {
        Some(TIME_TO_LIVE)
    }
}

fn problems(object: &Object) -> Vec<FieldError> {
    let (involved, own) = (object.text(&["involvedObject", "namespace"]), object.namespace());
    // Events of cluster-scoped objects are in one of these namespaces.
    let allowed = involved == own || involved.is_empty() && ["default", "kube-system"].contains(&own);
    match allowed {
        true => Vec::new(),
        false => {
            let detail = "does not match event.namespace";
            vec![FieldError::invalid("involvedObject.namespace", &involved.into(), detail)]
        }
    }
}

/// Checks an event of events.k8s.io, which must name its reporter and its action.
pub(crate) fn check(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    let nothing = &Value::from("");
    let text = |name: &str| text_at(fields, &[name]);
    let (about, own) = (text_at(fields, &["regarding", "namespace"]), text_at(fields, &["metadata", "namespace"]));
    // Events of cluster-scoped objects are in one of these namespaces.
    if about.is_empty() && !["default", "kube-system"].contains(&own) {
        let at = below(path, "involvedObject.namespace");
        found.push(FieldError::invalid(at, &about.into(), "does not match event.namespace"));
    }
    if is_unset(fields.get("eventTime")) {
        found.push(FieldError::required(below(path, "eventTime"), ""));
    }
    for name in ["reportingController", "reportingInstance", "action", "reason"] {
        let at = below(path, name);
        if text(name).is_empty() {
            found.push(FieldError::required(&at, ""));
        }
        if name == "reportingController" {
            let problems = qualified_name_problems(text(name)).into_iter();
            found.extend(problems.map(|problem| FieldError::invalid(&at, &text(name).into(), problem)));
        } else if text(name).chars().count() > 128 {
            found.push(FieldError::invalid(&at, nothing, "can have at most 128 characters"));
        }
    }
    if !matches!(text("type"), "Normal" | "Warning") {
        let detail = format!("has invalid value: {}", text("type"));
        found.push(FieldError::invalid(below(path, "type"), nothing, detail));
    }
    if let Some(series) = fields.get("series").and_then(Value::as_object) {
        if number(series, "count").unwrap_or_default() < 2 {
            found.push(FieldError::invalid(below(path, "series.count"), nothing, "should be at least 2"));
        }
        if is_unset(series.get("lastObservedTime")) {
            found.push(FieldError::required(below(path, "series.lastObservedTime"), ""));
        }
    }
}

pub(crate) fn convert(object: &mut Object, source: &str, target: &str) -> Result<(), String> {
    let core = |version: &str| !version.contains('/');
    if core(source) == core(target) {
        return Ok(());
    }
    for (old, new) in EVENT_FIELDS {
        let (from, to) = if core(source) { (old, new) } else { (new, old) };
        let value = object.fields_mut().remove(from);
        object.set(to, value);
    }
    Ok(())
}
