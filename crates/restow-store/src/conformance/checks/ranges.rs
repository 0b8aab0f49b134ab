//! Reading one key or many, now or at an older revision.

use super::*;
use crate::{At, Content, Entry, Key, RangeRequest, Revision, StoreError, StoreExt};
use bytes::Bytes;

/// Keys that sort next to each other in ways that go wrong easily, in their order.
const NEIGHBOURS: [&str; 11] =
    ["/", "/a", "/a\u{1}", "/a/", "/a/b", "/a/b\u{1}", "/a/b/c", "/a0", "/ab", "/b", "\u{7f}"];

async fn with_neighbours(fixture: &dyn Fixture) -> Mirror {
    let mut mirror = Mirror::open(fixture).await;
    // Written backwards, so that the order of writing is not the order of the keys.
    for name in NEIGHBOURS.iter().rev() {
        mirror.put(name, &format!("value of {name}")).await;
    }
    mirror
}

fn names(entries: &[Entry]) -> Vec<String> {
    entries.iter().map(|entry| entry.key.to_string()).collect()
}

pub(super) async fn exact_prefix_and_whole_ranges_hold_their_keys_in_order(fixture: &dyn Fixture) {
    let mirror = with_neighbours(fixture).await;
    let all = mirror.range(RangeRequest::new(KeyRange::all())).await.unwrap();
    assert_eq!(names(&all.entries), NEIGHBOURS);
    let folder = mirror.range(RangeRequest::prefix("/a/")).await.unwrap();
    assert_eq!(names(&folder.entries), ["/a/", "/a/b", "/a/b\u{1}", "/a/b/c"]);
    let one = mirror.range(RangeRequest::key(&key("/a"))).await.unwrap();
    assert_eq!(names(&one.entries), ["/a"]);
    assert_eq!(one.entries[0].value, "value of /a");
    for name in NEIGHBOURS {
        for range in [
            KeyRange::exactly(&key(name)),
            KeyRange::prefix(name),
            KeyRange::all().after(&key(name)),
            KeyRange::prefix("/a").after(&key(name)),
            KeyRange::exactly(&key(name)).after(&key(name)),
        ] {
            mirror.range(RangeRequest::new(range)).await.unwrap();
        }
    }
    for prefix in ["", "/a/b/c/d", "0", "\u{7f}"] {
        mirror.range(RangeRequest::prefix(prefix)).await.unwrap();
    }
    mirror.range(RangeRequest::prefix(vec![0xff])).await.unwrap();
}

pub(super) async fn a_limit_truncates_and_sets_more(fixture: &dyn Fixture) {
    let mirror = with_neighbours(fixture).await;
    for limit in 0..=NEIGHBOURS.len() + 1 {
        for content in [Content::Full, Content::KeysOnly, Content::CountOnly] {
            let request = RangeRequest::new(KeyRange::all()).limit(limit).content(content);
            let response = mirror.range(request).await.unwrap();
            if content != Content::CountOnly && (1..NEIGHBOURS.len()).contains(&limit) {
                assert_eq!((response.entries.len(), response.more), (limit, true));
            }
        }
    }
    let exactly_all = mirror.range(RangeRequest::prefix("/a/").limit(4)).await.unwrap();
    assert!(!exactly_all.more, "nothing was cut off");
}

pub(super) async fn pages_at_one_revision_are_its_snapshot(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    let filled = (0..60).fold(Txn::new(), |txn, n| txn.put(&key(&format!("/list/{n:02}")), format!("value {n}")));
    mirror.commit(filled).await;
    let range = KeyRange::prefix("/list/");
    let snapshot = mirror.range(RangeRequest::new(range.clone())).await.unwrap().entries;

    let mut page = mirror.range(RangeRequest::new(range.clone()).limit(7)).await.unwrap();
    let at = page.revision;
    let mut listed = page.entries.clone();
    for turn in 0.. {
        if !page.more {
            break;
        }
        // Behind, at and ahead of the pages: changed, deleted, created.
        mirror.put("/list/00", &format!("turn {turn}")).await;
        mirror.delete(&format!("/list/{}", 59 - turn)).await;
        mirror.put(&format!("/list/{:02}a", turn * 7), "new").await;
        let last: Key = listed.last().unwrap().key.clone();
        page = mirror.range(RangeRequest::new(range.after(&last)).at(at).limit(7)).await.unwrap();
        listed.extend(page.entries.clone());
    }
    assert_eq!(listed, snapshot);
}

pub(super) async fn content_is_what_was_requested(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    write_a_history(&mut mirror).await;
    let full = mirror.range(RangeRequest::prefix("/a/")).await.unwrap();
    let keys = mirror.range(RangeRequest::prefix("/a/").content(Content::KeysOnly)).await.unwrap();
    let emptied: Vec<Entry> = full.entries.iter().map(|entry| Entry { value: Bytes::new(), ..entry.clone() }).collect();
    assert_eq!(keys.entries, emptied);
    assert!(full.entries.iter().any(|entry| !entry.value.is_empty()), "there must be values to leave out");
    let count = mirror.range(RangeRequest::prefix("/a/").content(Content::CountOnly)).await.unwrap();
    assert_eq!((count.entries.len(), count.count), (0, Some(full.entries.len() as u64)));
    let limited = mirror.range(RangeRequest::prefix("/a/").content(Content::CountOnly).limit(1)).await.unwrap();
    assert_eq!(limited.count, count.count, "a limit does not change the count");
    assert_eq!(mirror.store.count(KeyRange::prefix("/none/"), At::Latest).await, Ok(0));
}

pub(super) async fn every_old_revision_is_exact(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    let start = mirror.revision();
    write_a_history(&mut mirror).await;
    mirror.read_every_revision(start, &ranges_of_interest()).await;
}

pub(super) async fn a_future_revision_is_an_error(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    let current = mirror.put("/a", "1").await;
    for ahead in [1, 2, 1_000_000] {
        let requested = Revision::new(current.get() + ahead);
        let answer = mirror.range(RangeRequest::prefix("/").at(requested)).await;
        assert_eq!(answer, Err(StoreError::FutureRevision { requested, current }));
    }
    mirror.range(RangeRequest::prefix("/").at(current)).await.unwrap();
}

/// Zero means "before every change". A back end whose own protocol uses zero for "latest" must not let that through.
pub(super) async fn revision_zero_is_not_the_latest(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    mirror.put("/a", "1").await;
    match mirror.store.range(RangeRequest::prefix("/").at(Revision::ZERO)).await {
        Ok(response) => assert_eq!((response.entries, response.more), (vec![], false)),
        Err(StoreError::Compacted { .. } | StoreError::Invalid(_)) => {}
        Err(other) => panic!("a read at revision zero failed with {other:?}"),
    }
}

pub(super) async fn many_keys_are_listed_and_counted(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    for batch in 0..24 {
        let names = (0..Txn::MAX_OPERATIONS).map(|n| key(&format!("/many/{batch:02}/{n:03}")));
        mirror.commit(names.fold(Txn::new(), |txn, name| txn.put(&name, "x"))).await;
    }
    let total = 24 * Txn::MAX_OPERATIONS;
    assert_eq!(mirror.range(RangeRequest::prefix("/many/")).await.unwrap().entries.len(), total);
    assert_eq!(mirror.store.count(KeyRange::all(), At::Latest).await, Ok(total as u64));
    for limit in [1, 999, 1000, 1001, total - 1, total] {
        mirror.range(RangeRequest::prefix("/many/").limit(limit)).await.unwrap();
    }
}

/// Four MiB is the default limit of gRPC messages.
pub(super) async fn more_than_four_mebibytes_are_read_and_watched(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    let first = mirror.revision().next();
    let size = mirror.limits().value_bytes.min(1 << 20);
    for number in 0..=(5 << 20) / size {
        mirror.commit(Txn::new().put(&key(&format!("/large/{number:05}")), vec![b'x'; size])).await;
    }
    mirror.range(RangeRequest::prefix("/large/")).await.unwrap();
    mirror.watch_to_the_end(vec![(KeyRange::prefix("/large/"), first)]).await;
}
