//! An etcd that is restored from a backup under running servers: they drop their caches, and join again before they write.

use crate::custom_resources::{WIDGETS, create_crd, widgets};
use crate::fleet::{Fleet, identity};
use crate::writers::client_at;
use kube::api::{ListParams, PostParams};
use restow_store::{Key, Revision, StoreExt};
use restow_testkit::eventually;
use serde_json::{Value, json};

async fn lease_of(fleet: &Fleet, number: usize) -> Option<Revision> {
    let key = Key::try_from(format!("/coordination.k8s.io/leases/kube-system/{}", identity(number))).unwrap();
    fleet.store.get(&key).await.ok().flatten().map(|entry| entry.create_revision)
}

async fn serves_widgets(client: &kube::Client) -> Result<bool, kube::Error> {
    match widgets(client).list(&ListParams::default()).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_rejoin_after_etcd_was_restored_from_a_backup() {
    let mut fleet = Fleet::of(2).await;
    fleet.start_together(2, "1.31");
    let config = fleet.client_config().await;
    let clients: Vec<kube::Client> = {
        let addresses = fleet.addresses.read().unwrap();
        addresses.iter().flatten().map(|address| client_at(&config, address)).collect()
    };
    let backup = fleet.back_up_etcd().await;
    // The following writes are lost. The CRD cannot be created before the servers have reconnected to etcd.
    eventually("the servers go on", async || serves_widgets(&clients[0]).await.is_ok()).await;
    create_crd(&fleet, &clients).await;
    let before = [lease_of(&fleet, 0).await.unwrap(), lease_of(&fleet, 1).await.unwrap()];
    fleet.restore_etcd(&backup).await;
    for (number, client) in clients.iter().enumerate() {
        eventually("what is lost is served no more", async || serves_widgets(client).await.ok() == Some(false)).await;
        eventually("it takes a new lease", async || {
            lease_of(&fleet, number).await.is_some_and(|now| now != before[number])
        })
        .await;
    }
    eventually("the servers agree on everything", async || fleet.disagreements().await.is_empty()).await;
    eventually("no report stays of what is lost", async || fleet.status(WIDGETS).await == Value::Null).await;
    eventually("they are ready", async || {
        let made = widgets(&clients[0]).list(&ListParams::default()).await;
        made.is_err_and(|error| matches!(error, kube::Error::Api(status) if status.code == 404))
    })
    .await;
    create_crd(&fleet, &clients).await;
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}});
    let widget = serde_json::from_value(widget).unwrap();
    for (number, client) in clients.iter().enumerate() {
        let made = widgets(client).create(&PostParams::default(), &widget).await;
        assert_eq!(made.is_ok(), number == 0, "{made:?}");
    }
}
