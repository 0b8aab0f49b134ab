//! Reads the record of the aggregated server while it is written: its changes go into a history of their own, and its writes are kept
//! for the comparison of the two stores.

use super::RESOURCE;
use super::record::{Ending, Line, StoreChange};
use super::two_stores::{Attempt, Period, PlantWrite};
use crate::checks::{ObjectKey, StoredObject};
use crate::processes::history::{History, Mark};
use bytes::Bytes;
use restow_store::{Change, Entry, Event, Key, Revision};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Reads a record.
pub(crate) struct Reader {
    path: PathBuf,
    file: Option<BufReader<std::fs::File>>,
    /// The beginning of a line that is not complete yet.
    partial: String,
    history: Arc<History>,
    /// Answers that are checked as soon as everything is read that was there at that time.
    mark: Option<(Mark, Duration)>,
    /// Everything was checked that was there at this time.
    checked: Duration,
    /// The transactions of the present process.
    open: BTreeMap<u64, Vec<(String, Attempt)>>,
    attempts: BTreeMap<String, Vec<Attempt>>,
    /// The tokens that are or were in the store.
    written: BTreeSet<String>,
}

impl Reader {
    /// Reads the record of this file, which may not exist yet.
    pub(crate) fn new(path: PathBuf, history: Arc<History>) -> Self {
        let (open, attempts, written) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        Reader {
            path,
            file: None,
            partial: String::new(),
            history,
            mark: None,
            checked: Duration::ZERO,
            open,
            attempts,
            written,
        }
    }

    /// Reads what is new.
    pub(crate) fn read(&mut self) {
        if self.mark.is_none() {
            self.mark = Some((self.history.mark(), restow_host::since_boot()));
        }
        if self.file.is_none() {
            self.file = std::fs::File::open(&self.path).ok().map(BufReader::new);
        }
        let Some(mut file) = self.file.take() else { return };
        while file.read_line(&mut self.partial).is_ok_and(|count| count > 0) {
            if self.partial.ends_with('\n') {
                // A process that was killed may have left a part of a line.
                if let Ok(line) = serde_json::from_str::<Line>(&std::mem::take(&mut self.partial)) {
                    self.take(line);
                }
            }
        }
        self.file = Some(file);
    }

    /// Whether everything was read and checked that was there at a time.
    pub(crate) fn has_read(&self, at: Duration) -> bool {
        self.checked >= at
    }

    fn take(&mut self, line: Line) {
        match line {
            Line::Started { at } => {
                // Nothing of the process before is committed any more.
                let open = std::mem::take(&mut self.open).into_values().flatten();
                for (token, mut attempt) in open.filter(|(_, attempt)| attempt.committed.from > Duration::ZERO) {
                    attempt.committed.until = at;
                    self.attempts.entry(token).or_default().push(attempt);
                }
            }
            Line::Arrived { transaction, writes } => {
                let committed = Period { from: Duration::ZERO, until: Duration::MAX };
                let writes = writes.into_iter();
                let attempt = |version| Attempt { version, committed };
                let attempts = writes.map(|write| (write.token, attempt(write.version))).collect();
                self.open.insert(transaction, attempts);
            }
            Line::Began { transaction, at } => {
                let attempts = self.open.get_mut(&transaction).into_iter().flatten();
                attempts.for_each(|(_, attempt)| attempt.committed.from = at);
            }
            Line::Ended { transaction, at, outcome } => {
                for (token, mut attempt) in self.open.remove(&transaction).into_iter().flatten() {
                    attempt.committed.until = at;
                    if outcome != Ending::Refused {
                        self.attempts.entry(token).or_default().push(attempt);
                    }
                }
            }
            Line::Changed { revision, changes } => self.change(revision, &changes),
            Line::Exists { revision, at } => {
                let is_read = self.history.next().get() > revision;
                if let Some((mark, marked)) = self.mark.take_if(|(_, marked)| *marked < at && is_read) {
                    self.history.check_answers(mark);
                    self.checked = marked;
                }
            }
        }
    }

    fn change(&mut self, revision: u64, changes: &[StoreChange]) {
        for change in changes {
            let is_plant = ObjectKey::parse(change.key.as_bytes()).is_some_and(|key| key.resource == RESOURCE);
            let object = change.value.clone().map(|value| StoredObject::new(value, Revision::new(change.revision)));
            if let Some(token) = object.as_ref().and_then(StoredObject::token).filter(|_| is_plant) {
                self.written.insert(token.to_owned());
            }
        }
        let events: Vec<Event> = changes.iter().filter_map(event).collect();
        self.history.look_at(&events, Revision::new(revision));
    }

    /// The writes that are or were in the store, with the transactions that may have made them.
    pub(crate) fn writes(&self) -> Vec<PlantWrite> {
        let write = |token: &String| PlantWrite {
            token: token.clone(),
            attempts: self.attempts.get(token).cloned().unwrap_or_default(),
        };
        self.written.iter().map(write).collect()
    }
}

fn event(change: &StoreChange) -> Option<Event> {
    let (key, revision) = (Key::try_from(change.key.clone()).ok()?, Revision::new(change.revision));
    let change = match &change.value {
        Some(value) => {
            let value = Bytes::from(value.to_string());
            Change::Put(Entry { key, value, create_revision: revision, mod_revision: revision, version: 1 })
        }
        None => Change::Delete(key),
    };
    Some(Event { revision, change, previous: None })
}

#[cfg(test)]
mod tests {
    use super::super::record::{Record, RecordedWrite};
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn arrived(transaction: u64, token: &str) -> Line {
        let write = RecordedWrite { token: token.to_owned(), version: "v1".to_owned() };
        Line::Arrived { transaction, writes: vec![write] }
    }

    fn changed(revision: u64, token: &str) -> Line {
        let value = serde_json::json!({"apiVersion": "v1", "metadata": {"annotations": {"token": token}}});
        let key = "/garden.example/plants/default/plant-1".to_owned();
        Line::Changed { revision, changes: vec![StoreChange { revision, key, value: Some(value) }] }
    }

    /// Reads a record with these lines.
    fn read(lines: &[Line]) -> Reader {
        let folder = tempfile::tempdir().unwrap();
        let history = Arc::new(History::record_to(&folder.path().join("history")).unwrap());
        let record = Record::open(&folder.path().join("record")).unwrap();
        let mut reader = Reader::new(folder.path().join("record"), history);
        for line in lines {
            record.write(line);
            reader.read();
        }
        reader
    }

    #[test]
    fn a_write_is_one_whose_token_was_stored_and_was_made_by_a_transaction_that_was_not_refused() {
        let began = |transaction, at| Line::Began { transaction, at: seconds(at) };
        let ended = |transaction, at, outcome| Line::Ended { transaction, at: seconds(at), outcome };
        let reader = read(&[
            arrived(1, "a"),
            began(1, 11),
            ended(1, 12, Ending::Refused),
            arrived(2, "a"),
            began(2, 14),
            ended(2, 15, Ending::Committed),
            arrived(3, "b"),
            began(3, 17),
            changed(1, "a"),
        ]);
        let attempt = |from, until| {
            let committed = Period { from: seconds(from), until: seconds(until) };
            Attempt { version: "v1".to_owned(), committed }
        };
        assert_eq!(reader.writes(), [PlantWrite { token: "a".to_owned(), attempts: vec![attempt(14, 15)] }]);
        let mut reader = reader;
        reader.take(Line::Started { at: seconds(20) });
        reader.take(changed(2, "b"));
        assert_eq!(reader.writes()[1].attempts, [attempt(17, 20)], "the process was killed meanwhile");
    }

    #[test]
    fn answers_are_checked_once_everything_is_read_that_was_there_when_they_came() {
        let now = restow_host::since_boot();
        let mut reader = read(&[]);
        reader.read();
        assert!(!reader.has_read(now));
        reader.take(Line::Exists { revision: 1, at: restow_host::since_boot() });
        assert!(!reader.has_read(now), "revision 1 was not read");
        reader.take(changed(1, "a"));
        reader.take(Line::Exists { revision: 1, at: restow_host::since_boot() });
        assert!(reader.has_read(now));
    }
}
