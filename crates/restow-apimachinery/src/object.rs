//! An API object as the server handles it: JSON with accessors for the metadata.

use serde_json::{Map, Value};
use std::sync::{Arc, LazyLock};

/// One API object in one version. Fields that the server uses have accessors; other fields are not changed.
///
/// The value is always a JSON object. It is stored as a `Value`, so that functions on values need no copy. Clones share
/// it until one of them is changed.
#[derive(Clone, Debug, PartialEq)]
pub struct Object(Arc<Value>);

impl Default for Object {
    fn default() -> Self {
        Object(Arc::new(Value::Object(Map::new())))
    }
}

static NO_FIELDS: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);

impl Object {
    /// Wraps a JSON object; returns other values as the error.
    pub fn from_value(value: Value) -> Result<Self, Value> {
        match value {
            Value::Object(_) => Ok(Object(Arc::new(value))),
            other => Err(other),
        }
    }

    /// The object as a JSON value.
    pub fn into_value(self) -> Value {
        Arc::unwrap_or_clone(self.0)
    }

    /// A reference to the JSON value.
    pub fn as_value(&self) -> &Value {
        &self.0
    }

    /// All fields.
    pub fn fields(&self) -> &Map<String, Value> {
        self.0.as_object().unwrap_or(&NO_FIELDS)
    }

    /// All fields, to change.
    pub fn fields_mut(&mut self) -> &mut Map<String, Value> {
        match Arc::make_mut(&mut self.0) {
            Value::Object(fields) => fields,
            _ => unreachable!("the value is always an object"),
        }
    }

    /// A top-level field.
    pub fn get(&self, field: &str) -> Option<&Value> {
        self.fields().get(field)
    }

    /// The value at a path such as `["spec", "replicas"]`.
    pub fn at(&self, path: &[&str]) -> Option<&Value> {
        let (first, rest) = path.split_first()?;
        rest.iter().try_fold(self.fields().get(*first)?, |value, step| value.get(*step))
    }

    /// The text at a path; empty if it is absent.
    pub fn text(&self, path: &[&str]) -> &str {
        self.at(path).and_then(Value::as_str).unwrap_or_default()
    }

    /// Sets a top-level field, or removes it.
    pub fn set(&mut self, field: &str, value: Option<Value>) {
        match value {
            Some(value) => {
                self.fields_mut().insert(field.to_string(), value);
            }
            None => {
                self.fields_mut().remove(field);
            }
        }
    }

    /// Sets a field at the top or one level below it, or removes it. Longer paths change nothing.
    pub fn set_at(&mut self, path: &[&str], value: Option<Value>) {
        match path {
            [field] => self.set(field, value),
            [outer, inner] => {
                let mut fields = match self.get(outer) {
                    Some(Value::Object(fields)) => fields.clone(),
                    _ => Map::new(),
                };
                match value {
                    Some(value) => drop(fields.insert(inner.to_string(), value)),
                    None => drop(fields.remove(*inner)),
                }
                self.set(outer, Some(Value::Object(fields)));
            }
            _ => {}
        }
    }

    /// The group and version, as in `apps/v1`.
    pub fn api_version(&self) -> &str {
        self.text(&["apiVersion"])
    }

    /// The kind.
    pub fn kind(&self) -> &str {
        self.text(&["kind"])
    }

    /// Sets `apiVersion` and `kind`.
    pub fn set_type(&mut self, api_version: &str, kind: &str) {
        self.set("apiVersion", Some(api_version.into()));
        self.set("kind", Some(kind.into()));
    }

    /// The metadata; `None` if it is missing or not an object.
    pub fn metadata(&self) -> Option<&Map<String, Value>> {
        self.fields().get("metadata").and_then(Value::as_object)
    }

    /// The metadata; created if it is missing.
    pub fn metadata_mut(&mut self) -> &mut Map<String, Value> {
        let slot = self.fields_mut().entry("metadata").or_insert_with(|| Value::Object(Map::new()));
        if !slot.is_object() {
            *slot = Value::Object(Map::new());
        }
        match slot {
            Value::Object(fields) => fields,
            _ => unreachable!("the slot was just made an object"),
        }
    }

    /// A text field of the metadata; empty if it is absent.
    pub fn meta(&self, field: &str) -> &str {
        self.text(&["metadata", field])
    }

    /// Sets a text field of the metadata; an empty text removes it.
    pub fn set_meta(&mut self, field: &str, text: &str) {
        if text.is_empty() {
            self.metadata_mut().remove(field);
        } else {
            self.metadata_mut().insert(field.to_string(), text.into());
        }
    }

    /// The name.
    pub fn name(&self) -> &str {
        self.meta("name")
    }

    /// The namespace; empty for cluster-scoped objects.
    pub fn namespace(&self) -> &str {
        self.meta("namespace")
    }

    /// The unique id.
    pub fn uid(&self) -> &str {
        self.meta("uid")
    }

    /// The resource version; empty if the client sent none.
    pub fn resource_version(&self) -> &str {
        self.meta("resourceVersion")
    }

    /// The generation: the number of changes of the specification.
    pub fn generation(&self) -> i64 {
        self.at(&["metadata", "generation"]).and_then(Value::as_i64).unwrap_or_default()
    }

    /// Whether the object is marked as deleted and waits for finalizers or a grace period.
    pub fn is_being_deleted(&self) -> bool {
        self.at(&["metadata", "deletionTimestamp"]).is_some_and(|time| !time.is_null())
    }

    /// The finalizers.
    pub fn finalizers(&self) -> Vec<&str> {
        let list = self.at(&["metadata", "finalizers"]).and_then(Value::as_array);
        list.into_iter().flatten().filter_map(Value::as_str).collect()
    }

    /// A label's value.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.at(&["metadata", "labels", key]).and_then(Value::as_str)
    }

    /// An annotation's value.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.at(&["metadata", "annotations", key]).and_then(Value::as_str)
    }
}
