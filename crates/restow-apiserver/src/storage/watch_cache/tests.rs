//! The bounds of rings and of what watchers receive, by number and by size.

use super::*;

fn watch_cache(max_bytes: usize) -> WatchCache {
    let state = State { rings: BTreeMap::new(), since: Revision::ZERO, lost: Revision::ZERO };
    let (reached, losses) = (watch::channel(Revision::ZERO).0, watch::Sender::new(0));
    WatchCache { state: Mutex::new(state), reached, losses, held_bytes: Arc::default(), max_bytes }
}

/// The creation of an object of so many bytes.
fn created(folder: &str, name: &str, revision: u64, bytes: usize) -> Event {
    let revision = Revision::new(revision);
    let key = Key::try_from(format!("/core/{folder}/{name}")).unwrap();
    let entry =
        Entry { key, value: vec![b'x'; bytes].into(), create_revision: revision, mod_revision: revision, version: 1 };
    Event { revision, change: Change::Put(entry), previous: None }
}

fn publish(watch_cache: &WatchCache, revision: u64, events: Vec<Event>) {
    watch_cache.publish(events);
    watch_cache.reached.send_replace(Revision::new(revision));
}

fn subscribe(watch_cache: &WatchCache, folder: &str, after: u64) -> Result<Subscription, Expired> {
    let folder = format!("/core/{folder}/");
    watch_cache.subscribe(&folder, KeyRange::prefix(folder.clone()), Revision::new(after))
}

fn revisions(events: &[Arc<CacheEvent>]) -> Vec<u64> {
    events.iter().map(|event| event.revision.get()).collect()
}

#[tokio::test]
async fn a_watcher_receives_bounded_batches_of_whole_revisions() {
    let watch_cache = watch_cache(ALL_BYTES);
    let mut watcher = subscribe(&watch_cache, "maps", 0).unwrap();
    for revision in 1..=3 {
        let large = ["a", "b"].map(|name| created("maps", name, revision, BATCH_BYTES));
        publish(&watch_cache, revision, large.into());
    }
    publish(&watch_cache, 4, vec![created("maps", "c", 4, 1)]);
    publish(&watch_cache, 5, vec![created("maps", "d", 5, 1)]);
    publish(&watch_cache, 9, vec![created("others", "a", 9, 1)]);
    for revision in 1..=3 {
        let (events, reached) = watcher.next().await.unwrap();
        assert_eq!((revisions(&events), reached.get()), (vec![revision, revision], revision));
    }
    let (events, reached) = watcher.next().await.unwrap();
    assert_eq!((revisions(&events), reached.get()), (vec![4, 5], 9));
    assert_eq!(watcher.take().unwrap().0, []);
}

#[test]
fn a_watcher_receives_its_events_behind_many_events_of_other_keys() {
    let watch_cache = watch_cache(ALL_BYTES);
    let mut watcher =
        watch_cache.subscribe("/core/maps/", KeyRange::prefix("/core/maps/mine/"), Revision::ZERO).unwrap();
    for revision in 1..=4 {
        publish(&watch_cache, revision, vec![created("maps", "other/a", revision, BATCH_BYTES)]);
    }
    publish(&watch_cache, 5, vec![created("maps", "mine/a", 5, 1)]);
    assert_eq!(revisions(&watcher.take().unwrap().0), [5]);
}

#[test]
fn a_ring_is_bounded_by_bytes() {
    let watch_cache = watch_cache(usize::MAX);
    let mut slow = subscribe(&watch_cache, "maps", 0).unwrap();
    for revision in 1..=20 {
        publish(&watch_cache, revision, vec![created("maps", "a", revision, 3 << 20)]);
    }
    let held_bytes = watch_cache.held_bytes.load(Ordering::Relaxed);
    assert!(held_bytes <= RING_BYTES, "{held_bytes} bytes are held");
    assert_eq!(slow.take(), Err(Expired));
    assert!(!slow.is_closed(), "the subscription is still open");
    publish(&watch_cache, 21, vec![created("maps", "a", 21, 2 * RING_BYTES)]);
    assert_eq!(
        revisions(&subscribe(&watch_cache, "maps", 20).unwrap().take().unwrap().0),
        [21],
        "the latest change is in the ring"
    );
}

#[test]
fn the_total_of_all_rings_is_bounded_and_the_largest_is_evicted_first() {
    let max_bytes = 10 << 20;
    let watch_cache = watch_cache(max_bytes);
    publish(&watch_cache, 1, vec![created("small", "a", 1, 1000)]);
    for revision in 2..=100 {
        publish(&watch_cache, revision, vec![created(&format!("folder-{}", revision % 10), "a", revision, 200 << 10)]);
        assert!(watch_cache.held_bytes.load(Ordering::Relaxed) <= max_bytes, "after {revision} changes");
    }
    assert_eq!(revisions(&subscribe(&watch_cache, "small", 0).unwrap().take().unwrap().0), [1]);
    let rings: usize = lock(&watch_cache.state).rings.values().map(|ring| lock(&ring.events).bytes).sum();
    assert_eq!(watch_cache.held_bytes.load(Ordering::Relaxed), rings);
    watch_cache.close_rings(Revision::new(100));
    assert_eq!(watch_cache.held_bytes.load(Ordering::Relaxed), 0);
}
