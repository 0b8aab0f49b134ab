//! The model against literal answers: every back end is compared with it, so it must be right by itself.

use super::*;
use crate::Compare;

fn key(text: &str) -> Key {
    Key::try_from(text).unwrap()
}

fn revision(number: u64) -> Revision {
    Revision::new(number)
}

fn committed(model: &mut Model, txn: Txn) -> u64 {
    match model.txn(&txn).unwrap() {
        TxnOutcome::Committed { revision } => revision.get(),
        refused => panic!("{refused:?}"),
    }
}

fn entry(name: &str, value: &str, created: u64, modified: u64, version: u64) -> Entry {
    Entry {
        key: key(name),
        value: Bytes::copy_from_slice(value.as_bytes()),
        create_revision: revision(created),
        mod_revision: revision(modified),
        version,
    }
}

/// Starts at 1; 2: a=1; 3: a=2, b=1; 4: a deleted; 5: a=3.
fn sample() -> Model {
    let mut model = Model::new(revision(1), Limits::default());
    assert_eq!(committed(&mut model, Txn::new().put(&key("a"), "1")), 2);
    assert_eq!(committed(&mut model, Txn::new().put(&key("a"), "2").put(&key("b"), "1")), 3);
    assert_eq!(committed(&mut model, Txn::new().delete(&key("a")).delete(&key("missing"))), 4);
    assert_eq!(committed(&mut model, Txn::new().delete(&key("missing"))), 4);
    assert_eq!(committed(&mut model, Txn::new().put(&key("a"), "3")), 5);
    model
}

fn read(model: &Model, at: u64) -> Result<Vec<Entry>, StoreError> {
    model.range(&RangeRequest::new(KeyRange::all()).at(revision(at))).map(|response| response.entries)
}

#[test]
fn every_revision_is_a_snapshot() {
    let model = sample();
    assert_eq!(read(&model, 1).unwrap(), []);
    assert_eq!(read(&model, 2).unwrap(), [entry("a", "1", 2, 2, 1)]);
    assert_eq!(read(&model, 3).unwrap(), [entry("a", "2", 2, 3, 2), entry("b", "1", 3, 3, 1)]);
    assert_eq!(read(&model, 4).unwrap(), [entry("b", "1", 3, 3, 1)]);
    assert_eq!(read(&model, 5).unwrap(), [entry("a", "3", 5, 5, 1), entry("b", "1", 3, 3, 1)]);
    let future = StoreError::FutureRevision { requested: revision(6), current: revision(5) };
    assert_eq!(read(&model, 6).unwrap_err(), future);
}

#[test]
fn a_limit_cuts_and_the_count_does_not_care() {
    let model = sample();
    let one = model.range(&RangeRequest::new(KeyRange::all()).limit(1)).unwrap();
    assert_eq!((one.entries.len(), one.more, one.count), (1, true, Some(2)));
    let both = model.range(&RangeRequest::new(KeyRange::all()).limit(2).content(Content::KeysOnly)).unwrap();
    assert_eq!((both.entries.len(), both.more), (2, false));
    assert!(both.entries.iter().all(|entry| entry.value.is_empty()));
    let count = model.range(&RangeRequest::prefix("a").content(Content::CountOnly)).unwrap();
    assert_eq!((count.entries.len(), count.more, count.count), (0, false, Some(1)));
    let nothing = model.range(&RangeRequest::new(KeyRange::prefix("a").after(&key("x")))).unwrap();
    assert_eq!(nothing.count, Some(0), "a range that ends before it starts holds nothing");
}

#[test]
fn a_refusal_reads_in_the_order_asked() {
    let mut model = sample();
    let txn = Txn::new().when(Compare::absent(&key("a"))).put(&key("a"), "4");
    let txn = txn.otherwise_get(&key("b")).otherwise_get(&key("missing")).otherwise_get(&key("a"));
    let found = vec![Some(entry("b", "1", 3, 3, 1)), None, Some(entry("a", "3", 5, 5, 1))];
    assert_eq!(model.txn(&txn).unwrap(), TxnOutcome::Refused { revision: revision(5), found });
    assert_eq!(model.revision(), revision(5));
}

#[test]
fn events_tell_the_history_with_what_was_before() {
    let events = sample().events(&KeyRange::exactly(&key("a")), revision(3), true).unwrap();
    let (first, second) = (entry("a", "1", 2, 2, 1), entry("a", "2", 2, 3, 2));
    let third = entry("a", "3", 5, 5, 1);
    let expected = [
        Event { revision: revision(3), change: Change::Put(second.clone()), previous: Some(first) },
        Event { revision: revision(4), change: Change::Delete(key("a")), previous: Some(second) },
        Event { revision: revision(5), change: Change::Put(third), previous: None },
    ];
    assert_eq!(events, expected);
}

#[test]
fn compaction_gives_up_the_past_and_nothing_else() {
    let mut model = sample();
    let kept: Vec<_> = (4..=5).map(|at| read(&model, at)).collect();
    model.compact(revision(4)).unwrap();
    let compacted = StoreError::Compacted { oldest: revision(4) };
    assert_eq!(read(&model, 3).unwrap_err(), compacted);
    assert_eq!((4..=5).map(|at| read(&model, at)).collect::<Vec<_>>(), kept);
    assert_eq!(model.events(&KeyRange::all(), revision(3), false).unwrap_err(), compacted);
    let events = model.events(&KeyRange::all(), revision(4), true).unwrap();
    assert_eq!(events.iter().map(|event| event.revision.get()).collect::<Vec<_>>(), [4, 5]);
    assert_eq!(events[0].previous, None, "the entry before the compact revision is removed");
    assert_eq!(model.compact(revision(4)).unwrap_err(), compacted);
    assert_eq!(model.compact(revision(2)).unwrap_err(), compacted);
    assert!(matches!(model.compact(revision(6)), Err(StoreError::FutureRevision { .. })));
    assert_eq!(model.bytes(), 4, "only a=3 and b=1 are left");
}

#[test]
fn a_quota_refuses_growth_but_not_deletes() {
    let mut model = Model::new(revision(1), Limits { store_bytes: Some(10), ..Limits::default() });
    committed(&mut model, Txn::new().put(&key("a"), "12345678"));
    assert!(matches!(model.txn(&Txn::new().put(&key("b"), "1")), Err(StoreError::Full(_))));
    assert_eq!(committed(&mut model, Txn::new().delete(&key("a"))), 3);
    model.compact(revision(3)).unwrap();
    assert_eq!(committed(&mut model, Txn::new().put(&key("b"), "1")), 4);
}
