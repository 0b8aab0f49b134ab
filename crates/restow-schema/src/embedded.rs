//! Embedded resources (`x-kubernetes-embedded-resource`): they must have a type and valid metadata.

use serde_json::{Map, Value};

use crate::node::{Additional, Node};
use crate::path::Path;
use crate::problem::Problem;

/// The fields of metadata.
pub(crate) const OBJECT_META_FIELDS: &[&str] = &[
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "labels",
    "managedFields",
    "name",
    "namespace",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// Checks every embedded resource below a level.
pub(crate) fn check(node: &Node, value: &Value) -> Vec<Problem> {
    let mut problems = Vec::new();
    if node.below.embedded_resources {
        level(node, value, &Path::ROOT, &mut problems);
    }
    problems
}

fn level(node: &Node, value: &Value, path: &Path<'_>, problems: &mut Vec<Problem>) {
    match value {
        Value::Object(fields) => {
            if node.embedded_resource {
                resource(fields, path, problems);
            }
            for (name, field) in fields {
                if let Some(child) = node.property(name) {
                    level(child, field, &path.field(name), problems);
                } else if let Additional::Schema(child) = &node.additional {
                    level(child, field, &path.key(name), problems);
                }
            }
        }
        Value::Array(items) => {
            if let Some(item) = &node.items {
                for (index, value) in items.iter().enumerate() {
                    level(item, value, &path.index(index), problems);
                }
            }
        }
        _ => {}
    }
}

fn resource(fields: &Map<String, Value>, path: &Path<'_>, problems: &mut Vec<Problem>) {
    for name in ["apiVersion", "kind"] {
        let place = path.field(name).in_brackets();
        match fields.get(name) {
            None => problems.push(Problem::required(place, "")),
            Some(Value::String(text)) if text.is_empty() => {
                problems.push(Problem::invalid(place, "", "must not be empty"));
            }
            Some(Value::String(text)) if name == "kind" => {
                if !is_dns_label_1035(&text.to_lowercase()) {
                    let words = "may have mixed case, but should otherwise match: a DNS-1035 label must consist of lower case \
                        alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric \
                        character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
                    problems.push(Problem::invalid(place, text.as_str(), words));
                }
            }
            Some(Value::String(text)) => {
                if text.matches('/').count() > 1 {
                    let words = format!("unexpected GroupVersion string: {text}");
                    problems.push(Problem::invalid(place, text.as_str(), words));
                }
            }
            Some(other) => problems.push(Problem::invalid(place, other.clone(), "must be a string")),
        }
    }
    if let Some(metadata) = fields.get("metadata") {
        check_metadata(metadata, &path.field("metadata"), problems);
    }
}

fn check_metadata(metadata: &Value, path: &Path<'_>, problems: &mut Vec<Problem>) {
    let Some(fields) = metadata.as_object() else {
        if !metadata.is_null() {
            problems.push(Problem::invalid(path.in_brackets(), metadata.clone(), "must be an object"));
        }
        return;
    };
    for name in ["name", "generateName"] {
        let Some(Value::String(text)) = fields.get(name) else { continue };
        let place = path.field(name).in_brackets();
        if text == "." || text == ".." {
            problems.push(Problem::invalid(place.clone(), text.as_str(), format!("may not be '{text}'")));
        }
        for illegal in ["/", "%"].into_iter().filter(|illegal| text.contains(illegal)) {
            problems.push(Problem::invalid(place.clone(), text.as_str(), format!("may not contain '{illegal}'")));
        }
    }
    for (name, is_text) in
        [("name", true), ("generateName", true), ("namespace", true), ("labels", false), ("annotations", false)]
    {
        let Some(value) = fields.get(name).filter(|value| !value.is_null()) else { continue };
        let sound = if is_text {
            value.is_string()
        } else {
            value.as_object().is_some_and(|entries| entries.values().all(Value::is_string))
        };
        if !sound {
            let words = format!("metadata.{name} has the wrong type");
            problems.push(Problem::invalid(path.in_brackets(), metadata.clone(), words));
        }
    }
}

fn is_dns_label_1035(text: &str) -> bool {
    text.len() <= 63
        && text.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && !text.ends_with('-')
}
