//! Who owns what after which writes.

use super::entries::{Entries, FieldWriter};
use super::*;
use crate::types::TypeTable;
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

fn writer<'a>(manager: &'a str, now: &'a str) -> FieldWriter<'a> {
    FieldWriter { manager, subresource: "", api_version: "v1", now }
}

fn pod_root() -> Node<'static> {
    Node::Struct(TypeTable::shared().kind("v1", "Pod").unwrap())
}

fn changed(root: Node<'_>, old: Value, new: Value) -> Value {
    compare(root, old.as_object().unwrap(), new.as_object().unwrap()).changed.into_value()
}

#[test]
fn the_fields_of_a_new_object_are_those_that_differ_from_an_empty_one() {
    let kind = TypeTable::shared().kind("apps/v1", "Deployment").unwrap();
    let blank = TypeTable::shared().blank(kind);
    let created = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"labels": {"app": "web"}},
        "spec": {
            "replicas": 2, "selector": {"matchLabels": {"app": "web"}},
            "strategy": {"rollingUpdate": {"maxSurge": 1}, "type": "RollingUpdate"},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [
                {"name": "c", "image": "i", "resources": {}, "ports": [{"containerPort": 80, "protocol": "TCP"}]}]}},
        },
    });
    let set = changed(Node::Struct(kind), blank, created);
    assert_eq!(set["f:metadata"], json!({"f:labels": {".": {}, "f:app": {}}}));
    assert_eq!(
        set["f:spec"],
        json!({
            "f:replicas": {}, "f:selector": {},
            "f:strategy": {"f:rollingUpdate": {".": {}, "f:maxSurge": {}}, "f:type": {}},
            "f:template": {
                "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
                "f:spec": {"f:containers": {"k:{\"name\":\"c\"}": {
                    ".": {}, "f:image": {}, "f:name": {}, "f:resources": {},
                    "f:ports": {".": {}, "k:{\"containerPort\":80,\"protocol\":\"TCP\"}":
                        {".": {}, "f:containerPort": {}, "f:protocol": {}}},
                }}},
            },
        })
    );
}

#[test]
fn lists_are_owned_item_by_item_or_as_a_whole() {
    let pod = |containers: Value| json!({"spec": {"containers": containers}});
    assert_eq!(
        changed(
            pod_root(),
            pod(json!([{"name": "a", "args": ["1"]}])),
            pod(json!([{"name": "a", "args": ["1", "2"]}]))
        ),
        json!({"f:spec": {"f:containers": {"k:{\"name\":\"a\"}": {"f:args": {}}}}})
    );
    let held = |finalizers: Value| json!({"metadata": {"finalizers": finalizers}});
    assert_eq!(
        changed(pod_root(), held(json!(["a/b"])), held(json!(["a/b", "c/d"]))),
        json!({"f:metadata": {"f:finalizers": {"v:\"c/d\"": {}}}})
    );
}

#[test]
fn custom_kinds_have_the_list_types_of_their_schema() {
    let schema = json!({"properties": {"spec": {"properties": {
        "items": {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"], "items": {}},
        "whole": {"x-kubernetes-map-type": "atomic"},
    }}}});
    let ownership = Ownership::from_schema(&schema);
    let new = json!({"spec": {"items": [{"id": 1, "x": 2}], "whole": {"a": 1}, "list": [1], "deep": {"a": {"b": 1}}}});
    assert_eq!(
        changed(Node::Root(Some(&ownership)), json!({}), new),
        json!({"f:spec": {
            ".": {}, "f:items": {".": {}, "k:{\"id\":1}": {".": {}, "f:id": {}, "f:x": {}}}, "f:whole": {},
            "f:list": {}, "f:deep": {".": {}, "f:a": {".": {}, "f:b": {}}},
        }})
    );
}

fn step(entries: &mut Entries, manager: &str, now: &str, old: Value, new: Value) {
    let compared = compare(pod_root(), old.as_object().unwrap(), new.as_object().unwrap());
    entries.record(&writer(manager, now), BTreeMap::from([("v1".to_string(), compared)]));
}

fn labels(labels: Value) -> Value {
    json!({"metadata": {"labels": labels}})
}

#[test]
fn the_manager_that_changes_a_field_owns_it() {
    let mut entries = Entries::default();
    step(&mut entries, "one", "2026-01-01T00:00:00Z", labels(json!({})), labels(json!({"a": "1", "b": "1"})));
    step(&mut entries, "two", "2026-01-02T00:00:00Z", labels(json!({"a": "1", "b": "1"})), labels(json!({"a": "2"})));
    assert_eq!(
        entries.clone().into_value(),
        json!([{"manager": "two", "operation": "Update", "apiVersion": "v1", "time": "2026-01-02T00:00:00Z",
            "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:labels": {"f:a": {}}}}}])
    );
    let before = entries.clone();
    step(&mut entries, "three", "2026-01-03T00:00:00Z", labels(json!({"a": "2"})), labels(json!({"a": "2"})));
    assert_eq!(entries, before, "a write that changes nothing leaves no trace");
}

#[test]
fn the_oldest_managers_are_merged() {
    let mut entries = Entries::default();
    let mut map = serde_json::Map::new();
    for number in 10..25 {
        let old = labels(map.clone().into());
        map.insert(format!("l{number}"), "x".into());
        step(
            &mut entries,
            &format!("m{number}"),
            &format!("2026-01-{number}T00:00:00Z"),
            old,
            labels(map.clone().into()),
        );
    }
    let value = entries.into_value();
    let managers: Vec<&str> = value.as_array().unwrap().iter().filter_map(|entry| entry["manager"].as_str()).collect();
    assert_eq!(managers.len(), 10);
    assert_eq!(managers[0], "ancient-changes");
    assert_eq!(value[0]["fieldsV1"]["f:metadata"]["f:labels"].as_object().unwrap().len(), 6);
}

#[test]
fn an_empty_list_or_entry_resets_the_managed_fields() {
    let sent = |entries: Value| json!({"metadata": {"managedFields": entries}});
    assert_eq!(Given::of(&sent(json!([]))), Given::Reset);
    assert_eq!(Given::of(&sent(json!([{}]))), Given::Reset);
    assert_eq!(Given::of(&sent(json!([{"manager": "x"}]))), Given::Object);
    assert_eq!(Given::of(&json!({})), Given::Object);
    assert_eq!(Entries::from_value(json!([{"manager": "x"}])), None, "an entry says what it is about");
}

#[test]
fn of_entries_with_the_same_identity_the_last_one_counts() {
    let entry = |operation: &str, version: &str, time: &str, field: &str| {
        json!({
            "manager": "a", "operation": operation, "apiVersion": version, "time": time, "fieldsType": "FieldsV1",
            "fieldsV1": {field: {}},
        })
    };
    let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
    let check = |first: &Value, second: &Value, expected: Value| {
        let read = Entries::from_value(json!([first, second])).unwrap();
        assert_eq!(read.into_value(), expected, "{first} {second}");
    };
    let (first, second) = (entry("Update", "v1", late, "f:x"), entry("Update", "v1", early, "f:y"));
    check(&first, &second, json!([second]));
    let other = entry("Update", "v2", late, "f:x");
    check(&second, &other, json!([second, other]));
    let (applied, applied_later) = (entry("Apply", "v1", early, "f:x"), entry("Apply", "v2", late, "f:y"));
    check(&applied, &applied_later, json!([applied_later]));
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![Just(Value::Null), any::<bool>().prop_map(Value::from), "[a-c]{0,2}".prop_map(Value::from)];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            proptest::collection::btree_map("[a-c]", inner, 0..3).prop_map(|map| json!(map)),
        ]
    })
}

proptest! {
    #[test]
    fn subtracting_the_union_of_two_sets_leaves_nothing(one in value(), other in value()) {
        let set = |value: Value| compare(Node::Root(None), &Map::new(), json!({"spec": value}).as_object().unwrap()).changed;
        let (one, other) = (set(one), set(other));
        let mut united = one.clone();
        united.unite(other.clone());
        let mut reversed = other.clone();
        reversed.unite(one.clone());
        prop_assert_eq!(&united, &reversed);
        united.subtract(&one);
        prop_assert!(united.shared_paths(&one).is_empty());
        united.subtract(&other);
        prop_assert!(united.is_empty());
    }

    #[test]
    fn field_sets_survive_a_round_trip(old in value(), new in value()) {
        let compared = compare(Node::Root(None), json!({"spec": old}).as_object().unwrap(), json!({"spec": new}).as_object().unwrap());
        for set in [&compared.changed, &compared.removed] {
            prop_assert_eq!(FieldSet::from_value(set.clone().into_value()), Some(set.clone()));
        }
        prop_assert_eq!(compared.is_empty(), old == new, "{:?}", compared);
    }
}
