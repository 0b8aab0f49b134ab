//! Objects against schemas: what is pruned, defaulted, accepted and refused, and with which words.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use restow_schema::Schema;
use serde_json::{Value, json};

const PATH: &str = "spec.versions[0].schema.openAPIV3Schema";

/// A schema whose `spec` has one field `x` of the given schema.
fn schema_of(x: Value) -> Schema {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"x": x}}}});
    Schema::compile(&schema, PATH).unwrap_or_else(|problems| panic!("{problems:?}"))
}

fn object_with(x: Value) -> Value {
    json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "n"}, "spec": {"x": x}})
}

fn texts(schema: &Schema, object: &Value, old: Option<&Value>) -> Vec<String> {
    schema.validate(object, old).iter().map(ToString::to_string).collect()
}

#[test]
fn validation_errors_have_the_messages_of_kubernetes() {
    let cases = [
        (
            json!({"type": "integer", "minimum": 0}),
            json!(-1),
            "spec.x: Invalid value: -1: spec.x in body should be greater than or equal to 0",
        ),
        (
            json!({"type": "integer", "maximum": 3, "exclusiveMaximum": true}),
            json!(3),
            "spec.x: Invalid value: 3: spec.x in body should be less than 3",
        ),
        (
            json!({"type": "number", "minimum": 0.5}),
            json!(0.25),
            "spec.x: Invalid value: 0.25: spec.x in body should be greater than or equal to 0.5",
        ),
        (
            json!({"type": "integer", "multipleOf": 5}),
            json!(7),
            "spec.x: Invalid value: 7: spec.x in body should be a multiple of 5",
        ),
        (
            json!({"type": "integer"}),
            json!("a"),
            "spec.x: Invalid value: \"string\": spec.x in body must be of type integer: \"string\"",
        ),
        (
            json!({"type": "integer", "format": "int32"}),
            json!(3_000_000_000u64),
            "<nil>: Invalid value: \"\": Checked value must be of type integer with format int32 in spec.x",
        ),
        (
            json!({"type": "integer", "format": "int32"}),
            json!(true),
            "spec.x: Invalid value: \"\": spec.x in body must be of type int32: \"\"",
        ),
        (json!({"type": "string", "maxLength": 2}), json!("abc"), "spec.x: Too long: may not be more than 2 bytes"),
        (
            json!({"type": "string", "minLength": 2}),
            json!("a"),
            "spec.x: Invalid value: \"a\": spec.x in body should be at least 2 chars long",
        ),
        (
            json!({"type": "string", "pattern": "^a+$"}),
            json!("b"),
            "spec.x: Invalid value: \"b\": spec.x in body should match '^a+$'",
        ),
        (
            json!({"type": "string", "enum": ["a", "b"]}),
            json!("c"),
            "spec.x: Unsupported value: \"c\": supported values: \"a\", \"b\"",
        ),
        (
            json!({"type": "string", "format": "date-time"}),
            json!("now"),
            "spec.x: Invalid value: \"now\": spec.x in body must be of type date-time: \"now\"",
        ),
        (
            json!({"type": "string"}),
            json!(null),
            "spec.x: Invalid value: \"null\": spec.x in body must be of type string: \"null\"",
        ),
        (
            json!({"x-kubernetes-int-or-string": true}),
            json!(true),
            "spec.x: Invalid value: \"boolean\": spec.x in body must be of type integer,string: \"boolean\"",
        ),
        (
            json!({"type": "array", "maxItems": 1, "items": {"type": "string"}}),
            json!(["a", "b"]),
            "spec.x: Too many: 2: must have at most 1 item",
        ),
        (
            json!({"type": "array", "minItems": 1, "items": {"type": "string"}}),
            json!([]),
            "spec.x: Invalid value: 0: spec.x in body should have at least 1 items",
        ),
        (
            json!({"type": "array", "items": {"type": "string"}}),
            json!(["a", 1]),
            "spec.x[1]: Invalid value: \"integer\": spec.x[1] in body must be of type string: \"integer\"",
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "string"}}),
            json!({"k": 1}),
            "spec.x.k: Invalid value: \"integer\": spec.x.k in body must be of type string: \"integer\"",
        ),
        (
            json!({"type": "object", "maxProperties": 1, "additionalProperties": {"type": "string"}}),
            json!({"a": "", "b": ""}),
            "spec.x: Too many: 2: must have at most 1 item",
        ),
        (
            json!({"type": "object", "required": ["y"], "properties": {"y": {"type": "string"}}}),
            json!({}),
            "spec.x.y: Required value",
        ),
        (
            json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}),
            json!(["a", "b", "a", "a"]),
            "spec.x[2]: Duplicate value: \"a\"",
        ),
        (
            json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
                "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}}}}),
            json!([{"k": "a"}, {"k": "a"}]),
            "spec.x[1]: Duplicate value: {\"k\":\"a\"}",
        ),
        (
            json!({"type": "string", "not": {"pattern": "^a"}}),
            json!("ab"),
            "<nil>: Invalid value: \"\": \"spec.x\" must not validate the schema (not)",
        ),
    ];
    for (schema, value, expected) in cases {
        let found = texts(&schema_of(schema.clone()), &object_with(value.clone()), None);
        assert_eq!(found, [expected], "{schema} {value}");
    }
}

#[test]
fn any_of_and_one_of_report_the_branch_with_the_most_passed_checks() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
        "oneOf": [{"required": ["a"]}, {"required": ["b"]}]});
    let schema = schema_of(schema);
    assert_eq!(
        texts(&schema, &object_with(json!({})), None),
        [
            "<nil>: Invalid value: \"\": \"spec.x\" must validate one and only one schema (oneOf). Found none valid",
            "spec.x.a: Required value"
        ]
    );
    assert_eq!(
        texts(&schema, &object_with(json!({"a": "", "b": ""})), None),
        [
            "<nil>: Invalid value: \"\": \"spec.x\" must validate one and only one schema (oneOf). Found 2 valid alternatives"
        ]
    );
    assert!(texts(&schema, &object_with(json!({"a": ""})), None).is_empty());
}

#[test]
fn ratcheting_ignores_errors_of_unchanged_parts() {
    let schema = schema_of(json!({"type": "object", "properties": {
        "n": {"type": "integer", "minimum": 5}, "m": {"type": "integer"},
        "l": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items":
            {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}, "v": {"type": "integer", "maximum": 1}}}}}}));
    let old = object_with(json!({"n": 1, "m": 1, "l": [{"k": "a", "v": 9}, {"k": "b"}]}));
    let moved = object_with(json!({"n": 1, "m": 2, "l": [{"k": "b"}, {"k": "a", "v": 9}]}));
    assert!(texts(&schema, &moved, Some(&old)).is_empty());
    assert_eq!(texts(&schema, &moved, None).len(), 2);
    let worse = object_with(json!({"n": 2, "m": 2, "l": [{"k": "b", "v": 9}, {"k": "a", "v": 9}]}));
    assert_eq!(texts(&schema, &worse, Some(&old)).len(), 2);
}

#[test]
fn unknown_fields_are_pruned_and_reported() {
    let schema = schema_of(json!({"type": "object", "properties": {
        "known": {"type": "string"},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"strict": {"type": "object"}}},
        "list": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}},
        "map": {"type": "object", "additionalProperties": {"type": "object"}},
        "embedded": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}}}));
    let mut object = object_with(json!({"known": "", "unknown": {"a": 1},
        "free": {"any": {"thing": 1}, "strict": {"gone": 1}}, "list": [{"a": "", "b": ""}], "map": {"k": {"gone": 1}},
        "embedded": {"apiVersion": "v1", "kind": "K", "metadata": {"name": "n", "gone": 1}, "kept": 1}}));
    object["extra"] = json!(1);
    assert_eq!(
        schema.prune(&mut object),
        [
            "extra",
            "spec.x.embedded.metadata.gone",
            "spec.x.free.strict.gone",
            "spec.x.list[0].b",
            "spec.x.map.k.gone",
            "spec.x.unknown"
        ]
    );
    assert_eq!(
        object["spec"]["x"],
        json!({"known": "", "free": {"any": {"thing": 1}, "strict": {}}, "list": [{"a": ""}], "map": {"k": {}},
            "embedded": {"apiVersion": "v1", "kind": "K", "metadata": {"name": "n"}, "kept": 1}})
    );
    assert_eq!(object["metadata"]["name"], "n");
    assert!(schema.prune(&mut object).is_empty());
}

#[test]
fn defaults_fill_what_is_missing() {
    let schema = schema_of(json!({"type": "object", "properties": {
        "a": {"type": "string", "default": "d"},
        "b": {"type": "object", "default": {}, "properties": {"c": {"type": "integer", "default": 1}}},
        "n": {"type": "string", "nullable": true, "default": "d"},
        "gone": {"type": "string"},
        "list": {"type": "array", "items": {"type": "object", "properties": {"p": {"type": "boolean", "default": true}}}}}}));
    let mut object = object_with(json!({"a": null, "n": null, "gone": null, "list": [{}, {"p": false}]}));
    schema.default(&mut object);
    let expected = json!({"a": "d", "b": {"c": 1}, "n": null, "list": [{"p": true}, {"p": false}]});
    assert_eq!(object["spec"]["x"], expected);
    let once = object.clone();
    schema.default(&mut object);
    assert_eq!(object, once);
}
