//! Label selectors, as in `app=web,tier in (front,back),!old`.

use crate::names::{label_value_problems, qualified_name_problems};
use crate::object::Object;
use serde_json::Value;
use std::collections::{BTreeSet, HashMap, HashSet};

/// Requirements on labels; all must hold. They are combined by key, so that matching depends on the number of labels of
/// an object and not on the length of the selector, which can have thousands of requirements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {
    keys: HashMap<String, Required>,
    /// The number of keys that must exist.
    present: usize,
}

/// The combined requirement on one label.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Required {
    presence: BTreeSet<Presence>,
    /// One of these.
    allowed: Option<HashSet<String>>,
    /// None of these.
    denied: HashSet<String>,
    above: Option<i64>,
    below: Option<i64>,
}

/// Whether a label must exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Presence {
    Present,
    Absent,
}

/// One parsed requirement.
struct Requirement {
    key: String,
    test: Test,
}

enum Test {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Absent,
    Greater(i64),
    Less(i64),
}

impl LabelSelector {
    /// Whether every object matches.
    pub fn is_everything(&self) -> bool {
        self.keys.is_empty()
    }

    /// Whether an object's labels match.
    pub fn matches(&self, object: &Object) -> bool {
        if self.keys.is_empty() {
            return true;
        }
        let labels = object.at(&["metadata", "labels"]).and_then(Value::as_object).into_iter().flatten();
        let mut present = 0;
        for (key, value) in labels {
            let (Some(required), Some(value)) = (self.keys.get(key), value.as_str()) else { continue };
            if !required.holds(value) {
                return false;
            }
            present += usize::from(required.presence.contains(&Presence::Present));
        }
        present == self.present
    }

    fn add(&mut self, Requirement { key, test }: Requirement) {
        let required = self.keys.entry(key).or_default();
        let presence = match test {
            Test::NotIn(values) => return required.denied.extend(values),
            Test::Absent => Presence::Absent,
            _ => Presence::Present,
        };
        if required.presence.insert(presence) && presence == Presence::Present {
            self.present += 1;
        }
        match test {
            Test::In(values) => {
                let mut values: HashSet<String> = values.into_iter().collect();
                if let Some(allowed) = &required.allowed {
                    values.retain(|value| allowed.contains(value));
                }
                required.allowed = Some(values);
            }
            Test::Greater(number) => required.above = required.above.max(Some(number)),
            Test::Less(number) => required.below = Some(required.below.map_or(number, |below| below.min(number))),
            Test::NotIn(_) | Test::Absent | Test::Exists => {}
        }
    }

    /// Parses a selector; the error is its message.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut selector = LabelSelector::default();
        let mut rest = text.trim();
        while !rest.is_empty() {
            let end = clause_end(rest);
            selector.add(
                Requirement::parse(rest[..end].trim())
                    .map_err(|problem| format!("unable to parse requirement: {problem}"))?,
            );
            rest = rest[end..].strip_prefix(',').unwrap_or_default().trim_start();
        }
        Ok(selector)
    }
}

/// The end of the first clause: a comma outside of parentheses.
fn clause_end(text: &str) -> usize {
    let mut depth = 0;
    for (offset, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth <= 0 => return offset,
            _ => {}
        }
    }
    text.len()
}

impl Requirement {
    fn parse(clause: &str) -> Result<Self, String> {
        if let Some(key) = clause.strip_prefix('!') {
            return Self::checked(key.trim(), Test::Absent);
        }
        for (sign, equal) in [("!=", false), ("==", true), ("=", true)] {
            if let Some((key, value)) = clause.split_once(sign) {
                let values = vec![value.trim().to_string()];
                return Self::checked(key.trim(), if equal { Test::In(values) } else { Test::NotIn(values) });
            }
        }
        for (sign, greater) in [(">", true), ("<", false)] {
            if let Some((key, value)) = clause.split_once(sign) {
                let number = value.trim().parse().map_err(|_| format!("{value:?} is not a number"))?;
                return Self::checked(key.trim(), if greater { Test::Greater(number) } else { Test::Less(number) });
            }
        }
        let mut words = clause.splitn(2, char::is_whitespace);
        let key = words.next().unwrap_or_default();
        let Some(set) = words.next().map(str::trim) else {
            return Self::checked(key, Test::Exists);
        };
        if let Some(list) = set.strip_prefix("notin") {
            return Self::checked(key, Test::NotIn(value_list(list)?));
        }
        if let Some(list) = set.strip_prefix("in") {
            return Self::checked(key, Test::In(value_list(list)?));
        }
        Err(format!("found '{set}', expected: in, notin, =, ==, !=, gt, lt"))
    }

    fn checked(key: &str, test: Test) -> Result<Self, String> {
        if let Some(problem) = qualified_name_problems(key).first() {
            return Err(format!("<nil>: Invalid value: {key:?}: {problem}"));
        }
        if let Test::In(values) | Test::NotIn(values) = &test {
            for value in values {
                if let Some(problem) = label_value_problems(value).first() {
                    return Err(format!("values[0][{key}]: Invalid value: {value:?}: {problem}"));
                }
            }
        }
        Ok(Requirement { key: key.to_string(), test })
    }
}

impl Required {
    /// Whether the value of an existing label is allowed.
    fn holds(&self, label: &str) -> bool {
        let number = || label.parse::<i64>().ok();
        !self.presence.contains(&Presence::Absent)
            && self.allowed.as_ref().is_none_or(|allowed| allowed.contains(label))
            && !self.denied.contains(label)
            && self.above.is_none_or(|above| number().is_some_and(|number| number > above))
            && self.below.is_none_or(|below| number().is_some_and(|number| number < below))
    }
}

fn value_list(text: &str) -> Result<Vec<String>, String> {
    let inner = text.trim().strip_prefix('(').and_then(|inner| inner.strip_suffix(')'));
    let inner = inner.ok_or_else(|| format!("found '{}' expected: '('", text.trim()))?;
    Ok(inner.split(',').map(|value| value.trim().to_string()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(selector: &str, labels: serde_json::Value, expected: bool) {
        let object = Object::from_value(json!({"metadata": {"labels": labels}})).unwrap();
        assert_eq!(LabelSelector::parse(selector).unwrap().matches(&object), expected, "{selector} on {labels}");
    }

    #[test]
    fn label_selectors_support_all_operators() {
        let web = || json!({"app": "web", "tier": "front", "n": "5"});
        check("", web(), true);
        check("app=web", web(), true);
        check("app==web, tier!=back", web(), true);
        check("app!=web", web(), false);
        check("missing!=web", web(), true);
        check("tier in (front,back)", web(), true);
        check("tier notin (front, back),app", web(), false);
        check("missing notin (a)", web(), true);
        check("app", web(), true);
        check("!app", web(), false);
        check("!missing,app=web", web(), true);
        check("n>4,n<6", web(), true);
        check("app=", json!({"app": ""}), true);
        check("app,app=web,app in (web,db),app notin (x)", web(), true);
        check("app in (web,db),app in (db,x)", web(), false);
        check("app,!app", web(), false);
        check("!x,x", web(), false);
        check("!x,x!=a", web(), true);
        check("n>3,n>4", web(), true);
        check("n>3,n>5", web(), false);
        check("n<9,n<5", web(), false);
        check("app>1", web(), false);
        check("x>1", web(), false);
    }

    #[test]
    fn invalid_selectors_are_refused() {
        for bad in ["a b c", "a in b", "=x", "a=b c", "-a", "x>y", "a in (b", "/a=b"] {
            assert!(LabelSelector::parse(bad).is_err(), "{bad}");
        }
    }
}
