//! Validation rules of schemas: what they refuse, how they are refused themselves, and what an update changes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use restow_schema::Schema;
use serde_json::{Value, json};

/// The schema of a resource whose `spec` is this.
fn around(spec: Value) -> Value {
    json!({"type": "object", "properties": {"spec": spec}})
}

fn compile(spec: Value) -> Result<Schema, Vec<String>> {
    Schema::compile(&around(spec), "s").map_err(|problems| problems.iter().map(ToString::to_string).collect())
}

fn texts(schema: &Schema, spec: Value, old: Option<Value>) -> Vec<String> {
    let object = |spec: Value| json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "n"}, "spec": spec});
    let old = old.map(object);
    schema.validate(&object(spec), old.as_ref()).iter().map(ToString::to_string).collect()
}

fn bounded_spec(rule: Value) -> Value {
    json!({"type": "object", "properties": {
        "min": {"type": "integer"}, "max": {"type": "integer"}, "name": {"type": "string", "maxLength": 20},
        "my-field": {"type": "string", "maxLength": 5}, "namespace": {"type": "string", "maxLength": 5},
        "port": {"x-kubernetes-int-or-string": true}, "when": {"type": "string", "format": "date-time"},
        "list": {"type": "array", "maxItems": 10, "items": {"type": "string", "maxLength": 10}},
        "labels": {"type": "object", "maxProperties": 10, "additionalProperties": {"type": "string", "maxLength": 10}}},
        "x-kubernetes-validations": [rule]})
}

#[test]
fn failed_rules_have_the_messages_of_kubernetes() {
    let cases = [
        (
            json!({"rule": "self.min <= self.max"}),
            json!({"min": 2, "max": 1}),
            "spec: Invalid value: failed rule: self.min <= self.max",
        ),
        (
            json!({"rule": "self.min <= self.max", "message": " too small "}),
            json!({"min": 2, "max": 1}),
            "spec: Invalid value: too small",
        ),
        (
            json!({"rule": "self.min <= self.max", "messageExpression": "'min %d'.format([self.min])"}),
            json!({"min": 2, "max": 1}),
            "spec: Invalid value: min 2",
        ),
        (
            json!({"rule": "self.min <= self.max", "reason": "FieldValueForbidden", "fieldPath": ".min"}),
            json!({"min": 2, "max": 1}),
            "spec.min: Forbidden: failed rule: self.min <= self.max",
        ),
        (
            json!({"rule": "has(self.name)", "reason": "FieldValueRequired", "fieldPath": ".name", "message": "m"}),
            json!({}),
            "spec.name: Required value: m",
        ),
        (
            json!({"rule": "self.min > 0"}),
            json!({}),
            "spec: Invalid value: \"object\": no such key: min evaluating rule: self.min > 0",
        ),
        (
            json!({"rule": "self.my__dash__field == 'a'"}),
            json!({"my-field": "b"}),
            "spec: Invalid value: failed rule: self.my__dash__field == 'a'",
        ),
        (
            json!({"rule": "self.__namespace__ == 'a'"}),
            json!({"namespace": "b"}),
            "spec: Invalid value: failed rule: self.__namespace__ == 'a'",
        ),
        (
            json!({"rule": "self.port + 1 > 2"}),
            json!({"port": "x"}),
            "spec: Invalid value: \"object\": 'no such overload': call arguments did not match a supported operator, function or macro signature for rule: self.port + 1 > 2",
        ),
        (
            json!({"rule": "self.when < timestamp('2024-01-01T00:00:00Z')"}),
            json!({"when": "2025-01-01T00:00:00Z"}),
            "spec: Invalid value: failed rule: self.when < timestamp('2024-01-01T00:00:00Z')",
        ),
        (
            json!({"rule": "self.labels.all(k, k == self.labels[k])"}),
            json!({"labels": {"a": "b"}}),
            "spec: Invalid value: failed rule: self.labels.all(k, k == self.labels[k])",
        ),
    ];
    for (rule, spec, expected) in cases {
        let schema = compile(bounded_spec(rule.clone())).unwrap_or_else(|problems| panic!("{rule}: {problems:?}"));
        assert_eq!(texts(&schema, spec, None), [expected], "{rule}");
    }
}

#[test]
fn rules_that_do_not_compile_are_refused() {
    let rule = |text: &str| json!({"rule": text});
    let shown = |text: &str| {
        format!(
            "{{\"Rule\":{},\"Message\":\"\",\"MessageExpression\":\"\",\"Reason\":null,\"FieldPath\":\"\",\"OptionalOldSelf\":null}}",
            Value::from(text)
        )
    };
    let place = "s.properties[spec].x-kubernetes-validations[0].rule: Invalid value: ";
    let cases = [
        (rule("self.nope"), format!("{place}{}: compilation failed: ERROR: <input>:1:5: undefined field 'nope'\n | self.nope\n | ....^", shown("self.nope"))),
        (rule("self.min"), format!("{place}{}: cel expression must evaluate to a bool", shown("self.min"))),
        (rule("self.min == self.name"), format!("{place}{}: compilation failed: ERROR: <input>:1:10: found no matching overload for '_==_' applied to '(int, string)'\n | self.min == self.name\n | .........^", shown("self.min == self.name"))),
        (json!({"rule": "true", "optionalOldSelf": true}), "s.properties[spec].x-kubernetes-validations[0].optionalOldSelf: Invalid value: true: may not be set if oldSelf is not used in rule".to_string()),
    ];
    for (rule, expected) in cases {
        assert_eq!(compile(bounded_spec(rule.clone())).unwrap_err(), [expected], "{rule}");
    }
}

#[test]
fn rules_that_are_too_expensive_are_refused() {
    let spec = json!({"type": "object", "properties": {"l": {"type": "array", "items": {"type": "string"}}},
        "x-kubernetes-validations": [{"rule": "self.l.all(a, self.l.all(b, a == b))"}]});
    let problems = compile(spec).unwrap_err();
    let words = "s.properties[spec].x-kubernetes-validations[0].rule: Forbidden: estimated rule cost exceeds budget by factor of more than 100x (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)";
    assert_eq!(problems[0], words);
    assert!(problems.last().unwrap().starts_with("s: Forbidden: x-kubernetes-validations estimated rule cost total"));
    let spec = json!({"type": "object", "properties": {"l": {"type": "array", "items": {"type": "string",
        "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}}}});
    let words =
        "oldSelf cannot be used on the uncorrelatable portion of the schema within s.properties[spec].properties[l]";
    assert!(compile(spec).unwrap_err().iter().any(|problem| problem.ends_with(words)));
}

#[test]
fn transition_rules_compare_with_the_old_object() {
    let schema = compile(bounded_spec(json!({"rule": "self.min >= oldSelf.min", "message": "shrinks"}))).unwrap();
    assert!(texts(&schema, json!({"min": 1}), None).is_empty());
    assert!(texts(&schema, json!({"min": 2}), Some(json!({"min": 1}))).is_empty());
    assert_eq!(texts(&schema, json!({"min": 1}), Some(json!({"min": 2}))), ["spec: Invalid value: shrinks"]);

    let rule =
        json!({"rule": "oldSelf.hasValue() || self.min == 0", "optionalOldSelf": true, "message": "starts at 0"});
    let schema = compile(bounded_spec(rule)).unwrap();
    assert_eq!(texts(&schema, json!({"min": 1}), None), ["spec: Invalid value: starts at 0"]);
    assert!(texts(&schema, json!({"min": 1}), Some(json!({"min": 0}))).is_empty());

    let schema = compile(bounded_spec(json!({"rule": "self.min <= self.max", "message": "m"}))).unwrap();
    let broken = json!({"min": 2, "max": 1});
    assert!(texts(&schema, broken.clone(), Some(broken.clone())).is_empty());
    assert_eq!(texts(&schema, broken, Some(json!({"min": 3, "max": 1}))).len(), 1);
}

#[test]
fn rules_are_evaluated_only_on_structurally_valid_objects() {
    let schema = compile(bounded_spec(json!({"rule": "self.min <= self.max"}))).unwrap();
    assert_eq!(
        texts(&schema, json!({"min": "a", "max": 1}), None),
        [
            "spec.min: Invalid value: \"string\": spec.min in body must be of type integer: \"string\"",
            "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation"
        ]
    );
}

/// Items are found by their keys and not by looking through the list: with a search these took minutes.
#[test]
fn long_lists_are_compared_item_by_item() {
    let schema = compile(json!({"type": "object", "properties": {
        "map": {"type": "array", "maxItems": 100_000, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
            "items": {"type": "object", "required": ["k"],
                "properties": {"k": {"type": "string", "maxLength": 10}, "v": {"type": "integer", "maximum": 5}},
                "x-kubernetes-validations": [{"rule": "self.v >= oldSelf.v", "message": "shrinks"},
                    {"rule": "self.v != 2", "message": "two"}]}},
        "set": {"type": "array", "maxItems": 100_000, "x-kubernetes-list-type": "set", "items": {"type": "integer"},
            "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "changed"},
                {"rule": "(self + oldSelf).size() == self.size()", "message": "grown"}]},
        "list": {"type": "array", "maxItems": 100_000, "items": {"type": "integer",
            "x-kubernetes-validations": [{"rule": "self < 100000", "message": "large"}]}}}}))
    .unwrap();
    let map = |count: usize, value: i64| -> Vec<Value> {
        (0..count).map(|number| json!({"k": number.to_string(), "v": value})).collect()
    };
    let turned = |mut items: Vec<Value>| {
        items.reverse();
        items
    };
    let old = |value: i64| Some(json!({"map": turned(map(30_000, value))}));
    assert_eq!(texts(&schema, json!({"map": map(30_000, 1)}), old(1)), Vec::<String>::new());
    // What is broken and unchanged is passed over, by schema and by rules.
    for broken in [2, 6] {
        assert_eq!(texts(&schema, json!({"map": map(30_000, broken)}), old(broken)), Vec::<String>::new());
    }
    let mut changed = map(30_000, 1);
    changed[7]["v"] = json!(0);
    assert_eq!(texts(&schema, json!({"map": changed}), old(1)), ["spec.map[7]: Invalid value: shrinks"]);

    let set = |from: u32| -> Vec<Value> { (from..from + 100_000).map(Value::from).collect() };
    assert_eq!(texts(&schema, json!({"set": set(0)}), Some(json!({"set": turned(set(0))}))), Vec::<String>::new());
    let found = texts(&schema, json!({"set": set(1)}), Some(json!({"set": turned(set(0))})));
    assert_eq!(found, ["spec.set: Invalid value: changed", "spec.set: Invalid value: grown"]);

    // The last item has changed, so all that are too large are reported, and that is found out once.
    let list = |last: u32| json!({"list": (100_000..130_000).chain([last]).collect::<Vec<u32>>()});
    assert_eq!(texts(&schema, list(1), Some(list(2))).len(), 30_000);
    assert_eq!(texts(&schema, list(1), Some(list(1))), Vec::<String>::new());
}
