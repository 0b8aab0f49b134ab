//! Comparisons, all-or-nothing changes, and the conflicts that they report.

use super::*;
use crate::{
    Compare, CompareTarget, RangeRequest, Relation, Revision, Store, StoreError, StoreExt, TxnOutcome, WatchRequest,
};
use bytes::Bytes;
use std::sync::Arc;

const RELATIONS: [Relation; 4] = [Relation::Equal, Relation::NotEqual, Relation::Greater, Relation::Less];

pub(super) async fn every_comparison_holds_when_it_should(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    let created = mirror.put("/present", "k").await;
    mirror.put("/present", "l").await;
    let modified = mirror.put("/present", "m").await;
    mirror.put("/deleted", "m").await;
    mirror.delete("/deleted").await;
    let around = |number: u64| [0, number - 1, number, number + 1, u64::from(u32::MAX)];
    let mut targets: Vec<CompareTarget> =
        ["", "l", "m", "ma", "n"].map(|value| CompareTarget::Value(Bytes::from_static(value.as_bytes()))).to_vec();
    targets.extend(around(3).map(CompareTarget::Version));
    targets.extend(around(created.get()).map(|number| CompareTarget::CreateRevision(Revision::new(number))));
    targets.extend(around(modified.get()).map(|number| CompareTarget::ModRevision(Revision::new(number))));
    let (mut committed, mut refused) = (0, 0);
    for name in ["/present", "/deleted", "/never"] {
        for target in &targets {
            for relation in RELATIONS {
                let compare = Compare { key: key(name), relation, target: target.clone() };
                // Nothing to change, so that all comparisons meet the same state.
                match mirror.txn(Txn::new().when(compare).delete(&key("/none"))).await.unwrap() {
                    TxnOutcome::Committed { .. } => committed += 1,
                    TxnOutcome::Refused { .. } => refused += 1,
                }
            }
        }
    }
    assert!(committed > 40 && refused > 40, "both answers must occur: {committed} and {refused}");
}

pub(super) async fn all_comparisons_must_hold(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    let first = mirror.put("/a", "1").await;
    let second = mirror.put("/b", "2").await;
    let holds = [Compare::mod_revision(&key("/a"), first), Compare::value(&key("/b"), "2")];
    let fails = [Compare::mod_revision(&key("/b"), first), Compare::exists(&key("/c"))];
    for (compares, expected) in [
        (vec![holds[0].clone(), holds[1].clone()], true),
        (vec![holds[0].clone(), fails[0].clone()], false),
        (vec![fails[1].clone(), holds[1].clone()], false),
        (vec![fails[0].clone(), fails[1].clone()], false),
        // Several comparisons of one key.
        (vec![Compare::exists(&key("/b")), Compare::mod_revision(&key("/b"), second)], true),
        (vec![Compare::exists(&key("/b")), Compare::absent(&key("/b"))], false),
        (vec![], true),
    ] {
        let txn = compares.into_iter().fold(Txn::new(), Txn::when);
        let outcome = mirror.txn(txn.put(&key("/written"), "x")).await.unwrap();
        assert_eq!(matches!(outcome, TxnOutcome::Committed { .. }), expected, "{outcome:?}");
    }
}

pub(super) async fn a_refused_transaction_reads_in_order(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    mirror.put("/a", "1").await;
    mirror.put("/b", "2").await;
    mirror.put("/a", "3").await;
    let never = Txn::new().when(Compare::exists(&key("/missing"))).put(&key("/a"), "4");
    let reading = ["/b", "/missing", "/a", "/b"].into_iter().fold(never, |txn, name| txn.otherwise_get(&key(name)));
    let TxnOutcome::Refused { found, .. } = mirror.txn(reading).await.unwrap() else { panic!("it cannot commit") };
    let values: Vec<Option<Bytes>> = found.into_iter().map(|entry| entry.map(|entry| entry.value)).collect();
    assert_eq!(values, [Some("2".into()), None, Some("3".into()), Some("2".into())]);
}

pub(super) async fn mutations_share_one_revision(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    mirror.put("/d", "1").await;
    mirror.put("/b", "1").await;
    let txn = Txn::new().put(&key("/c"), "2").delete(&key("/d")).delete(&key("/none"));
    let revision = mirror.commit(txn.put(&key("/a"), "2").put(&key("/b"), "2")).await;
    let entries = mirror.range(RangeRequest::prefix("/")).await.unwrap().entries;
    let changed: Vec<_> = entries.iter().map(|entry| (entry.key.to_string(), entry.mod_revision)).collect();
    assert_eq!(changed, ["/a", "/b", "/c"].map(|name| (name.to_owned(), revision)));
    let mut reader = mirror.follow(WatchRequest::from(KeyRange::all(), revision)).await;
    reader.until(revision).await.unwrap();
    let order: Vec<String> = reader.events().iter().map(|event| event.key().to_string()).collect();
    assert_eq!(order, ["/c", "/d", "/a", "/b"], "events come in the order of the transaction");
}

pub(super) async fn a_refused_transaction_changes_nothing(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    let first = mirror.put("/a", "1").await;
    mirror.put("/a", "2").await;
    let stale = Txn::new().when(Compare::mod_revision(&key("/a"), first));
    let outcome = mirror.txn(stale.put(&key("/a"), "3").put(&key("/b"), "3").delete(&key("/a0"))).await.unwrap();
    assert!(matches!(outcome, TxnOutcome::Refused { .. }));
    let entries = mirror.range(RangeRequest::new(KeyRange::all())).await.unwrap().entries;
    assert_eq!((entries.len(), &entries[0].value[..]), (1, &b"2"[..]));
}

pub(super) async fn invalid_transactions_are_refused(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    mirror.put("/a", "1").await;
    let a = key("/a");
    let too_many = || (0..=Txn::MAX_OPERATIONS).map(|n| key(&format!("/k{n}")));
    for (what, txn) in [
        ("a key put twice", Txn::new().put(&a, "2").put(&a, "3")),
        ("a key put and deleted", Txn::new().put(&a, "2").delete(&a)),
        ("a key deleted twice", Txn::new().delete(&a).put(&key("/b"), "2").delete(&a)),
        ("too many mutations", too_many().fold(Txn::new(), |txn, name| txn.put(&name, "2"))),
        ("too many comparisons", too_many().fold(Txn::new(), |txn, name| txn.when(Compare::absent(&name)))),
        ("too many reads", too_many().fold(Txn::new(), |txn, name| txn.otherwise_get(&name))),
    ] {
        let answer = mirror.txn(txn).await;
        assert!(matches!(answer, Err(StoreError::Invalid(_))), "{what}: {answer:?}");
    }
    let entries = mirror.range(RangeRequest::new(KeyRange::all())).await.unwrap().entries;
    assert_eq!((entries.len(), entries[0].version), (1, 1), "nothing of it may have been applied");
}

pub(super) async fn the_largest_transaction_works(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    let names: Vec<_> = (0..Txn::MAX_OPERATIONS).map(|n| key(&format!("/k{n:03}"))).collect();
    let full = names
        .iter()
        .fold(Txn::new(), |txn, name| txn.when(Compare::absent(name)).put(name, "created").otherwise_get(name));
    assert!(matches!(mirror.txn(full.clone()).await, Ok(TxnOutcome::Committed { .. })));
    match mirror.txn(full).await.unwrap() {
        TxnOutcome::Refused { found, .. } => assert_eq!(found.iter().flatten().count(), Txn::MAX_OPERATIONS),
        committed => panic!("the keys exist: {committed:?}"),
    }
    mirror.commit(names.iter().fold(Txn::new(), |txn, name| txn.delete(name))).await;
    mirror.range(RangeRequest::new(KeyRange::all())).await.unwrap();
}

pub(super) async fn readers_see_all_of_a_transaction_or_nothing(fixture: &dyn Fixture) {
    let mirror = Mirror::open(fixture).await;
    let readers: Vec<_> = (0..3).map(|_| tokio::spawn(read_until_the_last_round(mirror.store.clone()))).collect();
    for round in 1..=ROUNDS {
        let txn = (0..5).fold(Txn::new(), |txn, n| txn.put(&key(&format!("/together/{n}")), format!("{round}")));
        mirror.store.txn(txn).await.unwrap();
    }
    for reader in readers {
        reader.await.expect("a reader saw something impossible");
    }
}

const ROUNDS: u32 = 60;

async fn read_until_the_last_round(store: Arc<dyn Store>) {
    let (mut last_round, mut last_revision) = (0, Revision::ZERO);
    while last_round < ROUNDS {
        let response = store.range(RangeRequest::prefix("/together/")).await.unwrap();
        let rounds: Vec<u32> =
            response.entries.iter().map(|entry| std::str::from_utf8(&entry.value).unwrap().parse().unwrap()).collect();
        assert!(rounds.is_empty() || rounds.len() == 5, "half a transaction: {response:?}");
        assert!(rounds.windows(2).all(|pair| pair[0] == pair[1]), "half a transaction: {response:?}");
        let round = rounds.first().copied().unwrap_or(0);
        assert!(round >= last_round && response.revision >= last_revision, "time went back: {response:?}");
        (last_round, last_revision) = (round, response.revision);
    }
}

pub(super) async fn conflicts_carry_the_current_entry(fixture: &dyn Fixture) {
    let mirror = Mirror::open(fixture).await;
    let store = &mirror.store;
    let a = key("/a");
    let conflict = |current| Err(StoreError::Conflict { key: key("/a"), current });
    assert_eq!(store.update(&a, "x".into(), Revision::new(1)).await, conflict(None));
    assert_eq!(store.remove(&a, Revision::new(1)).await, conflict(None));

    let created = store.create(&a, "1".into()).await.unwrap();
    let first = store.get(&a).await.unwrap().map(Box::new);
    assert_eq!(store.create(&a, "x".into()).await, conflict(first.clone()));
    assert_eq!(first.unwrap().mod_revision, created);

    let updated = store.update(&a, "2".into(), created).await.unwrap();
    let second = store.get(&a).await.unwrap().map(Box::new);
    assert_eq!(second.as_ref().map(|entry| (entry.mod_revision, entry.version)), Some((updated, 2)));
    assert_eq!(store.update(&a, "x".into(), created).await, conflict(second.clone()));
    assert_eq!(store.remove(&a, created).await, conflict(second));

    let removed = store.remove(&a, updated).await.unwrap();
    assert_eq!(store.get(&a).await, Ok(None));
    assert_eq!(store.update(&a, "x".into(), updated).await, conflict(None));
    let forced = store.put(&a, "3".into()).await.unwrap();
    assert_eq!((removed, forced), (updated.next(), updated.next().next()));
}
