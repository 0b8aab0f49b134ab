//! Servers that vote: the first release that votes, upgrades and rollbacks, a skipped release, and the loose guarantee.

use crate::etcd_history;
use crate::fleet::{Fleet, identity};
use crate::rolling_upgrade::{NEW, OLD, SLICES, agree_on, let_them_write};
use crate::writers::{Writers, client_at};
use kube::api::{Api, DynamicObject, ObjectMeta, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use restow_store::{Key, StoreExt};
use restow_testkit::eventually;
use serde_json::Value;

const VOTE: [&str; 2] = ["--storage-versions", "vote"];

/// The selected version of a resource, as etcd has it.
async fn selected(fleet: &Fleet, name: &str) -> Value {
    let key = Key::try_from(format!("/kube-apiserver.internal.k8s.io/storageversions/{name}")).unwrap();
    let entry = fleet.store.get(&key).await.unwrap();
    entry.map_or(Value::Null, |entry| serde_json::from_slice::<Value>(&entry.value).unwrap()["selectedVersion"].take())
}

fn client_of(fleet: &Fleet, config: &kube::Config, number: usize) -> kube::Client {
    client_at(config, fleet.addresses.read().unwrap()[number].as_ref().unwrap())
}

/// Waits until every server shows in discovery that slices are stored in this version.
async fn shown_by_all(fleet: &Fleet, config: &kube::Config, version: &str) {
    let hash = restow_api::storage_version_hash("discovery.k8s.io", version, "EndpointSlice");
    for number in 0..3 {
        let client = client_of(fleet, config, number);
        eventually(&format!("{} shows {version}", identity(number)), async || {
            let listed = client.list_api_group_resources("discovery.k8s.io/v1").await.unwrap();
            listed.resources.iter().any(|resource| resource.storage_version_hash.as_deref() == Some(hash.as_str()))
        })
        .await;
    }
}

/// Restarts the servers one after the other. All but the last leave the selection as it was.
async fn roll(fleet: &mut Fleet, writers: &Writers, release: &str, more: &[&str], before: &str) {
    for number in 0..3 {
        assert_eq!(selected(fleet, SLICES).await, before, "server {number} is still to go");
        fleet.stop(number);
        fleet.start(number, release, more);
        let_them_write(writers, 6).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_selected_version_changes_with_the_last_server_in_upgrades_and_rollbacks() {
    let mut fleet = Fleet::of(3).await;
    // The first release that votes: two servers do not vote yet, and continue to store their preferred version.
    fleet.start(1, "1.30", &[]);
    fleet.start(2, "1.30", &[]);
    fleet.start(0, "1.31", &VOTE);
    assert_eq!(selected(&fleet, SLICES).await, NEW, "the first voter selects what it prefers");
    let config = fleet.client_config().await;
    let writers = Writers::start(&config, &fleet.addresses, 4);
    let_them_write(&writers, 12).await;
    assert_eq!(fleet.status(SLICES).await["commonEncodingVersion"], Value::Null, "two versions are written, visibly");
    for number in [1, 2] {
        fleet.stop(number);
        fleet.start(number, "1.30", &VOTE);
    }
    assert_eq!(selected(&fleet, SLICES).await, NEW, "what was selected stays, though most prefer the old version");
    agree_on(&fleet, NEW).await;

    // All votes are for the old version now, then one after the other for the new one, and back again.
    fleet.stop(0);
    fleet.start(0, "1.30", &VOTE);
    agree_on(&fleet, OLD).await;
    shown_by_all(&fleet, &config, "v1beta1").await;
    roll(&mut fleet, &writers, "1.31", &VOTE, OLD).await;
    agree_on(&fleet, NEW).await;
    shown_by_all(&fleet, &config, "v1").await;
    roll(&mut fleet, &writers, "1.30", &VOTE, NEW).await;
    agree_on(&fleet, OLD).await;
    writers.finish().await;
    let findings = etcd_history::check(&fleet.store).await;
    println!("{findings:?}");
    assert!(findings.slices_by_version[OLD] > 0 && findings.slices_by_version[NEW] > 0, "both versions were written");
}

#[tokio::test(flavor = "multi_thread")]
async fn under_the_loose_guarantee_all_servers_watch_the_selected_version() {
    let loose = ["--storage-versions", "vote", "--storage-version-guarantee", "loose"];
    let mut fleet = Fleet::of(3).await;
    (0..3).for_each(|number| fleet.start(number, "1.30", &loose));
    let config = fleet.client_config().await;
    let writers = Writers::start(&config, &fleet.addresses, 4);
    let_them_write(&writers, 6).await;
    roll(&mut fleet, &writers, "1.31", &loose, OLD).await;
    let waited = eventually("it is selected", async || selected(&fleet, SLICES).await == NEW).await;
    agree_on(&fleet, NEW).await;
    shown_by_all(&fleet, &config, "v1").await;
    println!("selected {waited:?} after the last server was ready");
    let_them_write(&writers, 6).await;
    writers.finish().await;
    let findings = etcd_history::check(&fleet.store).await;
    assert!(findings.slices_by_version[OLD] > 0 && findings.slices_by_version[NEW] > 0, "both versions were written");
}

/// Release 1.31 stores device classes in a version that 1.37 does not know any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_skipped_a_release_refuses_writes_with_a_reason_and_serves_reads() {
    let all = ["--storage-versions", "vote", "--runtime-config", "api/all=true"];
    let mut fleet = Fleet::of(2).await;
    fleet.start(0, "1.31", &all);
    fleet.start(1, "1.37", &all);
    let config = fleet.client_config().await;
    let kind = |version: &str| ApiResource::from_gvk(&GroupVersionKind::gvk("resource.k8s.io", version, "DeviceClass"));
    let class = |name: &str, version: &str| {
        let mut class = DynamicObject::new(name, &kind(version));
        class.metadata = ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() };
        class.data = serde_json::json!({"spec": {}});
        class
    };
    let old: Api<DynamicObject> = Api::all_with(client_of(&fleet, &config, 0), &kind("v1alpha3"));
    old.create(&PostParams::default(), &class("by-old", "v1alpha3")).await.unwrap();
    let new: Api<DynamicObject> = Api::all_with(client_of(&fleet, &config, 1), &kind("v1"));
    let refused = new.create(&PostParams::default(), &class("by-new", "v1")).await.unwrap_err().to_string();
    for words in
        ["cannot write deviceclasses.resource.k8s.io", "in resource.k8s.io/v1alpha3", "resource.k8s.io/v1beta1"]
    {
        assert!(refused.contains(words), "{refused}");
    }
    assert_eq!(new.list(&Default::default()).await.unwrap().items.len(), 1, "it reads what it can");
    let others = fleet.status("resource.k8s.io.deviceclasses").await["storageVersions"].clone();
    assert_eq!(others.as_array().unwrap().len(), 1, "who does not write reports nothing: {others}");
    fleet.stop(0);
    eventually("the selection moves when the old server is gone", async || {
        let written = new.create(&PostParams::default(), &class("by-new", "v1")).await;
        let waits = matches!(&written, Err(kube::Error::Api(status)) if status.code == 503);
        assert!(waits || written.is_ok(), "{written:?}");
        written.is_ok()
    })
    .await;
}

/// Every release that is known, one server after the other, upward and downward. On demand: `RESTOW_TEST_LONG=1`.
#[tokio::test(flavor = "multi_thread")]
async fn upgrade_through_all_releases_and_roll_back() {
    if std::env::var_os("RESTOW_TEST_LONG").is_none() {
        restow_testkit::skip("set RESTOW_TEST_LONG=1 to go through all releases");
        return;
    }
    let mut fleet = Fleet::of(3).await;
    (0..3).for_each(|number| fleet.start(number, "1.28", &VOTE));
    let config = fleet.client_config().await;
    let writers = Writers::start(&config, &fleet.addresses, 4);
    for minor in (29..=37).chain((28..37).rev()) {
        for number in 0..3 {
            fleet.stop(number);
            fleet.start(number, &format!("1.{minor}"), &VOTE);
            let_them_write(&writers, 6).await;
            for name in [SLICES, "flowcontrol.apiserver.k8s.io.flowschemas"] {
                eventually(&format!("all can write {name} while server {number} goes to 1.{minor}"), async || {
                    let status = fleet.status(name).await;
                    let writing = status["storageVersions"].as_array().map_or(0, Vec::len);
                    writing == 3 && status["commonEncodingVersion"] == selected(&fleet, name).await
                })
                .await;
            }
        }
    }
    writers.finish().await;
    println!("{:?}", etcd_history::check(&fleet.store).await);
}
