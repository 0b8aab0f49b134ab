//! Watches: everything from the start revision on, once, in order, each revision whole.

use super::*;
use crate::conformance::WatchReader;
use crate::conformance::seed::Seed;
use crate::conformance::writers::{FOLDERS, Writers, name};
use crate::{Change, Entry, Event, Revision, StoreError, WatchRequest};
use std::time::Duration;
use tokio::sync::watch::{Receiver, channel};
use tokio::task::JoinHandle;
use tokio::time::timeout;

pub(super) async fn every_start_revision_gives_the_rest_of_history(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    let start = mirror.revision();
    write_a_history(&mut mirror).await;
    let starts = (start.get()..=mirror.revision().get()).map(Revision::new);
    let watches = starts.flat_map(|from| ranges_of_interest().into_iter().map(move |range| (range, from)));
    mirror.watch_to_the_end(watches.collect()).await;
}

pub(super) async fn a_watch_from_now_starts_after_the_call(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    mirror.put("/a/1", "before").await;
    let mut reader = mirror.follow(WatchRequest::from_now(KeyRange::prefix("/a/"))).await;
    let first = mirror.put("/a/2", "after").await;
    let second = mirror.delete("/a/1").await;
    reader.until(second).await.unwrap();
    assert_eq!(reader.events(), mirror.model.events(&KeyRange::all(), first, false).unwrap());
}

pub(super) async fn a_watch_from_a_future_revision_waits_for_it(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    let latest = mirror.put("/a", "0").await;
    let from = Revision::new(latest.get() + 3);
    let mut reader = mirror.follow(WatchRequest::from(KeyRange::all(), from)).await;
    for value in ["1", "2", "3", "4"] {
        mirror.put("/a", value).await;
    }
    reader.until(mirror.revision()).await.unwrap();
    assert_eq!(reader.events(), mirror.model.events(&KeyRange::all(), from, false).unwrap());
    assert_eq!(reader.events().len(), 2);
}

/// Zero is before every change. A back end whose own protocol uses zero for "now" must not let that through.
pub(super) async fn revision_zero_is_not_now(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    let latest = mirror.put("/a", "1").await;
    let request = WatchRequest::from(KeyRange::all(), Revision::ZERO);
    let answer = match WatchReader::start(&*mirror.store, request).await {
        Ok(mut reader) => reader.until(latest).await.map(|()| reader.events().to_vec()),
        Err(error) => Err(error),
    };
    match answer {
        Ok(events) => assert_eq!(events, mirror.model.events(&KeyRange::all(), latest, false).unwrap()),
        Err(StoreError::Compacted { .. } | StoreError::Invalid(_)) => {}
        Err(other) => panic!("a watch from revision zero failed with {other:?}"),
    }
}

pub(super) async fn previous_entries_come_if_requested(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    let created = mirror.put("/a", "1").await;
    let changed = mirror.put("/a", "2").await;
    let deleted = mirror.delete("/a").await;
    let recreated = mirror.put("/a", "3").await;
    let entry = |value: &'static str, create_revision, mod_revision, version| Entry {
        key: key("/a"),
        value: value.into(),
        create_revision,
        mod_revision,
        version,
    };
    let (first, second) = (entry("1", created, created, 1), entry("2", created, changed, 2));
    let with_previous = [
        Event { revision: created, change: Change::Put(first.clone()), previous: None },
        Event { revision: changed, change: Change::Put(second.clone()), previous: Some(first) },
        Event { revision: deleted, change: Change::Delete(key("/a")), previous: Some(second) },
        Event { revision: recreated, change: Change::Put(entry("3", recreated, recreated, 1)), previous: None },
    ];
    let request = WatchRequest::from(KeyRange::all(), created);
    let mut asking = mirror.follow(request.clone().with_previous()).await;
    asking.until(recreated).await.unwrap();
    assert_eq!(asking.events(), with_previous);
    let mut not_asking = mirror.follow(request).await;
    not_asking.until(recreated).await.unwrap();
    let without: Vec<Event> = with_previous.iter().map(|event| Event { previous: None, ..event.clone() }).collect();
    assert_eq!(not_asking.events(), without);

    // The same must hold for a change that comes while the watch runs, and for a watch that did not request it.
    let again = mirror.put("/a", "4").await;
    asking.until(again).await.unwrap();
    not_asking.until(again).await.unwrap();
    assert_eq!(asking.events()[4].previous.as_ref().map(|entry| &entry.value[..]), Some(&b"3"[..]));
    assert_eq!(not_asking.events()[4].previous, None);
}

pub(super) async fn only_changes_in_the_range_come(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    let first = mirror.revision().next();
    let mut readers = Vec::new();
    for range in ranges_of_interest() {
        readers.push((mirror.follow(WatchRequest::from_now(range.clone())).await, range));
    }
    let nothing = KeyRange::exactly(&key("/a/1")).after(&key("/a/1"));
    let empty = WatchReader::start(&*mirror.store, WatchRequest::from(nothing, first)).await;
    write_a_history(&mut mirror).await;
    for (reader, range) in &mut readers {
        reader.until(mirror.revision()).await.unwrap();
        assert_eq!(reader.events(), mirror.model.events(range, first, false).unwrap(), "{range:?}");
    }
    // A range that no key is in has no changes; if it is watched at all, its reader sees that none come. All other
    // watches are through with this history, so what it would wrongly get has had its time.
    if let Ok(mut empty) = empty
        && let Ok(Ok(batch)) = timeout(Duration::from_millis(200), empty.batch()).await
    {
        assert_eq!(batch.events, []);
    }
}

pub(super) async fn one_revision_comes_in_one_batch(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    let first = mirror.revision().next();
    let mut live = mirror.follow(WatchRequest::from_now(KeyRange::all())).await;
    // Together they must fit into what a back end takes as one request.
    let size = (mirror.limits().value_bytes / (2 * Txn::MAX_OPERATIONS)).min(4096);
    for round in 0..4u8 {
        let names = (0..Txn::MAX_OPERATIONS).map(|n| key(&format!("/k{n:03}")));
        let revision = mirror.commit(names.fold(Txn::new(), |txn, name| txn.put(&name, vec![round; size]))).await;
        live.until(revision).await.unwrap();
    }
    // The reader refuses a revision that is torn apart; what is left is that all of it came.
    assert_eq!(live.events(), mirror.model.events(&KeyRange::all(), first, false).unwrap());
    mirror.watch_to_the_end(vec![(KeyRange::all(), first), (KeyRange::prefix("/k12"), first)]).await;
}

/// Reads a watch up to a revision that is set later, on a task of its own.
fn follow_to(mut reader: WatchReader, mut end: Receiver<Option<Revision>>) -> JoinHandle<WatchReader> {
    tokio::spawn(async move {
        let end_set = timeout(TIMEOUT * 2, end.wait_for(Option::is_some));
        tokio::pin!(end_set);
        // Batches are read as they come, as a live watcher does, until the end is known.
        let last = loop {
            tokio::select! {
                end = &mut end_set => break end.expect("the writers must end").expect("the check has ended").unwrap(),
                batch = reader.batch() => drop(batch.expect("a watch of a healthy store goes on")),
            }
        };
        reader.until(last).await.expect("a watch of a healthy store goes on");
        reader
    })
}

/// Touches every folder, so that each watch has an event to stop at.
async fn touch_every_folder(mirror: &mut Mirror) -> Revision {
    let ending = (0..FOLDERS).fold(Txn::new(), |txn, folder| txn.put(&key(&name(folder, 0)), "the end"));
    mirror.commit(ending).await
}

pub(super) async fn concurrent_writers_are_seen_in_order_by_every_watcher(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    let first = mirror.revision().next();
    let seed = Seed::take();
    let (set_end, end) = channel(None);
    let mut watchers = Vec::new();
    for number in 0..40 {
        let range = match number % 5 {
            0 => KeyRange::all(),
            folder => KeyRange::prefix(format!("/folder-{}/", folder - 1)),
        };
        let request = WatchRequest::from(range.clone(), first).with_previous();
        watchers.push((range, follow_to(mirror.follow(request).await, end.clone())));
    }
    let writers = Writers::start(&mirror.store, &seed, 8, 40);
    mirror.model = writers.finish(mirror.model).await;
    set_end.send_replace(Some(touch_every_folder(&mut mirror).await));
    for (range, watcher) in watchers {
        let reader = watcher.await.expect("a watcher saw something impossible");
        assert_eq!(reader.events(), mirror.model.events(&range, first, true).unwrap(), "{range:?}");
    }
}

pub(super) async fn watches_started_during_writes_miss_nothing(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    let first = mirror.revision().next();
    let seed = Seed::take();
    let (set_end, end) = channel(None);
    let writers = Writers::start(&mirror.store, &seed, 6, 60);
    let mut watchers = Vec::new();
    // Each watch begins behind, at, or ahead of a revision that is moving while it begins.
    for number in 0.. {
        if writers.are_done() || number == 60 {
            break;
        }
        let now = mirror.store.status().await.unwrap().revision.get();
        let from = Revision::new((now + number % 9).saturating_sub(6).max(first.get()));
        let reader = mirror.follow(WatchRequest::from(KeyRange::all(), from)).await;
        watchers.push((from, follow_to(reader, end.clone())));
    }
    mirror.model = writers.finish(mirror.model).await;
    // Eight revisions ahead is the most that a watch above began in the future.
    for _ in 0..8 {
        touch_every_folder(&mut mirror).await;
    }
    set_end.send_replace(Some(mirror.revision()));
    assert!(!watchers.is_empty());
    for (from, watcher) in watchers {
        let reader = watcher.await.expect("a watcher saw something impossible");
        assert_eq!(reader.events(), mirror.model.events(&KeyRange::all(), from, false).unwrap(), "from {from}");
    }
}

pub(super) async fn a_slow_watcher_gets_everything_or_an_error(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    let first = mirror.revision().next();
    let seed = Seed::take();
    let mut slow = mirror.follow(WatchRequest::from(KeyRange::all(), first)).await;
    // It reads nothing while all this is written.
    let writers = Writers::start(&mirror.store, &seed, 24, 50);
    mirror.model = writers.finish(mirror.model).await;
    let last = touch_every_folder(&mut mirror).await;
    let expected = mirror.model.events(&KeyRange::all(), first, false).unwrap();
    match slow.until(last).await {
        Ok(()) => assert_eq!(slow.events(), expected),
        Err(error) => {
            assert!(expected.starts_with(slow.events()), "a gap before {error:?}");
            let mut rest = mirror.follow(WatchRequest::from(KeyRange::all(), slow.delivered().next())).await;
            rest.until(last).await.expect("what was not delivered can be watched again");
            assert_eq!([slow.events(), rest.events()].concat(), expected);
        }
    }
    // One who comes late has the same long way to go.
    mirror.watch_to_the_end(vec![(KeyRange::all(), first), (KeyRange::prefix("/folder-1/"), first)]).await;
}

pub(super) async fn dropped_watches_do_not_affect_others(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    let first = mirror.revision().next();
    let mut kept = Vec::new();
    for round in 0..20 {
        let dropped = mirror.follow(WatchRequest::from(KeyRange::all(), first)).await;
        if round % 2 == 0 {
            kept.push(mirror.follow(WatchRequest::from(KeyRange::all(), first)).await);
        }
        drop(dropped);
        let mut dropped_later = mirror.follow(WatchRequest::from(KeyRange::all(), first)).await;
        let revision = mirror.put("/a", &format!("{round}")).await;
        dropped_later.until(revision).await.unwrap();
        // Some of those that stay are read as they go, the others only in the end.
        for reader in kept.iter_mut().step_by(2) {
            reader.until(revision).await.unwrap();
        }
    }
    for mut reader in kept {
        reader.until(mirror.revision()).await.unwrap();
        assert_eq!(reader.events(), mirror.model.events(&KeyRange::all(), first, false).unwrap());
    }
}
