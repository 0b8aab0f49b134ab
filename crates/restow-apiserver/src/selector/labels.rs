//! Label selectors, as in `app=web,tier in (front,back),!old`.

use crate::names::{label_value_problems, qualified_name_problems};
use crate::object::Object;

/// Requirements on labels; all of them must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LabelSelector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    test: Test,
}

#[derive(Clone, Debug, PartialEq, Eq)]
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
    pub(crate) fn is_everything(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether an object's labels match.
    pub(crate) fn matches(&self, object: &Object) -> bool {
        self.0.iter().all(|requirement| requirement.holds(object.label(&requirement.key)))
    }

    /// Reads a selector; the error says what is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut requirements = Vec::new();
        let mut rest = text.trim();
        while !rest.is_empty() {
            let end = clause_end(rest);
            requirements.push(
                Requirement::parse(rest[..end].trim())
                    .map_err(|problem| format!("unable to parse requirement: {problem}"))?,
            );
            rest = rest[end..].strip_prefix(',').unwrap_or_default().trim_start();
        }
        Ok(LabelSelector(requirements))
    }
}

/// Where the first clause ends: at a comma that stands in no parentheses.
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

    fn holds(&self, label: Option<&str>) -> bool {
        match (&self.test, label) {
            (Test::In(values), Some(label)) => values.iter().any(|value| value == label),
            (Test::NotIn(values), Some(label)) => values.iter().all(|value| value != label),
            (Test::Exists, label) => label.is_some(),
            (Test::Absent, label) => label.is_none(),
            (Test::Greater(number), Some(label)) => label.parse::<i64>().is_ok_and(|label| label > *number),
            (Test::Less(number), Some(label)) => label.parse::<i64>().is_ok_and(|label| label < *number),
            (Test::NotIn(_), None) => true,
            (_, None) => false,
        }
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
    fn every_form_of_requirement_is_understood() {
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
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in ["a b c", "a in b", "=x", "a=b c", "-a", "x>y", "a in (b", "/a=b"] {
            assert!(LabelSelector::parse(bad).is_err(), "{bad}");
        }
    }
}
