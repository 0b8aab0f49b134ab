//! Compaction: requests before the compact revision fail with that revision, later ones are exact.

use super::*;
use crate::conformance::WatchReader;
use crate::conformance::seed::Seed;
use crate::conformance::writers::Writers;
use crate::{Entry, RangeRequest, Revision, Store, StoreError, StoreExt, WatchRequest};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) async fn reads_before_the_compact_revision_fail_and_later_ones_are_exact(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    let start = mirror.revision();
    write_a_history(&mut mirror).await;
    let ranges = [KeyRange::all(), KeyRange::prefix("/a/"), KeyRange::exactly(&key("/a/2"))];
    // Compacts at puts, at deletes, and at the latest revision.
    for compact_revision in [start.get() + 2, start.get() + 5, start.get() + 9, mirror.revision().get()] {
        mirror.compact(Revision::new(compact_revision)).await.unwrap();
        mirror.read_every_revision(start, &ranges).await;
        mirror.range(RangeRequest::new(KeyRange::all())).await.unwrap();
    }
    end_a_history(&mut mirror).await;
    mirror.read_every_revision(start, &ranges).await;
    let oldest = mirror.model.compact_revision();
    let before = Revision::new(oldest.get() - 1);
    let answer = mirror.store.range(RangeRequest::new(KeyRange::all()).at(before)).await;
    assert_eq!(answer, Err(StoreError::Compacted { oldest }));
}

pub(super) async fn impossible_compactions_fail(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    let first = mirror.put("/a", "1").await;
    let compact_revision = mirror.put("/a", "2").await;
    let current = mirror.put("/a", "3").await;
    let requested = current.next();
    assert_eq!(mirror.compact(requested).await, Err(StoreError::FutureRevision { requested, current }));
    mirror.compact(compact_revision).await.unwrap();
    assert_eq!(mirror.compact(compact_revision).await, Err(StoreError::Compacted { oldest: compact_revision }));
    assert_eq!(mirror.compact(first).await, Err(StoreError::Compacted { oldest: compact_revision }));
    assert_eq!(mirror.compact(requested).await, Err(StoreError::FutureRevision { requested, current }));
    assert_eq!(mirror.revision(), mirror.store.status().await.unwrap().revision, "compaction is not a change");
    mirror.compact(current).await.unwrap();
    mirror.range(RangeRequest::new(KeyRange::all())).await.unwrap();
}

/// The error of a watch that cannot be served, from the call or as the first item.
async fn refusal(store: &dyn Store, request: WatchRequest) -> StoreError {
    match WatchReader::start(store, request).await {
        Err(error) => error,
        Ok(mut reader) => match reader.batch().await {
            Err(error) => error,
            Ok(batch) => panic!("a watch of what is compacted delivered {batch:?}"),
        },
    }
}

pub(super) async fn watches_before_the_compact_revision_fail_and_later_ones_are_exact(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    let start = mirror.revision();
    write_a_history(&mut mirror).await;
    for compact_revision in [start.get() + 5, start.get() + 8] {
        let oldest = Revision::new(compact_revision);
        mirror.compact(oldest).await.unwrap();
        let mut watches = Vec::new();
        for range in ranges_of_interest() {
            for number in start.get()..compact_revision {
                let request = WatchRequest::from(range.clone(), Revision::new(number)).with_previous();
                assert_eq!(refusal(&*mirror.store, request).await, StoreError::Compacted { oldest });
            }
            // The first change after the compact revision still has its previous entry.
            let starts = (compact_revision + 1..=mirror.revision().get()).map(Revision::new);
            watches.extend(starts.map(|from| (range.clone(), from)));
        }
        mirror.watch_to_the_end(watches).await;
    }
}

/// A back end may have removed the change at the compact revision itself, since only the state after it must be kept. Then
/// the watch must fail; it must not skip the change.
pub(super) async fn a_watch_from_the_compact_revision_misses_nothing(fixture: &dyn Fixture) {
    for compacts_a_delete in [false, true] {
        let mut mirror = Mirror::open(fixture).await;
        mirror.put("/a", "1").await;
        mirror.put("/b", "1").await;
        let compact_revision = if compacts_a_delete { mirror.delete("/a").await } else { mirror.put("/a", "2").await };
        let last = mirror.put("/b", "2").await;
        mirror.compact(compact_revision).await.unwrap();
        // Where space is reclaimed in the background, a little later the change may be gone: try until it has been
        // the same for a while of other calls.
        for _ in 0..50 {
            let expected = mirror.model.events(&KeyRange::all(), compact_revision, false).unwrap();
            let request = WatchRequest::from(KeyRange::all(), compact_revision);
            let answer = match WatchReader::start(&*mirror.store, request).await {
                Ok(mut reader) => reader.until(last).await.map(|()| reader.events().to_vec()),
                Err(error) => Err(error),
            };
            match answer {
                Ok(events) => assert_eq!(events, expected, "the change at the compact revision was skipped"),
                Err(error) => assert_eq!(error, StoreError::Compacted { oldest: compact_revision }),
            }
        }
    }
}

pub(super) async fn a_running_watch_continues(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    let first = mirror.revision().next();
    let mut reader = mirror.follow(WatchRequest::from(KeyRange::all(), first).with_previous()).await;
    let mut expected = Vec::new();
    for round in 0..5 {
        let latest = mirror.put("/a", &format!("{round}")).await;
        mirror.put("/b", &format!("{round}")).await;
        let last = mirror.delete("/b").await;
        expected.extend(mirror.model.events(&KeyRange::all(), latest, true).unwrap());
        reader.until(last).await.unwrap();
        mirror.compact(last).await.unwrap();
    }
    assert_eq!(reader.events(), expected);
}

/// A list that a pager read at one revision, and whether it came to its end.
struct Paged {
    at: Revision,
    entries: Vec<Entry>,
    refused: bool,
}

pub(super) async fn pages_during_compaction_are_complete_or_refused(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    let seed = Seed::take();
    let done = Arc::new(AtomicBool::new(false));
    let pagers: Vec<_> = (0..3).map(|_| tokio::spawn(page(mirror.store.clone(), done.clone()))).collect();
    let compactor = tokio::spawn(keep_compacting(mirror.store.clone(), mirror.revision(), done.clone()));
    let writers = Writers::start(&mirror.store, &seed, 6, 50);
    mirror.model = writers.finish(mirror.model).await;
    done.store(true, Ordering::Relaxed);
    let compact_revision = compactor.await.expect("the compactor must not fail");
    let mut whole = 0;
    for pager in pagers {
        for paged in pager.await.expect("a pager saw something impossible") {
            // The model has forgotten nothing.
            let truth = mirror.model.range(&RangeRequest::new(KeyRange::all()).at(paged.at)).unwrap().entries;
            assert!(truth.starts_with(&paged.entries), "a partial answer at {}: {:?}", paged.at, paged.entries);
            if !paged.refused {
                assert_eq!(paged.entries, truth, "a partial answer at {}", paged.at);
                whole += 1;
            }
        }
    }
    assert!(whole > 0, "there must have been something to check");
    // What is left after all this is exact, too.
    mirror.model.compact(compact_revision).unwrap();
    let from = Revision::new(mirror.revision().get().saturating_sub(8));
    mirror.read_every_revision(from, &[KeyRange::all()]).await;
}

/// Lists everything in small pages, again and again, as often as can be remembered.
async fn page(store: Arc<dyn Store>, done: Arc<AtomicBool>) -> Vec<Paged> {
    let mut lists = Vec::new();
    while lists.is_empty() || (!done.load(Ordering::Relaxed) && lists.len() < 500) {
        let mut response = store.range(RangeRequest::new(KeyRange::all()).limit(5)).await.unwrap();
        let mut paged = Paged { at: response.revision, entries: response.entries, refused: false };
        while response.more {
            let rest = KeyRange::all().after(&paged.entries.last().unwrap().key);
            match store.range(RangeRequest::new(rest).limit(5).at(paged.at)).await {
                Ok(next) => response = next,
                Err(StoreError::Compacted { oldest }) if oldest > paged.at => {
                    paged.refused = true;
                    break;
                }
                Err(other) => panic!("a page at {} failed with {other:?}", paged.at),
            }
            paged.entries.append(&mut response.entries);
        }
        lists.push(paged);
    }
    lists
}

/// Compacts a few revisions behind the latest while it grows, at least once; returns the last compact revision.
async fn keep_compacting(store: Arc<dyn Store>, start: Revision, done: Arc<AtomicBool>) -> Revision {
    let mut compact_revision = start;
    while compact_revision == start || !done.load(Ordering::Relaxed) {
        let now = store.status().await.unwrap().revision;
        let wanted = Revision::new(now.get().saturating_sub(4));
        if wanted > compact_revision {
            store.compact(wanted).await.unwrap();
            compact_revision = wanted;
        } else {
            store.count(KeyRange::all(), crate::At::Latest).await.unwrap();
        }
    }
    compact_revision
}
