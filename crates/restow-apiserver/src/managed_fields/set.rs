//! A set of fields, as `fieldsV1` writes it: a tree whose steps are `f:NAME`, `k:{KEYS}`, `v:VALUE` or `i:INDEX`.

use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// A set of fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FieldSet(BTreeMap<String, Member>);

/// A field, and the fields below it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Member {
    /// The field itself is in the set.
    pub(crate) own: bool,
    /// What of it is in the set.
    pub(crate) below: FieldSet,
}

impl Member {
    pub(crate) fn is_empty(&self) -> bool {
        !self.own && self.below.is_empty()
    }
}

impl FieldSet {
    /// Reads `fieldsV1`; `None` when it is none.
    pub(crate) fn from_value(value: &Value) -> Option<Self> {
        let mut set = FieldSet::default();
        for (step, below) in value.as_object()? {
            if step == "." {
                continue;
            }
            if !["f:", "k:", "v:", "i:"].iter().any(|prefix| step.starts_with(prefix)) {
                return None;
            }
            let fields = below.as_object()?;
            let own = fields.is_empty() || fields.contains_key(".");
            set.0.insert(step.clone(), Member { own, below: FieldSet::from_value(below)? });
        }
        Some(set)
    }

    /// The set as `fieldsV1`.
    pub(crate) fn to_value(&self) -> Value {
        Value::Object(self.0.iter().map(|(step, member)| (step.clone(), member.to_value())).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.values().all(Member::is_empty)
    }

    /// Adds a member, unless there is nothing in it.
    pub(crate) fn add(&mut self, step: String, member: Member) {
        if !member.is_empty() {
            self.0.insert(step, member);
        }
    }

    /// Takes a field and everything below it out.
    pub(crate) fn remove(&mut self, step: &str) {
        self.0.remove(step);
    }

    /// Takes a field itself out, and some of the fields below it.
    pub(crate) fn remove_below(&mut self, step: &str, below: &[&str]) {
        if let Some(member) = self.0.get_mut(step) {
            member.own = false;
            below.iter().for_each(|step| member.below.remove(step));
            if member.is_empty() {
                self.0.remove(step);
            }
        }
    }

    /// What the set holds of a field.
    pub(crate) fn get(&self, step: &str) -> Option<&Member> {
        self.0.get(step).filter(|member| !member.is_empty())
    }

    /// The fields at the top, with what is below them.
    pub(crate) fn members(&self) -> impl Iterator<Item = (&str, &Member)> {
        self.0.iter().map(|(step, member)| (step.as_str(), member))
    }

    /// Keeps only some of the fields at the top.
    pub(crate) fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.0.retain(|step, _| keep(step));
    }

    /// The paths of all fields that are in both, as Kubernetes writes them.
    pub(crate) fn shared_paths(&self, other: &FieldSet) -> Vec<String> {
        let mut found = Vec::new();
        self.share(other, "", &mut found);
        found
    }

    fn share(&self, other: &FieldSet, above: &str, found: &mut Vec<String>) {
        for (step, mine) in &self.0 {
            let Some(theirs) = other.0.get(step) else { continue };
            let path = format!("{above}{}", shown(step));
            if mine.own && theirs.own {
                found.push(path.clone());
            }
            mine.below.share(&theirs.below, &path, found);
        }
    }

    /// Adds everything that is in the other.
    pub(crate) fn unite(&mut self, other: &FieldSet) {
        for (step, theirs) in &other.0 {
            let mine = self.0.entry(step.clone()).or_default();
            mine.own |= theirs.own;
            mine.below.unite(&theirs.below);
        }
    }

    /// Takes out everything that is in the other.
    pub(crate) fn subtract(&mut self, other: &FieldSet) {
        for (step, theirs) in &other.0 {
            if let Some(mine) = self.0.get_mut(step) {
                mine.own &= !theirs.own;
                mine.below.subtract(&theirs.below);
                if mine.is_empty() {
                    self.0.remove(step);
                }
            }
        }
    }
}

impl Member {
    fn to_value(&self) -> Value {
        let Value::Object(mut fields) = self.below.to_value() else { return Value::Object(Map::new()) };
        if self.own && !fields.is_empty() {
            fields.insert(".".into(), Value::Object(Map::new()));
        }
        Value::Object(fields)
    }
}

/// A step as messages show it: `.name`, `[key="value"]`, `[="value"]` or `[index]`.
fn shown(step: &str) -> String {
    match step.split_once(':') {
        Some(("k", keys)) => {
            let keys: Map<String, Value> = serde_json::from_str(keys).unwrap_or_default();
            let keys: Vec<String> = keys.iter().map(|(name, value)| format!("{name}={value}")).collect();
            format!("[{}]", keys.join(","))
        }
        Some(("v", value)) => format!("[={value}]"),
        Some(("i", index)) => format!("[{index}]"),
        Some((_, name)) => format!(".{name}"),
        None => step.to_string(),
    }
}
