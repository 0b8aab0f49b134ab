//! The rules, checked on the history of the store: every revision is looked at when it is committed, before anybody can
//! react to it.

mod contents;
mod operations;

pub(crate) use contents::{
    CRDS, Contents, MIGRATIONS, ObjectKey, STATES, STORAGE_VERSIONS, StoredObject, Writer, stored_versions_of,
};
pub(crate) use operations::{OperationId, Operations, Outcome};

use crate::story::{Statistics, StoryLine, Telling};
use restow_store::conformance::ModelStore;
use restow_store::{Change, Event, KeyRange, Revision, StoreError, Txn, TxnOutcome};
use serde::{Serialize, Serializer};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// A rule that must always hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Rule {
    /// A server writes only what it has reported.
    ReportBeforeWrite,
    /// Where servers agree on a version, nobody writes another one.
    AgreementIsTrue,
    /// After a migration that succeeded nothing is stored in another version.
    NoPollutedMigration,
    /// Stored versions are listed where they must be.
    StoredVersionsAreTrue,
    /// Nothing changes an object but what somebody asked for.
    OnlyRequestedChanges,
    /// What was acknowledged is there, what was refused is not, and reads are current.
    AcknowledgedWritesAreThere,
    /// Quotas are not exceeded; node ports and cluster IPs have one owner.
    Unique,
    /// A lease expires only if a server observed that it did not change for its whole duration.
    ExpiryIsObserved,
    /// After the last fault everything agrees and is migrated, and no garbage is left.
    ItGetsThere,
    /// No code panics.
    NoPanic,
    /// Two runs of one seed are equal. A rule of the simulation itself.
    Repeatable,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rule::ReportBeforeWrite => "report before write",
            Rule::AgreementIsTrue => "agreement is true",
            Rule::NoPollutedMigration => "no polluted migration",
            Rule::StoredVersionsAreTrue => "stored versions are true",
            Rule::OnlyRequestedChanges => "only requested changes",
            Rule::AcknowledgedWritesAreThere => "acknowledged writes are there",
            Rule::Unique => "quotas, ports and addresses",
            Rule::ExpiryIsObserved => "expiry is observed",
            Rule::ItGetsThere => "it gets there",
            Rule::NoPanic => "no panic",
            Rule::Repeatable => "a seed repeats",
        })
    }
}

/// A rule that was broken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// How it was broken.
    pub what: String,
    /// When, since the beginning.
    #[serde(serialize_with = "seconds")]
    pub at: Duration,
    /// The store's revision then.
    pub revision: u64,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (at {:.3} s, revision {}): {}", self.rule, self.at.as_secs_f64(), self.revision, self.what)
    }
}

fn seconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

/// Looks at every revision of the store.
pub(crate) struct Checker {
    state: Mutex<State>,
    /// Notified at the first violation.
    pub(crate) violated: Notify,
}

struct State {
    servers: BTreeMap<usize, String>,
    contents: Contents,
    operations: Operations,
    next: Revision,
    digest: DefaultHasher,
    violation: Option<Violation>,
    telling: Telling,
    story: Vec<StoryLine>,
    statistics: Statistics,
    /// Whether nothing may be written in another version than the selected one.
    is_strict: bool,
    /// The servers whose identity lease users delete.
    deletable_leases: BTreeSet<String>,
}

/// A process that writes to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WritingProcess {
    /// Its server.
    pub(crate) server: usize,
    /// Whether it reports its storage versions, by its configuration.
    pub(crate) reports: bool,
    /// Whether it could observe the leases of others all the time that a lease lasts.
    pub(crate) is_observant: bool,
}

/// What breaks a rule.
pub(crate) type Finding = (Rule, String);

impl Checker {
    pub(crate) fn new(servers: BTreeMap<usize, String>, is_strict: bool, telling: Telling) -> Arc<Self> {
        let state = State {
            servers,
            contents: Contents::default(),
            operations: Operations::default(),
            next: Revision::new(1),
            digest: DefaultHasher::new(),
            violation: None,
            telling,
            story: Vec::new(),
            statistics: Statistics::default(),
            is_strict,
            deletable_leases: BTreeSet::new(),
        };
        Arc::new(Checker { state: Mutex::new(state), violated: Notify::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies a transaction of a process, and looks at what it has changed.
    pub(crate) fn transaction(
        &self,
        store: &ModelStore,
        writer: Option<WritingProcess>,
        txn: Txn,
    ) -> Result<TxnOutcome, StoreError> {
        // What expired before was not written by this server.
        self.catch_up(store, None);
        let outcome = store.apply(txn);
        self.catch_up(store, writer);
        outcome
    }

    /// Looks at all revisions that it has not seen, which this process wrote.
    pub(crate) fn catch_up(&self, store: &ModelStore, writer: Option<WritingProcess>) {
        let mut state = self.state();
        let (events, revision) = store.read(|model| {
            let next = state.next.max(model.compact_revision());
            (model.events(&KeyRange::all(), next, false).unwrap_or_default(), model.revision())
        });
        state.next = revision.next();
        for event in events {
            state.look_at(&event, writer);
        }
        drop(state);
        self.notify();
    }

    /// Records that a rule was broken. The first one counts.
    pub(crate) fn violated(&self, rule: Rule, what: String) {
        self.state().violated((rule, what));
        self.notify();
    }

    fn notify(&self) {
        if self.state().violation.is_some() {
            self.violated.notify_one();
        }
    }

    /// The first violation.
    pub(crate) fn violation(&self) -> Option<Violation> {
        self.state().violation.clone()
    }

    /// Adds a line to the story, if one is told.
    pub(crate) fn tell(&self, words: impl FnOnce() -> String) {
        self.state().tell(words);
    }

    /// A user is going to delete the identity lease of a server.
    pub(crate) fn lease_may_be_deleted(&self, server: &str) {
        self.state().deletable_leases.insert(server.to_owned());
    }

    /// Counts something.
    pub(crate) fn count(&self, count: impl FnOnce(&mut Statistics)) {
        count(&mut self.state().statistics);
    }

    /// Reads the contents of the store.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&Contents) -> T) -> T {
        read(&self.state().contents)
    }

    /// A user begins to change an object, so that it has this token; a deletion has none.
    pub(crate) fn begin(&self, key: &ObjectKey, token: Option<&str>) -> OperationId {
        let mut state = self.state();
        let state = &mut *state;
        state.statistics.operations += 1;
        state.operations.begin(key.clone(), token.map(str::to_owned), state.next)
    }

    /// A user knows what became of a change.
    pub(crate) fn end(&self, operation: OperationId, outcome: Outcome) {
        let mut state = self.state();
        let state = &mut *state;
        let Some(finding) = state.operations.end(operation, outcome) else { return };
        state.violated(finding);
        self.violated.notify_one();
    }

    /// The revision that a read must not be older than.
    pub(crate) fn begin_read(&self, key: &ObjectKey) -> Option<u64> {
        self.state().operations.latest(key)
    }

    /// A read returned this token, or that there is no object.
    pub(crate) fn end_read(&self, key: &ObjectKey, not_before: Option<u64>, found: Option<(&str, u64)>) {
        let mut state = self.state();
        let state = &mut *state;
        state.statistics.reads += 1;
        let Some(finding) = state.operations.check_read(key, not_before, found) else { return };
        state.violated(finding);
        self.violated.notify_one();
    }

    /// What was found, and the digest of everything that happened.
    pub(crate) fn finish(&self) -> (Option<Violation>, u64, Vec<StoryLine>, Statistics) {
        let mut state = self.state();
        let statistics = Statistics {
            revisions: state.next.get().saturating_sub(1),
            migrations: state.contents.migrations,
            ..state.statistics.clone()
        };
        (state.violation.clone(), state.digest.finish(), std::mem::take(&mut state.story), statistics)
    }
}

impl State {
    fn tell(&mut self, words: impl FnOnce() -> String) {
        if self.telling == Telling::Story {
            self.story.push(StoryLine { at: restow_host::simulated::elapsed(), words: words() });
        }
    }

    fn violated(&mut self, (rule, what): Finding) {
        self.tell(|| format!("VIOLATION of \"{rule}\": {what}"));
        let revision = self.next.get().saturating_sub(1);
        self.violation.get_or_insert(Violation { rule, what, at: restow_host::simulated::elapsed(), revision });
    }

    fn look_at(&mut self, event: &Event, writer: Option<WritingProcess>) {
        event.revision.get().hash(&mut self.digest);
        event.key().as_bytes().hash(&mut self.digest);
        restow_host::simulated::elapsed().hash(&mut self.digest);
        let after = match &event.change {
            Change::Put(entry) => {
                entry.value.hash(&mut self.digest);
                Some(&entry.value)
            }
            Change::Delete(_) => None,
        };
        let Some(key) = ObjectKey::parse(event.key().as_bytes()) else { return };
        let after = after
            .and_then(|value| serde_json::from_slice::<Value>(value).ok())
            .map(|value| StoredObject::new(value, event.revision));
        self.tell_change(&key, after.as_ref(), event, writer);
        let mut findings = Vec::new();
        match (&after, writer) {
            (Some(object), Some(writer)) => findings.extend(self.check_writer(&key, object, writer)),
            (None, Some(writer)) => findings.extend(self.check_expiry(&key, writer)),
            (_, None) => {}
        }
        findings.extend(self.operations.look_at(&key, event.revision, &self.contents, after.as_ref()));
        findings.extend(self.contents.change(key, event.revision, after));
        findings.into_iter().for_each(|finding| self.violated(finding));
    }

    /// The server that writes an object has reported the version, and there is no agreement on another one.
    fn check_writer(&self, key: &ObjectKey, object: &StoredObject, writer: WritingProcess) -> Vec<Finding> {
        let (name, reports) = (&self.servers[&writer.server], writer.reports);
        let mut findings = self.contents.check_write(key, object, Writer::Server { name, reports });
        if self.is_strict && reports {
            findings.extend(self.contents.check_selected(key, object, name));
        }
        findings
    }

    /// A server that deletes the lease of another one has observed it all the time.
    fn check_expiry(&self, key: &ObjectKey, writer: WritingProcess) -> Option<Finding> {
        let name = &self.servers[&writer.server];
        let is_of_another = key.is_identity_lease() && self.servers.values().any(|server| *server == key.name);
        let is_expected = key.name == *name || self.deletable_leases.contains(&key.name) || writer.is_observant;
        let words = || format!("{name} deleted {key}, and had not observed it for as long as it lasts");
        (is_of_another && !is_expected).then(|| (Rule::ExpiryIsObserved, words()))
    }

    fn tell_change(
        &mut self,
        key: &ObjectKey,
        after: Option<&StoredObject>,
        event: &Event,
        writer: Option<WritingProcess>,
    ) {
        if self.telling != Telling::Story {
            return;
        }
        let who = writer.map_or("the store", |writer| &self.servers[&writer.server]).to_owned();
        let words = match after {
            Some(object) => format!("{who} writes {key} {}", object.summary(key)),
            None => format!("{who} deletes {key}"),
        };
        let revision = event.revision;
        self.tell(|| format!("[{revision}] {words}"));
    }
}
