//! A set of fields in the format of `fieldsV1`: a tree whose steps are `f:NAME`, `k:{KEYS}`, `v:VALUE` or `i:INDEX`.

use serde_json::{Map, Value};

/// A set of fields: sorted steps with their members. Most sets are created in order from sorted maps and then only
/// read; a list is the cheapest structure for that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSet(Vec<(String, Member)>);

/// A field, and the fields below it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// The field itself is in the set.
    pub own: bool,
    /// The fields below it that are in the set.
    pub below: FieldSet,
}

impl Member {
    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        !self.own && self.below.is_empty()
    }
}

impl FieldSet {
    /// Parses `fieldsV1`; `None` if it is invalid.
    pub fn from_value(value: Value) -> Option<Self> {
        let Value::Object(fields) = value else { return None };
        let mut set = FieldSet(Vec::with_capacity(fields.len()));
        for (step, below) in fields {
            if step == "." {
                continue;
            }
            if !matches!(step.as_bytes(), [b'f' | b'k' | b'v' | b'i', b':', ..]) {
                return None;
            }
            let fields = below.as_object()?;
            let own = fields.is_empty() || fields.contains_key(".");
            set.add(step, Member { own, below: FieldSet::from_value(below)? });
        }
        Some(set)
    }

    /// The set as `fieldsV1`.
    pub fn into_value(self) -> Value {
        Value::Object(self.0.into_iter().map(|(step, member)| (step, member.into_value())).collect())
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a member, or replaces the one of the same step. An empty member is not added.
    pub fn add(&mut self, step: String, member: Member) {
        if member.is_empty() {
            return;
        }
        if self.0.last().is_none_or(|(last, _)| *last < step) {
            return self.0.push((step, member));
        }
        match self.position(&step) {
            Ok(index) => self.0[index].1 = member,
            Err(index) => self.0.insert(index, (step, member)),
        }
    }

    /// The set of these members, in any order; of several with the same step, the last one is used.
    pub fn of(mut members: Vec<(String, Member)>) -> Self {
        members.retain(|(_, member)| !member.is_empty());
        // The sort is stable, so the last of equal steps wins.
        members.sort_by(|(one, _), (other, _)| one.cmp(other));
        members.dedup_by(|later, kept| {
            let same = later.0 == kept.0;
            if same {
                std::mem::swap(later, kept);
            }
            same
        });
        FieldSet(members)
    }

    /// The union of these sets.
    pub fn union(sets: impl IntoIterator<Item = FieldSet>) -> Self {
        let mut members: Vec<(String, Member)> = sets.into_iter().flat_map(|set| set.0).collect();
        members.sort_by(|(one, _), (other, _)| one.cmp(other));
        let mut united: Vec<(String, Member)> = Vec::with_capacity(members.len());
        let mut members = members.into_iter().peekable();
        while let Some((step, mut first)) = members.next() {
            let mut others = Vec::new();
            while let Some((_, other)) = members.next_if(|(next, _)| *next == step) {
                first.own |= other.own;
                others.push(other.below);
            }
            if !others.is_empty() {
                others.push(first.below);
                first.below = FieldSet::union(others);
            }
            united.push((step, first));
        }
        FieldSet(united)
    }

    /// Removes a field and everything below it.
    pub fn remove(&mut self, step: &str) {
        if let Ok(index) = self.position(step) {
            self.0.remove(index);
        }
    }

    /// The position of a step, or the position to insert it at.
    fn position(&self, step: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(known, _)| known.as_str().cmp(step))
    }

    /// Removes a field itself, and some of the fields below it.
    pub fn remove_below(&mut self, step: &str, below: &[&str]) {
        if let Ok(index) = self.position(step) {
            let member = &mut self.0[index].1;
            member.own = false;
            below.iter().for_each(|step| member.below.remove(step));
            if member.is_empty() {
                self.0.remove(index);
            }
        }
    }

    /// The member of a step.
    pub fn get(&self, step: &str) -> Option<&Member> {
        self.position(step).ok().map(|index| &self.0[index].1)
    }

    /// The top-level members.
    pub fn members(&self) -> impl Iterator<Item = (&str, &Member)> {
        self.0.iter().map(|(step, member)| (step.as_str(), member))
    }

    /// Keeps only some of the top-level members.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.0.retain(|(step, _)| keep(step));
    }

    /// The paths of all fields that are in both, in Kubernetes' format.
    pub fn shared_paths(&self, other: &FieldSet) -> Vec<String> {
        let mut found = Vec::new();
        self.share(other, "", &mut found);
        found
    }

    fn share(&self, other: &FieldSet, above: &str, found: &mut Vec<String>) {
        for (step, mine) in &self.0 {
            let Some(theirs) = other.get(step) else { continue };
            let path = format!("{above}{}", shown(step));
            if mine.own && theirs.own {
                found.push(path.clone());
            }
            mine.below.share(&theirs.below, &path, found);
        }
    }

    /// Adds all fields of the other set.
    pub fn unite(&mut self, other: FieldSet) {
        if self.0.is_empty() {
            *self = other;
            return;
        }
        *self = FieldSet::union([std::mem::take(self), other]);
    }

    /// Removes all fields of the other set.
    pub fn subtract(&mut self, other: &FieldSet) {
        // With many managers, each may have few fields: look them up instead of iterating over the other set.
        if self.0.len() < other.0.len() / 16 {
            return self.0.retain_mut(|(step, mine)| {
                if let Some(theirs) = other.get(step) {
                    mine.take_out(theirs);
                }
                !mine.is_empty()
            });
        }
        let mut others = other.0.iter().peekable();
        self.0.retain_mut(|(step, mine)| {
            while others.next_if(|(other, _)| other < step).is_some() {}
            if let Some((_, theirs)) = others.next_if(|(other, _)| other == step) {
                mine.take_out(theirs);
            }
            !mine.is_empty()
        });
    }
}

impl Member {
    fn take_out(&mut self, other: &Member) {
        self.own &= !other.own;
        self.below.subtract(&other.below);
    }

    fn into_value(self) -> Value {
        let Value::Object(mut fields) = self.below.into_value() else { return Value::Object(Map::new()) };
        if self.own && !fields.is_empty() {
            fields.insert(".".into(), Value::Object(Map::new()));
        }
        Value::Object(fields)
    }
}

/// A step in a message: `.name`, `[key="value"]`, `[="value"]` or `[index]`.
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
