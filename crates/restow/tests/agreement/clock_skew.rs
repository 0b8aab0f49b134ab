//! Servers whose wall clocks differ by hours and jump: the leases of live servers do not expire, those of dead ones do, in time.

use crate::fleet::{Fleet, identity};
use crate::wrong_clock::WrongClock;
use restow_store::{Key, Revision, Store, StoreExt};
use restow_testkit::eventually;
use std::time::{Duration, Instant};

const HOUR: i64 = 3600;

/// A fleet of three servers: one with the right clock, one an hour ahead, one an hour behind.
async fn with_wrong_clocks() -> (Fleet, Vec<WrongClock>) {
    let mut fleet = Fleet::of(3).await;
    let mut clocks = Vec::new();
    for (number, ahead) in [0, HOUR, -HOUR].into_iter().enumerate() {
        let clock = WrongClock::ahead(fleet.folder(), &identity(number), ahead);
        fleet.environment[number] = clock.environment();
        clocks.push(clock);
    }
    (fleet, clocks)
}

/// The revision at which the lease of each server was made. A server whose lease expired creates another one.
async fn tenures(fleet: &Fleet) -> Vec<Option<Revision>> {
    let mut tenures = Vec::new();
    for number in 0..3 {
        let key = Key::try_from(format!("/coordination.k8s.io/leases/kube-system/{}", identity(number))).unwrap();
        tenures.push(fleet.store.get(&key).await.unwrap().map(|entry| entry.create_revision));
    }
    tenures
}

/// The renew time in the lease of a server, in seconds ahead of the true time.
async fn said_ahead(fleet: &Fleet, number: usize) -> i64 {
    let key = Key::try_from(format!("/coordination.k8s.io/leases/kube-system/{}", identity(number))).unwrap();
    let lease: serde_json::Value =
        serde_json::from_slice(&fleet.store.get(&key).await.unwrap().unwrap().value).unwrap();
    let renewed: jiff::Timestamp = lease["spec"]["renewTime"].as_str().unwrap().parse().unwrap();
    renewed.as_second() - jiff::Timestamp::now().as_second()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_lease_expires_because_of_clock_skew() {
    let (mut fleet, clocks) = with_wrong_clocks().await;
    (0..3).for_each(|number| fleet.start(number, "1.31", &[]));
    for (number, ahead) in [0, HOUR, -HOUR].into_iter().enumerate() {
        let said = said_ahead(&fleet, number).await;
        assert!((said - ahead).abs() < 60, "the clock of server {number} is {said} s ahead, not {ahead}");
    }
    let before = tenures(&fleet).await;
    let (begun, from) = (Instant::now(), fleet.store.status().await.unwrap().revision);
    // Clocks jump for the duration of five leases, each to a time at which wall-clock comparison would expire a lease.
    let jumps =
        [(1, -HOUR), (2, HOUR), (0, 15), (1, 0), (0, -15), (2, 15), (0, HOUR), (1, 5 * HOUR), (2, -HOUR), (0, 0)];
    for (number, ahead) in jumps {
        clocks[number].jump(ahead);
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(tenures(&fleet).await, before, "after the clock of server {number} jumped to {ahead} s");
    }
    let written = fleet.store.status().await.unwrap().revision.get() - from.get();
    let a_second = written as f64 / begun.elapsed().as_secs_f64();
    println!("{written} revisions in {:?}, {a_second:.1} a second", begun.elapsed());
    assert!(a_second < 20.0, "three servers that only renew wrote {a_second:.1} revisions a second");
    assert_eq!(fleet.disagreements().await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lease_of_a_dead_server_expires_in_time_despite_clock_skew() {
    let (mut fleet, clocks) = with_wrong_clocks().await;
    fleet.lease = ("10", "3");
    (0..3).for_each(|number| fleet.start(number, "1.31", &[]));
    let mut expected = tenures(&fleet).await;
    // The first one has led since it was alone, so its death is the slowest to be noticed.
    for (dies, jumps_to) in [(0, 2 * HOUR), (1, -2 * HOUR)] {
        fleet.kill(dies);
        clocks[2].jump(jumps_to);
        let waited = eventually("the dead server is released", async || !fleet.has_lease(dies).await).await;
        println!("server {dies} was released {waited:?} after its death");
        // The last renewal was at most three seconds before, or a little more on a busy machine.
        assert!(waited > Duration::from_secs(4), "released after {waited:?}, before its lease can have expired");
        assert!(waited < Duration::from_secs(15), "released only after {waited:?}");
        expected[dies] = None;
        assert_eq!(tenures(&fleet).await, expected, "no other server was collected");
    }
    eventually("the entries of the dead servers are removed", async || {
        let status = fleet.status("core.pods").await;
        let entries = status["storageVersions"].as_array().unwrap().clone();
        entries.len() == 1 && entries[0]["apiServerID"] == identity(2)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_lease_expires_because_all_servers_were_suspended() {
    let mut fleet = Fleet::of(3).await;
    (0..3).for_each(|number| fleet.start(number, "1.31", &[]));
    let before = tenures(&fleet).await;
    let asleep = Duration::from_secs(8);

    // As when the machines that they run on are suspended for longer than a lease lasts, and do not wake at the same moment:
    // the collector has looked twice before the last one can renew.
    (0..3).for_each(|number| fleet.pause(number));
    tokio::time::sleep(asleep).await;
    (0..2).for_each(|number| fleet.resume(number));
    tokio::time::sleep(Duration::from_secs(2)).await;
    fleet.resume(2);
    tokio::time::sleep(asleep).await;
    assert_eq!(tenures(&fleet).await, before, "after the servers slept");

    // As when etcd has no quorum for longer than that: no server could renew.
    fleet.etcd().pause().unwrap();
    tokio::time::sleep(asleep).await;
    fleet.etcd().resume().unwrap();
    tokio::time::sleep(asleep).await;
    assert_eq!(tenures(&fleet).await, before, "after etcd slept");
}
