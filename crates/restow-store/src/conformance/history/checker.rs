//! Checks that a history is linearizable, in the order of the store's revisions.

use super::{Call, History, Operation};
use crate::conformance::Model;
use crate::{At, Change, Content, Event, Limits, RangeRequest, RangeResponse, Revision, StoreError, Txn, TxnOutcome};
use std::collections::BTreeMap;
use std::time::Duration;
use thiserror::Error;

/// What a history consists of. Tests assert with it that a history was not trivial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Transactions that were answered as committed and changed something.
    pub committed: usize,
    /// Transactions that were answered as committed and had nothing to change.
    pub without_effect: usize,
    /// Transactions that were refused.
    pub refused: usize,
    /// Reads that were answered.
    pub reads: usize,
    /// Calls that failed for certain.
    pub failed: usize,
    /// Transactions of unknown outcome that did happen.
    pub unknown_happened: usize,
    /// Transactions of unknown outcome that did not happen, or changed nothing.
    pub unknown_absent: usize,
}

/// Why a history is not linearizable.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum Violation {
    /// The log skips a revision, or goes back.
    #[error("after revision {after} the log goes on with {found}")]
    BrokenLog {
        /// The revision before.
        after: Revision,
        /// The revision found.
        found: Revision,
    },
    /// The log's events do not follow from the state before them.
    #[error("the log has {found:?}, which from the state before would be {expected:?}")]
    ImpossibleChange {
        /// The events in the log.
        found: Vec<Event>,
        /// The events that these changes make.
        expected: Vec<Event>,
    },
    /// A transaction was acknowledged, but the log does not have it at its revision.
    #[error("an acknowledged write was lost: the log has {found:?} there, not {operation:?}")]
    LostWrite {
        /// The transaction.
        operation: Box<Operation>,
        /// What the log has at its revision.
        found: Vec<Event>,
    },
    /// Two transactions that changed something got the same revision.
    #[error("two transactions took one revision: {first:?} and {second:?}")]
    SharedRevision {
        /// One.
        first: Box<Operation>,
        /// The other.
        second: Box<Operation>,
    },
    /// The log has changes that no transaction explains: one happened twice, or after it had failed.
    #[error("no transaction explains these changes, or they happened twice: {events:?}")]
    UnexplainedChange {
        /// The changes.
        events: Vec<Event>,
    },
    /// The answer is not what the store held at the revision that it names.
    #[error("a wrong answer: {operation:?}; it should have been {expected}")]
    WrongAnswer {
        /// The call.
        operation: Box<Operation>,
        /// The result according to the state at its revision.
        expected: String,
    },
    /// The call's revision is older than one that was known before the call began.
    #[error("out of order: revision {known} was known before this began: {operation:?}")]
    OutOfOrder {
        /// The call.
        operation: Box<Operation>,
        /// The revision of an earlier call.
        known: Revision,
    },
}

/// Compares the clients' records with the log. Returns the first violation.
pub fn check(history: &History) -> Result<Summary, Violation> {
    let mut checker = Checker {
        timeline: Timeline::replay(history)?,
        floors: Floors::new(&history.operations),
        start: history.start.revision,
        operations: &history.operations,
        claims: BTreeMap::new(),
        summary: Summary::default(),
    };
    // A transaction that only deletes may have found nothing to delete, and then has the same revision as the one that
    // did. So a transaction that must have changed something claims its revision first. Of those that may have, the one
    // that started first claims it: if any of them can have made the change, it can.
    let mut order: Vec<usize> = (0..history.operations.len()).collect();
    order.sort_by_key(|number| {
        let operation = &history.operations[*number];
        (!checker.timeline.must_have_changed(operation), operation.started)
    });
    let mut unknown = Vec::new();
    for number in order {
        match &checker.operations[number].call {
            Call::Range(request, Some(Ok(response))) => checker.check_range(number, request, response)?,
            Call::Txn(txn, Some(Ok(TxnOutcome::Committed { revision }))) => {
                checker.check_committed(number, txn, *revision)?;
            }
            Call::Txn(txn, Some(Ok(TxnOutcome::Refused { revision, found }))) => {
                checker.check_refused(number, txn, *revision, found)?;
            }
            Call::Txn(_, None | Some(Err(StoreError::OutcomeUnknown(_)))) => unknown.push(number),
            Call::Txn(_, Some(Err(_))) | Call::Range(_, None | Some(Err(_))) => checker.summary.failed += 1,
        }
    }
    checker.explain_the_rest(&unknown)?;
    Ok(checker.summary)
}

fn surely_changes(operation: &Operation) -> bool {
    match &operation.call {
        Call::Txn(txn, _) => txn.then.iter().any(|mutation| matches!(mutation, crate::Mutation::Put(_))),
        Call::Range(..) => false,
    }
}

/// The log, replayed: the state at every revision, and the changes that led there.
struct Timeline {
    model: Model,
    changes: BTreeMap<Revision, Vec<Event>>,
}

impl Timeline {
    fn replay(history: &History) -> Result<Self, Violation> {
        let start = &history.start;
        let limits = Limits { value_bytes: usize::MAX, store_bytes: None };
        let mut model = Model::with_entries(start.revision, limits, &start.entries);
        let mut changes = BTreeMap::new();
        for group in history.log.chunk_by(|one, next| one.revision == next.revision) {
            let found: Vec<Event> = group.iter().map(without_previous).collect();
            let after = model.revision();
            if found[0].revision != after.next() {
                return Err(Violation::BrokenLog { after, found: found[0].revision });
            }
            let txn = found.iter().fold(Txn::new(), |txn, event| match &event.change {
                Change::Put(entry) => txn.put(&entry.key, entry.value.clone()),
                Change::Delete(key) => txn.delete(key),
            });
            let expected = changes_after(&model, &txn, after).unwrap_or_default();
            if found != expected || model.txn(&txn).is_err() {
                return Err(Violation::ImpossibleChange { found, expected });
            }
            changes.insert(after.next(), found);
        }
        Ok(Timeline { model, changes })
    }

    fn changes_at(&self, revision: Revision) -> &[Event] {
        self.changes.get(&revision).map_or(&[], Vec::as_slice)
    }

    /// Whether this was committed and cannot have been without effect.
    fn must_have_changed(&self, operation: &Operation) -> bool {
        let Call::Txn(txn, Some(Ok(TxnOutcome::Committed { revision }))) = &operation.call else { return false };
        surely_changes(operation) || !changes_after(&self.model, txn, *revision).is_some_and(|found| found.is_empty())
    }

    /// Whether this transaction makes exactly the changes that the log has at `revision`.
    fn explains(&self, txn: &Txn, revision: Revision) -> bool {
        let before = Revision::new(revision.get().saturating_sub(1));
        let found = self.changes_at(revision);
        !found.is_empty() && changes_after(&self.model, txn, before).is_some_and(|expected| expected == found)
    }
}

/// For each call, the highest revision that any client knew before the call began.
struct Floors {
    /// When calls ended, in that order, and the highest revision that was known then.
    known: Vec<(Duration, Revision)>,
}

impl Floors {
    fn new(operations: &[Operation]) -> Self {
        let mut known: Vec<(Duration, Revision)> = operations
            .iter()
            .filter_map(|operation| Some((operation.ended?, returned_revision(&operation.call)?)))
            .collect();
        known.sort();
        let mut highest = Revision::ZERO;
        for (_, revision) in &mut known {
            highest = highest.max(*revision);
            *revision = highest;
        }
        Floors { known }
    }

    fn of(&self, operation: &Operation) -> Revision {
        let before = self.known.partition_point(|(ended, _)| *ended < operation.started);
        self.known[..before].last().map_or(Revision::ZERO, |(_, revision)| *revision)
    }
}

fn returned_revision(call: &Call) -> Option<Revision> {
    match call {
        Call::Range(_, Some(Ok(response))) => Some(response.revision),
        Call::Txn(_, Some(Ok(TxnOutcome::Committed { revision } | TxnOutcome::Refused { revision, .. }))) => {
            Some(*revision)
        }
        _ => None,
    }
}

struct Checker<'history> {
    timeline: Timeline,
    floors: Floors,
    start: Revision,
    operations: &'history [Operation],
    /// Which operation made the changes of a revision.
    claims: BTreeMap<Revision, usize>,
    summary: Summary,
}

impl Checker<'_> {
    fn check_committed(&mut self, number: usize, txn: &Txn, revision: Revision) -> Result<(), Violation> {
        let operation = &self.operations[number];
        let known = self.floors.of(operation);
        if surely_changes(operation) {
            if !self.timeline.explains(txn, revision) {
                let found = self.timeline.changes_at(revision).to_vec();
                return Err(Violation::LostWrite { operation: Box::new(operation.clone()), found });
            }
            if known >= revision {
                return Err(Violation::OutOfOrder { operation: Box::new(operation.clone()), known });
            }
            return self.claim(number, revision);
        }
        // It only deletes. It made the changes of its revision if it can have; else it must have found nothing there.
        if known < revision && !self.claims.contains_key(&revision) && self.timeline.explains(txn, revision) {
            return self.claim(number, revision);
        }
        self.check_order(operation, revision)?;
        self.summary.without_effect += 1;
        match changes_after(&self.timeline.model, txn, revision) {
            Some(changes) if changes.is_empty() => Ok(()),
            other => self.wrong(operation, format!("a transaction that changes {other:?}")),
        }
    }

    fn claim(&mut self, number: usize, revision: Revision) -> Result<(), Violation> {
        if let Some(first) = self.claims.insert(revision, number) {
            return Err(Violation::SharedRevision {
                first: Box::new(self.operations[first].clone()),
                second: Box::new(self.operations[number].clone()),
            });
        }
        self.summary.committed += 1;
        Ok(())
    }

    fn check_refused(
        &mut self,
        number: usize,
        txn: &Txn,
        revision: Revision,
        found: &[Option<crate::Entry>],
    ) -> Result<(), Violation> {
        let operation = &self.operations[number];
        self.check_order(operation, revision)?;
        self.summary.refused += 1;
        if changes_after(&self.timeline.model, txn, revision).is_some() {
            return self.wrong(operation, "committed: all comparisons hold".to_owned());
        }
        let model = &self.timeline.model;
        let expected: Vec<_> = txn.otherwise.iter().map(|key| model.entry_at(key, revision).cloned()).collect();
        if found != expected {
            return self.wrong(operation, format!("{expected:?}"));
        }
        Ok(())
    }

    fn check_range(
        &mut self,
        number: usize,
        request: &RangeRequest,
        response: &RangeResponse,
    ) -> Result<(), Violation> {
        let operation = &self.operations[number];
        self.check_order(operation, response.revision)?;
        self.summary.reads += 1;
        let read_at = match request.at {
            At::Latest => response.revision,
            At::Revision(revision) if revision < self.start => return Ok(()), // That was before this history.
            At::Revision(revision) => revision,
        };
        let expected = match self.timeline.model.range(&request.clone().at(read_at)) {
            Ok(expected) if read_at <= response.revision => expected,
            other => return self.wrong(operation, format!("an error: {other:?}")),
        };
        let count_is_right = match response.count {
            Some(_) => response.count == expected.count,
            None => request.content != Content::CountOnly,
        };
        let more_is_right = response.more == expected.more || request.content == Content::CountOnly;
        if response.entries != expected.entries || !more_is_right || !count_is_right {
            return self.wrong(operation, format!("{expected:?}"));
        }
        Ok(())
    }

    /// Checks that a call that changed nothing has a revision that exists and is not older than the call.
    fn check_order(&self, operation: &Operation, revision: Revision) -> Result<(), Violation> {
        let known = self.floors.of(operation);
        if revision < known {
            return Err(Violation::OutOfOrder { operation: Box::new(operation.clone()), known });
        }
        if revision > self.timeline.model.revision() {
            return self.wrong(operation, format!("at most revision {}", self.timeline.model.revision()));
        }
        Ok(())
    }

    fn wrong(&self, operation: &Operation, expected: String) -> Result<(), Violation> {
        Err(Violation::WrongAnswer { operation: Box::new(operation.clone()), expected })
    }

    /// Finds for each revision that no call returned an unknown outcome that explains it, each used once: a matching by
    /// augmenting paths.
    fn explain_the_rest(&mut self, unknown: &[usize]) -> Result<(), Violation> {
        let open: Vec<Revision> =
            self.timeline.changes.keys().filter(|revision| !self.claims.contains_key(revision)).copied().collect();
        let candidates: BTreeMap<Revision, Vec<usize>> = open
            .iter()
            .map(|revision| (*revision, unknown.iter().copied().filter(|n| self.may_be(*n, *revision)).collect()))
            .collect();
        let mut taken: BTreeMap<usize, Revision> = BTreeMap::new();
        for revision in open {
            if !assign(revision, &candidates, &mut taken, &mut Vec::new()) {
                let events = self.timeline.changes_at(revision).to_vec();
                return Err(Violation::UnexplainedChange { events });
            }
        }
        self.summary.unknown_happened = taken.len();
        self.summary.unknown_absent = unknown.len() - taken.len();
        Ok(())
    }

    fn may_be(&self, number: usize, revision: Revision) -> bool {
        let operation = &self.operations[number];
        let Call::Txn(txn, _) = &operation.call else { return false };
        self.floors.of(operation) < revision && self.timeline.explains(txn, revision)
    }
}

/// Gives `revision` an operation, moving others to another of theirs where that helps.
fn assign(
    revision: Revision,
    candidates: &BTreeMap<Revision, Vec<usize>>,
    taken: &mut BTreeMap<usize, Revision>,
    tried: &mut Vec<usize>,
) -> bool {
    for number in &candidates[&revision] {
        if tried.contains(number) {
            continue;
        }
        tried.push(*number);
        let holder = taken.get(number).copied();
        if holder.is_none_or(|other| assign(other, candidates, taken, tried)) {
            taken.insert(*number, revision);
            return true;
        }
    }
    false
}

fn changes_after(model: &Model, txn: &Txn, at: Revision) -> Option<Vec<Event>> {
    model.changes(txn, at).map(|events| events.iter().map(without_previous).collect())
}

fn without_previous(event: &Event) -> Event {
    Event { previous: None, ..event.clone() }
}
