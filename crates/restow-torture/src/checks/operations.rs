//! What users asked for, and what became of it. Every change of an object carries a token that occurs once, so that the
//! history of the store tells which operation made it.

use super::contents::{Contents, ObjectKey, StoredObject};
use super::{Finding, Rule};
use crate::webhooks::ANNOTATION;
use restow_store::Revision;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// An operation of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OperationId(usize);

/// What a user knows about an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The server acknowledged it, with this resource version of the object if it still exists.
    Acknowledged(Option<u64>),
    /// The server refused it; it was not and never will be applied.
    Refused,
    /// Nobody knows.
    Unknown,
}

struct Operation {
    key: ObjectKey,
    /// The token that the object has afterwards; `None` for a deletion.
    token: Option<String>,
    /// The first revision that it can have made.
    from: Revision,
    outcome: Option<Outcome>,
    /// The revision that it made.
    applied: Option<Revision>,
}

/// The operations of all users, and the history of the objects that they changed.
#[derive(Default)]
pub(crate) struct Operations {
    all: BTreeMap<OperationId, Operation>,
    /// How many operations have begun.
    begun: usize,
    by_token: BTreeMap<String, OperationId>,
    /// For each object its tokens, oldest first; `None` where it was deleted.
    history: BTreeMap<ObjectKey, Vec<(Revision, Option<String>)>>,
}

impl Operations {
    pub(crate) fn begin(&mut self, key: ObjectKey, token: Option<String>, from: Revision) -> OperationId {
        let id = OperationId(self.begun);
        self.begun += 1;
        if let Some(token) = &token {
            self.by_token.insert(token.clone(), id);
        }
        self.all.insert(id, Operation { key, token, from, outcome: None, applied: None });
        id
    }

    /// Forgets what had ended before a revision, so that a long run needs no more memory than a short one. Nothing of it can still be
    /// under way: if it is applied again, nobody has asked for it.
    pub(crate) fn forget(&mut self, before: Revision) {
        let (all, by_token) = (&mut self.all, &mut self.by_token);
        all.retain(|_, operation| operation.from >= before || operation.may_still_happen());
        by_token.retain(|_, id| all.contains_key(id));
        for history in self.history.values_mut() {
            // What was there at that revision is needed.
            let first = history.partition_point(|(revision, _)| *revision <= before).saturating_sub(1);
            history.drain(..first);
        }
    }

    /// The user knows the outcome: it must be what the store's history says.
    pub(crate) fn end(&mut self, id: OperationId, outcome: Outcome) -> Option<Finding> {
        let operation = self.all.get_mut(&id)?;
        operation.outcome = Some(outcome);
        let (key, token) = (&operation.key, &operation.token);
        let words = match (outcome, operation.applied, token) {
            (Outcome::Refused, Some(applied), _) => {
                format!("{token:?} of {key} was refused, and is there since revision {applied}")
            }
            (Outcome::Acknowledged(_), None, Some(token)) => {
                format!("{token} of {key} was acknowledged, and is not there")
            }
            (Outcome::Acknowledged(Some(told)), Some(applied), _) if told < applied.get() => {
                format!("{token:?} of {key} was acknowledged at revision {told}, and was applied at {applied}")
            }
            (Outcome::Acknowledged(None), _, None) => {
                let from = operation.from;
                let history = self.history.get(key).map(Vec::as_slice).unwrap_or_default();
                let gone = history.iter().any(|(revision, token)| *revision >= from && token.is_none());
                if gone {
                    return None;
                }
                format!("the deletion of {key} was acknowledged, and it was not deleted since revision {from}")
            }
            _ => return None,
        };
        Some((Rule::AcknowledgedWritesAreThere, words))
    }

    /// Looks at a change of an object: somebody must have asked for it.
    pub(crate) fn look_at(
        &mut self,
        key: &ObjectKey,
        revision: Revision,
        contents: &Contents,
        after: Option<&StoredObject>,
    ) -> Vec<Finding> {
        let before = contents.object(key);
        let (old, new) = (before.and_then(StoredObject::token), after.and_then(StoredObject::token));
        if old.is_none() && new.is_none() {
            return Vec::new();
        }
        if old != new {
            let history = self.history.entry(key.clone()).or_default();
            history.push((revision, new.map(str::to_owned)));
        }
        match (before, after, new) {
            (Some(before), Some(after), _) if old == new => unrequested(key, &before.value, &after.value),
            (_, Some(_), Some(token)) => self.applied(key, token, revision),
            (_, Some(_), None) => vec![(Rule::OnlyRequestedChanges, format!("{key} lost its token"))],
            // The garbage collector deletes what has lost its owner.
            (Some(before), None, _) if contents.lacks_owner(before) => Vec::new(),
            (_, None, _) => self.deleted(key, before, revision),
        }
    }

    fn applied(&mut self, key: &ObjectKey, token: &str, revision: Revision) -> Vec<Finding> {
        let Some(operation) = self.by_token.get(token).and_then(|id| self.all.get_mut(id)) else {
            return vec![(Rule::OnlyRequestedChanges, format!("{key} has {token}, which nobody wrote"))];
        };
        let finding = match (operation.applied, operation.outcome) {
            (Some(before), _) => Some(format!("{token} of {key} was applied at revision {before}, and again")),
            (None, Some(Outcome::Refused)) => Some(format!("{token} of {key} was refused, and applied later")),
            (None, Some(Outcome::Acknowledged(_))) => {
                Some(format!("{token} of {key} was acknowledged, and applied later"))
            }
            (None, None | Some(Outcome::Unknown)) => None,
        };
        operation.applied = Some(revision);
        finding.map(|words| (Rule::AcknowledgedWritesAreThere, words)).into_iter().collect()
    }

    /// Somebody must have asked for a deletion: of the object, of its namespace, or of its CRD.
    fn deleted(&mut self, key: &ObjectKey, before: Option<&StoredObject>, revision: Revision) -> Vec<Finding> {
        let marked = before.is_some_and(|before| !before.value["metadata"]["deletionTimestamp"].is_null());
        let asked = |operation: &Operation| {
            let (resource, name) = (&operation.key.resource, &operation.key.name);
            let (group, plural) = key.resource.rsplit_once('.').unwrap_or_default();
            operation.token.is_none()
                && !matches!(operation.outcome, Some(Outcome::Refused))
                && operation.from <= revision
                && (operation.key == *key
                    || resource == "core.namespaces" && *name == key.namespace
                    || resource == super::contents::CRDS && *name == format!("{plural}.{group}"))
        };
        if marked || self.all.values().any(asked) {
            return Vec::new();
        }
        vec![(Rule::OnlyRequestedChanges, format!("{key} was deleted, and nobody asked for it"))]
    }

    /// The revision at which an object last changed.
    pub(crate) fn latest(&self, key: &ObjectKey) -> Option<u64> {
        self.history.get(key)?.last().map(|(revision, _)| revision.get())
    }

    /// A read must show what was there at its revision, and not be older than what was there when it began.
    pub(crate) fn check_read(
        &self,
        key: &ObjectKey,
        not_before: Option<u64>,
        found: Option<(&str, u64)>,
    ) -> Option<Finding> {
        let history = self.history.get(key).map(Vec::as_slice).unwrap_or_default();
        let current = |from: &u64| {
            // What was there when the read began, and everything since.
            let first = history.iter().rposition(|(revision, _)| revision.get() <= *from).unwrap_or(0);
            &history[first..]
        };
        let possible = not_before.as_ref().map_or(history, current);
        let is_possible = match found {
            Some((token, _)) => possible.iter().any(|(_, there)| there.as_deref() == Some(token)),
            None => not_before.is_none() || possible.iter().any(|(_, there)| there.is_none()),
        };
        if is_possible {
            return None;
        }
        let words =
            format!("a read of {key} found {found:?}, and since revision {not_before:?} there was {possible:?}");
        Some((Rule::AcknowledgedWritesAreThere, words))
    }
}

impl Operation {
    /// Whether it may be applied long after it began: nobody knows its outcome, or it deletes what is in a namespace or of a CRD.
    fn may_still_happen(&self) -> bool {
        match (self.outcome, &self.token) {
            (None, _) => true,
            (Some(Outcome::Unknown), Some(_)) => self.applied.is_none(),
            (Some(_), Some(_)) => false,
            (Some(_), None) => ["core.namespaces", super::contents::CRDS].contains(&self.key.resource.as_str()),
        }
    }
}

/// What differs between two states of an object that have the same token, and may not.
fn unrequested(key: &ObjectKey, before: &Value, after: &Value) -> Vec<Finding> {
    let cleaned = |object: &Value| {
        let mut object = object.clone();
        object["apiVersion"] = Value::Null;
        if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
            annotations.remove(ANNOTATION);
        }
        for field in [
            "managedFields",
            "resourceVersion",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "finalizers",
            "ownerReferences",
            "generation",
        ] {
            if let Some(metadata) = object["metadata"].as_object_mut() {
                metadata.remove(field);
            }
        }
        object
    };
    let lost: Vec<String> = owned_fields(before).difference(&owned_fields(after)).cloned().collect();
    if !lost.is_empty() {
        let words = format!("managedFields of {key} have lost {lost:?}, and nobody asked for it");
        return vec![(Rule::OnlyRequestedChanges, words)];
    }
    let (before, after) = (cleaned(before), cleaned(after));
    if before == after {
        return Vec::new();
    }
    let words = format!("{key} was changed, and nobody asked for it: {before} became {after}");
    vec![(Rule::OnlyRequestedChanges, words)]
}

/// Who owns which fields, without those that the server takes away by itself.
fn owned_fields(object: &Value) -> BTreeSet<String> {
    let mut owned = BTreeSet::new();
    for entry in object["metadata"]["managedFields"].as_array().into_iter().flatten() {
        let owner = format!("{} {} {}", entry["manager"], entry["operation"], entry["subresource"]);
        add_fields(&owner, &entry["fieldsV1"], &mut owned);
    }
    owned
}

fn add_fields(path: &str, fields: &Value, owned: &mut BTreeSet<String>) {
    for (name, below) in fields.as_object().into_iter().flatten() {
        if ["f:ownerReferences", "f:finalizers", "f:webhook"].contains(&name.as_str()) {
            continue;
        }
        // A field without fields below it is owned itself; with such fields, a dot says so.
        let path = if name == "." { path.to_owned() } else { format!("{path} {name}") };
        add_fields(&path, below, owned);
        if below.as_object().is_none_or(serde_json::Map::is_empty) {
            owned.insert(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// What users asked for and what the store did, at ever higher revisions.
    #[derive(Default)]
    struct History {
        operations: Operations,
        contents: Contents,
        revision: u64,
    }

    fn key() -> ObjectKey {
        ObjectKey::new("example.com.widgets", "ns", "a")
    }

    impl History {
        fn begin(&mut self, token: Option<&str>) -> OperationId {
            self.operations.begin(key(), token.map(str::to_owned), Revision::new(self.revision + 1))
        }

        fn store(&mut self, value: Option<Value>) -> Vec<Rule> {
            self.revision += 1;
            let revision = Revision::new(self.revision);
            let object = value.map(|value| StoredObject::new(value, revision));
            let findings = self.operations.look_at(&key(), revision, &self.contents, object.as_ref());
            self.contents.change(key(), revision, object);
            findings.into_iter().map(|(rule, _)| rule).collect()
        }

        fn end(&mut self, operation: OperationId, outcome: Outcome) -> Option<Rule> {
            self.operations.end(operation, outcome).map(|(rule, _)| rule)
        }
    }

    fn object(token: &str, version: &str, size: u32) -> Value {
        json!({"apiVersion": version, "metadata": {"annotations": {"token": token}}, "spec": {"size": size}})
    }

    #[test]
    fn what_had_ended_is_forgotten_and_what_is_there_or_unknown_is_not() {
        let mut history = History::default();
        let (first, second) = (history.begin(Some("t1")), history.begin(Some("t2")));
        history.store(Some(object("t1", "v1", 1)));
        history.end(first, Outcome::Acknowledged(Some(1)));
        history.end(second, Outcome::Unknown);
        history.store(None);
        let third = history.begin(Some("t3"));
        history.store(Some(object("t3", "v1", 1)));
        history.operations.forget(Revision::new(history.revision));
        assert_eq!(history.operations.all.keys().copied().collect::<Vec<_>>(), [second, third]);
        let found = |token: &'static str| Some((token, 3));
        assert_eq!(history.operations.check_read(&key(), Some(3), found("t3")), None);
        assert!(history.operations.check_read(&key(), Some(3), found("t1")).is_some());
        assert_eq!(history.store(Some(object("t1", "v1", 1))), [Rule::OnlyRequestedChanges], "it was forgotten");
        assert_eq!(history.store(Some(object("t2", "v1", 1))), [], "it may still be applied");
    }

    const LOST: Option<Rule> = Some(Rule::AcknowledgedWritesAreThere);

    #[test]
    fn an_acknowledged_write_must_be_there_at_its_revision() {
        let mut history = History::default();
        let operation = history.begin(Some("t1"));
        assert_eq!(history.end(operation, Outcome::Acknowledged(Some(1))), LOST);
        let operation = history.begin(Some("t2"));
        assert_eq!(history.store(Some(object("t2", "v1", 1))), []);
        assert_eq!(history.end(operation, Outcome::Acknowledged(Some(history.revision))), None);
        assert_eq!(history.store(Some(object("t2", "v2", 1))), [], "only the encoding changes");
        assert_eq!(history.store(Some(object("t2", "v2", 2))), [Rule::OnlyRequestedChanges]);
    }

    #[test]
    fn nobody_loses_a_field_that_was_not_asked_for() {
        let owned = |entries: Value| {
            let mut object = object("t1", "v1", 1);
            object["metadata"]["managedFields"] = entries;
            object
        };
        let entry = |version: &str, fields: Value| json!({"manager": "a", "operation": "Update", "apiVersion": version, "fieldsV1": fields});
        let (map, key) = (json!({"f:labels": {}}), json!({"f:labels": {"f:x": {}}}));
        let mut history = History::default();
        history.begin(Some("t1"));
        history.store(Some(owned(json!([entry("v1", map), entry("v2", key.clone())]))));
        let united = json!({"f:labels": {".": {}, "f:x": {}}});
        assert_eq!(history.store(Some(owned(json!([entry("v2", united)])))), []);
        assert_eq!(history.store(Some(owned(json!([entry("v2", key)])))), [Rule::OnlyRequestedChanges]);
    }

    #[test]
    fn a_refused_write_is_never_there_and_no_write_is_there_twice() {
        let mut history = History::default();
        let (refused, unknown) = (history.begin(Some("t1")), history.begin(Some("t2")));
        assert_eq!(history.end(refused, Outcome::Refused), None);
        assert_eq!(history.store(Some(object("t1", "v1", 1))), [Rule::AcknowledgedWritesAreThere]);
        assert_eq!(history.end(unknown, Outcome::Unknown), None);
        assert_eq!(history.store(Some(object("t2", "v1", 1))), []);
        let other = history.begin(Some("t3"));
        assert_eq!(history.store(Some(object("t3", "v1", 1))), []);
        assert_eq!(history.end(other, Outcome::Refused), LOST);
        assert_eq!(history.store(Some(object("t2", "v1", 1))), [Rule::AcknowledgedWritesAreThere]);
        assert_eq!(history.store(Some(object("t9", "v1", 1))), [Rule::OnlyRequestedChanges]);
    }

    #[test]
    fn somebody_must_have_asked_for_a_deletion() {
        let mut history = History::default();
        history.begin(Some("t1"));
        history.store(Some(object("t1", "v1", 1)));
        assert_eq!(history.store(None), [Rule::OnlyRequestedChanges]);
        history.begin(Some("t2"));
        history.store(Some(object("t2", "v1", 1)));
        let deletion = history.begin(None);
        assert_eq!(history.end(deletion, Outcome::Acknowledged(None)), LOST, "it is still there");
        assert_eq!(history.store(None), []);
    }

    #[test]
    fn a_read_is_not_older_than_its_beginning() {
        let mut history = History::default();
        for token in ["t1", "t2"] {
            history.begin(Some(token));
            history.store(Some(object(token, "v1", 1)));
        }
        let latest = history.operations.latest(&key());
        let read = |found| history.operations.check_read(&key(), latest, found).map(|(rule, _)| rule);
        assert_eq!(read(Some(("t2", 2))), None);
        assert_eq!(read(Some(("t1", 1))), LOST);
        assert_eq!(read(None), LOST);
        assert_eq!(history.operations.check_read(&key(), None, None), None);
    }
}
