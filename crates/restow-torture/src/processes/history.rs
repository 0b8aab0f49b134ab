//! The history of the store as it is read, and the operations of the writers: both are recorded, and checked against each other.
//!
//! An operation ends before its revision is read. So what compares an answer with the history waits until everything was read that
//! was there when the answer came.

use super::Reporting;
use super::aggregated::{self, ReportedState};
use super::host::Host;
use super::report::{Counts, ProcessError};
use super::silence::Silence;
use super::stock::{self, Migrator, StockRules, Verdict};
use super::told::{self, Seen, Told, WATCHED};
use crate::checks::{
    Contents, ObjectKey, OperationId, Operations, Outcome, Rule, STORAGE_VERSIONS, StoredObject, Violation, Writer,
};
use crate::world::NAMESPACE;
use restow_store::{Change, Event, Revision};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The annotation with the server that an object was written through.
pub(crate) const VIA: &str = "via";
/// So many violations are kept; the rest are hardly news.
const MOST_VIOLATIONS: usize = 20;
/// What has ended is forgotten after once or twice this time. No request, watch or pause takes nearly as long.
const REMEMBERED: Duration = Duration::from_secs(300);

/// What has happened so far.
pub(crate) struct History {
    began: Instant,
    state: Mutex<State>,
}

struct State {
    contents: Contents,
    operations: Operations,
    silence: Silence,
    /// What was reported about the resource of the aggregated server, oldest first.
    reported: Vec<ReportedState>,
    /// The rules on stock API servers; `None` on Restow's.
    stock: Option<StockRules>,
    /// The first revision that was not read yet.
    next: Revision,
    /// The changes of the watched resources, oldest first.
    changes: BTreeMap<String, Vec<Seen>>,
    /// Answers that were not checked yet.
    answers: VecDeque<Answer>,
    /// How many answers were checked.
    checked: u64,
    /// When something was last forgotten, and the first revision that was not read then.
    forgot: (Instant, Revision),
    violations: Vec<Violation>,
    counts: Counts,
    record: BufWriter<File>,
}

/// An answer to a writer.
enum Answer {
    Write(OperationId, Outcome),
    Read { key: ObjectKey, not_before: Option<u64>, found: Option<(String, u64)> },
    Watch { resource: String, via: String, told: Told },
}

/// All answers up to a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mark(u64);

impl History {
    /// An empty history of stock API servers.
    pub(crate) fn of_stock(path: &Path, rules: StockRules) -> Result<Self, ProcessError> {
        let history = Self::record_to(path)?;
        history.state().stock = Some(rules);
        Ok(history)
    }

    /// An empty history, which is recorded in this file.
    pub(crate) fn record_to(path: &Path) -> Result<Self, ProcessError> {
        let file = File::create(path).map_err(ProcessError::io("create the record of the history"))?;
        let state = State {
            contents: Contents::default(),
            operations: Operations::default(),
            silence: Silence::default(),
            reported: Vec::new(),
            stock: None,
            next: Revision::new(1),
            changes: WATCHED.iter().map(|(resource, _)| ((*resource).to_owned(), Vec::new())).collect(),
            answers: VecDeque::new(),
            checked: 0,
            forgot: (Instant::now(), Revision::new(1)),
            violations: Vec::new(),
            counts: Counts::default(),
            record: BufWriter::new(file),
        };
        Ok(History { began: Instant::now(), state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first revision that was not read yet.
    pub(crate) fn next(&self) -> Revision {
        self.state().next
    }

    /// Looks at what a watch delivered: everything up to a revision.
    pub(crate) fn look_at(&self, events: &[Event], revision: Revision) {
        let mut state = self.state();
        for event in events {
            self.look_at_event(&mut state, event);
        }
        state.next = state.next.max(revision.next());
        state.counts.revisions = state.next.get().saturating_sub(1);
    }

    fn look_at_event(&self, state: &mut State, event: &Event) {
        if event.revision < state.next {
            return;
        }
        let key = event.key().as_bytes();
        let value = match &event.change {
            Change::Put(entry) => serde_json::from_slice::<Value>(&entry.value).ok(),
            Change::Delete(_) => None,
        };
        let line = json!({"revision": event.revision.get(), "key": String::from_utf8_lossy(key), "value": value});
        self.record(state, line);
        let Some(key) = state.parse(key) else { return };
        let after = value.map(|value| StoredObject::new(value, event.revision));
        if state.stock.is_some() {
            return self.look_at_stock(state, key, event.revision, after);
        }
        // Watchers see only the namespace of the writers.
        if let Some(changes) = state.changes.get_mut(&key.resource).filter(|_| key.namespace == NAMESPACE) {
            let token = after.as_ref().and_then(StoredObject::token).map(str::to_owned);
            changes.push(Seen { revision: event.revision.get(), name: key.name.clone(), token });
        }
        let before = state.contents.object(&key);
        let mut findings = Vec::new();
        if let Some(object) = &after {
            findings.extend(state.contents.check_write(&key, object, writer_of(before, object, &mut state.silence)));
            state.counts.migrations += u64::from(is_new_success(&key, before, object));
        }
        findings.extend(state.operations.look_at(&key, event.revision, &state.contents, after.as_ref()));
        let is_reported = key.resource == STORAGE_VERSIONS && key.name == aggregated::RESOURCE;
        findings.extend(state.contents.change(key, event.revision, after));
        if is_reported {
            state.note_reports(event.revision);
        }
        for (rule, what) in findings {
            self.add_violation(state, rule, what, event.revision);
        }
    }

    /// Looks at a change by a stock API server.
    fn look_at_stock(&self, state: &mut State, key: ObjectKey, revision: Revision, after: Option<StoredObject>) {
        let findings = state.operations.look_at(&key, revision, &state.contents, after.as_ref());
        let is_success = after.as_ref().is_some_and(|after| is_new_success(&key, state.contents.object(&key), after));
        let is_of_writers = |object: &StoredObject| object.value["spec"]["resource"]["group"] == "example.com";
        state.counts.migrations += u64::from(is_success && after.as_ref().is_some_and(is_of_writers));
        let before = state.contents.replace(&key, after);
        let at = self.began.elapsed();
        let verdicts = state.stock.as_mut().map(|rules| rules.check(&state.contents, &key, before.as_ref(), at));
        for verdict in verdicts.into_iter().flatten() {
            match verdict {
                Verdict::Broken(rule, what) => self.add_violation(state, rule, what, revision),
                Verdict::ServerWasLate(what) => {
                    state.counts.late_writes += 1;
                    self.record(state, json!({"LATE": what}));
                }
            }
        }
        findings.into_iter().for_each(|(rule, what)| self.add_violation(state, rule, what, revision));
    }

    /// What a migrator on stock API servers has not done yet.
    pub(crate) fn open_for(&self, migrator: &Migrator) -> Vec<String> {
        let state = self.state();
        state.stock.as_ref().map(|rules| rules.open(&state.contents, migrator)).unwrap_or_default()
    }

    /// Reads a key of the store; `None` if it is not the key of an object that is checked.
    pub(crate) fn parse(&self, key: &[u8]) -> Option<ObjectKey> {
        self.state().parse(key)
    }

    /// A writer begins to change an object, so that it has this token; a deletion has none.
    pub(crate) fn begin(&self, key: &ObjectKey, token: Option<&str>, via: &str, method: &str) -> OperationId {
        let mut state = self.state();
        state.counts.operations += 1;
        self.record(&mut state, json!({"begin": method, "key": key.to_string(), "token": token, "via": via}));
        if let (Some(rules), Some(token)) = (&mut state.stock, token) {
            rules.begin(token, self.began.elapsed());
        }
        let next = state.next;
        let operation = state.operations.begin(key.clone(), token.map(str::to_owned), next);
        if let Some(token) = token {
            state.silence.begin(operation, via, token);
        }
        operation
    }

    /// A writer knows what became of a change.
    pub(crate) fn end(&self, operation: OperationId, outcome: Outcome, words: &str) {
        let mut state = self.state();
        match outcome {
            Outcome::Acknowledged(_) => state.counts.acknowledged += 1,
            Outcome::Refused => state.counts.refused += 1,
            Outcome::Unknown => state.counts.unknown += 1,
        }
        self.record(&mut state, json!({"end": words, "outcome": format!("{outcome:?}")}));
        state.silence.end(operation);
        state.answers.push_back(Answer::Write(operation, outcome));
    }

    /// The revision that a read must not be older than.
    pub(crate) fn begin_read(&self, key: &ObjectKey) -> Option<u64> {
        self.state().operations.latest(key)
    }

    /// A read returned this token and revision, or that there is no object.
    pub(crate) fn end_read(&self, key: &ObjectKey, not_before: Option<u64>, found: Option<(String, u64)>) {
        let mut state = self.state();
        state.counts.reads += 1;
        self.record(&mut state, json!({"read": key.to_string(), "notBefore": not_before, "found": found}));
        state.answers.push_back(Answer::Read { key: key.clone(), not_before, found });
    }

    /// A watcher was told something.
    pub(crate) fn told(&self, resource: &str, via: &str, told: Told) {
        let mut state = self.state();
        state.counts.watched += 1;
        self.record(&mut state, json!({"watch": resource, "via": via, "told": format!("{told:?}")}));
        state.answers.push_back(Answer::Watch { resource: resource.to_owned(), via: via.to_owned(), told });
    }

    /// A server is about to be started, after its last process has ended.
    pub(crate) fn server_starts(&self, server: &str, reporting: Reporting) {
        self.state().silence.starts(server, reporting, Instant::now());
    }

    /// Records something else that happened.
    pub(crate) fn note(&self, what: impl Into<String>) {
        let mut state = self.state();
        self.record(&mut state, json!({"note": what.into()}));
    }

    /// All answers until now. Once everything was read that is in the store now, they can be checked.
    pub(crate) fn mark(&self) -> Mark {
        let state = self.state();
        Mark(state.checked + state.answers.len() as u64)
    }

    /// Checks all answers up to a mark.
    pub(crate) fn check_answers(&self, mark: Mark) {
        let mut state = self.state();
        while state.checked < mark.0 {
            let Some(answer) = state.answers.pop_front() else { return };
            state.checked += 1;
            let finding = match answer {
                Answer::Write(operation, outcome) => state.operations.end(operation, outcome),
                Answer::Read { key, not_before, found } => {
                    let found = found.as_ref().map(|(token, revision)| (token.as_str(), *revision));
                    state.operations.check_read(&key, not_before, found)
                }
                Answer::Watch { resource, via, told } => {
                    let changes = state.changes.get(&resource).map(Vec::as_slice).unwrap_or_default();
                    let wrong = told::compare(&told, changes);
                    wrong.map(|what| {
                        (Rule::AcknowledgedWritesAreThere, format!("a watch of {resource} through {via}: {what}"))
                    })
                }
            };
            if let Some((rule, what)) = finding {
                let revision = state.next;
                self.add_violation(&mut state, rule, what, revision);
            }
        }
        state.forget(Instant::now());
    }

    /// What was reported about the resource of the aggregated server, oldest first.
    pub(crate) fn reported(&self) -> Vec<ReportedState> {
        self.state().reported.clone()
    }

    /// Reads the contents of the store.
    pub(crate) fn contents<T>(&self, read: impl FnOnce(&Contents) -> T) -> T {
        read(&self.state().contents)
    }

    /// Counts something.
    pub(crate) fn count(&self, count: impl FnOnce(&mut Counts)) {
        count(&mut self.state().counts);
    }

    pub(crate) fn counts(&self) -> Counts {
        self.state().counts.clone()
    }

    /// Records that a rule was broken.
    pub(crate) fn violated(&self, rule: Rule, what: String) {
        let mut state = self.state();
        let revision = state.next;
        self.add_violation(&mut state, rule, what, revision);
    }

    pub(crate) fn violations(&self) -> Vec<Violation> {
        self.state().violations.clone()
    }

    /// Whether it makes no sense to go on.
    pub(crate) fn has_seen_enough(&self) -> bool {
        self.state().violations.len() >= MOST_VIOLATIONS
    }

    /// Writes the record to its file.
    pub(crate) fn flush(&self) {
        // A record that cannot be written does not change what was found.
        let _ = self.state().record.flush();
    }

    fn add_violation(&self, state: &mut State, rule: Rule, what: String, revision: Revision) {
        let violation = Violation { rule, what, at: self.began.elapsed(), revision: revision.get() };
        self.record(state, json!({"VIOLATION": violation.to_string()}));
        if state.violations.len() < MOST_VIOLATIONS {
            state.violations.push(violation);
        }
    }

    fn record(&self, state: &mut State, mut line: Value) {
        line["at"] = self.began.elapsed().as_secs_f64().into();
        let _ = writeln!(state.record, "{line}");
    }
}

impl State {
    fn note_reports(&mut self, revision: Revision) {
        let reports = self.contents.reports(aggregated::RESOURCE).cloned().unwrap_or_default();
        let reported = reports.by_server.get(&Host::Aggregated.to_string()).cloned();
        let state = ReportedState { revision: revision.get(), reported, common: reports.common };
        if self.reported.last().is_none_or(|last| ReportedState { revision: last.revision, ..state.clone() } != *last) {
            self.reported.push(state);
        }
    }

    /// Forgets what had ended some time ago.
    fn forget(&mut self, now: Instant) {
        let (at, before) = self.forgot;
        if now.duration_since(at) < REMEMBERED {
            return;
        }
        self.operations.forget(before);
        self.changes.values_mut().for_each(|changes| told::forget(changes, before.get()));
        self.forgot = (now, self.next);
    }

    fn parse(&self, key: &[u8]) -> Option<ObjectKey> {
        if self.stock.is_some() { stock::parse_key(key) } else { ObjectKey::parse(key) }
    }
}

/// A writer names the server that it wrote through; a change that keeps its token was made by a controller, through any.
fn writer_of<'w>(before: Option<&StoredObject>, after: &'w StoredObject, silence: &mut Silence) -> Writer<'w> {
    let via = after.value["metadata"]["annotations"][VIA].as_str();
    match (via, after.token()) {
        (Some(name), Some(token)) if before.and_then(StoredObject::token) != Some(token) => {
            Writer::Server { name, reports: !silence.applied(token) }
        }
        _ if silence.is_possible(Instant::now()) => Writer::Server { name: "one of the servers", reports: false },
        _ => Writer::Unknown,
    }
}

/// Whether a migration has succeeded with this change.
fn is_new_success(key: &ObjectKey, before: Option<&StoredObject>, after: &StoredObject) -> bool {
    let succeeded = |object: &StoredObject| {
        let conditions = object.value["status"]["conditions"].as_array().into_iter().flatten();
        conditions.into_iter().any(|condition| condition["type"] == "Succeeded" && condition["status"] == "True")
    };
    key.resource.ends_with(".storageversionmigrations") && succeeded(after) && !before.is_some_and(succeeded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use restow_store::{Entry, Key};

    const WIDGET: &str = "/example.com/widgets/torture/widget-1";

    fn history() -> History {
        let folder = tempfile::tempdir().unwrap();
        History::record_to(&folder.path().join("history")).unwrap()
    }

    fn put(revision: u64, key: &str, value: &Value) -> Event {
        let (key, revision) = (Key::try_from(key.to_owned()).unwrap(), Revision::new(revision));
        let value = Bytes::from(value.to_string());
        let entry = Entry { key, value, create_revision: revision, mod_revision: revision, version: 1 };
        Event { revision, change: Change::Put(entry), previous: None }
    }

    fn report(revision: u64, server: &str, version: &str) -> Event {
        let entry = json!({"apiServerID": server, "encodingVersion": version, "decodableVersions": [version]});
        let status = json!({"storageVersions": [entry], "commonEncodingVersion": version});
        let key = "/internal.apiserver.k8s.io/storageversions/example.com.widgets";
        put(revision, key, &json!({"metadata": {"name": "example.com.widgets"}, "status": status}))
    }

    fn widget(revision: u64, version: &str, token: &str) -> Event {
        let annotations = json!({"token": token, VIA: "server-0"});
        put(
            revision,
            WIDGET,
            &json!({"apiVersion": version, "metadata": {"name": "widget-1", "annotations": annotations}}),
        )
    }

    fn rules(history: &History) -> Vec<Rule> {
        history.violations().into_iter().map(|violation| violation.rule).collect()
    }

    fn begin(history: &History, token: &str) -> OperationId {
        history.begin(&ObjectKey::new("example.com.widgets", "torture", "widget-1"), Some(token), "server-0", "POST")
    }

    #[test]
    fn a_write_that_was_reported_asked_for_and_acknowledged_breaks_no_rule() {
        let history = history();
        let operation = begin(&history, "a");
        history.end(operation, Outcome::Acknowledged(Some(2)), "");
        history.look_at(&[report(1, "server-0", "example.com/v1"), widget(2, "example.com/v1", "a")], Revision::new(2));
        history.check_answers(history.mark());
        assert_eq!(history.violations(), []);
        assert_eq!((history.next(), history.counts().acknowledged), (Revision::new(3), 1));
    }

    #[test]
    fn a_write_in_a_version_that_its_server_has_not_reported_breaks_two_rules() {
        let history = history();
        begin(&history, "a");
        history.look_at(&[report(1, "server-1", "example.com/v1"), widget(2, "example.com/v2", "a")], Revision::new(2));
        assert_eq!(rules(&history), [Rule::ReportBeforeWrite, Rule::AgreementIsTrue]);
    }

    #[test]
    fn a_write_that_was_acknowledged_and_is_not_there_breaks_a_rule_once_the_history_is_read() {
        let history = history();
        let operation = begin(&history, "a");
        let before = history.mark();
        history.end(operation, Outcome::Acknowledged(Some(2)), "");
        history.check_answers(before);
        assert_eq!(history.violations(), []);
        history.check_answers(history.mark());
        assert_eq!(rules(&history), [Rule::AcknowledgedWritesAreThere]);
    }

    #[test]
    fn a_write_that_nobody_asked_for_breaks_a_rule() {
        let history = history();
        history.look_at(&[report(1, "server-0", "example.com/v1"), widget(2, "example.com/v1", "a")], Revision::new(2));
        assert_eq!(rules(&history), [Rule::OnlyRequestedChanges]);
    }
}
