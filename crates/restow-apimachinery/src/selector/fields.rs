//! Field selectors, as in `metadata.name=web,status.phase!=Running`.

use crate::object::Object;
use serde_json::Value;
use std::collections::{BTreeMap, HashSet};

/// Requirements on fields; all must hold. They are combined by field, because a selector can have thousands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector(BTreeMap<String, Required>);

/// The combined requirement on the text of one field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Required {
    /// It equals this.
    equal: Option<String>,
    /// It equals none of these.
    denied: HashSet<String>,
    /// Two requirements contradict each other.
    impossible: bool,
}

/// One parsed requirement.
struct Requirement {
    field: String,
    value: String,
    equal: bool,
}

impl FieldSelector {
    /// Selects the objects in which this field has this value.
    pub fn only(field: &str, value: &str) -> Self {
        let required = Required { equal: Some(value.to_string()), ..Required::default() };
        FieldSelector(BTreeMap::from([(field.to_string(), required)]))
    }

    /// Whether every object matches.
    pub fn is_everything(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether an object's fields match.
    pub fn matches(&self, object: &Object) -> bool {
        self.0.iter().all(|(field, required)| required.holds(&field_text(object, field)))
    }

    /// The value that this field must have, if there is only one.
    pub fn required(&self, field: &str) -> Option<&str> {
        self.0.get(field)?.equal.as_deref()
    }

    /// The fields in the selector.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    fn add(&mut self, Requirement { field, value, equal }: Requirement) {
        let required = self.0.entry(field).or_default();
        match (equal, &required.equal) {
            (false, _) => drop(required.denied.insert(value)),
            (true, Some(known)) => required.impossible |= *known != value,
            (true, None) => required.equal = Some(value),
        }
    }

    /// Parses a selector; the error is its message. A backslash escapes a comma or an equals sign.
    pub fn parse(text: &str) -> Result<Self, String> {
        let clauses = split_unescaped(text, ',');
        let clauses = clauses.iter().map(|clause| clause.trim()).filter(|clause| !clause.is_empty());
        let mut selector = FieldSelector::default();
        for clause in clauses {
            selector.add(Requirement::parse(clause)?);
        }
        Ok(selector)
    }
}

impl Requirement {
    fn parse(clause: &str) -> Result<Self, String> {
        for (sign, equal) in [("!=", false), ("==", true), ("=", true)] {
            if let Some((field, value)) = clause.split_once(sign) {
                return Ok(Requirement { field: field.trim().to_string(), value: unescape(value), equal });
            }
        }
        Err(format!("invalid selector: '{clause}'; can't understand '{clause}'"))
    }
}

impl Required {
    fn holds(&self, text: &str) -> bool {
        !self.impossible && self.equal.as_deref().is_none_or(|equal| equal == text) && !self.denied.contains(text)
    }
}

/// The text of a field: numbers and booleans as in JSON; empty if it is absent.
fn field_text(object: &Object, field: &str) -> String {
    let path: Vec<&str> = field.split('.').collect();
    match object.at(&path) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Null) | None => String::new(),
        Some(other) => other.to_string(),
    }
}

fn split_unescaped(text: &str, separator: char) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut escaped = false;
    for character in text.chars() {
        let last = parts.len() - 1;
        if character == separator && !escaped {
            parts.push(String::new());
        } else {
            parts[last].push(character);
        }
        escaped = character == '\\' && !escaped;
    }
    parts
}

fn unescape(value: &str) -> String {
    let mut plain = String::with_capacity(value.len());
    let mut characters = value.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => plain.extend(characters.next()),
            other => plain.push(other),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(selector: &str, expected: bool) {
        let object = Object::from_value(json!({
            "metadata": {"name": "web", "namespace": "a"}, "spec": {"unschedulable": true, "x": "a,b"},
        }))
        .unwrap();
        assert_eq!(FieldSelector::parse(selector).unwrap().matches(&object), expected, "{selector}");
    }

    #[test]
    fn field_selectors_compare_fields_as_text() {
        check("", true);
        check("metadata.name=web", true);
        check("metadata.name==web,metadata.namespace!=b", true);
        check("metadata.name!=web", false);
        check("spec.unschedulable=true", true);
        check("status.phase=", true);
        check("spec.x=a\\,b", true);
        check("metadata.name=web,metadata.name=web,metadata.name!=x", true);
        check("metadata.name=web,metadata.name=x", false);
        check("metadata.name=x,metadata.name=web", false);
        check("metadata.name!=x,metadata.name!=web", false);
        assert!(FieldSelector::parse("name").is_err());
    }
}
