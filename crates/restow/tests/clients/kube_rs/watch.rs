//! kube-rs' watcher in both of its modes, the reflector, and plain watches.

use crate::kube_rs::config_map;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::runtime::reflector::{self, ObjectRef};
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Api, ResourceExt};
use restow_testkit::eventually_some;
use restow_testkit::{Cluster, On};
use serde_json::json;

#[tokio::test]
async fn watchers_and_reflectors_work_on_the_embedded_store() {
    watchers_and_reflectors_work(On::Embedded).await;
}

#[tokio::test]
async fn watchers_and_reflectors_work_on_etcd() {
    watchers_and_reflectors_work(On::Etcd).await;
}

async fn watchers_and_reflectors_work(on: On) {
    let cluster = Cluster::one(on).await;
    let client = cluster.servers[0].client().await;
    let maps: Api<ConfigMap> = Api::namespaced(client, "default");
    for (number, config) in
        [Config::default().page_size(2), Config::default().streaming_lists()].into_iter().enumerate()
    {
        let group = format!("way-{number}");
        life_is_seen(&maps, config.labels(&format!("group={group}")), &group).await;
    }
    a_reflector_holds_all_objects(&maps).await;
    a_plain_watch_begins_after_its_resource_version(&maps).await;
}

/// The initial objects, then their changes, in order.
async fn life_is_seen(maps: &Api<ConfigMap>, config: Config, group: &str) {
    let labels = [("group", group)];
    let name = |number: usize| format!("{group}-{number}");
    for number in 0..5 {
        maps.create(&PostParams::default(), &config_map(&name(number), &labels, &[])).await.unwrap();
    }
    maps.create(&PostParams::default(), &config_map(&format!("other-{group}"), &[], &[])).await.unwrap();
    let mut events = watcher(maps.clone(), config).boxed();
    let mut seen = Vec::new();
    loop {
        match events.try_next().await.unwrap().unwrap() {
            Event::Init => seen.clear(),
            Event::InitApply(map) => seen.push(map.name_any()),
            Event::InitDone => break,
            Event::Apply(_) | Event::Delete(_) => panic!("a change came before the beginning"),
        }
    }
    assert_eq!(seen, (0..5).map(name).collect::<Vec<_>>());

    maps.create(&PostParams::default(), &config_map(&name(9), &labels, &[])).await.unwrap();
    let patch = Patch::Merge(json!({"data": {"x": "1"}}));
    maps.patch(&name(9), &PatchParams::default(), &patch).await.unwrap();
    let unlabel = Patch::Merge(json!({"metadata": {"labels": {"group": "none"}}}));
    maps.patch(&name(0), &PatchParams::default(), &unlabel).await.unwrap();
    maps.delete(&name(9), &DeleteParams::default()).await.unwrap();
    let mut changes = Vec::new();
    while changes.len() < 4 {
        changes.push(match events.try_next().await.unwrap().unwrap() {
            Event::Apply(map) => format!("{} with {}", map.name_any(), map.data.unwrap_or_default().len()),
            Event::Delete(map) => format!("{} gone", map.name_any()),
            other => panic!("unexpected {other:?}"),
        });
    }
    let (fresh, left) = (name(9), name(0));
    let expected =
        [format!("{fresh} with 0"), format!("{fresh} with 1"), format!("{left} gone"), format!("{fresh} gone")];
    assert_eq!(changes, expected);
}

async fn a_reflector_holds_all_objects(maps: &Api<ConfigMap>) {
    let (reader, writer) = reflector::store();
    let config = Config::default().labels("held");
    let running = tokio::spawn(reflector::reflector(writer, watcher(maps.clone(), config)).for_each(async |_| ()));
    maps.create(&PostParams::default(), &config_map("held", &[("held", "yes")], &[("x", "1")])).await.unwrap();
    reader.wait_until_ready().await.unwrap();
    let held = ObjectRef::new("held").within("default");
    eventually_some("the reflector has the object", async || reader.get(&held)).await;
    maps.patch("held", &PatchParams::default(), &Patch::Merge(json!({"data": {"x": "2"}}))).await.unwrap();
    eventually_some("the reflector has the change", async || {
        reader.get(&held).filter(|map| map.data.as_ref().is_some_and(|data| data["x"] == "2"))
    })
    .await;
    maps.delete("held", &DeleteParams::default()).await.unwrap();
    eventually_some("the reflector has lost the object", async || reader.get(&held).is_none().then_some(())).await;
    running.abort();
}

async fn a_plain_watch_begins_after_its_resource_version(maps: &Api<ConfigMap>) {
    let made = maps.create(&PostParams::default(), &config_map("hand", &[], &[])).await.unwrap();
    let version = made.resource_version().unwrap();
    maps.patch("hand", &PatchParams::default(), &Patch::Merge(json!({"data": {"x": "1"}}))).await.unwrap();
    maps.delete("hand", &DeleteParams::default()).await.unwrap();
    let only = WatchParams::default().fields("metadata.name=hand");
    let events = maps.watch(&only, &version).await.unwrap().take(2).try_collect::<Vec<_>>().await.unwrap();
    match events.as_slice() {
        [WatchEvent::Modified(changed), WatchEvent::Deleted(gone)] => {
            assert!(version_of(changed) > version.parse::<u64>().unwrap());
            assert!(version_of(gone) > version_of(changed), "a removal has a version of its own");
            assert_eq!(gone.uid(), made.uid());
        }
        other => panic!("unexpected {other:?}"),
    }
    let ended = maps.watch(&WatchParams::default().timeout(1), &version).await.unwrap();
    let all = ended.try_collect::<Vec<_>>().await.unwrap();
    assert!(all.len() >= 2, "a watch ends when its time is up, after what it had to say");
}

fn version_of(map: &ConfigMap) -> u64 {
    map.resource_version().unwrap().parse().unwrap()
}
