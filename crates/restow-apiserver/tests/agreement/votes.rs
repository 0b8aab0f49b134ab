//! Servers that vote on the version in which they store.

use crate::fixture::*;
use restow_api::GroupVersion;
use restow_apiserver::error::ApiError;
use restow_apiserver::object::Object;
use restow_apiserver::resource::Origin;
use restow_apiserver::{ApiServer, Changed, Guarantee, Place};
use restow_store::Store;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The hash that discovery shows for endpoint slices on this server.
fn hash_of_slices(server: &ApiServer) -> String {
    let version: GroupVersion = "discovery.k8s.io/v1".parse().unwrap();
    server.registry().find(&version, "endpointslices").unwrap().storage_version_hash().unwrap()
}

async fn roll_by_votes(how: Guarantee) {
    let store = store();
    let (old, new) = ("discovery.k8s.io/v1beta1", "discovery.k8s.io/v1");
    let old_hash = restow_api::storage_version_hash("discovery.k8s.io", "v1beta1", "EndpointSlice");
    let new_hash = restow_api::storage_version_hash("discovery.k8s.io", "v1", "EndpointSlice");
    start_voting(&store, "a", builtins("1.30"), how).await.leave().await;
    let b = start_voting(&store, "b", builtins("1.30"), how).await;
    let a = start_voting(&store, "a", builtins("1.31"), how).await;
    write_slice(&a, "by-a").await.unwrap();
    assert_eq!(stored_version(&store, "by-a").await, old, "b still prefers the old version");
    assert_eq!(hash_of_slices(&a), old_hash);

    b.leave().await;
    let b = start_voting(&store, "b", builtins("1.31"), how).await;
    for (name, server) in [("later-by-a", &a), ("later-by-b", &b)] {
        if how == Guarantee::Loose {
            eventually("the server hears of the selection", || async { hash_of_slices(server) == new_hash }).await;
        }
        write_slice(server, name).await.unwrap();
        assert_eq!(stored_version(&store, name).await, new, "all prefer the new version now");
        assert_eq!(hash_of_slices(server), new_hash);
    }
    let report = status(&store, "discovery.k8s.io.endpointslices").await;
    assert_eq!(report["commonEncodingVersion"], new);
}

#[tokio::test]
async fn the_selected_version_moves_with_the_last_vote() {
    roll_by_votes(Guarantee::Strict).await;
}

#[tokio::test]
async fn the_selected_version_moves_soon_under_the_loose_guarantee() {
    roll_by_votes(Guarantee::Loose).await;
}

/// Nothing in the store refuses such a write, so the server itself has to see to it.
#[tokio::test]
async fn under_the_loose_guarantee_a_slow_write_arrives_before_another_version_is_reported() {
    let store = store();
    let slow = Slow::at(&store, "/slow");
    let beneath: Arc<dyn Store> = slow.clone();
    let b = start_voting(&store, "b", builtins("1.30"), Guarantee::Loose).await;
    let a = start_voting(&beneath, "a", builtins("1.31"), Guarantee::Loose).await;
    let writer = a.clone();
    let writing = tokio::spawn(async move { write_slice(&writer, "slow").await });
    slow.under_way().await;

    b.leave().await;
    let _b = start_voting(&store, "b", builtins("1.31"), Guarantee::Loose).await;
    let new_hash = restow_api::storage_version_hash("discovery.k8s.io", "v1", "EndpointSlice");
    eventually("a hears of the selection", || async { hash_of_slices(&a) == new_hash }).await;
    let reported = async || {
        let status = status(&store, "discovery.k8s.io.endpointslices").await;
        let entries = status["storageVersions"].as_array().unwrap().clone();
        entries.iter().find(|entry| entry["apiServerID"] == "a").unwrap()["encodingVersion"].clone()
    };
    for _ in 0..20 {
        assert_eq!(reported().await, "discovery.k8s.io/v1beta1", "the write is still on its way");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    slow.may_pass.send_replace(true);
    writing.await.unwrap().unwrap();
    assert_eq!(stored_version(&store, "slow").await, "discovery.k8s.io/v1beta1");
    eventually("a reports what it writes now", || async { reported().await == "discovery.k8s.io/v1" }).await;
}

/// Writes the one widget, as a client of this version.
async fn write_widget(server: &ApiServer, version: &str) -> Result<Changed, ApiError> {
    let version: GroupVersion = version.parse().unwrap();
    let resource = server.registry().find(&version, "widgets").unwrap().clone();
    let place = Place { resource: &resource, version: &version, namespace: "default", name: "w" };
    let object = json!({
        "apiVersion": version.to_string(), "kind": "Widget", "metadata": {"name": "w", "namespace": "default"},
    });
    server.objects().change(place, &mut Put(Object::from_value(object).unwrap())).await
}

/// The fastest evolution that the deprecation policy allows, from release x to x+3: what is supported, what is preferred.
const RELEASES: [(&[&str], &str); 4] = [
    (&["example.com/v1"], "example.com/v1"),
    (&["example.com/v1", "example.com/v2"], "example.com/v1"),
    (&["example.com/v1", "example.com/v2"], "example.com/v2"),
    (&["example.com/v2"], "example.com/v2"),
];

/// Walks three servers through releases, one server at a time. After each step every server writes.
async fn walk(path: &[usize], how: Guarantee) {
    let store = store();
    let mut servers: BTreeMap<&str, Arc<ApiServer>> = BTreeMap::new();
    for release in path {
        let (supported, preferred) = RELEASES[*release];
        for id in ["a", "b", "c"] {
            if let Some(before) = servers.remove(id) {
                before.leave().await;
            }
            let resources = vec![widgets_of(preferred, supported, Origin::Builtin)];
            servers.insert(id, start_voting(&store, id, resources, how).await);
            for (writer, server) in &servers {
                let served = server.registry().resources()[0].served[0].to_string();
                let written = write_widget(server, &served).await;
                assert!(written.is_ok(), "{writer}, while {id} goes to release x+{release} of {path:?}: {written:?}");
            }
        }
        let selected = || async {
            let reported = status(&store, "example.com.widgets").await["commonEncodingVersion"].clone();
            let stored = objects(&store, "/example.com/widgets/default/").await["w"]["apiVersion"].clone();
            // Under the loose guarantee a server hears of the selection soon, so it is given another chance.
            write_widget(&servers["a"], preferred).await.unwrap();
            reported == preferred && stored == preferred
        };
        eventually("everybody stores what the release prefers", selected).await;
    }
}

#[tokio::test]
async fn all_can_write_from_release_x_to_x_plus_3_and_back() {
    walk(&[0, 1, 2, 3], Guarantee::Strict).await;
    walk(&[3, 2, 1, 0], Guarantee::Strict).await;
}

#[tokio::test]
async fn under_the_loose_guarantee_too() {
    walk(&[0, 1, 2, 3, 2, 1, 0], Guarantee::Loose).await;
}

#[tokio::test]
async fn the_first_release_that_votes_selects_and_the_others_follow_when_they_are_upgraded() {
    let store = store();
    let slices = "discovery.k8s.io.endpointslices";
    // Two servers of a release that does not vote, and writes what it prefers.
    let b = start(&store, "b", "1.30", "").await;
    let c = start(&store, "c", "1.30", "").await;
    let _a = start_voting(&store, "a", builtins("1.31"), Guarantee::Strict).await;
    write_slice(&b, "by-b").await.unwrap();
    assert_eq!(stored_version(&store, "by-b").await, "discovery.k8s.io/v1beta1", "who does not vote is not bound");
    assert_eq!(
        status(&store, slices).await["commonEncodingVersion"],
        serde_json::Value::Null,
        "and everybody can see it"
    );
    let mut upgraded = Vec::new();
    for (id, before) in [("b", b), ("c", c)] {
        before.leave().await;
        // It would prefer the old version, but the first voter has selected.
        let server = start_voting(&store, id, builtins("1.30"), Guarantee::Strict).await;
        write_slice(&server, &format!("later-by-{id}")).await.unwrap();
        assert_eq!(stored_version(&store, &format!("later-by-{id}")).await, "discovery.k8s.io/v1");
        upgraded.push(server);
    }
    let common = || async { status(&store, slices).await["commonEncodingVersion"] == "discovery.k8s.io/v1" };
    eventually("all store what was selected", common).await;
}

#[tokio::test]
async fn a_skipped_release_writes_nothing_until_the_old_one_is_gone() {
    let store = store();
    let only = |version: &str| vec![widgets_of(version, &[version], Origin::Builtin)];
    let old = start_voting(&store, "old", only("example.com/v1"), Guarantee::Strict).await;
    let new = start_voting(&store, "new", only("example.com/v2"), Guarantee::Strict).await;
    let write = async || write_widget(&new, "example.com/v2").await;
    let refusal = write().await.unwrap_err().to_string();
    for words in ["cannot write widgets.example.com", "in example.com/v1", "supports example.com/v2"] {
        assert!(refusal.contains(words), "{refusal}");
    }
    assert_eq!(servers_of(&status(&store, "example.com.widgets").await), ["old"], "who does not write reports nothing");
    old.leave().await;
    eventually("the selection moves", || async { write().await.is_ok() }).await;
    assert_eq!(status(&store, "example.com.widgets").await["commonEncodingVersion"], "example.com/v2");
}
