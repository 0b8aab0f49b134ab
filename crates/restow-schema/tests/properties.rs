//! What holds for any schema and any object: nothing panics, pruning and defaulting are done after one time, and all of it
//! ends. Expressions of random words, too.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use restow_schema::Schema;
use restow_schema::cel::{PER_CALL_LIMIT, Program};
use restow_schema::json_path::JsonPath;
use serde_json::{Value, json};

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-5i64..5).prop_map(Value::from),
        (-2.0f64..2.0).prop_map(Value::from),
        "[a-c]{0,3}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-c]", inner, 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// Schemas of which many, but not all, are in order.
fn any_schema() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any_json().prop_map(|default| json!({"type": "string", "default": default})),
        Just(json!({"type": "string", "maxLength": 2, "pattern": "^a"})),
        Just(json!({"type": "string", "enum": ["a", "b"], "nullable": true})),
        Just(json!({"type": "integer", "minimum": 0, "maximum": 3, "multipleOf": 2})),
        Just(json!({"type": "number", "exclusiveMinimum": true, "minimum": 0.5})),
        Just(json!({"type": "boolean", "default": true})),
        Just(json!({"x-kubernetes-int-or-string": true})),
        Just(json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})),
        Just(
            json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true})
        ),
        any_json(),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            inner.clone().prop_map(|items| json!({"type": "array", "items": items, "maxItems": 3})),
            inner.clone().prop_map(|items| json!({"type": "array", "items": items, "x-kubernetes-list-type": "set"})),
            inner.clone().prop_map(|values| json!({"type": "object", "additionalProperties": values})),
            (prop::collection::btree_map("[a-c]", inner, 0..3), any::<bool>()).prop_map(|(fields, rules)| {
                let rules = if rules { json!([{"rule": "!has(self.a) || self.a == self.a"}]) } else { json!([]) };
                json!({"type": "object", "properties": fields, "required": ["a"], "x-kubernetes-validations": rules,
                    "anyOf": [{"required": ["a"]}, {"required": ["b"]}]})
            }),
        ]
    })
}

fn any_expression() -> impl Strategy<Value = String> {
    let words = prop::sample::select(vec![
        "self",
        "object",
        ".a",
        ".b",
        "[0]",
        "[",
        "]",
        "(",
        ")",
        "{",
        "}",
        "'a'",
        "1",
        "2u",
        "1.5",
        "+",
        "-",
        "*",
        "/",
        "%",
        "==",
        "!=",
        "<",
        ">=",
        "&&",
        "||",
        "!",
        "?",
        ":",
        ",",
        ".all(x, x)",
        ".map(x, x)",
        ".exists(x,",
        ".filter(y, y == 1)",
        "has(",
        "size(",
        ".size()",
        ".?a",
        ".orValue(1)",
        "in",
        "true",
        "null",
        "x",
        ".matches('a')",
        "duration('1s')",
        "string(",
        ".format([1])",
        "\"",
        "r'",
        "b'x'",
        ".split(',')",
        "quantity('1')",
        "optional.of(",
        "\u{e9}",
        "//",
        "\n",
    ]);
    prop::collection::vec(words, 0..14).prop_map(|words| words.join(" ").replace(" .", "."))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn schemas_and_objects_never_panic(spec in any_schema(), object in any_json(), old in any_json()) {
        let written = json!({"type": "object", "properties": {"a": spec}});
        if let Ok(schema) = Schema::compile(&written, "s") {
            let mut object = json!({"apiVersion": "v1", "kind": "K", "metadata": {}, "a": object});
            let old = json!({"apiVersion": "v1", "kind": "K", "metadata": {}, "a": old});
            let first = schema.validate(&object, Some(&old));
            prop_assert!(first.len() <= schema.validate(&object, None).len() + 1);
            schema.prune(&mut object);
            prop_assert!(schema.prune(&mut object.clone()).is_empty());
            schema.default(&mut object);
            let once = object.clone();
            schema.default(&mut object);
            prop_assert_eq!(&object, &once);
            // What breaks nothing alone breaks nothing when it has not changed.
            prop_assert!(schema.validate(&object, Some(&object)).len() <= schema.validate(&object, None).len());
        }
    }

    #[test]
    fn expressions_never_panic(expression in any_expression(), object in any_json()) {
        if let Ok(program) = Program::compile(&expression, &["self", "object"]) {
            let evaluated = program.evaluate(&[Some(&object), Some(&object)], PER_CALL_LIMIT);
            prop_assert!(evaluated.cost <= 2 * PER_CALL_LIMIT);
        }
    }

    #[test]
    fn any_text_is_parsed_or_refused(text in ".{0,40}", object in any_json()) {
        let _ = Program::compile(&text, &["self"]);
        if let Ok(path) = JsonPath::parse(&text) {
            let _ = path.find(&object);
        }
    }
}
