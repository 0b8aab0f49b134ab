//! Servers that vote on the version in which they store.

use crate::fixture::*;
use restow_api::GroupVersion;
use restow_apimachinery::object::Object;
use restow_apiserver::error::ApiError;
use restow_apiserver::resource::{Membership, Origin};
use restow_apiserver::{ApiServer, Changed, Guarantee, ObjectRef};
use restow_store::{Key, Store, StoreExt, Txn, TxnOutcome};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

const ELECTIONS: &str = "/kube-apiserver.internal.k8s.io/storageversions/";
const SLICES: &str = "discovery.k8s.io.endpointslices";

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
    let held_lease = lease(&store, "a").await.unwrap().create_revision;
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
    let lease = lease(&store, "a").await.unwrap();
    assert_eq!(
        lease.create_revision, held_lease,
        "each write was answered, so none has to be fenced out by a new lease"
    );
}

#[tokio::test]
async fn the_selected_version_changes_with_the_last_vote() {
    roll_by_votes(Guarantee::Strict).await;
}

#[tokio::test]
async fn the_selected_version_changes_under_the_loose_guarantee() {
    roll_by_votes(Guarantee::Loose).await;
}

/// The store does not refuse such a write, so the server itself has to.
#[tokio::test]
async fn under_the_loose_guarantee_a_slow_write_commits_before_another_version_is_reported() {
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
    let place = ObjectRef { resource: &resource, version: &version, namespace: "default", name: "w" };
    let object = json!({
        "apiVersion": version.to_string(), "kind": "Widget", "metadata": {"name": "w", "namespace": "default"},
    });
    server.objects().change(place, &mut Put(Object::from_value(object).unwrap())).await
}

/// The fastest evolution that the deprecation policy allows, from release x to x+3: supported and preferred versions.
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
async fn all_servers_can_write_during_upgrades_over_three_releases_and_back() {
    walk(&[0, 1, 2, 3], Guarantee::Strict).await;
    walk(&[3, 2, 1, 0], Guarantee::Strict).await;
}

#[tokio::test]
async fn all_servers_can_write_during_upgrades_under_the_loose_guarantee() {
    walk(&[0, 1, 2, 3, 2, 1, 0], Guarantee::Loose).await;
}

#[tokio::test]
async fn the_first_server_that_votes_selects_and_upgraded_servers_follow() {
    let store = store();
    let slices = "discovery.k8s.io.endpointslices";
    // Two servers of a release that does not vote and stores its preferred version.
    let b = start(&store, "b", "1.30", "").await;
    let c = start(&store, "c", "1.30", "").await;
    let _a = start_voting(&store, "a", builtins("1.31"), Guarantee::Strict).await;
    let elections = objects(&store, "/kube-apiserver.internal.k8s.io/storageversions/").await;
    let metadata = &elections[slices]["metadata"];
    assert_eq!(metadata["name"], slices);
    assert!(metadata["uid"].as_str().is_some_and(|uid| uid.len() == 36), "{metadata}");
    assert!(metadata["creationTimestamp"].is_string(), "{metadata}");
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
async fn a_server_that_skipped_a_release_writes_nothing_until_the_old_server_has_left() {
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

#[tokio::test]
async fn under_the_loose_guarantee_a_write_without_a_response_cannot_commit_after_another_version_is_reported() {
    let store = store();
    let writes_it = |txn: &Txn| txn.when.iter().any(|compare| compare.key.to_string().ends_with("/lost"));
    let mute = Mute::to(&store, writes_it);
    let beneath: Arc<dyn Store> = mute.clone();
    let b = start_voting(&store, "b", builtins("1.30"), Guarantee::Loose).await;
    let a = start_voting(&beneath, "a", builtins("1.31"), Guarantee::Loose).await;
    write_slice(&a, "lost").await.unwrap_err();
    b.leave().await;
    let _b = start_voting(&store, "b", builtins("1.31"), Guarantee::Loose).await;
    eventually("a reports what it writes now", || async {
        let status = status(&store, "discovery.k8s.io.endpointslices").await;
        status["commonEncodingVersion"] == "discovery.k8s.io/v1"
    })
    .await;
    let late = mute.kept.lock().unwrap().pop().unwrap();
    let outcome = store.txn(late).await.unwrap();
    assert!(matches!(outcome, TxnOutcome::Refused { .. }), "it is in a version that a reports no longer");
    write_slice(&a, "later").await.unwrap();
    assert_eq!(stored_version(&store, "later").await, "discovery.k8s.io/v1");
}

#[tokio::test]
async fn a_server_that_may_not_write_withdraws_after_its_writes_in_flight() {
    let store = store();
    let slow = Slow::at(&store, "/slow");
    let beneath: Arc<dyn Store> = slow.clone();
    let a = start_voting(&beneath, "a", builtins("1.31"), Guarantee::Loose).await;
    let writer = a.clone();
    let writing = tokio::spawn(async move { write_slice(&writer, "slow").await });
    slow.under_way().await;
    // A version is selected that this release does not have. Another server has not voted yet, so the selection stays.
    come_back(&store, "b", "kube-apiserver").await;
    let key = Key::try_from(format!("{ELECTIONS}{SLICES}")).unwrap();
    let mut election: Value = serde_json::from_slice(&store.get(&key).await.unwrap().unwrap().value).unwrap();
    election["selectedVersion"] = "discovery.k8s.io/v9".into();
    store.put(&key, election.to_string().into()).await.unwrap();
    let version: GroupVersion = "discovery.k8s.io/v1".parse().unwrap();
    let storage = a.registry().find(&version, "endpointslices").unwrap().storage.clone().unwrap();
    eventually("a has heard", || async { matches!(storage.encoding().membership, Membership::Refused(_)) }).await;
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(servers_of(&status(&store, SLICES).await), ["a"], "the write is still on its way");
    slow.may_pass.send_replace(true);
    writing.await.unwrap().unwrap();
    eventually("a reports nothing", || async { servers_of(&status(&store, SLICES).await).is_empty() }).await;
}

#[tokio::test]
async fn no_version_is_selected_before_a_joined_server_has_voted() {
    let store = store();
    let _a = start_voting(&store, "a", builtins("1.31"), Guarantee::Strict).await;
    let key = Key::try_from(format!("{ELECTIONS}{SLICES}")).unwrap();
    let mut election: Value = serde_json::from_slice(&store.get(&key).await.unwrap().unwrap().value).unwrap();
    // Another server prefers the old version, so that version is selected.
    let old = "discovery.k8s.io/v1beta1";
    come_back(&store, "b", "kube-apiserver").await;
    election["selectedVersion"] = old.into();
    election["candidateVersions"].as_array_mut().unwrap().push(json!({"apiServerID": "b", "preferredVersion": old}));
    store.put(&key, election.to_string().into()).await.unwrap();
    // It joins again with another preference, so that all votes are equal.
    let slow = Slow::at(&store, "kube-apiserver.internal.k8s.io/storageversions/discovery.k8s.io.endpointslices");
    let beneath: Arc<dyn Store> = slow.clone();
    let joining = tokio::spawn(async move { start_voting(&beneath, "b", builtins("1.31"), Guarantee::Strict).await });
    slow.under_way().await;
    // Before its vote arrives, a third one joins.
    come_back(&store, "c", "kube-apiserver").await;
    store.put(&Key::try_from("/restow/identity-lease-taken").unwrap(), "c".into()).await.unwrap();
    slow.may_pass.send_replace(true);
    joining.await.unwrap();
    let election: Value = serde_json::from_slice(&store.get(&key).await.unwrap().unwrap().value).unwrap();
    assert_eq!(election["selectedVersion"], old, "c has yet to vote: {election}");
}

#[tokio::test]
async fn votes_of_servers_that_are_gone_are_dropped_where_no_server_votes_any_more() {
    let store = store();
    come_back(&store, "b", "kube-apiserver").await;
    // Elections on resources that only earlier releases had: no server votes on them, so only the collector changes them.
    let key = |name: &str| Key::try_from(format!("{ELECTIONS}{name}")).unwrap();
    for (name, voters) in [("x.gone", &[("dead", "x/v1")][..]), ("x.kept", &[("dead", "x/v1"), ("b", "x/v2")])] {
        let vote = |(id, version): &(&str, &str)| json!({"apiServerID": id, "preferredVersion": version});
        let election = json!({
            "apiVersion": "kube-apiserver.internal.k8s.io/v1alpha1", "kind": "StorageVersion", "metadata": {"name": name},
            "selectedVersion": "x/v1", "candidateVersions": voters.iter().map(vote).collect::<Vec<Value>>(),
        });
        store.put(&key(name), election.to_string().into()).await.unwrap();
    }
    // Servers have used this store before.
    store.put(&Key::try_from("/restow/format").unwrap(), "restow-objects 1\n".into()).await.unwrap();
    let _a = start_voting(&store, "a", builtins("1.37"), Guarantee::Strict).await;
    eventually("an election without votes is gone", || async { store.get(&key("x.gone")).await.unwrap().is_none() })
        .await;
    let kept = async || objects(&store, ELECTIONS).await.remove("x.kept").unwrap();
    eventually("the vote of the dead server is gone", || async {
        kept().await["candidateVersions"] == json!([{"apiServerID": "b", "preferredVersion": "x/v2"}])
    })
    .await;
    assert_eq!(kept().await["selectedVersion"], "x/v1", "a has not voted, so the selection stays");
}
