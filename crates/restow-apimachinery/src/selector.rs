//! Label selectors and field selectors.

mod fields;
mod labels;

pub use fields::FieldSelector;
pub use labels::LabelSelector;

use crate::object::Object;
use serde_json::Value;

/// A label selector and a field selector together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    /// The requirements on labels.
    pub labels: LabelSelector,
    /// The requirements on fields.
    pub fields: FieldSelector,
}

impl Selector {
    /// Whether all objects match, so that they need not be checked.
    pub fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.is_everything()
    }

    /// Whether an object matches.
    pub fn matches(&self, object: &Object) -> bool {
        self.labels.matches(object) && self.fields.matches(object)
    }
}

/// A label selector from an object, in the format of the query.
pub fn selector_text(selector: &Value) -> String {
    let labels = selector["matchLabels"].as_object().into_iter().flatten();
    let mut parts: Vec<String> =
        labels.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect();
    for expression in selector["matchExpressions"].as_array().into_iter().flatten() {
        let key = expression["key"].as_str().unwrap_or_default();
        let values = expression["values"].as_array().into_iter().flatten();
        let mut values: Vec<&str> = values.filter_map(Value::as_str).collect();
        values.sort_unstable();
        parts.push(match expression["operator"].as_str().unwrap_or_default() {
            "In" => format!("{key} in ({})", values.join(",")),
            "NotIn" => format!("{key} notin ({})", values.join(",")),
            "DoesNotExist" => format!("!{key}"),
            _ => key.to_string(),
        });
    }
    parts.join(",")
}
