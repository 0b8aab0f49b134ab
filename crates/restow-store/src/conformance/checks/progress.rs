//! Progress notifications: they come in time if the back end promises it, and never overtake events.

use super::*;
use crate::conformance::report_not_checked;
use crate::conformance::seed::Seed;
use crate::conformance::writers::{Writers, name};
use crate::{Revision, WatchRequest};
use std::time::Duration;
use tokio::time::timeout;

pub(super) async fn notifications_come_when_nothing_changes(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    let status = mirror.store.status().await.unwrap();
    if !status.prompt_progress {
        report_not_checked(&status.backend, "prompt progress notifications, which it does not support");
        return;
    }
    let first = mirror.revision().next();
    let idle = Duration::from_millis(100);
    let watched = KeyRange::prefix("/watched/");
    let mut from_now = mirror.follow(WatchRequest::from_now(watched.clone()).with_progress(idle)).await;
    let mut from_then = mirror.follow(WatchRequest::from(watched, first).with_progress(idle)).await;
    // Changes outside the range advance the notifications, though they are not delivered.
    for round in 0..3 {
        let revision = mirror.put("/elsewhere", &format!("{round}")).await;
        for reader in [&mut from_now, &mut from_then] {
            reader.until(revision).await.unwrap();
            assert_eq!(reader.events(), []);
            assert!(reader.notifications() > 0);
            assert_eq!(reader.delivered(), revision, "a notification must not be ahead of the store");
        }
    }
    // With nothing changing at all they keep coming.
    let before = from_now.notifications();
    while from_now.notifications() < before + 3 {
        from_now.batch().await.unwrap();
    }
    let change = mirror.put("/watched/1", "at last").await;
    from_now.until(change).await.unwrap();
    assert_eq!(from_now.events().len(), 1);
}

/// The reader panics on an event at or below a notification; in the end everything must have come.
pub(super) async fn notifications_never_overtake_events(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    let first = mirror.revision().next();
    let seed = Seed::take();
    let range = KeyRange::prefix(name(1, 1));
    let mut readers = Vec::new();
    for milliseconds in [1, 2, 5, 20] {
        let idle = Duration::from_millis(milliseconds);
        let request = WatchRequest::from(range.clone(), first).with_progress(idle);
        readers.push(mirror.follow(request).await);
    }
    let writers = Writers::start(&mirror.store, &seed, 6, 50);
    while !writers.are_done() {
        for reader in &mut readers {
            // A reader without events must not block the others. Nothing is lost when its wait is canceled:
            // the watch keeps what it has not delivered.
            let _ = timeout(Duration::from_millis(10), reader.batch()).await;
            let now = mirror.store.status().await.unwrap().revision;
            assert!(reader.delivered() <= now, "a notification was ahead of the store: {}", reader.delivered());
        }
    }
    mirror.model = writers.finish(mirror.model).await;
    if mirror.store.status().await.unwrap().prompt_progress {
        for reader in &mut readers {
            let before = reader.notifications();
            while reader.notifications() == before {
                reader.batch().await.unwrap();
            }
        }
    }
    // This is later than all notifications.
    let last: Revision = mirror.put(&name(1, 1), "the end").await;
    for mut reader in readers {
        reader.until(last).await.unwrap();
        assert_eq!(reader.events(), mirror.model.events(&range, first, false).unwrap());
    }
}
