//! The checker must accept what is linearizable and catch each way of not being so.

use super::*;
use crate::conformance::Model;
use crate::{Compare, Key, KeyRange, Limits, Revision};

fn key(text: &str) -> Key {
    Key::try_from(text).unwrap()
}

fn put(name: &str, value: &str) -> Txn {
    Txn::new().put(&key(name), value.to_owned())
}

/// Writes histories: a true store that answers, and times that the test chooses.
struct Scene {
    model: Model,
    operations: Vec<Operation>,
}

impl Scene {
    fn new() -> Self {
        Scene { model: Model::new(Revision::new(1), Limits::default()), operations: Vec::new() }
    }

    fn note(&mut self, started: u64, ended: Option<u64>, call: Call) -> &mut Self {
        let (started, ended) = (Duration::from_millis(started), ended.map(Duration::from_millis));
        self.operations.push(Operation { started, ended, call });
        self
    }

    /// A transaction that takes effect now and is answered truthfully.
    fn txn(&mut self, started: u64, ended: u64, txn: Txn) -> &mut Self {
        let answer = self.model.txn(&txn);
        self.note(started, Some(ended), Call::Txn(txn, Some(answer)))
    }

    /// A transaction that was answered, but had no effect.
    fn lie(&mut self, started: u64, ended: u64, txn: Txn, revision: u64) -> &mut Self {
        let answer = TxnOutcome::Committed { revision: Revision::new(revision) };
        self.note(started, Some(ended), Call::Txn(txn, Some(Ok(answer))))
    }

    /// A transaction without an answer, which may have an effect all the same.
    fn unknown(&mut self, started: u64, txn: Txn) -> &mut Self {
        self.note(started, None, Call::Txn(txn, None))
    }

    /// An effect that no answer tells of.
    fn effect(&mut self, txn: Txn) -> &mut Self {
        self.model.txn(&txn).unwrap();
        self
    }

    fn read(&mut self, started: u64, ended: u64) -> &mut Self {
        let answer = self.model.range(&all());
        self.note(started, Some(ended), Call::Range(all(), Some(answer)))
    }

    fn check(&self) -> Result<Summary, Violation> {
        check(&self.history())
    }

    fn history(&self) -> History {
        History {
            start: Snapshot { revision: Revision::new(1), entries: Vec::new() },
            operations: self.operations.clone(),
            log: self.model.events(&KeyRange::all(), Revision::new(2), false).unwrap(),
        }
    }
}

fn all() -> RangeRequest {
    RangeRequest::new(KeyRange::all())
}

#[test]
fn a_true_history_is_accepted() {
    let mut scene = Scene::new();
    scene.read(0, 1).txn(0, 5, put("a", "1")).read(2, 4).txn(1, 9, put("a", "2").put(&key("b"), "2")).read(10, 11);
    scene.txn(12, 13, Txn::new().when(Compare::absent(&key("a"))).put(&key("a"), "3").otherwise_get(&key("a")));
    scene.txn(14, 15, Txn::new().delete(&key("a")).delete(&key("c"))).txn(14, 16, Txn::new().delete(&key("a")));
    let summary = scene.check().unwrap();
    let expected = Summary { committed: 3, without_effect: 1, refused: 1, reads: 3, ..Summary::default() };
    assert_eq!(summary, expected);
}

#[test]
fn a_stale_read_is_caught() {
    let mut scene = Scene::new();
    let stale = scene.model.range(&all());
    scene.txn(0, 5, put("a", "1")).note(6, Some(7), Call::Range(all(), Some(stale.clone())));
    assert!(matches!(scene.check(), Err(Violation::OutOfOrder { .. })));

    let mut overlapping = Scene::new();
    overlapping.txn(0, 5, put("a", "1")).note(4, Some(7), Call::Range(all(), Some(stale)));
    assert!(overlapping.check().is_ok(), "a read that began before the write ended may miss it");
}

#[test]
fn an_old_state_under_a_new_revision_is_caught() {
    let mut scene = Scene::new();
    let mut stale = scene.model.range(&all()).unwrap();
    stale.revision = Revision::new(2);
    scene.txn(0, 5, put("a", "1")).note(6, Some(7), Call::Range(all(), Some(Ok(stale))));
    assert!(matches!(scene.check(), Err(Violation::WrongAnswer { .. })));
}

#[test]
fn a_lost_write_is_caught() {
    let mut at_the_end = Scene::new();
    at_the_end.txn(0, 1, put("a", "1")).lie(2, 3, put("a", "2"), 3);
    assert!(matches!(at_the_end.check(), Err(Violation::LostWrite { .. })));

    let mut overwritten = Scene::new();
    overwritten.txn(0, 1, put("a", "1")).lie(2, 3, put("a", "2"), 3).txn(2, 4, put("a", "3"));
    assert!(matches!(overwritten.check(), Err(Violation::LostWrite { .. })));

    let mut delete = Scene::new();
    delete.txn(0, 1, put("a", "1")).lie(2, 3, Txn::new().delete(&key("a")), 3);
    assert!(delete.check().is_err());
}

#[test]
fn half_a_transaction_is_caught() {
    let mut scene = Scene::new();
    scene.lie(0, 1, put("a", "1").put(&key("b"), "1"), 2).effect(put("a", "1"));
    assert!(matches!(scene.check(), Err(Violation::LostWrite { .. })));
}

#[test]
fn a_doubled_write_is_caught() {
    let mut scene = Scene::new();
    scene.txn(0, 1, put("a", "1")).effect(put("a", "1")).txn(2, 3, put("a", "2"));
    assert!(matches!(scene.check(), Err(Violation::UnexplainedChange { .. })));

    let mut unknown = Scene::new();
    unknown.unknown(0, put("a", "1")).effect(put("a", "1"));
    assert_eq!(unknown.check().unwrap().unknown_happened, 1);
    unknown.effect(put("a", "1"));
    assert!(matches!(unknown.check(), Err(Violation::UnexplainedChange { .. })), "unknown means at most once");
}

#[test]
fn a_reordered_write_is_caught() {
    let mut scene = Scene::new();
    scene.txn(10, 11, put("b", "second")).txn(0, 1, put("a", "first"));
    assert!(matches!(scene.check(), Err(Violation::OutOfOrder { .. })));

    let mut overlapping = Scene::new();
    overlapping.txn(1, 11, put("b", "second")).txn(0, 10, put("a", "first"));
    assert!(overlapping.check().is_ok());
}

#[test]
fn one_revision_for_two_writes_is_caught() {
    let mut scene = Scene::new();
    scene.txn(0, 5, put("a", "1")).lie(0, 5, put("a", "1"), 2);
    assert!(matches!(scene.check(), Err(Violation::SharedRevision { .. })));
}

#[test]
fn a_failed_write_that_was_applied_is_caught() {
    let failed = |error| {
        let mut scene = Scene::new();
        scene.note(0, Some(1), Call::Txn(put("a", "1"), Some(Err(error)))).effect(put("a", "1"));
        scene.check()
    };
    assert!(matches!(failed(StoreError::Unavailable("down".into())), Err(Violation::UnexplainedChange { .. })));
    assert_eq!(failed(StoreError::OutcomeUnknown("slow".into())).unwrap().unknown_happened, 1);
}

#[test]
fn an_unknown_outcome_happens_once_or_not_at_all_and_not_before_the_call() {
    let mut absent = Scene::new();
    absent.unknown(0, put("a", "1")).txn(1, 2, put("a", "2"));
    assert_eq!(absent.check().unwrap().unknown_absent, 1);

    let mut early = Scene::new();
    early.effect(put("a", "1")).read(0, 1).unknown(2, put("a", "1"));
    assert!(matches!(early.check(), Err(Violation::UnexplainedChange { .. })));
}

#[test]
fn unknown_outcomes_are_assigned_so_that_every_change_is_explained() {
    // The first change can be explained by either of the two; the second only by the one that compares nothing.
    let mut scene = Scene::new();
    let picky = Txn::new().when(Compare::absent(&key("b"))).put(&key("a"), "1");
    let plain = put("a", "1");
    scene.unknown(0, plain.clone()).unknown(0, picky.clone()).effect(plain.clone());
    scene.txn(1, 2, put("b", "1")).effect(plain);
    assert_eq!(scene.check().unwrap().unknown_happened, 2);
    scene.effect(picky).effect(put("a", "1"));
    assert!(scene.check().is_err());
}

#[test]
fn of_two_deletes_at_one_revision_the_one_that_must_have_deleted_is_chosen() {
    let delete = Txn::new().delete(&key("a"));
    let conditional = delete.clone().when(Compare::value(&key("a"), "1"));
    let mut scene = Scene::new();
    scene.txn(0, 1, put("a", "1")).txn(3, 9, conditional).txn(2, 9, delete);
    let summary = scene.check().unwrap();
    assert_eq!((summary.committed, summary.without_effect), (2, 1));
}

#[test]
fn a_false_refusal_is_caught() {
    let refused = |found| {
        let mut scene = Scene::new();
        scene.txn(0, 1, put("a", "1"));
        let txn = Txn::new().when(Compare::absent(&key("a"))).put(&key("a"), "2").otherwise_get(&key("a"));
        let answer = TxnOutcome::Refused { revision: Revision::new(2), found };
        scene.note(2, Some(3), Call::Txn(txn, Some(Ok(answer))));
        scene.check()
    };
    let truth = {
        let mut model = Model::new(Revision::new(1), Limits::default());
        model.txn(&put("a", "1")).unwrap();
        model.entry(&key("a")).cloned()
    };
    assert!(refused(vec![truth]).is_ok());
    assert!(matches!(refused(vec![None]), Err(Violation::WrongAnswer { .. })));

    let mut holds = Scene::new();
    let txn = Txn::new().when(Compare::absent(&key("a"))).put(&key("a"), "2");
    let answer = TxnOutcome::Refused { revision: Revision::new(1), found: Vec::new() };
    holds.note(0, Some(1), Call::Txn(txn, Some(Ok(answer))));
    assert!(matches!(holds.check(), Err(Violation::WrongAnswer { .. })));
}

#[test]
fn a_torn_log_is_caught() {
    let mut scene = Scene::new();
    scene.txn(0, 1, put("a", "1")).txn(2, 3, put("a", "2")).txn(4, 5, put("b", "1"));
    let mut history = scene.history();
    history.log.remove(1);
    assert!(matches!(check(&history), Err(Violation::BrokenLog { .. })));

    let mut history = scene.history();
    let swapped = history.log[0].change.clone();
    history.log[1].change = swapped;
    assert!(matches!(check(&history), Err(Violation::ImpossibleChange { .. })));
}

#[test]
fn a_history_may_begin_with_a_store_in_use() {
    let mut earlier = Scene::new();
    earlier.txn(0, 1, put("a", "1")).txn(1, 2, put("a", "2"));
    let start = Snapshot { revision: earlier.model.revision(), entries: earlier.model.range(&all()).unwrap().entries };
    earlier.operations.clear();
    earlier.txn(3, 4, put("a", "3")).read(5, 6);
    let log = earlier.model.events(&KeyRange::all(), start.revision.next(), false).unwrap();
    assert!(check(&History { start, operations: earlier.operations, log }).is_ok());
}
