//! Types of `meta/v1` that objects of many kinds hold.

use crate::go_syntax::quote;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Which objects are meant, by their labels. Without conditions: all. The form that queries have is
/// [`crate::selector::LabelSelector`].
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelector {
    match_labels: BTreeMap<String, String>,
    match_expressions: Vec<LabelSelectorRequirement>,
}

/// One condition of a selector.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct LabelSelectorRequirement {
    /// The key of the label.
    pub key: String,
    /// How the label relates to the values: `In`, `NotIn`, `Exists`, `DoesNotExist`.
    pub operator: String,
    /// The values.
    pub values: Vec<String>,
}

impl LabelSelector {
    /// Whether every object is meant.
    pub fn is_everything(&self) -> bool {
        self.match_labels.is_empty() && self.match_expressions.is_empty()
    }

    /// Whether an object with these labels is meant, or why nobody can tell.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> Result<bool, String> {
        let mut all = self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value));
        for expression in &self.match_expressions {
            all &= expression.matches(labels.get(&expression.key))?;
        }
        Ok(all)
    }
}

impl LabelSelectorRequirement {
    fn matches(&self, value: Option<&String>) -> Result<bool, String> {
        let listed = value.is_some_and(|value| self.values.contains(value));
        match (self.operator.as_str(), self.values.is_empty()) {
            ("In", false) => Ok(listed),
            ("NotIn", false) => Ok(!listed),
            ("Exists", true) => Ok(value.is_some()),
            ("DoesNotExist", true) => Ok(value.is_none()),
            ("In" | "NotIn", true) => Err("for 'in', 'notin' operators, values set can't be empty".into()),
            ("Exists" | "DoesNotExist", false) => Err("values set must be empty for exists and does not exist".into()),
            _ => Err(format!("{} is not a valid label selector operator", quote(&self.operator))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::typed;
    use serde_json::{Value, json};

    #[test]
    fn selectors_match_as_in_kubernetes() {
        let labels = BTreeMap::from([("a".to_string(), "1".to_string())]);
        let check = |selector: Value, expected: Option<bool>| {
            let outcome = typed::read::<LabelSelector>(&selector).unwrap().matches(&labels);
            assert_eq!(outcome.ok(), expected, "{selector}");
        };
        let expression = |key: &str, operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        check(json!({}), Some(true));
        check(json!({"matchLabels": {"a": "1"}}), Some(true));
        check(json!({"matchLabels": {"a": "2"}}), Some(false));
        check(json!({"matchLabels": {"a": "1", "b": "1"}}), Some(false));
        check(expression("a", "In", &["1", "2"]), Some(true));
        check(expression("b", "In", &["1"]), Some(false));
        check(expression("a", "NotIn", &["1"]), Some(false));
        check(expression("b", "NotIn", &["1"]), Some(true));
        check(expression("a", "Exists", &[]), Some(true));
        check(expression("a", "DoesNotExist", &[]), Some(false));
        check(expression("a", "In", &[]), None);
        check(expression("a", "Exists", &["1"]), None);
        check(expression("a", "Like", &["1"]), None);
    }
}
