//! Typed and dynamic objects, and the errors that clients get.

use crate::kube_rs::config_map;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{GroupVersionKind, Status};
use kube::discovery::{Discovery, Scope, pinned_kind, verbs};
use kube::{Api, Client, Error, ResourceExt};
use restow_testkit::{Cluster, On};
use serde_json::{Value, json};
use std::collections::BTreeSet;

#[tokio::test]
async fn typed_objects_on_the_embedded_store() {
    typed_objects(On::Embedded).await;
}

#[tokio::test]
async fn typed_objects_on_etcd() {
    typed_objects(On::Etcd).await;
}

/// The `Status` of a refused request.
fn refused<T>(result: Result<T, Error>) -> Status {
    match result {
        Ok(_) => panic!("the request should have been refused"),
        Err(Error::Api(status)) => *status,
        Err(other) => panic!("not a response of the API: {other}"),
    }
}

fn code_and_reason(status: &Status) -> (u16, &str) {
    (status.code, status.reason.as_str())
}

async fn typed_objects(on: On) {
    let cluster = Cluster::one(on).await;
    let client = cluster.servers[0].client().await;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let post = PostParams::default();
    let made = maps.create(&post, &config_map("one", &[("app", "a")], &[("x", "1")])).await.unwrap();
    assert!(made.uid().is_some() && made.creation_timestamp().is_some());

    changes(&maps, &made).await;
    refusals(&maps, &made).await;
    lists(&maps).await;
    statuses(&Api::namespaced(client.clone(), "default")).await;

    let rehearsal = PostParams { dry_run: true, ..PostParams::default() };
    maps.create(&rehearsal, &config_map("rehearsed", &[], &[])).await.unwrap();
    assert!(maps.get_opt("rehearsed").await.unwrap().is_none());
    let mut generated = config_map("", &[], &[]);
    generated.metadata.name = None;
    generated.metadata.generate_name = Some("made-".into());
    let generated = maps.create(&post, &generated).await.unwrap();
    assert!(generated.name_any().starts_with("made-") && generated.name_any().len() == 10);
    let removed = maps.delete_collection(&DeleteParams::default(), &ListParams::default().labels("app")).await;
    removed.unwrap();
    let left = maps.list(&ListParams::default().labels("app")).await.unwrap();
    assert_eq!(left.items.len(), 0);
}

/// Replaces and patches, each in its own way.
async fn changes(maps: &Api<ConfigMap>, made: &ConfigMap) {
    let mut fresh = made.clone();
    fresh.data.get_or_insert_default().insert("y".into(), "2".into());
    let replaced = maps.replace("one", &PostParams::default(), &fresh).await.unwrap();
    assert_ne!(replaced.resource_version(), made.resource_version());
    let stale = refused(maps.replace("one", &PostParams::default(), &fresh).await);
    assert_eq!(code_and_reason(&stale), (409, "Conflict"));
    assert!(stale.message.contains("the object has been modified"), "{}", stale.message);

    let params = PatchParams::default();
    maps.patch("one", &params, &Patch::Merge(json!({"data": {"x": null, "z": "3"}}))).await.unwrap();
    maps.patch("one", &params, &Patch::Strategic(json!({"metadata": {"annotations": {"n": "v"}}}))).await.unwrap();
    let json_patch = serde_json::from_value(json!([{"op": "replace", "path": "/data/z", "value": "4"}])).unwrap();
    let patched = maps.patch("one", &params, &Patch::Json::<()>(json_patch)).await.unwrap();
    let data: Vec<(String, String)> = patched.data.clone().unwrap().into_iter().collect();
    assert_eq!(data, [("y".into(), "2".into()), ("z".into(), "4".into())]);
    assert_eq!(patched.annotations().get("n").map(String::as_str), Some("v"));
    let same = maps.patch_metadata("one", &params, &Patch::Merge(json!({}))).await.unwrap();
    assert_eq!(same.resource_version(), patched.resource_version(), "a patch that changes nothing writes nothing");
}

async fn refusals(maps: &Api<ConfigMap>, made: &ConfigMap) {
    let post = PostParams::default();
    let taken = refused(maps.create(&post, &config_map("one", &[], &[])).await);
    assert_eq!(code_and_reason(&taken), (409, "AlreadyExists"));
    let missing = refused(maps.get("nothing").await);
    assert_eq!(code_and_reason(&missing), (404, "NotFound"));
    let details = missing.details.unwrap();
    assert_eq!((details.name.as_str(), details.kind.as_str()), ("nothing", "configmaps"));
    let invalid = refused(maps.create(&post, &config_map("Not_A_Name", &[], &[])).await);
    assert_eq!(code_and_reason(&invalid), (422, "Invalid"));
    let fields: Vec<String> = invalid.details.unwrap().causes.into_iter().map(|cause| cause.field).collect();
    assert_eq!(fields, ["metadata.name"]);
    let mut old = config_map("other", &[], &[]);
    old.metadata.resource_version = made.resource_version();
    assert_eq!(code_and_reason(&refused(maps.create(&post, &old).await)).0, 400);

    let other_uid = Preconditions { uid: Some("another".into()), ..Preconditions::default() };
    let kept = refused(maps.delete("one", &DeleteParams::default().preconditions(other_uid)).await);
    assert_eq!(code_and_reason(&kept), (409, "Conflict"));
    let applied = PatchParams::apply("me").force();
    let object = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "one"}});
    assert_eq!(code_and_reason(&refused(maps.patch("one", &applied, &Patch::Apply(object)).await)).0, 400);
    let selector = refused(maps.list(&ListParams::default().labels("a b c")).await);
    assert_eq!(code_and_reason(&selector), (400, "BadRequest"));
    let field = refused(maps.list(&ListParams::default().fields("data.x=1")).await);
    assert_eq!(code_and_reason(&field), (400, "BadRequest"));
}

/// Pages, selectors and metadata alone.
async fn lists(maps: &Api<ConfigMap>) {
    for number in 0..7 {
        let app = if number % 2 == 0 { "even" } else { "odd" };
        maps.create(&PostParams::default(), &config_map(&format!("list-{number}"), &[("app", app)], &[]))
            .await
            .unwrap();
    }
    let mut params = ListParams::default().labels("app in (even, odd)").limit(3);
    let (mut names, mut pages) = (Vec::new(), 0);
    loop {
        let page = maps.list(&params).await.unwrap();
        names.extend(page.items.iter().map(ResourceExt::name_any));
        pages += 1;
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => break,
        }
    }
    let expected: Vec<String> = (0..7).map(|number| format!("list-{number}")).collect();
    assert_eq!((names, pages), (expected, 3));
    let odd = maps.list_metadata(&ListParams::default().labels("app=odd")).await.unwrap();
    assert_eq!(odd.items.len(), 3);
    let one = maps.list(&ListParams::default().fields("metadata.name=list-4")).await.unwrap();
    assert_eq!(one.items.len(), 1);
    let garbage = refused(maps.list(&ListParams::default().limit(1).continue_token("garbage")).await);
    assert_eq!(garbage.code, 400);
}

/// A write of the status changes nothing else, and vice versa.
async fn statuses(deployments: &Api<Deployment>) {
    let deployment = serde_json::from_value(json!({
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "web", "image": "web:1"}]},
            },
        },
    }));
    let made = deployments.create(&PostParams::default(), &deployment.unwrap()).await.unwrap();
    assert_eq!(made.metadata.generation, Some(1));
    let patch = Patch::Merge(json!({"spec": {"replicas": 7}, "status": {"replicas": 5, "observedGeneration": 1}}));
    let reported = deployments.patch_status("web", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(reported.status.unwrap().replicas, Some(5));
    assert_eq!((reported.spec.replicas, reported.metadata.generation), (Some(1), Some(1)));
    let patched = deployments.patch("web", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!((patched.spec.replicas, patched.metadata.generation), (Some(7), Some(2)));
}

#[tokio::test]
async fn dynamic_objects_on_the_embedded_store() {
    dynamic_objects(On::Embedded).await;
}

#[tokio::test]
async fn dynamic_objects_on_etcd() {
    dynamic_objects(On::Etcd).await;
}

async fn dynamic_objects(on: On) {
    let cluster = Cluster::one(on).await;
    let client = cluster.servers[0].client().await;
    let kind = GroupVersionKind::gvk("coordination.k8s.io", "v1", "Lease");
    let (resource, capabilities) = pinned_kind(&client, &kind).await.unwrap();
    assert_eq!((resource.plural.as_str(), &capabilities.scope), ("leases", &Scope::Namespaced));
    assert!(capabilities.supports_operation(verbs::WATCH));
    let leases: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &resource);
    let lease = DynamicObject::new("held", &resource).data(json!({"spec": {"holderIdentity": "me"}}));
    let made = leases.create(&PostParams::default(), &lease).await.unwrap();
    assert_eq!(made.data["spec"]["holderIdentity"], "me");
    let patch = Patch::Merge(json!({"spec": {"holderIdentity": "you"}}));
    leases.patch("held", &PatchParams::default(), &patch).await.unwrap();
    let held = leases.get("held").await.unwrap();
    assert_eq!(held.data["spec"], json!({"holderIdentity": "you"}));
    leases.delete("held", &DeleteParams::default()).await.unwrap();
    assert!(leases.get_opt("held").await.unwrap().is_none());
    discovered(&client).await;
}

/// Both forms of discovery have the same content.
async fn discovered(client: &Client) {
    let plain = Discovery::new(client.clone()).run().await.unwrap();
    let aggregated = Discovery::new(client.clone()).run_aggregated().await.unwrap();
    let names = |discovery: &Discovery| -> BTreeSet<String> {
        let resources = discovery.groups().flat_map(|group| group.resources_by_stability());
        resources.map(|(resource, _)| format!("{} {}", resource.api_version, resource.plural)).collect()
    };
    assert!(names(&plain).contains("apps/v1 deployments"));
    assert_eq!(names(&plain), names(&aggregated));
    let kind = GroupVersionKind::gvk("", "v1", "Namespace");
    let (resource, capabilities) = aggregated.resolve_gvk(&kind).unwrap();
    assert_eq!(capabilities.scope, Scope::Cluster);
    let namespaces: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let typed: Api<Namespace> = Api::all(client.clone());
    let (one, other) = (namespaces.get("default").await.unwrap(), typed.get("default").await.unwrap());
    assert_eq!(one.uid(), other.uid());
    let version: Value = serde_json::to_value(client.apiserver_version().await.unwrap()).unwrap();
    assert_eq!(version["major"], "1");
}
