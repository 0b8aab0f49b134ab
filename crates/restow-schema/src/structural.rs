//! The rules of structural schemas: every level has a type, and schemas inside `allOf`, `anyOf`, `oneOf` and `not` only
//! restrict the schema outside of them.

use serde_json::{Value, json};

use crate::pattern;
use crate::problem::Problem;
use crate::raw::{AdditionalProperties, Raw};

#[derive(Clone, Copy, PartialEq)]
enum Level {
    Root,
    Item,
    Field,
}

/// All errors that make a schema not structural, sorted by their text.
pub(crate) fn problems(raw: Raw<'_>, path: &str) -> Vec<Problem> {
    let mut problems = Vec::new();
    invariants(raw, Level::Root, path, &mut problems);
    completeness(raw, Some(raw), path, path, &mut problems);
    problems.sort_by_cached_key(Problem::to_string);
    problems
}

fn invariants(raw: Raw<'_>, level: Level, path: &str, problems: &mut Vec<Problem>) {
    let kind = raw.kind();
    if kind == "array" && raw.item().is_none() {
        problems.push(Problem::required(format!("{path}.items"), "must be specified"));
    }
    if let Some(item) = raw.item() {
        invariants(item, Level::Item, &format!("{path}.items"), problems);
    }
    for (name, property) in raw.properties() {
        invariants(property, Level::Field, &format!("{path}.properties[{name}]"), problems);
    }
    if let Some(additional) = raw.additional_properties() {
        let place = format!("{path}.additionalProperties");
        if level == Level::Root {
            problems.push(Problem::forbidden(&place, "must not be used at the root"));
        }
        if let AdditionalProperties::Schema(schema) = additional {
            invariants(schema, Level::Field, &place, problems);
        }
    }
    let embedded = raw.flag("x-kubernetes-embedded-resource");
    extensions(raw, embedded, path, problems);
    let exempt = Exempt {
        any_of: is_int_or_string_pair(&raw.schemas("anyOf")),
        first_all_of: raw.schemas("allOf").first().is_some_and(|first| is_int_or_string_pair(&first.schemas("anyOf"))),
    };
    value_validation(raw, exempt, path, problems);
    type_rules(raw, level, embedded, path, problems);
    meta_rules(raw, level, embedded, path, problems);
    let bare = !raw.flag("x-kubernetes-preserve-unknown-fields") && raw.properties().next().is_none();
    if embedded && bare {
        let words =
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
        problems.push(Problem::required(format!("{path}.properties"), words));
    }
}

fn extensions(raw: Raw<'_>, embedded: bool, path: &str, problems: &mut Vec<Problem>) {
    if !raw.flag("x-kubernetes-int-or-string") {
        return;
    }
    let words = "must be false if x-kubernetes-int-or-string is true";
    if raw.flag("x-kubernetes-preserve-unknown-fields") {
        problems.push(Problem::invalid(format!("{path}.x-kubernetes-preserve-unknown-fields"), true, words));
    }
    if embedded {
        problems.push(Problem::invalid(format!("{path}.x-kubernetes-embedded-resource"), true, words));
    }
}

fn type_rules(raw: Raw<'_>, level: Level, embedded: bool, path: &str, problems: &mut Vec<Problem>) {
    let kind = raw.kind();
    let place = format!("{path}.type");
    let free = raw.flag("x-kubernetes-int-or-string") || raw.flag("x-kubernetes-preserve-unknown-fields");
    if embedded && kind != "object" {
        let words = "must be object if x-kubernetes-embedded-resource is true";
        problems.push(match kind {
            "" => Problem::required(&place, words),
            _ => Problem::invalid(&place, kind, words),
        });
    } else if kind.is_empty() && !free {
        let words = match level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        problems.push(Problem::required(&place, words));
    }
    if embedded && raw.additional_properties().is_some() {
        let words = "must not be used if x-kubernetes-embedded-resource is set";
        problems.push(Problem::forbidden(format!("{path}.additionalProperties"), words));
    }
    if level == Level::Root && !kind.is_empty() && kind != "object" {
        problems.push(Problem::invalid(&place, kind, "must be object at the root"));
    }
}

/// The allowed restrictions of `apiVersion`, `kind` and `metadata`.
fn meta_rules(raw: Raw<'_>, level: Level, embedded: bool, path: &str, problems: &mut Vec<Problem>) {
    let is_resource = level == Level::Root || embedded;
    for name in ["kind", "apiVersion"] {
        if let Some(property) = raw.property(name).filter(|property| is_resource && property.kind() != "string") {
            let place = format!("{path}.properties[{name}].type");
            problems.push(Problem::invalid(place, property.kind(), "must be string"));
        }
    }
    let Some(metadata) = raw.property("metadata") else { return };
    let place = format!("{path}.properties[metadata]");
    if is_resource && metadata.kind() != "object" {
        problems.push(Problem::invalid(format!("{place}.type"), metadata.kind(), "must be object"));
    }
    let plain = ["type", "default", "properties"];
    let others = metadata.0.iter().any(|(keyword, value)| {
        let empty =
            value.is_null() || matches!(value, Value::Bool(false)) || value == &json!("") || value == &json!([]);
        !plain.contains(&keyword.as_str()) && !empty
    });
    let names = metadata.properties().all(|(name, _)| name == "name" || name == "generateName");
    if level == Level::Root && (others || !names) {
        let words = "must not specify anything other than name and generateName, but metadata is implicitly specified";
        problems.push(Problem::forbidden(place, words));
    }
}

#[derive(Clone, Copy, Default)]
struct Exempt {
    any_of: bool,
    first_all_of: bool,
}

fn is_int_or_string_pair(branches: &[Raw<'_>]) -> bool {
    let only_type = |raw: &Raw<'_>, name: &str| raw.0.len() == 1 && raw.kind() == name;
    matches!(branches, [first, second] if only_type(first, "integer") && only_type(second, "string"))
}

fn value_validation(raw: Raw<'_>, exempt: Exempt, path: &str, problems: &mut Vec<Problem>) {
    if !exempt.any_of {
        for (index, branch) in raw.schemas("anyOf").into_iter().enumerate() {
            nested(branch, Exempt::default(), &format!("{path}.anyOf[{index}]"), problems);
        }
    }
    for (index, branch) in raw.schemas("allOf").into_iter().enumerate() {
        let exempt = Exempt { any_of: exempt.first_all_of && index == 0, first_all_of: false };
        nested(branch, exempt, &format!("{path}.allOf[{index}]"), problems);
    }
    for (index, branch) in raw.schemas("oneOf").into_iter().enumerate() {
        nested(branch, Exempt::default(), &format!("{path}.oneOf[{index}]"), problems);
    }
    if let Some(branch) = raw.schema("not") {
        nested(branch, Exempt::default(), &format!("{path}.not"), problems);
    }
    let source = raw.text("pattern");
    if let Some(Err(error)) = (!source.is_empty()).then(|| pattern::compile(source)) {
        let words = format!("must be a valid regular expression, but isn't: {error}");
        problems.push(Problem::invalid(format!("{path}.pattern"), source, words));
    }
}

fn nested(raw: Raw<'_>, exempt: Exempt, path: &str, problems: &mut Vec<Problem>) {
    value_validation(raw, exempt, path, problems);
    if let Some(item) = raw.item() {
        nested(item, Exempt::default(), &format!("{path}.items"), problems);
    }
    for (name, property) in raw.properties() {
        nested(property, Exempt::default(), &format!("{path}.properties[{name}]"), problems);
    }
    let mut forbid = |keyword: &str, set: bool, words: &str| {
        if set {
            problems.push(Problem::forbidden(format!("{path}.{keyword}"), format!("{words} to be structural")));
        }
    };
    forbid("type", !raw.kind().is_empty(), "must be empty");
    let additional = match raw.additional_properties() {
        Some(AdditionalProperties::Allows(allows)) => allows,
        other => other.is_some(),
    };
    forbid("additionalProperties", additional, "must be undefined");
    forbid("default", raw.get("default").is_some(), "must be undefined");
    for keyword in ["title", "description"] {
        forbid(keyword, !raw.text(keyword).is_empty(), "must be empty");
    }
    for keyword in [
        "nullable",
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-embedded-resource",
        "x-kubernetes-int-or-string",
    ] {
        forbid(keyword, raw.flag(keyword), "must be false");
    }
    forbid("x-kubernetes-list-map-keys", !raw.list("x-kubernetes-list-map-keys").is_empty(), "must be empty");
    forbid("x-kubernetes-list-type", raw.list_type().is_some(), "must be undefined");
    forbid("x-kubernetes-map-type", raw.map_type().is_some(), "must be undefined");
    forbid("x-kubernetes-validations", !raw.rules().is_empty(), "must be empty");
    if raw.property("metadata").is_some() {
        let place = format!("{path}.properties[metadata]");
        problems.push(Problem::forbidden(place, "must not be specified in a nested context"));
    }
}

/// Fields inside of a branch must exist in the schema around it.
fn completeness(branch: Raw<'_>, outer: Option<Raw<'_>>, outer_path: &str, path: &str, problems: &mut Vec<Problem>) {
    for keyword in ["not", "allOf", "anyOf", "oneOf"] {
        if let Some(inner) = branch.schema(keyword) {
            nested_completeness(inner, outer, outer_path, &format!("{path}.{keyword}"), problems);
        }
        for (index, inner) in branch.schemas(keyword).into_iter().enumerate() {
            nested_completeness(inner, outer, outer_path, &format!("{path}.{keyword}[{index}]"), problems);
        }
    }
}

fn nested_completeness(
    branch: Raw<'_>,
    outer: Option<Raw<'_>>,
    outer_path: &str,
    path: &str,
    problems: &mut Vec<Problem>,
) {
    let Some(around) = outer else {
        problems.push(Problem::required(outer_path, format!("because it is defined in {path}")));
        return;
    };
    completeness(branch, outer, outer_path, path, problems);
    if let Some(item) = branch.item() {
        let (outer_path, path) = (format!("{outer_path}.items"), format!("{path}.items"));
        nested_completeness(item, around.item(), &outer_path, &path, problems);
    }
    for (name, property) in branch.properties() {
        let (outer_path, path) = (format!("{outer_path}.properties[{name}]"), format!("{path}.properties[{name}]"));
        nested_completeness(property, around.property(name), &outer_path, &path, problems);
    }
}
