//! The controller dies at every step of a migration. What is said about stored versions stays true, and the next controller
//! brings it to its end.

use super::{Controller, Widgets, install};
use restow_migrate::step::Step;
use restow_testkit::{Cluster, On};

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_any_step_harms_nothing_on_the_embedded_store() {
    crash_at(On::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_any_step_harms_nothing_on_etcd() {
    crash_at(On::Etcd).await;
}

async fn crash_at(on: On) {
    let cluster = Cluster::one(on).await;
    install(&cluster.servers[0]);
    let widgets = Widgets::new(&cluster.servers[0], 60).await;
    let before = widgets.contents().await;
    // The same identity each time: whoever comes next need not wait for the lease to expire.
    let alone = ["--identity", "test"];
    let mut first = Controller::start(&widgets.kubeconfig, &alone);
    widgets.wait_for("v1", "at the start").await;
    first.kill();
    for (number, step) in Step::ALL.iter().enumerate() {
        let version = if number % 2 == 0 { "v2" } else { "v1" };
        widgets.store_in(version).await;
        let name = step.to_string();
        let flags = [alone.as_slice(), &["--crash-at", &name]].concat();
        let status = Controller::start(&widgets.kubeconfig, &flags).wait().await;
        assert!(!status.success(), "{step}: the controller ended with {status}");
        widgets.assert_nothing_is_hidden(&name).await;
        let mut next = Controller::start(&widgets.kubeconfig, &alone);
        widgets.wait_for(version, &format!("after a crash at {step}")).await;
        next.kill();
        assert_eq!(widgets.contents().await, before, "{step}: nothing but the encoding has changed");
    }
}
