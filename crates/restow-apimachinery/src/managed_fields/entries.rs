//! The entries of `metadata.managedFields`: one for each manager, operation, version and subresource.

use super::compare::Comparison;
use super::set::FieldSet;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// The maximum number of entries with the operation Update; older ones are merged.
const MOST_MANAGERS: usize = 10;
/// The operation of server-side apply.
const APPLY: &str = "Apply";
/// The manager of merged entries.
const ANCIENT: &str = "ancient-changes";

/// The writer of a request.
#[derive(Clone, Copy, Debug)]
pub struct FieldWriter<'a> {
    /// The field manager.
    pub manager: &'a str,
    /// The subresource that is written; empty for the object itself.
    pub subresource: &'a str,
    /// The version of the request.
    pub api_version: &'a str,
    /// The time of the request, in RFC 3339.
    pub now: &'a str,
}

/// All entries of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entries(Vec<Entry>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    manager: String,
    operation: String,
    api_version: String,
    time: String,
    subresource: String,
    fields: FieldSet,
}

impl Entries {
    /// Parses the entries; `None` if they are invalid. Of several with the same identity the last one counts, as in Kubernetes.
    pub fn from_value(value: Value) -> Option<Self> {
        let Value::Array(entries) = value else { return None };
        let identified = |value| Entry::from_value(value).map(|entry| (entry.identity(), entry));
        let entries: BTreeMap<_, _> = entries.into_iter().map(identified).collect::<Option<_>>()?;
        Some(Entries(entries.into_values().collect()))
    }

    /// The entries as an object has them, in Kubernetes' order.
    pub fn into_value(mut self) -> Value {
        self.0.sort_by(|one, other| one.order().cmp(&other.order()));
        self.0.into_iter().map(Entry::into_value).collect()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether both contain the same entries, in any order.
    pub fn is_same(&self, other: &Entries) -> bool {
        let sorted = |entries: &Entries| {
            let mut sorted: Vec<Entry> = entries.0.clone();
            sorted.sort_by(|one, other| one.order().cmp(&other.order()));
            sorted
        };
        self.0.len() == other.0.len() && sorted(self) == sorted(other)
    }

    /// The versions of the entries.
    pub fn versions(&self) -> BTreeSet<&str> {
        self.0.iter().map(|entry| entry.api_version.as_str()).collect()
    }

    /// Removes changed and removed fields from all managers, and adds the changed ones to the writer. Entries in a
    /// version that the object can no longer be converted to are removed.
    pub fn record(&mut self, writer: &FieldWriter<'_>, mut compared: BTreeMap<String, Comparison>) {
        self.0.retain_mut(|entry| {
            let Some(comparison) = compared.get(&entry.api_version) else { return false };
            entry.fields.subtract(&comparison.changed);
            entry.fields.subtract(&comparison.removed);
            !entry.fields.is_empty() || entry.is_of(writer)
        });
        let changed = compared.remove(writer.api_version).map(|comparison| comparison.changed);
        if let Some(changed) = changed.filter(|changed| !changed.is_empty()) {
            let position = self.0.iter().position(|entry| entry.is_of(writer));
            let index = position.unwrap_or_else(|| {
                self.0.push(Entry::new(writer));
                self.0.len() - 1
            });
            self.0[index].fields.unite(changed);
            self.0[index].time = writer.now.to_string();
        }
        self.0.retain(|entry| !entry.fields.is_empty());
        self.merge_oldest();
    }

    /// The fields that this manager applied last, and their version.
    pub fn applied(&self, writer: &FieldWriter<'_>) -> Option<(&str, &FieldSet)> {
        let mine = self.0.iter().find(|entry| entry.applied_by(writer))?;
        Some((&mine.api_version, &mine.fields))
    }

    /// The entries of other managers: their names in messages, versions and fields.
    pub fn others(&self, writer: &FieldWriter<'_>) -> Vec<(String, &str, &FieldSet)> {
        let others = self.0.iter().filter(|entry| !entry.applied_by(writer));
        others.map(|entry| (entry.shown(), entry.api_version.as_str(), &entry.fields)).collect()
    }

    /// Adds the applied fields to the manager, and removes changed and removed fields from all others.
    pub fn record_application(
        &mut self,
        writer: &FieldWriter<'_>,
        fields: FieldSet,
        compared: &BTreeMap<String, Comparison>,
    ) {
        let position = self.0.iter().position(|entry| entry.applied_by(writer));
        let before = position.map(|index| self.0.remove(index));
        self.0.retain_mut(|entry| {
            let Some(comparison) = compared.get(&entry.api_version) else { return false };
            entry.fields.subtract(&comparison.changed);
            entry.fields.subtract(&comparison.removed);
            !entry.fields.is_empty()
        });
        let now = Entry { operation: APPLY.into(), fields, ..Entry::new(writer) };
        let same = |before: &Entry| before.fields == now.fields && before.api_version == now.api_version;
        let entry = before.filter(same).unwrap_or(now);
        if !entry.fields.is_empty() {
            self.0.push(entry);
        }
    }

    /// Merges the oldest entries with the operation Update, by version, until there are few enough.
    fn merge_oldest(&mut self) {
        let mut updates = self.0.iter().filter(|entry| entry.operation == "Update").count();
        if updates <= MOST_MANAGERS {
            return;
        }
        let is_bucket = |entry: &Entry| entry.operation == "Update" && entry.manager == ANCIENT;
        let (mut candidates, others): (Vec<Entry>, Vec<Entry>) =
            std::mem::take(&mut self.0).into_iter().partition(|entry| entry.operation == "Update" && !is_bucket(entry));
        candidates.sort_by(|one, other| (&one.time, &one.manager).cmp(&(&other.time, &other.manager)));
        // The first bucket of each version is used, and gets the time of the last entry that was merged into it.
        let mut buckets: BTreeMap<String, (Entry, Vec<FieldSet>)> = BTreeMap::new();
        for entry in others {
            match is_bucket(&entry) && !buckets.contains_key(&entry.api_version) {
                true => drop(buckets.insert(entry.api_version.clone(), (entry, Vec::new()))),
                false => self.0.push(entry),
            }
        }
        for oldest in candidates {
            if updates <= MOST_MANAGERS {
                self.0.push(oldest);
                continue;
            }
            match buckets.get_mut(&oldest.api_version) {
                Some((bucket, merged)) => {
                    bucket.time = oldest.time;
                    merged.push(oldest.fields);
                    updates -= 1;
                }
                None => {
                    let bucket = Entry { manager: ANCIENT.into(), subresource: String::new(), ..oldest };
                    buckets.insert(bucket.api_version.clone(), (bucket, Vec::new()));
                }
            }
        }
        self.0.extend(buckets.into_values().map(|(bucket, merged)| {
            let fields = FieldSet::union([bucket.fields].into_iter().chain(merged));
            Entry { fields, ..bucket }
        }));
    }
}

impl Entry {
    fn new(writer: &FieldWriter<'_>) -> Self {
        Entry {
            manager: writer.manager.to_string(),
            operation: "Update".into(),
            api_version: writer.api_version.to_string(),
            time: writer.now.to_string(),
            subresource: writer.subresource.to_string(),
            fields: FieldSet::default(),
        }
    }

    /// What tells managers apart. The time is not part of it, nor is the version in which a manager applies.
    fn identity(&self) -> [String; 4] {
        let api_version = if self.operation == APPLY { String::new() } else { self.api_version.clone() };
        [self.manager.clone(), self.operation.clone(), self.subresource.clone(), api_version]
    }

    /// Kubernetes' sort order of entries.
    fn order(&self) -> [&str; 5] {
        [&self.operation, &self.time, &self.manager, &self.api_version, &self.subresource]
    }

    fn applied_by(&self, writer: &FieldWriter<'_>) -> bool {
        self.operation == APPLY && self.manager == writer.manager && self.subresource == writer.subresource
    }

    /// The manager in messages about conflicts.
    fn shown(&self) -> String {
        let mut shown = format!("{:?}", self.manager);
        if !self.subresource.is_empty() {
            shown.push_str(&format!(" with subresource {:?}", self.subresource));
        }
        if self.operation != APPLY {
            shown.push_str(&format!(" using {}", self.api_version));
        }
        shown
    }

    fn is_of(&self, writer: &FieldWriter<'_>) -> bool {
        self.operation == "Update"
            && self.manager == writer.manager
            && self.api_version == writer.api_version
            && self.subresource == writer.subresource
    }

    fn from_value(value: Value) -> Option<Self> {
        let Value::Object(mut fields) = value else { return None };
        let mut text = |name: &str| match fields.remove(name) {
            Some(Value::String(text)) => text,
            _ => String::new(),
        };
        let operation = text("operation");
        if !matches!(operation.as_str(), "Apply" | "Update") || text("fieldsType") != "FieldsV1" {
            return None;
        }
        Some(Entry {
            manager: text("manager"),
            operation,
            api_version: text("apiVersion"),
            time: text("time"),
            subresource: text("subresource"),
            fields: FieldSet::from_value(fields.remove("fieldsV1")?)?,
        })
    }

    fn into_value(self) -> Value {
        let mut value = Map::new();
        value.insert("fieldsType".into(), "FieldsV1".into());
        value.insert("fieldsV1".into(), self.fields.into_value());
        for (name, text) in [
            ("operation", self.operation),
            ("apiVersion", self.api_version),
            ("manager", self.manager),
            ("time", self.time),
            ("subresource", self.subresource),
        ] {
            if !text.is_empty() {
                value.insert(name.into(), text.into());
            }
        }
        Value::Object(value)
    }
}
