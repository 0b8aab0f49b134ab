//! Measures pruning, defaulting and validating an object of 2 kB by a schema of about 200 lines with 5 rules. It prints
//! numbers and does not compare them.

#![allow(clippy::unwrap_used)]

use std::hint::black_box;
use std::time::Instant;

use restow_schema::Schema;
use serde_json::{Map, Value, json};

fn schema() -> Value {
    let mut fields = Map::new();
    for index in 0..20 {
        fields.insert(format!("text{index}"), json!({"type": "string", "maxLength": 64, "pattern": "^[a-z0-9-]+$"}));
        fields.insert(format!("number{index}"), json!({"type": "integer", "minimum": 0, "maximum": 100, "default": 5}));
    }
    fields.insert("min".into(), json!({"type": "integer"}));
    fields.insert("max".into(), json!({"type": "integer"}));
    fields.insert("mode".into(), json!({"type": "string", "enum": ["A", "B"]}));
    fields.insert(
        "items".into(),
        json!({"type": "array", "maxItems": 50, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
        "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string", "maxLength": 20},
            "port": {"type": "integer"}, "weight": {"type": "integer", "default": 1}},
            "x-kubernetes-validations": [{"rule": "!has(self.port) || self.port < 65536"}]}}),
    );
    json!({"type": "object", "properties": {"spec": {"type": "object", "properties": fields, "x-kubernetes-validations": [
        {"rule": "self.min <= self.max"}, {"rule": "self.mode == 'A' || self.max > 10"},
        {"rule": "self.items.all(i, i.name != '')"}, {"rule": "self.min == oldSelf.min", "message": "immutable"}]}}})
}

fn object() -> Value {
    let mut spec = Map::new();
    for index in 0..20 {
        spec.insert(format!("text{index}"), json!(format!("some-text-of-some-length-{index}")));
    }
    spec.insert("min".into(), json!(1));
    spec.insert("max".into(), json!(20));
    spec.insert("mode".into(), json!("A"));
    let items: Vec<Value> =
        (0..12).map(|index| json!({"name": format!("item-{index}"), "port": 8000 + index})).collect();
    spec.insert("items".into(), json!(items));
    json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "n", "namespace": "default"}, "spec": spec})
}

fn main() {
    let (written, object) = (schema(), object());
    let started = Instant::now();
    let schema = Schema::compile(&written, "s").unwrap();
    println!("compile: {:?}", started.elapsed());
    println!("object: {} bytes", object.to_string().len());
    let rounds = 20_000;
    let mut spent = std::time::Duration::ZERO;
    for _ in 0..rounds {
        let mut copy = object.clone();
        let started = Instant::now();
        black_box(schema.prune(&mut copy));
        schema.default(&mut copy);
        let problems = schema.validate(&copy, Some(&object));
        spent += started.elapsed();
        assert!(problems.is_empty(), "{problems:?}");
    }
    println!("prune + default + validate: {:?} each", spent / rounds);
}
