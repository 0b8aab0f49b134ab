//! Entry points for fuzzing. Each returns soon for any bytes, and asserts its invariants.
//!
//! The targets in `fuzz/` and the API server's test `tests/fuzzing.rs` run the same functions.

use crate::handlers::patch::{Patch, patched};
use restow_apimachinery::managed_fields::{Node, apply, compare};
use restow_apimachinery::object::Object;
use restow_apimachinery::types::{self, TypeTable};
use serde_json::{Map, Value};

/// Input: an object and a patch, each on a line of JSON. The patch is applied as every patch type that it can be parsed
/// as.
pub fn patch(data: &[u8]) {
    let mut lines = data.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Value>(line).ok());
    let (Some(object), Some(patch)) = (lines.next(), lines.next()) else { return };
    let kind = TypeTable::shared().kind("v1", "Pod");
    if let Ok(operations) = serde_json::from_value(patch.clone()) {
        // An error is fine.
        let _ = patched(&Patch::Json(operations), object.clone(), kind);
    }
    if !patch.is_object() || !object.is_object() {
        return;
    }
    let _ = patched(&Patch::Merge(patch.clone()), object.clone(), kind);
    if let Some(kind) = kind {
        let _ = patched(&Patch::Strategic(patch.clone()), object.clone(), Some(kind));
        let _ = types::normalize(kind, object.clone());
        apply_twice(Node::Struct(kind), &object, &patch);
    }
    apply_twice(Node::Root(None), &object, &patch);
}

/// Applying a configuration twice is the same as applying it once.
fn apply_twice(root: Node<'_>, object: &Value, configuration: &Value) {
    let fields = |value: &Value| -> Map<String, Value> { value.as_object().cloned().unwrap_or_default() };
    let (object, configuration) = (fields(object), fields(configuration));
    let once = apply::merged(root, &object, &configuration);
    let twice = apply::merged(root, &once, &configuration);
    assert!(compare(root, &once, &twice).is_empty(), "{:?} and {:?}", Object::from_value(once.into()), twice);
    let mut left = once.clone();
    let asked = apply::fields_of(root, &configuration);
    apply::remove(root, &mut left, &asked, &asked);
    assert!(left == once, "removing no fields changes nothing");
}
