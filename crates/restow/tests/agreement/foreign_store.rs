//! `restow serve` on an etcd that another program uses: it refuses to start, reports why, and changes nothing.

use crate::fleet::Fleet;
use restow_store::{Key, KeyRange, RangeRequest, Store, StoreExt};
use restow_testkit::eventually;
use std::process::Output;

/// A pod as kube-apiserver stores it, as far as it matters here.
const POD: &[u8] = b"k8s\0\n\x09\n\x02v1\x12\x03Pod\x12\x04\n\x02\x08\x01\x1a\0\"\0";
/// A custom object, which kube-apiserver stores as JSON. Its owner is one that we would look for elsewhere.
const OWNED: &str = r#"{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w","namespace":"default",
    "uid":"1","ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"web","uid":"2"}]}}"#;
/// The key of the format mark.
const MARK: &str = "/restow/format";

fn key(text: &str) -> Key {
    Key::try_from(text).unwrap()
}

async fn put(fleet: &Fleet, name: &str, value: &[u8]) {
    fleet.store.put(&key(name), value.to_vec().into()).await.unwrap();
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

async fn everything(fleet: &Fleet) -> Vec<restow_store::Entry> {
    fleet.store.range(RangeRequest::new(KeyRange::all())).await.unwrap().entries
}

#[tokio::test(flavor = "multi_thread")]
async fn the_etcd_of_a_real_cluster_is_refused_and_not_changed() {
    let fleet = Fleet::of(1).await;
    put(&fleet, "/pods/default/web", POD).await;
    put(&fleet, "/example.com/widgets/default/w", OWNED.as_bytes()).await;
    // A server of an earlier release was started here by mistake, and left something.
    put(&fleet, "/restow/leaders/garbage-collector", b"x").await;
    put(&fleet, "/core/namespaces/default", br#"{"apiVersion":"v1","kind":"Namespace","metadata":{}}"#).await;
    let before = everything(&fleet).await;
    let output = fleet.run_until_it_ends(0, "1.31");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = said(&output);
    for words in
        ["/registry", "4 keys", "look like those of a kube-apiserver", "/pods/default/web (v1 Pod", "--etcd-prefix"]
    {
        assert!(said.contains(words), "it should say {words:?}: {said}");
    }
    assert_eq!(everything(&fleet).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_format_is_refused() {
    let fleet = Fleet::of(1).await;
    put(&fleet, MARK, b"restow-objects 9\n").await;
    let output = fleet.run_until_it_ends(0, "1.31");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(said(&output).contains("a newer release of Restow wrote"), "{}", said(&output));
}

#[tokio::test(flavor = "multi_thread")]
async fn several_servers_mark_an_empty_store_once_and_an_older_store_is_marked() {
    let mut fleet = Fleet::of(3).await;
    fleet.start_together(3, "1.31");
    let mark = fleet.store.get(&key(MARK)).await.unwrap().unwrap();
    assert_eq!((mark.value.as_ref(), mark.version), (&b"restow-objects 1\n"[..], 2), "marked, then verified");
    (0..3).for_each(|number| fleet.stop(number));
    // As an earlier release left it.
    fleet.store.remove(&key(MARK), mark.mod_revision).await.unwrap();
    eventually("no leader is left", async || {
        let leaders = fleet.store.range(RangeRequest::prefix("/restow/leaders/")).await.unwrap();
        leaders.entries.is_empty()
    })
    .await;
    fleet.start(0, "1.31", &[]);
    assert!(fleet.store.get(&key(MARK)).await.unwrap().is_some());
}
