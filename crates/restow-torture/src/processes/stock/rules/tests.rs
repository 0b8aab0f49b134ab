//! Tests of the rules on stock API servers.

use super::*;
use serde_json::json;

const TIMEOUT: Duration = Duration::from_secs(10);

/// What is stored and the rules, at ever higher revisions, one second apart.
struct History {
    contents: Contents,
    rules: StockRules,
    revision: u64,
}

impl History {
    /// A CRD that stores v1, and an object in it.
    fn new() -> Self {
        let mut history = History { contents: Contents::default(), rules: StockRules::new(TIMEOUT), revision: 0 };
        assert_eq!(history.crd("v1", &["v1"]), []);
        assert_eq!(history.widget("a", "v1", "t1"), []);
        history
    }

    fn now(&self) -> Duration {
        Duration::from_secs(self.revision)
    }

    fn put(&mut self, key: ObjectKey, value: Value) -> Vec<Verdict> {
        self.revision += 1;
        let object = StoredObject::new(value, Revision::new(self.revision));
        let before = self.contents.replace(&key, Some(object));
        let now = self.now();
        self.rules.check(&self.contents, &key, before.as_ref(), now)
    }

    fn crd(&mut self, storage: &str, listed: &[&str]) -> Vec<Verdict> {
        let versions = ["v1", "v2"].map(|name| json!({"name": name, "storage": name == storage}));
        let crd = json!({"spec": {"versions": versions}, "status": {"storedVersions": listed}});
        self.put(ObjectKey::new(CRDS, "", CRD), crd)
    }

    fn widget(&mut self, name: &str, version: &str, token: &str) -> Vec<Verdict> {
        let metadata = json!({"name": name, "annotations": {"token": token}});
        let object = json!({"apiVersion": format!("example.com/{version}"), "metadata": metadata});
        self.put(ObjectKey::new(WIDGETS.resource, "ns", name), object)
    }

    fn migration(&mut self, resource: &str, condition: &str) -> Vec<Verdict> {
        let status = json!({"conditions": [{"type": condition, "status": "True"}]});
        let spec = json!({"resource": {"group": "example.com", "resource": "widgets"}});
        self.put(ObjectKey::new(resource, "", "m"), json!({"spec": spec, "status": status}))
    }

    fn state(&mut self, versions: &[&str]) -> Vec<Verdict> {
        let hash = |version: &&str| if *version == "Unknown" { (*version).to_owned() } else { hash_of(version) };
        let hashes: Vec<String> = versions.iter().map(hash).collect();
        let status = json!({"persistedStorageVersionHashes": hashes});
        self.put(ObjectKey::new(STATES, "", CRD), json!({"status": status}))
    }
}

fn rules(verdicts: &[Verdict]) -> Vec<Option<Rule>> {
    let rule = |verdict: &Verdict| match verdict {
        Verdict::Broken(rule, _) => Some(*rule),
        Verdict::ServerWasLate(_) => None,
    };
    verdicts.iter().map(rule).collect()
}

const UNTRUE: Option<Rule> = Some(Rule::StoredVersionsAreTrue);

#[test]
fn stored_versions_shrink_only_when_nothing_is_stored_in_the_version() {
    let mut history = History::new();
    assert_eq!(history.crd("v2", &["v1", "v2"]), []);
    assert_eq!(rules(&history.crd("v2", &["v2"])), [UNTRUE]);
    assert_eq!(history.crd("v2", &["v2"]), [], "it was said once");
    assert_eq!(history.crd("v2", &["v1", "v2"]), []);
    assert_eq!(history.widget("a", "v2", "t1"), []);
    assert_eq!(history.crd("v2", &["v2"]), []);
}

#[test]
fn a_version_that_was_forgotten_is_not_written_again() {
    let mut history = History::new();
    history.crd("v2", &["v1", "v2"]);
    history.widget("a", "v2", "t1");
    history.crd("v2", &["v2"]);
    history.rules.begin("t2", history.now());
    assert_eq!(rules(&history.widget("a", "v1", "t2")), [UNTRUE]);
    assert_eq!(rules(&history.widget("a", "v1", "t2")), [UNTRUE], "a migrator writes the old version");
}

#[test]
fn a_server_that_writes_after_its_own_time_limit_is_late_and_the_migrator_is_not_wrong() {
    let mut history = History::new();
    history.rules.begin("t2", history.now());
    history.crd("v2", &["v1", "v2"]);
    history.widget("a", "v2", "t1");
    history.crd("v2", &["v2"]);
    history.revision += TIMEOUT.as_secs() + READ_WITHIN.as_secs();
    assert_eq!(rules(&history.widget("a", "v1", "t2")), [None]);
    history.crd("v2", &["v1", "v2"]);
    assert_eq!(rules(&history.crd("v2", &["v2"])), [None]);
    assert_eq!(history.rules.open(&history.contents, &Migrator::Restow), Vec::<String>::new());
}

#[test]
fn a_migration_that_succeeds_leaves_no_old_object_unless_the_storage_version_has_changed() {
    for resource in [MIGRATIONS, IN_TREE_MIGRATIONS] {
        let mut history = History::new();
        history.crd("v2", &["v1", "v2"]);
        history.migration(resource, "Running");
        assert_eq!(rules(&history.migration(resource, "Succeeded")), [Some(Rule::NoPollutedMigration)]);
        assert_eq!(history.migration(resource, "Succeeded"), [], "it was said once");
        let mut history = History::new();
        history.migration(resource, "Running");
        history.crd("v2", &["v1", "v2"]);
        assert_eq!(history.migration(resource, "Succeeded"), []);
    }
}

#[test]
fn a_storage_state_forgets_only_what_is_not_stored_unless_the_storage_version_has_changed() {
    let mut history = History::new();
    assert_eq!(history.state(&["v1", "v2"]), []);
    assert_eq!(rules(&history.state(&["v2"])), [UNTRUE]);
    history.state(&["v1", "v2"]);
    history.widget("a", "v2", "t1");
    assert_eq!(history.state(&["v2"]), []);
    assert_eq!(history.state(&["Unknown"]), []);
    assert_eq!(rules(&history.state(&["v1"])), [UNTRUE], "Unknown stands for every version");
    history.crd("v2", &["v1", "v2"]);
    history.migration(MIGRATIONS, "Running");
    history.migration(MIGRATIONS, "Succeeded");
    history.state(&["v1", "v2"]);
    history.widget("b", "v1", "t2");
    assert_eq!(rules(&history.state(&["v2"])), [UNTRUE], "it was written after the migration");
    history.state(&["v1", "v2"]);
    history.crd("v1", &["v1", "v2"]);
    history.widget("b", "v1", "t3");
    assert_eq!(history.state(&["v2"]), [], "it was written after the storage version has changed");
}

#[test]
fn a_migrator_is_done_when_nothing_old_is_stored_and_it_says_so() {
    let mut history = History::new();
    let restow = Migrator::Restow;
    history.crd("v2", &["v1", "v2"]);
    assert_eq!(history.rules.open(&history.contents, &restow).len(), 2);
    history.widget("a", "v2", "t1");
    assert_eq!(history.rules.open(&history.contents, &restow).len(), 1);
    history.crd("v2", &["v2"]);
    assert_eq!(history.rules.open(&history.contents, &restow), Vec::<String>::new());
}
