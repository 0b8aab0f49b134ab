//! Label selectors as objects hold them: aggregation rules, webhooks and policies.

use crate::json::{WrongType, items, text, text_map, texts};
use restow_apimachinery::go_syntax::quote;
use serde_json::Value;
use std::collections::BTreeMap;

/// Which objects are meant, by their labels. Without conditions: all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LabelSelector {
    labels: BTreeMap<String, String>,
    expressions: Vec<Expression>,
}

#[derive(Clone, Debug, PartialEq)]
struct Expression {
    key: String,
    operator: String,
    values: Vec<String>,
}

impl LabelSelector {
    /// Reads a label selector.
    pub fn read(selector: &Value) -> Result<Self, WrongType> {
        let expression = |value: &Value| -> Result<Expression, WrongType> {
            let (key, operator) = (text(value, "key")?.into(), text(value, "operator")?.into());
            Ok(Expression { key, operator, values: texts(value, "values")? })
        };
        let expressions = items(selector, "matchExpressions")?.iter().map(expression).collect::<Result<_, _>>()?;
        Ok(LabelSelector { labels: text_map(selector, "matchLabels")?, expressions })
    }

    /// Whether every object is meant.
    pub fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.expressions.is_empty()
    }

    /// Whether an object with these labels is meant, or why nobody can tell.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> Result<bool, String> {
        let mut all = self.labels.iter().all(|(key, value)| labels.get(key) == Some(value));
        for expression in &self.expressions {
            all &= expression.matches(labels.get(&expression.key))?;
        }
        Ok(all)
    }
}

impl Expression {
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
    use serde_json::json;

    #[test]
    fn selectors_match_as_in_kubernetes() {
        let labels = BTreeMap::from([("a".to_string(), "1".to_string())]);
        let check = |selector: Value, expected: Option<bool>| {
            let outcome = LabelSelector::read(&selector).unwrap().matches(&labels);
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
