//! Node ports, cluster IPs and the last of a quota, requested through several servers at once: only one request succeeds.

use crate::custom_resources::clients_of;
use crate::fleet::Fleet;
use futures::future::join_all;
use k8s_openapi::api::core::v1::{ConfigMap, ResourceQuota, Service};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use restow_store::{Key, Store, StoreExt, Txn};
use serde_json::json;

const SERVERS: usize = 3;
const AT_ONCE: usize = 4;
const ROUNDS: usize = 20;

async fn three_servers() -> (Fleet, Vec<kube::Client>) {
    let mut fleet = Fleet::of(SERVERS).await;
    (0..SERVERS).for_each(|number| fleet.start(number, "1.37", &[]));
    let clients = clients_of(&fleet, &fleet.addresses).await;
    (fleet, clients)
}

fn service(name: &str, node_port: i64, address: Option<&str>) -> Service {
    let mut spec = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": node_port}]});
    if let Some(address) = address {
        spec["clusterIP"] = address.into();
    }
    serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
}

fn services(clients: &[kube::Client], turn: usize) -> Api<Service> {
    Api::namespaced(clients[turn % SERVERS].clone(), "default")
}

/// How many of several creations at once, each through another server, succeeded. A refusal must be one of validation.
async fn create_at_once(clients: &[kube::Client], round: usize, make: impl Fn(usize) -> Service) -> usize {
    let create = |number: usize| {
        let (api, service) = (services(clients, number), make(number));
        async move { api.create(&PostParams::default(), &service).await }
    };
    let answers = join_all((0..AT_ONCE).map(create)).await;
    for answer in &answers {
        if let Err(error) = answer {
            let refused = matches!(error, kube::Error::Api(status) if status.code == 422);
            assert!(refused, "round {round}: {error}");
        }
    }
    answers.iter().filter(|answer| answer.is_ok()).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_port_and_a_cluster_ip_belong_to_one_service() {
    let (fleet, clients) = three_servers().await;
    for round in 0..ROUNDS {
        let port = 30_100 + round as i64;
        let made = create_at_once(&clients, round, |number| service(&format!("p{round}-{number}"), port, None)).await;
        assert_eq!(made, 1, "one service has port {port}");
        let address = format!("10.96.7.{round}");
        let wants_address = |number: usize| {
            service(&format!("a{round}-{number}"), 31_000 + (round * AT_ONCE + number) as i64, Some(&address))
        };
        assert_eq!(create_at_once(&clients, round, wants_address).await, 1, "one service has {address}");
    }

    // Released addresses and ports can be allocated again: after a deletion, and after a change.
    let all = services(&clients, 0).list(&ListParams::default()).await.unwrap();
    let named =
        |prefix: &str| all.items.iter().filter_map(|it| it.metadata.name.clone()).find(|it| it.starts_with(prefix));
    services(&clients, 1).delete(&named("p0-").unwrap(), &DeleteParams::default()).await.unwrap();
    services(&clients, 2).create(&PostParams::default(), &service("after-removal", 30_100, None)).await.unwrap();
    let moved = Patch::Merge(json!({"spec": {"ports": [{"port": 80, "nodePort": 32_000}]}}));
    let mover = named("p1-").unwrap();
    services(&clients, 0).patch(&mover, &PatchParams::default(), &moved).await.unwrap();
    services(&clients, 1).create(&PostParams::default(), &service("after-move", 30_101, None)).await.unwrap();
    let refused = services(&clients, 2).create(&PostParams::default(), &service("too-late", 32_000, None)).await;
    assert!(matches!(refused, Err(kube::Error::Api(status)) if status.code == 422), "the port moved with its service");
    let key = Key::try_from("/restow/node-ports/30101").unwrap();
    let owner = fleet.store.get(&key).await.unwrap().unwrap();
    assert_eq!(owner.value, "default/after-move");
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_keys_of_service_addresses_are_written_when_a_server_starts() {
    let mut fleet = Fleet::of(SERVERS).await;
    (0..SERVERS).for_each(|number| fleet.start(number, "1.37", &[]));
    let clients = clients_of(&fleet, &fleet.addresses).await;
    services(&clients, 0).create(&PostParams::default(), &service("web", 30_500, None)).await.unwrap();
    let key = Key::try_from("/restow/node-ports/30500").unwrap();
    fleet.store.txn(Txn::new().delete(&key)).await.unwrap();
    fleet.stop(2);
    fleet.start(2, "1.37", &[]);
    assert_eq!(fleet.store.get(&key).await.unwrap().unwrap().value, "default/web");
    let taken = services(&clients, 0).create(&PostParams::default(), &service("other", 30_500, None)).await;
    assert!(matches!(taken, Err(kube::Error::Api(status)) if status.code == 422), "the port has an owner again");
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_together_do_not_exceed_a_quota() {
    let (_fleet, clients) = three_servers().await;
    let quotas: Api<ResourceQuota> = Api::namespaced(clients[0].clone(), "default");
    let maps = |turn: usize| -> Api<ConfigMap> { Api::namespaced(clients[turn % SERVERS].clone(), "default") };
    // There are some already, such as the certificate authority's.
    let before = maps(0).list(&ListParams::default()).await.unwrap().items.len();
    for round in 0..ROUNDS {
        let hard = before + round + 1;
        let quota = json!({"metadata": {"name": "bound"}, "spec": {"hard": {"count/configmaps": hard.to_string()}}});
        let apply = PatchParams::apply("test").force();
        let quota =
            json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": quota["metadata"], "spec": quota["spec"]});
        quotas.patch("bound", &apply, &Patch::Apply(&quota)).await.unwrap();
        for client in &clients {
            let seen: Api<ResourceQuota> = Api::namespaced(client.clone(), "default");
            restow_testkit::eventually("every server knows the quota", async || {
                let found = seen.get("bound").await.unwrap();
                found.spec.unwrap().hard.unwrap()["count/configmaps"].0 == hard.to_string()
            })
            .await;
        }
        let create = |number: usize| {
            let map = json!({"metadata": {"name": format!("map-{round}-{number}")}});
            let (api, map) = (maps(number), serde_json::from_value(map).unwrap());
            async move { api.create(&PostParams::default(), &map).await.is_ok() }
        };
        let made = join_all((0..AT_ONCE).map(create)).await.into_iter().filter(|made| *made).count();
        let there = maps(0).list(&ListParams::default()).await.unwrap().items.len();
        assert!(there <= hard, "round {round}: {made} were made at once, {there} of {hard} are there");
        assert_eq!(made, 1, "round {round}: one of them is the last one");
    }
}
