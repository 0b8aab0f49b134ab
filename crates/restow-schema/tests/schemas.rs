//! Schemas that are refused, and with which words.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use restow_schema::Schema;
use serde_json::{Value, json};

fn problems(schema: &Value) -> Vec<String> {
    match Schema::compile(schema, "s") {
        Ok(_) => Vec::new(),
        Err(problems) => problems.iter().map(ToString::to_string).collect(),
    }
}

#[test]
fn schemas_that_are_not_structural_are_refused() {
    let cases = [
        (json!({}), "s.type: Required value: must not be empty at the root"),
        (json!({"type": "string"}), "s.type: Invalid value: \"string\": must be object at the root"),
        (
            json!({"type": "object", "properties": {"a": {}}}),
            "s.properties[a].type: Required value: must not be empty for specified object fields",
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "array"}}}),
            "s.properties[a].items: Required value: must be specified",
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "array", "items": {}}}}),
            "s.properties[a].items.type: Required value: must not be empty for specified array items",
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "string", "anyOf": [{"type": "string"}]}}}),
            "s.properties[a].anyOf[0].type: Forbidden: must be empty to be structural",
        ),
        (
            json!({"type": "object", "anyOf": [{"properties": {"a": {"minimum": 1}}}]}),
            "s.properties[a]: Required value: because it is defined in s.anyOf[0].properties[a]",
        ),
        (
            json!({"type": "object", "additionalProperties": true}),
            "s.additionalProperties: Forbidden: must not be used at the root",
        ),
        (
            json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}}),
            "s.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified",
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}),
            "s.properties[a].pattern: Invalid value: \"(\": must be a valid regular expression, but isn't: error parsing regexp: missing closing ): `(`",
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "frob"}}}),
            "s.properties[a].type: Unsupported value: \"frob\": supported values: \"array\", \"boolean\", \"integer\", \"number\", \"object\", \"string\"",
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "string", "$ref": "#/x"}}}),
            "s.properties[a].$ref: Forbidden: $ref is not supported",
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": true, "items": {"type": "string"}}}}),
            "s.properties[a].uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"type": "string"}}, "additionalProperties": {"type": "string"}}}}),
            "s.properties[a].additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive",
        ),
        (json!({"type": "object", "nullable": true}), "s.nullable: Forbidden: nullable cannot be true at the root"),
        (
            json!({"type": "object", "properties": {"a": {"type": "integer", "default": "x"}}}),
            "s.properties[a].default: Invalid value: \"string\":  in body must be of type integer: \"string\"",
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "object", "default": {"b": 1}}}}),
            "s.properties[a].default: Invalid value: {\"b\":1}: must not have unknown fields",
        ),
        (
            json!({"type": "object", "properties": {"metadata": {"type": "object", "default": {}}}}),
            "s.properties[metadata].default: Forbidden: must not be set in top-level metadata",
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "object", "x-kubernetes-list-type": "set"}}}),
            "s.properties[a].type: Invalid value: \"object\": must be array if x-kubernetes-list-type is specified",
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
                "items": {"type": "object", "properties": {"k": {"type": "string"}}}}}}),
            "s.properties[a].items.properties[k].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property",
        ),
        (
            json!({"type": "object", "x-kubernetes-validations": [{"rule": ""}]}),
            "s.x-kubernetes-validations[0].rule: Required value: rule is not specified",
        ),
        (
            json!({"type": "object", "x-kubernetes-validations": [{"rule": "true", "reason": "Because"}]}),
            "s.x-kubernetes-validations[0].reason: Unsupported value: \"Because\": supported values: \"FieldValueDuplicate\", \"FieldValueForbidden\", \"FieldValueInvalid\", \"FieldValueRequired\"",
        ),
        (
            json!({"type": "object", "x-kubernetes-validations": [{"rule": "true", "fieldPath": ".spec"}]}),
            "s.x-kubernetes-validations[0].fieldPath: Invalid value: \".spec\": must be a valid path",
        ),
    ];
    for (schema, expected) in cases {
        assert_eq!(problems(&schema), [expected], "{schema}");
    }
}

#[test]
fn deep_and_too_large_schemas_are_refused() {
    let mut deep = json!({"type": "string"});
    for _ in 0..300 {
        deep = json!({"type": "object", "properties": {"a": deep}});
    }
    assert!(problems(&deep)[0].contains("nested deeper"), "{:?}", problems(&deep));
    let pattern = "((((((a{1,900}){1,900}){1,900}){1,900}){1,900}){1,900})";
    let exploding = json!({"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}});
    assert!(problems(&exploding)[0].contains("must be a valid regular expression"), "{:?}", problems(&exploding));
}
