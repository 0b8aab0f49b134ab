//! A typical kube-rs controller: leader election, a watch, a copy of each object, an annotation with the result, and a
//! finalizer.

use crate::kube_rs::config_map;
use crate::kube_rs::leader_election::Candidate;
use futures::StreamExt;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::core::ObjectMeta;
use kube::runtime::controller::{Action, Controller};
use kube::runtime::finalizer::{Event, finalizer};
use kube::runtime::watcher::Config;
use kube::{Api, Client, Error, Resource, ResourceExt};
use restow_testkit::eventually_some;
use restow_testkit::{Cluster, On};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

const FINALIZER: &str = "example.com/copied";

#[tokio::test]
async fn a_controller_keeps_copies_on_the_embedded_store() {
    a_controller_keeps_copies(On::Embedded).await;
}

#[tokio::test]
async fn a_controller_keeps_copies_on_etcd() {
    a_controller_keeps_copies(On::Etcd).await;
}

async fn a_controller_keeps_copies(on: On) {
    let cluster = Cluster::one(on).await;
    let client = cluster.servers[0].client().await;
    let running: Vec<_> = ["a", "b"].map(|name| tokio::spawn(lead_and_run(client.clone(), name))).into();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "default");
    let copy = async |name: &str| {
        let secret = secrets.get_opt(name).await.unwrap()?;
        secret.data?.get("x").map(|bytes| String::from_utf8(bytes.0.clone()).unwrap())
    };
    for number in 0..20 {
        let map = config_map(&format!("source-{number}"), &[("copied", "yes")], &[("x", "1")]);
        maps.create(&PostParams::default(), &map).await.unwrap();
    }
    maps.create(&PostParams::default(), &config_map("apart", &[], &[("x", "1")])).await.unwrap();
    for number in 0..20 {
        let name = format!("source-{number}");
        eventually_some("the copy is made", async || copy(&name).await.filter(|value| value == "1")).await;
    }
    maps.patch("source-7", &PatchParams::default(), &Patch::Merge(json!({"data": {"x": "2"}}))).await.unwrap();
    eventually_some("the copy follows", async || copy("source-7").await.filter(|value| value == "2")).await;
    secrets.delete("source-8", &DeleteParams::default()).await.unwrap();
    eventually_some("a lost copy is made again", async || copy("source-8").await).await;

    maps.delete("source-7", &DeleteParams::default()).await.unwrap();
    eventually_some("the source is gone", async || maps.get_opt("source-7").await.unwrap().is_none().then_some(()))
        .await;
    assert!(copy("source-7").await.is_none(), "the finalizer goes after the copy has gone");
    assert!(copy("apart").await.is_none());
    let source = maps.get("source-8").await.unwrap();
    assert_eq!(source.finalizers(), [FINALIZER]);
    let owner = &secrets.get("source-8").await.unwrap().metadata.owner_references.unwrap()[0];
    assert_eq!((Some(&owner.uid), owner.controller), (source.uid().as_ref(), Some(true)));
    running.iter().for_each(tokio::task::JoinHandle::abort);
}

/// Waits until this candidate leads, then runs the controller. It does not lose the lead, since no other candidate has
/// a shorter patience.
async fn lead_and_run(client: Client, name: &str) {
    let mut candidate = Candidate::new(client.clone(), "copier", name, Duration::from_secs(3600));
    while !candidate.campaign().await.unwrap() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "default");
    Controller::new(maps, Config::default().labels("copied=yes"))
        .owns(secrets, Config::default().streaming_lists())
        .run(reconcile, |_, _, _| Action::requeue(Duration::from_millis(50)), Arc::new(client))
        .for_each(async |outcome| {
            if let Err(error) = outcome {
                eprintln!("the controller tries again after {error}: {error:?}");
            }
        })
        .await;
}

async fn reconcile(
    source: Arc<ConfigMap>,
    client: Arc<Client>,
) -> Result<Action, kube::runtime::finalizer::Error<Error>> {
    let maps: Api<ConfigMap> = Api::namespaced((*client).clone(), "default");
    let secrets: Api<Secret> = Api::namespaced((*client).clone(), "default");
    finalizer(&maps, FINALIZER, source, async |event| match event {
        Event::Apply(source) => make_copy(&secrets, &source).await,
        Event::Cleanup(source) => match secrets.delete(&source.name_any(), &DeleteParams::default()).await {
            Ok(_) => Ok(Action::await_change()),
            Err(Error::Api(status)) if status.code == 404 => Ok(Action::await_change()),
            Err(error) => Err(error),
        },
    })
    .await
}

async fn make_copy(secrets: &Api<Secret>, source: &ConfigMap) -> Result<Action, Error> {
    let data = source.data.clone().unwrap_or_default();
    let wanted = Secret {
        metadata: ObjectMeta {
            name: Some(source.name_any()),
            owner_references: source.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        data: Some(data.into_iter().map(|(key, value)| (key, ByteString(value.into_bytes()))).collect()),
        ..Secret::default()
    };
    match secrets.create(&PostParams::default(), &wanted).await {
        Err(Error::Api(status)) if status.code == 409 => {
            secrets.patch(&source.name_any(), &PatchParams::default(), &Patch::Merge(&wanted)).await?;
        }
        Err(error) => return Err(error),
        Ok(_) => {}
    }
    Ok(Action::await_change())
}
