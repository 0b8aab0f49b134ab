//! A set of fields, as `fieldsV1` writes it: a tree whose steps are `f:NAME`, `k:{KEYS}`, `v:VALUE` or `i:INDEX`.

use serde_json::{Map, Value};

/// A set of fields: steps with what is in the set of each, sorted by step. Most sets are made in order from sorted maps
/// and only read after that, which a list does with the least work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSet(Vec<(String, Member)>);

/// A field, and the fields below it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// The field itself is in the set.
    pub own: bool,
    /// What of it is in the set.
    pub below: FieldSet,
}

impl Member {
    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        !self.own && self.below.is_empty()
    }
}

impl FieldSet {
    /// Reads `fieldsV1`; `None` when it is none.
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

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a member, in place of one that is there, unless there is nothing in it.
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

    /// The set of these members, in whatever order they come; of several of one step the last one counts.
    pub fn of(mut members: Vec<(String, Member)>) -> Self {
        members.retain(|(_, member)| !member.is_empty());
        // Sorting keeps equal steps in order, and the later one is kept in place of the earlier.
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

    /// Everything that is in one of these.
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

    /// Takes a field and everything below it out.
    pub fn remove(&mut self, step: &str) {
        if let Ok(index) = self.position(step) {
            self.0.remove(index);
        }
    }

    /// Where a step stands, or would stand.
    fn position(&self, step: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(known, _)| known.as_str().cmp(step))
    }

    /// Takes a field itself out, and some of the fields below it.
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

    /// What the set holds of a field.
    pub fn get(&self, step: &str) -> Option<&Member> {
        self.position(step).ok().map(|index| &self.0[index].1)
    }

    /// The fields at the top, with what is below them.
    pub fn members(&self) -> impl Iterator<Item = (&str, &Member)> {
        self.0.iter().map(|(step, member)| (step.as_str(), member))
    }

    /// Keeps only some of the fields at the top.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.0.retain(|(step, _)| keep(step));
    }

    /// The paths of all fields that are in both, as Kubernetes writes them.
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

    /// Adds everything that is in the other.
    pub fn unite(&mut self, other: FieldSet) {
        if self.0.is_empty() {
            *self = other;
            return;
        }
        *self = FieldSet::union([std::mem::take(self), other]);
    }

    /// Takes out everything that is in the other.
    pub fn subtract(&mut self, other: &FieldSet) {
        // Of many managers each may have little, so that what is taken from them is looked up and not walked through.
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
