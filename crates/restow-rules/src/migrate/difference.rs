//! Which field of an object differs after a write that should have changed nothing.
//!
//! If admission (a mutating webhook or policy) changes an object on every write, it can never be proven how the object is
//! stored, although no API server is at fault.

use serde_json::Value;

/// Fields that the server itself maintains, which are ignored.
const BOOKKEEPING: [&str; 3] = ["metadata.resourceVersion", "metadata.generation", "metadata.managedFields"];

/// The path of the first field that differs, such as `spec.replicas`; `None` when none does.
pub fn first_difference(before: &Value, after: &Value) -> Option<String> {
    differing("", before, after)
}

fn differing(path: &str, before: &Value, after: &Value) -> Option<String> {
    if before == after || BOOKKEEPING.contains(&path) {
        return None;
    }
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match (before, after) {
        (Value::Object(old), Value::Object(new)) => {
            let names = old.keys().chain(new.keys().filter(|name| !old.contains_key(*name)));
            names.into_iter().find_map(|name| {
                let of = |object: &serde_json::Map<String, Value>| object.get(name).cloned().unwrap_or(Value::Null);
                differing(&below(name), &of(old), &of(new))
            })
        }
        (Value::Array(old), Value::Array(new)) if old.len() == new.len() => {
            let pairs = old.iter().zip(new).enumerate();
            pairs.into_iter().find_map(|(index, (old, new))| differing(&format!("{path}[{index}]"), old, new))
        }
        _ => Some(path.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_first_field_that_differs_is_named() {
        let before = json!({
            "metadata": {"resourceVersion": "1", "generation": 1, "managedFields": [{"time": "1"}], "labels": {"a": "1"}},
            "spec": {"ports": [{"port": 1}, {"port": 2}], "size": 1},
        });
        let check = |pointer: &str, value: Value, expected: Option<&str>| {
            let mut after = before.clone();
            *after.pointer_mut(pointer).unwrap() = value;
            assert_eq!(first_difference(&before, &after).as_deref(), expected, "{pointer}");
        };
        check("/metadata/resourceVersion", json!("2"), None);
        check("/metadata/generation", json!(2), None);
        check("/metadata/managedFields", json!([{"time": "2"}, {}]), None);
        check("/metadata/labels/a", json!("2"), Some("metadata.labels.a"));
        check("/metadata/labels", json!({"a": "1", "seen": "x"}), Some("metadata.labels.seen"));
        check("/spec/ports/1/port", json!(3), Some("spec.ports[1].port"));
        check("/spec/ports", json!([]), Some("spec.ports"));
        check("/spec", json!({"ports": [{"port": 1}, {"port": 2}]}), Some("spec.size"));
        check("/spec/size", json!(1), None);
    }
}
