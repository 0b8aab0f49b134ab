//! What is stored, as plain data: objects by their version, reports, CRDs and StorageStates; and the rules about them.

use super::{Finding, Rule};
use restow_store::Revision;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The key of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ObjectKey {
    /// The resource as in the name of its StorageVersion: `group.plural`, with `core` for the core group.
    pub(crate) resource: String,
    /// The namespace; empty for objects of the cluster.
    pub(crate) namespace: String,
    /// The name.
    pub(crate) name: String,
}

/// An object as it is stored.
#[derive(Clone, Debug)]
pub(crate) struct StoredObject {
    /// Its `apiVersion`.
    pub(crate) version: String,
    /// All of it.
    pub(crate) value: Value,
    /// When it was written.
    pub(crate) revision: Revision,
}

/// The reports about one resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reports {
    /// What each server encodes.
    pub(crate) by_server: BTreeMap<String, String>,
    /// What all encode, if they agree.
    pub(crate) common: Option<String>,
}

/// The election of a storage version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Election {
    selected: String,
    votes: BTreeMap<String, String>,
}

/// Who wrote an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writer<'w> {
    /// This server, which reports its storage versions or, by its configuration, does not.
    Server { name: &'w str, reports: bool },
    /// One of the servers.
    Unknown,
}

/// What is stored.
#[derive(Default)]
pub(crate) struct Contents {
    objects: BTreeMap<ObjectKey, StoredObject>,
    /// How many objects of a resource are stored in a version.
    versions: BTreeMap<String, BTreeMap<String, usize>>,
    reports: BTreeMap<String, Reports>,
    /// The versions that servers voted for.
    elections: BTreeMap<String, Election>,
    /// When the reports about a resource last changed.
    reports_changed: BTreeMap<String, Revision>,
    /// The revision at which a migration began to run.
    running_since: BTreeMap<String, Revision>,
    /// When a migration of a resource last succeeded.
    migrated: BTreeMap<String, Revision>,
    /// How many migrations succeeded.
    pub(super) migrations: u64,
}

const ELECTIONS: &str = "kube-apiserver.internal.k8s.io.storageversions";
pub(crate) const STORAGE_VERSIONS: &str = "internal.apiserver.k8s.io.storageversions";
pub(crate) const CRDS: &str = "apiextensions.k8s.io.customresourcedefinitions";
pub(crate) const MIGRATIONS: &str = "migration.k8s.io.storageversionmigrations";
pub(crate) const STATES: &str = "migration.k8s.io.storagestates";
pub(crate) const LEASES: &str = "coordination.k8s.io.leases";
const SERVICES: &str = "core.services";
/// The resource of the owners of others.
const OWNERS: &str = "example.com.widgets";

impl ObjectKey {
    pub(crate) fn new(resource: &str, namespace: &str, name: &str) -> Self {
        ObjectKey { resource: resource.to_owned(), namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// Reads a key of the store; `None` if it is not the key of an object.
    pub(crate) fn parse(key: &[u8]) -> Option<Self> {
        let mut parts = std::str::from_utf8(key).ok()?.strip_prefix('/')?.split('/');
        let (group, plural) = (parts.next()?, parts.next()?);
        if group == "restow" {
            return None;
        }
        let (first, second) = (parts.next()?, parts.next());
        let (namespace, name) = second.map_or(("", first), |name| (first, name));
        Some(ObjectKey::new(&format!("{group}.{plural}"), namespace, name))
    }

    /// Whether it is the key of an identity lease, if a server has its name.
    pub(crate) fn is_identity_lease(&self) -> bool {
        self.resource == LEASES && self.namespace == "kube-system"
    }

    /// Whether a server has to write such an object before it can report anything.
    pub(crate) fn precedes_reports(&self) -> bool {
        self.resource == STORAGE_VERSIONS
            || self.is_identity_lease()
            || self.resource.starts_with("kube-apiserver.internal.k8s.io.")
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.resource, self.namespace, self.name)
    }
}

impl StoredObject {
    pub(crate) fn new(value: Value, revision: Revision) -> Self {
        StoredObject { revision, version: value["apiVersion"].as_str().unwrap_or_default().to_owned(), value }
    }

    /// The mark by which a user recognises what it wrote.
    pub(crate) fn token(&self) -> Option<&str> {
        self.value["metadata"]["annotations"]["token"].as_str()
    }

    /// A few words about it, for a story.
    pub(super) fn summary(&self, key: &ObjectKey) -> String {
        let status = &self.value["status"];
        match key.resource.as_str() {
            STORAGE_VERSIONS => {
                let reports = Reports::of(&self.value);
                format!("common {:?}, {:?}", reports.common, reports.by_server)
            }
            CRDS => {
                let versions = self.value["spec"]["versions"].as_array().into_iter().flatten();
                let versions: Vec<String> = versions
                    .map(|version| {
                        let stored = if version["storage"] == true { " (storage)" } else { "" };
                        format!("{}{stored}", version["name"].as_str().unwrap_or_default())
                    })
                    .collect();
                format!("versions {versions:?}, storedVersions {}", status["storedVersions"])
            }
            STATES => format!(
                "persisted {}, current {}",
                status["persistedStorageVersionHashes"], status["currentStorageVersionHash"]
            ),
            MIGRATIONS => format!("conditions {}", status["conditions"]),
            _ => format!("in {}, token {:?}", self.version, self.token()),
        }
    }
}

impl Reports {
    fn of(object: &Value) -> Self {
        let entries = object["status"]["storageVersions"].as_array().into_iter().flatten();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let by_server = entries.map(|entry| (text(&entry["apiServerID"]), text(&entry["encodingVersion"]))).collect();
        let common = object["status"]["commonEncodingVersion"].as_str().map(str::to_owned);
        Reports { by_server, common }
    }
}

impl Election {
    fn of(object: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let votes = object["candidateVersions"].as_array().into_iter().flatten();
        let votes = votes.map(|vote| (text(&vote["apiServerID"]), text(&vote["preferredVersion"]))).collect();
        Election { selected: text(&object["selectedVersion"]), votes }
    }
}

impl Contents {
    pub(crate) fn object(&self, key: &ObjectKey) -> Option<&StoredObject> {
        self.objects.get(key)
    }

    /// How many objects there are.
    pub(crate) fn object_count(&self) -> usize {
        self.objects.len()
    }

    /// All objects of a resource.
    pub(crate) fn objects_of<'c>(&'c self, resource: &str) -> impl Iterator<Item = (&'c ObjectKey, &'c StoredObject)> {
        let from = ObjectKey::new(resource, "", "");
        let resource = resource.to_owned();
        self.objects.range(from..).take_while(move |(key, _)| key.resource == resource)
    }

    /// Whether an owner of an object does not exist. The owners of the simulation are all of one resource.
    pub(crate) fn lacks_owner(&self, object: &StoredObject) -> bool {
        let owners = object.value["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        let exists = |uid: &Value| self.objects_of(OWNERS).any(|(_, owner)| owner.value["metadata"]["uid"] == *uid);
        owners.map(|owner| &owner["uid"]).any(|uid| !exists(uid))
    }

    pub(crate) fn reports(&self, resource: &str) -> Option<&Reports> {
        self.reports.get(resource)
    }

    /// All reports.
    pub(crate) fn all_reports(&self) -> &BTreeMap<String, Reports> {
        &self.reports
    }

    /// The versions in which objects of a resource are stored.
    pub(crate) fn stored_versions(&self, resource: &str) -> impl Iterator<Item = &String> {
        self.versions.get(resource).into_iter().flatten().filter(|(_, count)| **count > 0).map(|(version, _)| version)
    }

    /// The server that writes an object has reported the version, and there is no agreement on another one.
    pub(crate) fn check_write(&self, key: &ObjectKey, object: &StoredObject, writer: Writer<'_>) -> Vec<Finding> {
        let mut findings = Vec::new();
        if key.precedes_reports() {
            return findings;
        }
        let (reports, version) = (self.reports(&key.resource), &object.version);
        let reported = reports.map(|reports| &reports.by_server);
        match writer {
            Writer::Server { name, reports: true } => {
                let reported = reported.and_then(|by_server| by_server.get(name));
                if reported != Some(version) {
                    let words = format!("{name} wrote {key} in {version}, and has reported {reported:?}");
                    findings.push((Rule::ReportBeforeWrite, words));
                }
            }
            Writer::Server { reports: false, .. } => {}
            Writer::Unknown => {
                if !reported.is_some_and(|by_server| by_server.values().any(|reported| reported == version)) {
                    let words = format!("{key} was written in {version}, and reported is {reported:?}");
                    findings.push((Rule::ReportBeforeWrite, words));
                }
            }
        }
        if let Some(common) = reports.and_then(|reports| reports.common.as_ref())
            && common != version
        {
            let name = if let Writer::Server { name, .. } = writer { name } else { "a server" };
            let words = format!("{name} wrote {key} in {version} while commonEncodingVersion is {common}");
            findings.push((Rule::AgreementIsTrue, words));
        }
        findings
    }

    /// Takes up a change, and returns what was there before.
    pub(crate) fn replace(&mut self, key: &ObjectKey, after: Option<StoredObject>) -> Option<StoredObject> {
        let after_version = after.as_ref().map(|after| after.version.clone());
        let before = match after {
            Some(object) => self.objects.insert(key.clone(), object),
            None => self.objects.remove(key),
        };
        let counts = self.versions.entry(key.resource.clone()).or_default();
        if let Some(before) = &before
            && let Some(count) = counts.get_mut(&before.version)
        {
            *count -= 1;
        }
        if let Some(version) = after_version {
            *counts.entry(version).or_default() += 1;
        }
        before
    }

    /// Takes up a change, and checks what must be true afterwards.
    pub(crate) fn change(&mut self, key: ObjectKey, revision: Revision, after: Option<StoredObject>) -> Vec<Finding> {
        let before = self.replace(&key, after.clone());
        match (key.resource.as_str(), &after) {
            (STORAGE_VERSIONS, after) => {
                self.take_reports(&key.name, revision, after.as_ref());
                Vec::new()
            }
            (ELECTIONS, after) => self.take_election(&key.name, after.as_ref()),
            (CRDS, Some(crd)) => self.check_stored_versions_of(&key.name, &crd.value),
            (MIGRATIONS, Some(migration)) => self.check_migration(&key.name, &migration.value, revision),
            (STATES, Some(state)) => {
                self.check_state(&key.name, before.as_ref().map(|before| &before.value), &state.value)
            }
            (SERVICES, Some(_)) => self.check_services(),
            (_, Some(object)) => {
                let (resource, version) = (key.resource.clone(), object.version.clone());
                let mut findings = self.check_listed(&resource, &version);
                findings.extend(self.check_quota(&key));
                findings
            }
            (_, None) => Vec::new(),
        }
    }

    fn take_reports(&mut self, resource: &str, revision: Revision, after: Option<&StoredObject>) {
        let reports = after.map(|object| Reports::of(&object.value)).unwrap_or_default();
        if self.reports.get(resource) != Some(&reports) {
            self.reports_changed.insert(resource.to_owned(), revision);
        }
        self.reports.insert(resource.to_owned(), reports);
    }

    /// Takes up an election: another version is selected only if all servers that can vote prefer it.
    fn take_election(&mut self, resource: &str, after: Option<&StoredObject>) -> Vec<Finding> {
        let election = after.map(|object| Election::of(&object.value)).unwrap_or_default();
        let before = self.elections.insert(resource.to_owned(), election.clone()).unwrap_or_default();
        let is_same = |one: &str, other: &str| one.is_empty() || other.is_empty() || one == other;
        // Where only the selection was changed, a user did it: no server does.
        if is_same(&before.selected, &election.selected) || before.votes == election.votes {
            return Vec::new();
        }
        let lives = |server: &str| self.objects.contains_key(&ObjectKey::new(LEASES, "kube-system", server));
        let is_against = |(server, preferred): &(&String, &String)| **preferred != election.selected && lives(server);
        let against: Vec<(&String, &String)> = election.votes.iter().filter(is_against).collect();
        if against.is_empty() {
            return Vec::new();
        }
        let words =
            format!("{} is selected for {resource}, and servers prefer another: {against:?}", election.selected);
        vec![(Rule::AgreementIsTrue, words)]
    }

    /// With the strict guarantee a server that votes writes nothing but the selected version.
    pub(crate) fn check_selected(&self, key: &ObjectKey, object: &StoredObject, server: &str) -> Option<Finding> {
        let selected = self.elections.get(&key.resource).map(|election| &election.selected)?;
        let words = || format!("{server} wrote {key} in {}, and {selected} is selected", object.version);
        (!selected.is_empty() && *selected != object.version).then(|| (Rule::AgreementIsTrue, words()))
    }

    /// The CRD of a resource.
    pub(crate) fn crd_of(&self, resource: &str) -> Option<&Value> {
        let (group, plural) = resource.rsplit_once('.')?;
        Some(&self.objects.get(&ObjectKey::new(CRDS, "", &format!("{plural}.{group}")))?.value)
    }

    /// The version of an object that was written is listed in its CRD.
    fn check_listed(&self, resource: &str, version: &str) -> Vec<Finding> {
        let Some(crd) = self.crd_of(resource) else { return Vec::new() };
        let listed = stored_versions_of(crd);
        let short = version.rsplit('/').next().unwrap_or_default();
        if listed.contains(short) {
            return Vec::new();
        }
        let words = format!("an object of {resource} is stored in {version}, and storedVersions is {listed:?}");
        vec![(Rule::StoredVersionsAreTrue, words)]
    }

    /// All versions in which objects are stored are listed in their CRD.
    fn check_stored_versions_of(&self, name: &str, crd: &Value) -> Vec<Finding> {
        let Some((plural, group)) = name.split_once('.') else { return Vec::new() };
        let (resource, listed) = (format!("{group}.{plural}"), stored_versions_of(crd));
        // A CRD has none before its status is first written; then nothing can be stored.
        let missing: Vec<&String> = self
            .stored_versions(&resource)
            .filter(|version| !listed.contains(version.rsplit('/').next().unwrap_or_default()))
            .collect();
        if missing.is_empty() {
            return Vec::new();
        }
        let words = format!("{name}: storedVersions is {listed:?}, and objects are stored in {missing:?}");
        vec![(Rule::StoredVersionsAreTrue, words)]
    }

    /// When a migration has succeeded, and no report changed since it began, all objects are in the version agreed on.
    fn check_migration(&mut self, name: &str, migration: &Value, revision: Revision) -> Vec<Finding> {
        let conditions = || migration["status"]["conditions"].as_array().into_iter().flatten();
        let holds =
            |kind: &str| conditions().any(|condition| condition["type"] == kind && condition["status"] == "True");
        let spec = &migration["spec"]["resource"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let group = match text(&spec["group"]).as_str() {
            "" => "core".to_owned(),
            group => group.to_owned(),
        };
        let resource = format!("{group}.{}", text(&spec["resource"]));
        if !holds("Succeeded") {
            self.running_since.entry(name.to_owned()).or_insert(revision);
            return Vec::new();
        }
        let Some(since) = self.running_since.remove(name) else { return Vec::new() };
        self.migrated.insert(resource.clone(), revision);
        self.migrations += 1;
        if self.reports_changed.get(&resource).is_some_and(|changed| *changed >= since) {
            return Vec::new();
        }
        let Some(common) = self.reports(&resource).and_then(|reports| reports.common.clone()) else {
            let words = format!("{name}: the migration of {resource} succeeded without an agreement");
            return vec![(Rule::NoPollutedMigration, words)];
        };
        let others: Vec<&String> = self.stored_versions(&resource).filter(|version| **version != common).collect();
        if others.is_empty() {
            return Vec::new();
        }
        let words =
            format!("{name}: the migration of {resource} to {common} succeeded, and objects are stored in {others:?}");
        vec![(Rule::NoPollutedMigration, words)]
    }

    /// A StorageState forgets a version only if nothing was stored in it when a migration succeeded. What was written since is
    /// added when the controller sees that the storage version has changed.
    fn check_state(&self, name: &str, before: Option<&Value>, after: &Value) -> Vec<Finding> {
        let hashes = |state: &Value| -> BTreeSet<String> {
            let listed = state["status"]["persistedStorageVersionHashes"].as_array().into_iter().flatten();
            listed.filter_map(|hash| hash.as_str().map(str::to_owned)).collect()
        };
        let (before, after) = (before.map(hashes).unwrap_or_default(), hashes(after));
        if before.is_subset(&after) || after.contains("Unknown") {
            return Vec::new();
        }
        let (plural, group) = name.split_once('.').unwrap_or((name, ""));
        let resource = format!("{}.{plural}", if group.is_empty() { "core" } else { group });
        let mut missing = Vec::new();
        for (key, object) in self.objects_of(&resource) {
            let kind = object.value["kind"].as_str().unwrap_or_default();
            let version = object.version.rsplit('/').next().unwrap_or_default();
            let hash = restow_api::storage_version_hash(group, version, kind);
            if !after.contains(&hash)
                && self.migrated.get(&resource).is_none_or(|migrated| object.revision <= *migrated)
            {
                missing.push(format!("{key} in {}", object.version));
            }
        }
        if missing.is_empty() {
            return Vec::new();
        }
        let words = format!("the StorageState {name} shrinks from {before:?} to {after:?}, and there is {missing:?}");
        vec![(Rule::StoredVersionsAreTrue, words)]
    }

    fn check_services(&self) -> Vec<Finding> {
        let (mut owners, mut findings) = (BTreeMap::new(), Vec::new());
        for (key, service) in self.objects_of(SERVICES) {
            let spec = &service.value["spec"];
            let ports = spec["ports"].as_array().into_iter().flatten().filter_map(|port| port["nodePort"].as_u64());
            let address = spec["clusterIP"].as_str().filter(|address| !["", "None"].contains(address));
            let claims =
                ports.map(|port| format!("node port {port}")).chain(address.map(|ip| format!("cluster IP {ip}")));
            for claim in claims {
                if let Some(other) = owners.insert(claim.clone(), key) {
                    findings.push((Rule::Unique, format!("{claim} belongs to {other} and {key}")));
                }
            }
        }
        findings
    }

    /// Nothing exceeds the quota of its namespace. The quotas of the simulation never become smaller.
    fn check_quota(&self, key: &ObjectKey) -> Vec<Finding> {
        let (_, plural) = key.resource.rsplit_once('.').unwrap_or_default();
        let mut findings = Vec::new();
        for (quota, object) in
            self.objects_of("core.resourcequotas").filter(|(quota, _)| quota.namespace == key.namespace)
        {
            let hard = object.value["spec"]["hard"].as_object().into_iter().flatten();
            for (name, most) in hard.filter(|(name, _)| name.strip_prefix("count/") == Some(plural)) {
                let most: usize = most.as_str().and_then(|most| most.parse().ok()).unwrap_or(usize::MAX);
                let there =
                    self.objects_of(&key.resource).filter(|(other, _)| other.namespace == key.namespace).count();
                if there > most {
                    findings.push((Rule::Unique, format!("{quota} allows {most} of {name}, and there are {there}")));
                }
            }
        }
        findings
    }
}

/// `status.storedVersions` of a CRD.
pub(crate) fn stored_versions_of(crd: &Value) -> BTreeSet<&str> {
    crd["status"]["storedVersions"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Contents that change one object after the other, at ever higher revisions.
    #[derive(Default)]
    struct History(Contents, u64);

    impl History {
        fn put(&mut self, resource: &str, name: &str, value: Value) -> Vec<Rule> {
            self.put_at(ObjectKey::new(resource, "ns", name), value)
        }

        fn put_cluster(&mut self, resource: &str, name: &str, value: Value) -> Vec<Rule> {
            self.put_at(ObjectKey::new(resource, "", name), value)
        }

        fn put_at(&mut self, key: ObjectKey, value: Value) -> Vec<Rule> {
            self.1 += 1;
            let revision = Revision::new(self.1);
            let findings = self.0.change(key, revision, Some(StoredObject::new(value, revision)));
            findings.into_iter().map(|(rule, _)| rule).collect()
        }

        fn widget(&mut self, name: &str, version: &str) -> Vec<Rule> {
            self.put("example.com.widgets", name, json!({"apiVersion": version, "kind": "Widget"}))
        }

        fn crd(&mut self, stored: &[&str]) -> Vec<Rule> {
            self.put_cluster(CRDS, "widgets.example.com", json!({"status": {"storedVersions": stored}}))
        }

        fn reports(&mut self, version: &str) {
            let status = json!({"commonEncodingVersion": version, "storageVersions": [{"apiServerID": "a", "encodingVersion": version}]});
            self.put_cluster(STORAGE_VERSIONS, "example.com.widgets", json!({"status": status}));
        }

        fn migration(&mut self, condition: &str) -> Vec<Rule> {
            let spec = json!({"resource": {"group": "example.com", "version": "v1", "resource": "widgets"}});
            let status = json!({"conditions": [{"type": condition, "status": "True"}]});
            self.put_cluster(MIGRATIONS, "m", json!({"spec": spec, "status": status}))
        }

        fn state(&mut self, hashes: &[&str]) -> Vec<Rule> {
            let status = json!({"persistedStorageVersionHashes": hashes});
            self.put_cluster(STATES, "widgets.example.com", json!({"status": status}))
        }
    }

    #[test]
    fn a_version_that_is_stored_must_be_listed() {
        let mut history = History::default();
        assert_eq!(history.crd(&["v1beta1"]), []);
        assert_eq!(history.widget("a", "example.com/v1beta1"), []);
        assert_eq!(history.widget("b", "example.com/v1"), [Rule::StoredVersionsAreTrue]);
        assert_eq!(history.crd(&["v1"]), [Rule::StoredVersionsAreTrue]);
        assert_eq!(history.crd(&["v1", "v1beta1"]), []);
    }

    #[test]
    fn a_migration_that_leaves_an_old_object_is_polluted_unless_reports_changed() {
        let mut history = History::default();
        history.widget("a", "example.com/v1beta1");
        history.reports("example.com/v1");
        history.migration("Running");
        assert_eq!(history.migration("Succeeded"), [Rule::NoPollutedMigration]);
        history.migration("Running");
        history.widget("a", "example.com/v1");
        assert_eq!(history.migration("Succeeded"), []);
        history.migration("Running");
        history.reports("example.com/v1beta1");
        assert_eq!(history.migration("Succeeded"), [], "the reports have changed, so nothing is claimed");
    }

    #[test]
    fn a_storage_state_forgets_only_what_was_not_stored_when_a_migration_succeeded() {
        let hash = |version: &str| restow_api::storage_version_hash("example.com", version, "Widget");
        let (old, new) = (hash("v1beta1"), hash("v1"));
        let mut history = History::default();
        history.widget("a", "example.com/v1beta1");
        assert_eq!(history.state(&[&old, "Unknown"]), []);
        assert_eq!(history.state(&[&new]), [Rule::StoredVersionsAreTrue]);
        history.reports("example.com/v1");
        history.migration("Running");
        history.widget("a", "example.com/v1");
        history.migration("Succeeded");
        history.state(&[&old, &new]);
        assert_eq!(history.state(&[&new]), []);
        history.state(&[&old, &new]);
        history.widget("b", "example.com/v1beta1");
        assert_eq!(history.state(&[&new]), [], "it was written after the migration");
    }

    #[test]
    fn a_version_is_selected_only_if_all_servers_that_vote_prefer_it() {
        let mut history = History::default();
        let resource = "example.com.widgets";
        let election = |selected: &str, votes: &[(&str, &str)]| {
            let votes: Vec<Value> =
                votes.iter().map(|(id, version)| json!({"apiServerID": id, "preferredVersion": version})).collect();
            json!({"selectedVersion": selected, "candidateVersions": votes})
        };
        history.put_at(ObjectKey::new(LEASES, "kube-system", "a"), json!({}));
        assert_eq!(history.put_cluster(ELECTIONS, resource, election("v1", &[("a", "v1"), ("b", "v2")])), []);
        assert_eq!(history.put_cluster(ELECTIONS, resource, election("v2", &[("b", "v2")])), []);
        let against = election("v1", &[("a", "v2"), ("b", "v1")]);
        assert_eq!(history.put_cluster(ELECTIONS, resource, against), [Rule::AgreementIsTrue]);
        let gone = election("v2", &[("a", "v2"), ("b", "v1")]);
        assert_eq!(history.put_cluster(ELECTIONS, resource, gone), [], "b has no lease");
        let widget = |version: &str| StoredObject::new(json!({"apiVersion": version}), Revision::new(9));
        let check = |version| history.0.check_selected(&ObjectKey::new(resource, "ns", "w"), &widget(version), "a");
        assert!(check("v2").is_none() && check("v1").is_some());
    }

    #[test]
    fn a_node_port_has_one_owner_and_a_quota_is_not_exceeded() {
        let mut history = History::default();
        let service =
            |port: u16| json!({"apiVersion": "v1", "spec": {"ports": [{"nodePort": port}], "clusterIP": "None"}});
        assert_eq!(history.put(SERVICES, "a", service(30_000)), []);
        assert_eq!(history.put(SERVICES, "b", service(30_001)), []);
        assert_eq!(history.put(SERVICES, "b", service(30_000)), [Rule::Unique]);
        history.put("core.resourcequotas", "few", json!({"spec": {"hard": {"count/configmaps": "1"}}}));
        let map = || json!({"apiVersion": "v1"});
        assert_eq!(history.put("core.configmaps", "a", map()), []);
        assert_eq!(history.put("core.configmaps", "b", map()), [Rule::Unique]);
    }
}
