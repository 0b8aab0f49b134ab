//! Progress marks: prompt where the back end says so, and true everywhere.

use super::*;
use crate::conformance::say_not_checked;
use crate::conformance::seed::Seed;
use crate::conformance::writers::{Writers, name};
use crate::{Revision, WatchRequest};
use std::time::Duration;
use tokio::time::timeout;

pub(super) async fn marks_come_when_nothing_changes(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    let status = mirror.store.status().await.unwrap();
    if !status.prompt_progress {
        say_not_checked(&status.backend, "progress marks that come promptly, because it says that it has none");
        return;
    }
    let first = mirror.revision().next();
    let idle = Duration::from_millis(100);
    let watched = KeyRange::prefix("/watched/");
    let mut from_now = mirror.follow(WatchRequest::from_now(watched.clone()).with_progress(idle)).await;
    let mut from_then = mirror.follow(WatchRequest::from(watched, first).with_progress(idle)).await;
    // Changes elsewhere move the marks, though they are not delivered.
    for round in 0..3 {
        let revision = mirror.put("/elsewhere", &format!("{round}")).await;
        for follower in [&mut from_now, &mut from_then] {
            follower.until(revision).await.unwrap();
            assert_eq!(follower.events(), []);
            assert!(follower.marks() > 0);
            assert_eq!(follower.delivered(), revision, "a mark must not run ahead of the store");
        }
    }
    // With nothing changing at all they keep coming.
    let before = from_now.marks();
    while from_now.marks() < before + 3 {
        from_now.batch().await.unwrap();
    }
    let change = mirror.put("/watched/1", "at last").await;
    from_now.until(change).await.unwrap();
    assert_eq!(from_now.events().len(), 1);
}

/// The follower refuses an event at or below a mark; in the end everything must have come.
pub(super) async fn marks_never_lie(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    let first = mirror.revision().next();
    let seed = Seed::take();
    let range = KeyRange::prefix(name(1, 1));
    let mut followers = Vec::new();
    for milliseconds in [1, 2, 5, 20] {
        let idle = Duration::from_millis(milliseconds);
        let request = WatchRequest::from(range.clone(), first).with_progress(idle);
        followers.push(mirror.follow(request).await);
    }
    let writers = Writers::start(&mirror.store, &seed, 6, 50);
    while !writers.are_done() {
        for follower in &mut followers {
            // A follower without news must not keep the others from theirs. Nothing is lost where it is given up:
            // the watch keeps what it has not delivered.
            let _ = timeout(Duration::from_millis(10), follower.batch()).await;
            let now = mirror.store.status().await.unwrap().revision;
            assert!(follower.delivered() <= now, "a mark ran ahead of the store: {}", follower.delivered());
        }
    }
    mirror.model = writers.finish(mirror.model).await;
    if mirror.store.status().await.unwrap().prompt_progress {
        for follower in &mut followers {
            let before = follower.marks();
            while follower.marks() == before {
                follower.batch().await.unwrap();
            }
        }
    }
    // Whatever was marked, this comes after it.
    let last: Revision = mirror.put(&name(1, 1), "the end").await;
    for mut follower in followers {
        follower.until(last).await.unwrap();
        assert_eq!(follower.events(), mirror.model.events(&range, first, false).unwrap());
    }
}
