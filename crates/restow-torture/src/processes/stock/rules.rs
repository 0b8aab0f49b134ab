//! What a migrator on stock API servers is held to, checked on the history of etcd.
//!
//! * `storedVersions` of the CRD forgets a version only if no object is stored in it.
//! * Nothing is stored afterwards in a version that it has forgotten: a migrator that forgets it has to know that no server can write it
//!   any more.
//! * A StorageState forgets a version only if no object is stored in it. What was written after the storage version has changed since the
//!   last migration is added when the migrator notices the change.
//! * When a migration succeeds, and the storage version has not changed since it began, all objects are in the storage version.
//!
//! The exception is a server that writes after its own time limit for the request (`--request-timeout`), since nobody can wait for that:
//! it was suspended in the middle of the request. Such a write is counted as a limit of stock API servers, and breaks no rule.

use super::{IN_TREE_MIGRATIONS, Migrator};
use crate::checks::{CRDS, Contents, MIGRATIONS, ObjectKey, Rule, STATES, StoredObject, stored_versions_of};
use crate::world::setup::CRD;
use crate::world::user::WIDGETS;
use restow_store::Revision;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How much later than it was written a write may be read. What is older than the time limit of a request and this is overdue.
const READ_WITHIN: Duration = Duration::from_secs(5);
/// The mark of a CRD whose objects are being migrated.
const MARK: &str = "ksvm.sigs.k8s.io/migrating";

/// The rules, and what they have to remember.
pub(crate) struct StockRules {
    request_timeout: Duration,
    /// When a writer began the request with this token.
    begun: BTreeMap<String, Duration>,
    /// Objects whose last write was overdue.
    overdue: BTreeSet<ObjectKey>,
    /// When the storage version last changed.
    flipped: Revision,
    /// When a migration was first seen.
    since: BTreeMap<ObjectKey, Revision>,
    /// When a migration last succeeded.
    migrated: Option<Revision>,
}

/// What is said about a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The migrator broke a rule.
    Broken(Rule, String),
    /// A server did what no migrator can wait for.
    ServerWasLate(String),
}

impl StockRules {
    /// The rules, where no request takes longer than this.
    pub(crate) fn new(request_timeout: Duration) -> Self {
        StockRules {
            request_timeout,
            begun: BTreeMap::new(),
            overdue: BTreeSet::new(),
            flipped: Revision::new(0),
            since: BTreeMap::new(),
            migrated: None,
        }
    }

    /// A writer begins a request.
    pub(crate) fn begin(&mut self, token: &str, at: Duration) {
        self.begun.insert(token.to_owned(), at);
    }

    /// Checks a change that was taken up, and was read at this time.
    pub(crate) fn check(
        &mut self,
        contents: &Contents,
        key: &ObjectKey,
        before: Option<&StoredObject>,
        at: Duration,
    ) -> Vec<Verdict> {
        let Some(after) = contents.object(key) else { return Vec::new() };
        match key.resource.as_str() {
            resource if resource == WIDGETS.resource => self.check_object(contents, key, before, at),
            MIGRATIONS | IN_TREE_MIGRATIONS => self.check_migration(contents, key, before, after),
            STATES if key.name == CRD => self.check_state(contents, before, after),
            CRDS if key.name == CRD => self.check_crd(contents, before, after),
            _ => Vec::new(),
        }
    }

    /// The version in which an object was written is listed.
    fn check_object(
        &mut self,
        contents: &Contents,
        key: &ObjectKey,
        before: Option<&StoredObject>,
        at: Duration,
    ) -> Vec<Verdict> {
        let (Some(after), Some(crd)) = (contents.object(key), contents.crd_of(WIDGETS.resource)) else {
            return Vec::new();
        };
        // What has the token of its predecessor was written by a migrator, and nobody knows when that began.
        let is_new = before.and_then(StoredObject::token) != after.token();
        let begun = after.token().filter(|_| is_new).and_then(|token| self.begun.get(token));
        let age = begun.map(|begun| at.saturating_sub(*begun));
        let is_overdue = age.is_some_and(|age| age > self.request_timeout + READ_WITHIN);
        match is_overdue {
            true => self.overdue.insert(key.clone()),
            false => self.overdue.remove(key),
        };
        let listed = stored_versions_of(crd);
        if listed.contains(short(&after.version)) {
            return Vec::new();
        }
        let age =
            age.map_or("by a migrator".to_owned(), |age| format!("{:.1} s after its request began", age.as_secs_f64()));
        let words = format!("{key} was written in {}, {age}, and storedVersions is {listed:?}", after.version);
        vec![match is_overdue {
            true => Verdict::ServerWasLate(words),
            false => Verdict::Broken(Rule::StoredVersionsAreTrue, words),
        }]
    }

    /// A version that is not listed any more is not stored any more.
    fn check_crd(&mut self, contents: &Contents, before: Option<&StoredObject>, after: &StoredObject) -> Vec<Verdict> {
        let Some(before) = before else {
            self.flipped = after.revision;
            return Vec::new();
        };
        if storage_version(&before.value) != storage_version(&after.value) {
            self.flipped = after.revision;
        }
        let (listed, now) = (stored_versions_of(&before.value), stored_versions_of(&after.value));
        let forgotten =
            |object: &StoredObject| listed.contains(short(&object.version)) && !now.contains(short(&object.version));
        let words = format!("storedVersions of {CRD} shrinks from {listed:?} to {now:?}");
        self.check_forgotten(contents, Rule::StoredVersionsAreTrue, &words, forgotten)
    }

    /// A version that a StorageState does not name any more is not stored, but for what was written since the storage version changed
    /// after the last migration.
    fn check_state(&self, contents: &Contents, before: Option<&StoredObject>, after: &StoredObject) -> Vec<Verdict> {
        let Some(before) = before else { return Vec::new() };
        let (listed, now) = (persisted(&before.value), persisted(&after.value));
        let forgotten = |object: &StoredObject| {
            let has_changed = self.migrated.is_some_and(|migrated| self.flipped > migrated);
            let is_later = has_changed && object.revision > self.flipped;
            !is_later && names(&listed, &object.version) && !names(&now, &object.version)
        };
        let words = format!("the StorageState {CRD} shrinks from {listed:?} to {now:?}");
        self.check_forgotten(contents, Rule::StoredVersionsAreTrue, &words, forgotten)
    }

    /// After a migration all objects are in the storage version, if that has not changed since it began.
    fn check_migration(
        &mut self,
        contents: &Contents,
        key: &ObjectKey,
        before: Option<&StoredObject>,
        after: &StoredObject,
    ) -> Vec<Verdict> {
        let since = *self.since.entry(key.clone()).or_insert(after.revision);
        let resource = &after.value["spec"]["resource"];
        let is_of_writers = resource["group"] == "example.com" && resource["resource"] == WIDGETS.plural;
        let is_new = has_succeeded(&after.value) && !before.is_some_and(|before| has_succeeded(&before.value));
        if !is_of_writers || !is_new {
            return Vec::new();
        }
        self.migrated = Some(after.revision);
        let Some(crd) = contents.crd_of(WIDGETS.resource).filter(|_| self.flipped < since) else { return Vec::new() };
        let storage = storage_version(crd);
        let words = format!("the migration {} to {storage} succeeded", key.name);
        let is_old = |object: &StoredObject| short(&object.version) != storage;
        self.check_forgotten(contents, Rule::NoPollutedMigration, &words, is_old)
    }

    /// Nothing may be stored in a version that was forgotten.
    fn check_forgotten(
        &self,
        contents: &Contents,
        rule: Rule,
        what: &str,
        forgotten: impl Fn(&StoredObject) -> bool,
    ) -> Vec<Verdict> {
        let objects = contents.objects_of(WIDGETS.resource).filter(|(_, object)| forgotten(object));
        let describe =
            |key: &ObjectKey, object: &StoredObject| format!("{key} in {} since {}", object.version, object.revision);
        let (late, there): (Vec<_>, Vec<_>) = objects.partition(|(key, _)| self.overdue.contains(*key));
        let join = |objects: Vec<(&ObjectKey, &StoredObject)>| {
            let words: Vec<String> = objects.into_iter().map(|(key, object)| describe(key, object)).collect();
            (!words.is_empty()).then(|| format!("{what}, and stored is {}", words.join(", ")))
        };
        let broken = join(there).map(|words| Verdict::Broken(rule, words));
        broken.into_iter().chain(join(late).map(Verdict::ServerWasLate)).collect()
    }

    /// What a migrator has not done yet.
    pub(crate) fn open(&self, contents: &Contents, migrator: &Migrator) -> Vec<String> {
        // It looks for changes every ten minutes, so how long it takes says nothing.
        if matches!(migrator, Migrator::Ksvm { .. }) {
            return Vec::new();
        }
        let Some(crd) = contents.crd_of(WIDGETS.resource) else { return vec!["there is no CRD".to_owned()] };
        let storage = storage_version(crd);
        let objects = contents.objects_of(WIDGETS.resource);
        let old = objects.filter(|(key, object)| short(&object.version) != storage && !self.overdue.contains(*key));
        let mut open: Vec<String> = old.map(|(key, object)| format!("{key} is stored in {}", object.version)).collect();
        let is_done = stored_versions_of(crd) == BTreeSet::from([storage]);
        if !is_done {
            open.push(format!("the migrator does not say that only {storage} is stored"));
        }
        if crd["metadata"]["annotations"][MARK] == "true" {
            open.push(format!("{CRD} is still marked as being migrated"));
        }
        open
    }
}

/// Whether a StorageState with these hashes says that the version may be stored.
fn names(hashes: &BTreeSet<&str>, version: &str) -> bool {
    hashes.contains("Unknown") || hashes.contains(hash_of(version).as_str())
}

/// The version without its group.
fn short(version: &str) -> &str {
    version.rsplit('/').next().unwrap_or_default()
}

fn hash_of(version: &str) -> String {
    restow_api::storage_version_hash("example.com", short(version), WIDGETS.kind)
}

fn persisted(state: &Value) -> BTreeSet<&str> {
    let listed = state["status"]["persistedStorageVersionHashes"].as_array();
    listed.into_iter().flatten().filter_map(Value::as_str).collect()
}

fn storage_version(crd: &Value) -> &str {
    let mut versions = crd["spec"]["versions"].as_array().into_iter().flatten();
    let storage = versions.find(|version| version["storage"] == true);
    storage.and_then(|version| version["name"].as_str()).unwrap_or_default()
}

fn has_succeeded(migration: &Value) -> bool {
    let mut conditions = migration["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Succeeded" && condition["status"] == "True")
}

#[cfg(test)]
mod tests;
