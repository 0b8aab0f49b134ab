//! Validation of the schema of a CRD, keyword by keyword.

use serde_json::Value;

use crate::problem::Problem;
use crate::raw::{AdditionalProperties, Raw, SchemaItems};

/// The maximum nesting of a schema.
pub(crate) const DEEPEST: usize = 100;
/// The maximum number of levels of a schema.
pub(crate) const MOST_LEVELS: usize = 200_000;

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
const META_FIELDS: [&str; 3] = ["apiVersion", "kind", "metadata"];
const REASONS: [&str; 4] = ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];

/// The constraints on a level by its parents.
#[derive(Clone, Default)]
pub(crate) struct Around {
    forbidden_defaults: Option<String>,
    inside_metadata: bool,
    /// The highest level whose children cannot be correlated with those of an old object.
    pub(crate) uncorrelatable: Option<String>,
}

/// The error if a schema is nested too deeply or too large. The traversal itself is bounded.
pub(crate) fn size_problem(value: &Value, path: &str) -> Option<Problem> {
    let mut levels = 0;
    let mut pending = vec![(value, 0usize)];
    while let Some((value, depth)) = pending.pop() {
        levels += 1;
        if depth > 4 * DEEPEST {
            return Some(Problem::invalid(path, "", format!("must not be nested deeper than {DEEPEST} levels")));
        }
        if levels > 10 * MOST_LEVELS {
            return Some(Problem::invalid(path, "", format!("must not have more than {MOST_LEVELS} levels")));
        }
        match value {
            Value::Object(fields) => pending.extend(fields.values().map(|value| (value, depth + 1))),
            Value::Array(items) => pending.extend(items.iter().map(|value| (value, depth + 1))),
            _ => {}
        }
    }
    None
}

/// Checks a level and all below it.
pub(crate) fn check(raw: Raw<'_>, path: &str, around: &Around, is_root: bool, problems: &mut Vec<Problem>) {
    unsupported(raw, path, around, problems);
    if raw.flag("uniqueItems") {
        let words = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        problems.push(Problem::forbidden(format!("{path}.uniqueItems"), words));
    }
    additional(raw, path, around, problems);
    for (name, property) in raw.properties() {
        let around = around_property(raw, name, around, is_root, path);
        check(property, &format!("{path}.properties[{name}]"), &around, false, problems);
    }
    if let Some(branch) = raw.schema("not") {
        check(branch, &format!("{path}.not"), around, false, problems);
    }
    for keyword in ["allOf", "oneOf", "anyOf"] {
        for (index, branch) in raw.schemas(keyword).into_iter().enumerate() {
            check(branch, &format!("{path}.{keyword}[{index}]"), around, false, problems);
        }
    }
    if let Some(SchemaItems::One(item)) = raw.items() {
        let around = around_items(raw, around, path);
        check(item, &format!("{path}.items"), &around, false, problems);
    }
    if raw.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(false)) {
        let place = format!("{path}.x-kubernetes-preserve-unknown-fields");
        problems.push(Problem::invalid(place, false, "must be true or undefined"));
    }
    map_and_list_types(raw, path, problems);
    list_map_keys(raw, path, problems);
    for (index, rule) in raw.rules().into_iter().enumerate() {
        rule_problems(raw, rule, &format!("{path}.x-kubernetes-validations[{index}]"), problems);
    }
}

/// The constraints on a property.
pub(crate) fn around_property(raw: Raw<'_>, name: &str, around: &Around, is_root: bool, path: &str) -> Around {
    let mut around = around.clone();
    if raw.map_type().is_some_and(|kind| kind != "granular" && kind != "atomic") && around.uncorrelatable.is_none() {
        around.uncorrelatable = Some(path.to_string());
    }
    if (is_root || raw.flag("x-kubernetes-embedded-resource")) && META_FIELDS.contains(&name) {
        around.inside_metadata = true;
        if is_root {
            around.forbidden_defaults = Some(format!("in top-level {name}"));
        }
    }
    around
}

/// The constraints on the items of a list.
pub(crate) fn around_items(raw: Raw<'_>, around: &Around, path: &str) -> Around {
    let mut around = around.clone();
    if raw.list_type() != Some("map") && around.uncorrelatable.is_none() {
        around.uncorrelatable = Some(path.to_string());
    }
    around
}

fn unsupported(raw: Raw<'_>, path: &str, around: &Around, problems: &mut Vec<Problem>) {
    let kind = raw.kind();
    if !kind.is_empty() && !TYPES.contains(&kind) {
        problems.push(Problem::not_supported(format!("{path}.type"), kind, TYPES));
    }
    if let (Some(reason), Some(_)) = (&around.forbidden_defaults, raw.get("default")) {
        problems.push(Problem::forbidden(format!("{path}.default"), format!("must not be set {reason}")));
    }
    let empty = |value: &Value| value.as_object().is_some_and(serde_json::Map::is_empty) || value == "";
    for keyword in ["id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref"] {
        if raw.get(keyword).is_some_and(|value| !empty(value)) {
            problems.push(Problem::forbidden(format!("{path}.{keyword}"), format!("{keyword} is not supported")));
        }
    }
    if kind == "null" {
        let words = "type cannot be set to null, use nullable as an alternative";
        problems.push(Problem::forbidden(format!("{path}.type"), words));
    }
    if matches!(raw.items(), Some(SchemaItems::Many)) {
        problems.push(Problem::forbidden(format!("{path}.items"), "items must be a schema object and not an array"));
    }
    if around.inside_metadata && raw.flag("x-kubernetes-embedded-resource") {
        let place = format!("{path}.x-kubernetes-embedded-resource");
        problems.push(Problem::forbidden(place, "must not be used inside of resource meta"));
    }
}

fn additional(raw: Raw<'_>, path: &str, around: &Around, problems: &mut Vec<Problem>) {
    let Some(additional) = raw.additional_properties() else { return };
    let place = format!("{path}.additionalProperties");
    if raw.properties().next().is_some() && !matches!(additional, AdditionalProperties::Allows(true)) {
        problems.push(Problem::forbidden(&place, "additionalProperties and properties are mutual exclusive"));
    }
    if let AdditionalProperties::Schema(schema) = additional {
        let mut around = around.clone();
        if around.inside_metadata {
            around.forbidden_defaults = Some("inside additionalProperties applying to object metadata".to_string());
        }
        check(schema, &place, &around, false, problems);
    }
}

fn map_and_list_types(raw: Raw<'_>, path: &str, problems: &mut Vec<Problem>) {
    let kind = raw.kind();
    for (keyword, set, expected, supported) in [
        ("x-kubernetes-map-type", raw.map_type(), "object", &["atomic", "granular"][..]),
        ("x-kubernetes-list-type", raw.list_type(), "array", &["atomic", "set", "map"][..]),
    ] {
        let Some(set) = set else { continue };
        if kind != expected {
            let words = format!("must be {expected} if {keyword} is specified");
            problems.push(match kind {
                "" => Problem::required(format!("{path}.type"), words),
                _ => Problem::invalid(format!("{path}.type"), kind, words),
            });
        } else if set == "set" {
            set_items(raw, path, problems);
        }
        if !supported.contains(&set) {
            problems.push(Problem::not_supported(format!("{path}.{keyword}"), set, supported.iter().copied()));
        }
    }
}

fn set_items(raw: Raw<'_>, path: &str, problems: &mut Vec<Problem>) {
    let Some(item) = raw.item() else { return };
    let words = "must be atomic as item of a list with x-kubernetes-list-type=set";
    let shown = |kind: Option<&str>| kind.map_or(Value::Null, Value::from);
    match item.kind() {
        "array" if item.list_type().is_some_and(|kind| kind != "atomic") => {
            let place = format!("{path}.items.x-kubernetes-list-type");
            problems.push(Problem::invalid(place, shown(item.list_type()), words));
        }
        "object" if item.map_type() != Some("atomic") => {
            let place = format!("{path}.items.x-kubernetes-map-type");
            problems.push(Problem::invalid(place, shown(item.list_type()), words));
        }
        _ => {}
    }
}

fn list_map_keys(raw: Raw<'_>, path: &str, problems: &mut Vec<Problem>) {
    let keys: Vec<&str> = raw.texts("x-kubernetes-list-map-keys").collect();
    let list_type = raw.list_type();
    if !keys.is_empty() && list_type != Some("map") {
        let words = "must be map if x-kubernetes-list-map-keys is non-empty";
        let place = format!("{path}.x-kubernetes-list-type");
        problems.push(match list_type {
            None => Problem::required(place, words),
            Some(kind) => Problem::invalid(place, kind, words),
        });
    }
    if list_type == Some("map") {
        map_items(raw, &keys, path, problems);
    }
    let (Some(item), Some(list_type @ ("set" | "map"))) = (raw.item(), list_type) else { return };
    if item.flag("nullable") {
        let words = format!("cannot be nullable when x-kubernetes-list-type is {list_type}");
        problems.push(Problem::forbidden(format!("{path}.items.nullable"), words));
    }
    for key in keys.iter().filter(|_| list_type == "map") {
        let Some(property) = item.property(key) else { continue };
        let place = format!("{path}.items.properties[{key}]");
        if property.get("default").is_none() && !item.texts("required").any(|name| name == *key) {
            let words =
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            problems.push(Problem::required(format!("{place}.default"), words));
        }
        if property.flag("nullable") {
            let words = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            problems.push(Problem::forbidden(format!("{place}.nullable"), words));
        }
    }
}

fn map_items(raw: Raw<'_>, keys: &[&str], path: &str, problems: &mut Vec<Problem>) {
    let keys_place = format!("{path}.x-kubernetes-list-map-keys");
    if keys.is_empty() {
        problems.push(Problem::required(&keys_place, "must not be empty if x-kubernetes-list-type is map"));
    }
    let Some(items) = raw.items() else {
        let words = "must have a schema if x-kubernetes-list-type is map";
        problems.push(Problem::required(format!("{path}.items"), words));
        return;
    };
    let SchemaItems::One(item) = items else { return };
    if item.kind() != "object" {
        let words = "must be object if parent array's x-kubernetes-list-type is map";
        problems.push(Problem::invalid(format!("{path}.items.type"), item.kind(), words));
        return;
    }
    let shown = Value::from(keys.to_vec());
    for (index, key) in keys.iter().enumerate() {
        match item.property(key) {
            Some(property) if matches!(property.kind(), "array" | "object") => {
                let place = format!("{path}.items.properties[{key}].type");
                let words = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                problems.push(Problem::invalid(place, item.kind(), words));
            }
            Some(_) => {}
            None => {
                let words = "entries must all be names of item properties";
                problems.push(Problem::invalid(&keys_place, shown.clone(), words));
            }
        }
        if keys.iter().take(index).any(|earlier| earlier == key) {
            problems.push(Problem::invalid(&keys_place, shown.clone(), "must not contain duplicate entries"));
        }
    }
}

fn rule_problems(raw: Raw<'_>, rule: Raw<'_>, place: &str, problems: &mut Vec<Problem>) {
    let (text, message) = (rule.text("rule").trim(), rule.text("message"));
    let breaks = |text: &str| text.contains(['\n', '\r']);
    if text.is_empty() {
        problems.push(Problem::required(format!("{place}.rule"), "rule is not specified"));
    } else if !message.is_empty() && message.trim().is_empty() {
        problems.push(Problem::invalid(format!("{place}.message"), message, "must be non-empty if specified"));
    } else if breaks(message.trim()) {
        problems.push(Problem::invalid(format!("{place}.message"), message, "must not contain line breaks"));
    } else if breaks(text) && message.trim().is_empty() {
        let words = "message must be specified if rule contains line breaks";
        problems.push(Problem::required(format!("{place}.message"), words));
    }
    let expression = rule.text("messageExpression");
    if !expression.is_empty() && expression.trim().is_empty() {
        let words = "messageExpression must be non-empty if specified";
        problems.push(Problem::required(format!("{place}.messageExpression"), words));
    }
    let reason = rule.text("reason");
    if rule.get("reason").is_some() && !REASONS.contains(&reason) {
        problems.push(Problem::not_supported(format!("{place}.reason"), reason, REASONS));
    }
    let field_path = rule.text("fieldPath");
    if field_path.is_empty() {
        return;
    }
    let place = format!("{place}.fieldPath");
    if field_path.trim().is_empty() {
        problems.push(Problem::invalid(&place, field_path, "must be non-empty if specified"));
    }
    if breaks(field_path) {
        problems.push(Problem::invalid(&place, field_path, "must not contain line breaks"));
    }
    if crate::json_path::field_path(field_path, raw, crate::json_path::Brackets::Allowed).is_err() {
        problems.push(Problem::invalid(&place, field_path, "must be a valid path"));
    }
}

/// With the status subresource, only some keywords are allowed at the root: those that affect single fields.
pub(crate) fn status_root_problem(raw: Raw<'_>, path: &str) -> Option<Problem> {
    const ALLOWED: &[(&str, &str)] = &[
        ("description", "Description"),
        ("type", "Type"),
        ("format", "Format"),
        ("title", "Title"),
        ("maximum", "Maximum"),
        ("exclusiveMaximum", "ExclusiveMaximum"),
        ("minimum", "Minimum"),
        ("exclusiveMinimum", "ExclusiveMinimum"),
        ("maxLength", "MaxLength"),
        ("minLength", "MinLength"),
        ("pattern", "Pattern"),
        ("maxItems", "MaxItems"),
        ("minItems", "MinItems"),
        ("uniqueItems", "UniqueItems"),
        ("multipleOf", "MultipleOf"),
        ("required", "Required"),
        ("items", "Items"),
        ("properties", "Properties"),
        ("externalDocs", "ExternalDocs"),
        ("example", "Example"),
        ("x-kubernetes-preserve-unknown-fields", "XPreserveUnknownFields"),
        ("x-kubernetes-validations", "XValidations"),
    ];
    const KNOWN: &[&str] = &[
        "default",
        "enum",
        "maxProperties",
        "minProperties",
        "allOf",
        "oneOf",
        "anyOf",
        "not",
        "additionalProperties",
        "nullable",
        "x-kubernetes-embedded-resource",
        "x-kubernetes-int-or-string",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-list-type",
        "x-kubernetes-map-type",
    ];
    let set = |keyword: &str| raw.get(keyword).is_some_and(|value| *value != Value::Bool(false));
    if KNOWN.iter().any(|keyword| set(keyword)) {
        let names: Vec<&str> = ALLOWED.iter().map(|(_, name)| *name).collect();
        let words = format!(
            "only [{}] fields are allowed at the root of the schema if the status subresource is enabled",
            names.join(" ")
        );
        return Some(Problem::invalid(path, Value::Object(raw.0.clone()), words));
    }
    None
}
