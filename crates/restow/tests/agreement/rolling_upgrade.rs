//! Upgrades and rollbacks under constant writes, with servers that crash and servers that are suspended.

use crate::etcd_history;
use crate::fleet::Fleet;
use crate::writers::{Writers, client_at, count_of};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use restow_testkit::eventually;
use std::sync::atomic::Ordering;

pub(crate) const SLICES: &str = "discovery.k8s.io.endpointslices";
pub(crate) const OLD: &str = "discovery.k8s.io/v1beta1";
pub(crate) const NEW: &str = "discovery.k8s.io/v1";

/// Waits until the clients have written so many times more.
pub(crate) async fn let_them_write(writers: &Writers, more: u64) {
    let goal = writers.acknowledged.load(Ordering::Relaxed) + more;
    eventually("the clients go on writing", async || writers.acknowledged.load(Ordering::Relaxed) >= goal).await;
}

pub(crate) async fn agree_on(fleet: &Fleet, version: &str) {
    let what = format!("all agree on {version}");
    eventually(&what, async || fleet.status(SLICES).await["commonEncodingVersion"] == version).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_written_in_a_version_that_was_not_reported() {
    let mut fleet = Fleet::of(3).await;
    (0..3).for_each(|number| fleet.start(number, "1.30", &[]));
    agree_on(&fleet, OLD).await;
    let config = fleet.client_config().await;
    let writers = Writers::start(&config, &fleet.addresses, 6);
    let_them_write(&writers, 30).await;

    // A rolling upgrade, one server after the other.
    for number in 0..3 {
        fleet.stop(number);
        let_them_write(&writers, 5).await;
        fleet.start(number, "1.31", &[]);
        let_them_write(&writers, 10).await;
    }
    let waited = eventually("all agree on everything", async || fleet.disagreements().await.is_empty()).await;
    println!("agreement on everything {waited:?} after the last server was ready");
    assert_eq!(fleet.status(SLICES).await["commonEncodingVersion"], NEW);

    // A crash: the others go on without the server once its lease has expired.
    fleet.kill(0);
    let waited = eventually("the dead server is released", async || !fleet.has_lease(0).await).await;
    println!("the dead server was released after {waited:?}");
    let_them_write(&writers, 10).await;
    fleet.start(0, "1.31", &[]);

    // A pause longer than the lease, while the others are rolled back and agree without it.
    fleet.pause(1);
    eventually("the sleeping server is released", async || !fleet.has_lease(1).await).await;
    for number in [0, 2] {
        fleet.stop(number);
        fleet.start(number, "1.30", &[]);
    }
    agree_on(&fleet, OLD).await;
    let_them_write(&writers, 10).await;
    fleet.resume(1);
    eventually("the sleeper comes back by itself", async || fleet.has_lease(1).await).await;
    let_them_write(&writers, 30).await;
    fleet.stop(1);
    fleet.start(1, "1.30", &[]);
    agree_on(&fleet, OLD).await;
    let_them_write(&writers, 10).await;

    let last = writers.finish().await;
    let address = fleet.addresses.read().unwrap()[0].clone().unwrap();
    let client = client_at(&config, &address);
    let slices: kube::Api<EndpointSlice> = kube::Api::namespaced(client, "default");
    for (name, count) in &last {
        let stored = count_of(&slices.get(name).await.unwrap());
        assert!(stored >= *count, "{name}: {count} was acknowledged, {stored} is stored");
    }
    let findings = etcd_history::check(&fleet.store).await;
    println!("{findings:?}");
    assert!(findings.slices_by_version[OLD] > 0 && findings.slices_by_version[NEW] > 0, "both versions were written");
}
