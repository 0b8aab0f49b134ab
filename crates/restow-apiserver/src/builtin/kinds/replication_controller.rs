//! ReplicationControllers: a selector of labels that defaults to the template's. What is shared is in `workloads.rs`.

use crate::builtin::kinds::workloads::{self, inherit_labels};
use crate::builtin::validation::not_negative;
use crate::resource::strategy::{ScaleFields, ScaleSelector, Strategy};
use restow_apimachinery::field::FieldError;
use restow_apimachinery::object::Object;
use restow_apimachinery::selector::selector_text;
use serde_json::{Map, Value, json};

type Fields = Map<String, Value>;

pub(super) struct ReplicationController;

impl Strategy for ReplicationController {
    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        if object.at(&["spec", "template"]).is_none_or(Value::is_null) {
            return problems_without_template(object);
        }
        let selector = match object.at(&["spec", "selector"]).filter(|selector| !selector.is_null()) {
            Some(selector) => {
                let text = selector_text(&json!({"matchLabels": selector}));
                workloads::selection_problems(object, selector, &text)
            }
            None => workloads::selector_problems(object),
        };
        workloads::problems(object, selector)
    }

    /// By default, the pods of a deleted controller are orphaned.
    fn orphans_dependents(&self) -> bool {
        true
    }

    fn scale(&self, _api_version: &str) -> Option<ScaleFields> {
        Some(workloads::scale(ScaleSelector::Labels(vec!["spec".into(), "selector".into()])))
    }
}

fn problems_without_template(object: &Object) -> Vec<FieldError> {
    let mut problems = Vec::new();
    if object.at(&["spec", "selector"]).and_then(Value::as_object).is_none_or(Map::is_empty) {
        problems.push(FieldError::required("spec.selector", ""));
    }
    problems.push(FieldError::required("spec.template", ""));
    problems.extend(not_negative(object, &["spec", "replicas"]));
    problems
}

/// Selector and labels default to the labels of the template.
pub(crate) fn default(fields: &mut Fields) {
    let labels = fields.get("spec").and_then(|spec| spec.pointer("/template/metadata/labels")).cloned();
    let Some(labels) = labels.filter(|labels| labels.as_object().is_some_and(|map| !map.is_empty())) else { return };
    if let Some(spec) = fields.get_mut("spec").and_then(Value::as_object_mut)
        && spec.get("selector").and_then(Value::as_object).is_none_or(Map::is_empty)
    {
        spec.insert("selector".into(), labels.clone());
    }
    inherit_labels(fields, labels);
}
