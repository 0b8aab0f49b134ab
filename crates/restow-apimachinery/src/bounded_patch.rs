//! Applies JSON patches within limits on the copied bytes, the nesting of the result, and the work.
//!
//! A patch of a few bytes can take gigabytes to apply, for example if it copies an object into itself repeatedly.
//! Clients, webhooks and policies send patches; all of them are applied here.

use crate::MAX_DEPTH;
use crate::types::exceeds_depth;
use json_patch::jsonptr::Pointer;
use json_patch::{PatchError, PatchErrorKind, PatchOperation};
use serde_json::Value;
use thiserror::Error;

/// The maximum number of operations in one patch, as in Kubernetes.
pub const MAX_OPERATIONS: usize = 10_000;
/// The maximum total size of the copies of one patch in bytes of JSON, as in Kubernetes.
const MAX_COPIED: usize = 3 << 20;
/// The maximum number of list items that one patch may shift by adding and removing before them: some tens of
/// milliseconds.
const MAX_SHIFTED: usize = 20_000_000;

/// Why a patch could not be applied.
#[derive(Debug, Error)]
pub enum BoundedPatchError {
    /// The patch does not fit the value.
    #[error(transparent)]
    Unfit(PatchError),
    /// It has too many operations.
    #[error("The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {0}")]
    Operations(usize),
    /// It copies too much.
    #[error(
        "Unable to complete the copy, the accumulated size increase of copy is {0}, exceeding the limit {MAX_COPIED}"
    )]
    Copied(usize),
    /// The result is nested too deeply.
    #[error("the patch makes an object that is nested more than {MAX_DEPTH} levels deep")]
    Deep,
    /// It shifts too many list items.
    #[error("the patch shifts more than {MAX_SHIFTED} items of lists")]
    Shifted,
}

impl BoundedPatchError {
    /// Whether a `test` operation failed, which some callers treat as "nothing to do".
    pub fn is_failed_test(&self) -> bool {
        matches!(self, BoundedPatchError::Unfit(error) if matches!(error.kind, PatchErrorKind::TestFailed))
    }
}

/// Applies a patch. If it fails, the value is partially changed.
pub fn apply(value: &mut Value, patch: &json_patch::Patch) -> Result<(), BoundedPatchError> {
    if patch.0.len() > MAX_OPERATIONS {
        return Err(BoundedPatchError::Operations(patch.0.len()));
    }
    let mut spent = Spent::default();
    for operation in &patch.0 {
        // Clients test for null to check that a field is absent, and Kubernetes allows that.
        if let PatchOperation::Test(test) = operation
            && test.value.is_null()
            && is_absent(value, test.path.as_str())
        {
            continue;
        }
        spent.check(value, operation)?;
        json_patch::patch_unsafe(value, std::slice::from_ref(operation)).map_err(BoundedPatchError::Unfit)?;
    }
    Ok(())
}

/// The use of the limits so far.
#[derive(Default)]
struct Spent {
    copied: usize,
    shifted: usize,
}

impl Spent {
    /// Refuses an operation that exceeds a limit, before it is applied.
    fn check(&mut self, value: &Value, operation: &PatchOperation) -> Result<(), BoundedPatchError> {
        match operation {
            PatchOperation::Add(add) => {
                self.shift(value, &add.path)?;
                check_depth(&add.path, &add.value)
            }
            PatchOperation::Replace(replace) => check_depth(&replace.path, &replace.value),
            PatchOperation::Remove(remove) => self.shift(value, &remove.path),
            PatchOperation::Copy(copy) => {
                self.shift(value, &copy.path)?;
                self.place(value.pointer(copy.from.as_str()), &copy.path)
            }
            PatchOperation::Move(moved) => {
                self.shift(value, &moved.from)?;
                self.shift(value, &moved.path)?;
                // A move to the same depth or a lower one cannot exceed the limit.
                match moved.path.count() > moved.from.count() {
                    true => self.place(value.pointer(moved.from.as_str()), &moved.path),
                    false => Ok(()),
                }
            }
            PatchOperation::Test(_) => Ok(()),
        }
    }

    /// Checks the insertion of a value at a path.
    fn place(&mut self, source: Option<&Value>, path: &Pointer) -> Result<(), BoundedPatchError> {
        let Some(source) = source else { return Ok(()) };
        self.copied = self.copied.saturating_add(json_size(source));
        if self.copied > MAX_COPIED {
            return Err(BoundedPatchError::Copied(self.copied));
        }
        check_depth(path, source)
    }

    /// Counts the list items behind a position, which an insertion or removal shifts.
    fn shift(&mut self, value: &Value, path: &Pointer) -> Result<(), BoundedPatchError> {
        let parent = path.split_back().and_then(|(parent, last)| Some((value.pointer(parent.as_str())?, last)));
        if let Some((Value::Array(items), last)) = parent {
            let index = last.to_index().map_or(0, |index| index.for_len_incl(items.len()).unwrap_or(0));
            self.shifted = self.shifted.saturating_add(items.len() - index);
        }
        match self.shifted > MAX_SHIFTED {
            true => Err(BoundedPatchError::Shifted),
            false => Ok(()),
        }
    }
}

fn check_depth(path: &Pointer, value: &Value) -> Result<(), BoundedPatchError> {
    let fits = MAX_DEPTH.checked_sub(path.count()).is_some_and(|room| !exceeds_depth(value, room));
    if fits { Ok(()) } else { Err(BoundedPatchError::Deep) }
}

/// The size of a value as JSON in bytes.
pub fn json_size(value: &Value) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // The counter does not fail, and values have only text keys.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

/// Whether a field is missing in an object that exists.
fn is_absent(value: &Value, path: &str) -> bool {
    let parent = path.rsplit_once('/').map(|(parent, _)| parent).unwrap_or_default();
    value.pointer(path).is_none() && value.pointer(parent).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn carry_out(mut value: Value, patch: Value) -> Result<Value, BoundedPatchError> {
        apply(&mut value, &serde_json::from_value(patch).unwrap()).map(|()| value)
    }

    fn nested(levels: usize) -> Value {
        (0..levels).fold(json!(1), |inner, _| json!({"a": inner}))
    }

    #[test]
    fn a_test_operation_treats_absent_fields_as_null() {
        let check = |patch: Value, works: bool| {
            let outcome = carry_out(json!({"metadata": {"name": "x"}}), patch.clone());
            assert_eq!(outcome.is_ok(), works, "{patch}");
        };
        let test = |path: &str, value: Value| json!([{"op": "test", "path": path, "value": value}]);
        check(test("/metadata/finalizers", Value::Null), true);
        check(test("/metadata/finalizers", json!([])), false);
        check(test("/metadata/name", Value::Null), false);
        check(test("/metadata/name", json!("x")), true);
        check(test("/spec/replicas", Value::Null), false);
        let add = json!({"op": "add", "path": "/metadata/finalizers", "value": ["a"]});
        check(json!([add, {"op": "test", "path": "/metadata/finalizers", "value": null}]), false);
    }

    #[test]
    fn the_total_size_of_copies_is_limited() {
        let doubling: Vec<Value> =
            (0..40).map(|number| json!({"op": "copy", "from": "/a", "path": format!("/a/{number}")})).collect();
        let refused = carry_out(json!({"a": {"x": "some text that is copied"}}), doubling.into()).unwrap_err();
        assert!(matches!(refused, BoundedPatchError::Copied(copied) if copied > MAX_COPIED), "{refused}");
        let moved: Vec<Value> = (0..40)
            .flat_map(|_| {
                [
                    json!({"op": "move", "from": "/a", "path": "/b/c"}),
                    json!({"op": "move", "from": "/b/c", "path": "/a"}),
                ]
            })
            .collect();
        let large = json!({"a": "x".repeat(1 << 20), "b": {}});
        assert!(matches!(carry_out(large, moved.into()), Err(BoundedPatchError::Copied(_))));
        let small = json!([{"op": "copy", "from": "/a", "path": "/b"}, {"op": "move", "from": "/a", "path": "/c"}]);
        assert_eq!(carry_out(json!({"a": [1]}), small).unwrap(), json!({"b": [1], "c": [1]}));
    }

    #[test]
    fn the_nesting_of_a_patched_object_is_limited() {
        let path = |levels: usize| "/a".repeat(levels);
        for (operation, fits) in [
            (json!({"op": "add", "path": path(50), "value": nested(50)}), true),
            (json!({"op": "add", "path": path(50), "value": nested(51)}), false),
            (json!({"op": "replace", "path": path(50), "value": nested(51)}), false),
            (json!({"op": "copy", "from": "/a", "path": path(50)}), false),
            (json!({"op": "move", "from": "/b", "path": path(50)}), false),
        ] {
            let mut value = nested(60);
            value["b"] = nested(60);
            let outcome = carry_out(value, json!([operation]));
            assert_eq!(outcome.is_ok(), fits, "{outcome:?}");
        }
    }

    #[test]
    fn the_number_of_shifted_list_items_is_limited() {
        let items: Value = vec![Value::Null; 100_000].into();
        let operations = |operation: Value| -> Value { vec![operation; 1_000].into() };
        for operation in [
            json!({"op": "add", "path": "/a/0", "value": 1}),
            json!({"op": "remove", "path": "/a/0"}),
            json!({"op": "move", "from": "/a/0", "path": "/a/1"}),
            json!({"op": "copy", "from": "/b", "path": "/a/0"}),
        ] {
            let outcome = carry_out(json!({"a": items, "b": 1}), operations(operation.clone()));
            assert!(matches!(outcome, Err(BoundedPatchError::Shifted)), "{operation}");
        }
        let appended = operations(json!({"op": "add", "path": "/a/-", "value": 1}));
        assert!(carry_out(json!({"a": items}), appended).is_ok());
    }

    #[test]
    fn the_number_of_operations_is_limited() {
        let operation = json!({"op": "test", "path": "/a", "value": 1});
        let refused = carry_out(json!({"a": 1}), vec![operation; MAX_OPERATIONS + 1].into()).unwrap_err();
        assert_eq!(refused.to_string(), "The allowed maximum operations in a JSON patch is 10000, got 10001");
    }
}
