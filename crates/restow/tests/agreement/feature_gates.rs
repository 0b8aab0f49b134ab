//! Feature gates that are turned off, on, and off again, on the same data.

use crate::fleet::Fleet;
use crate::rolling_upgrade::{NEW, SLICES};
use crate::writers::client_at;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, PostParams};
use restow_testkit::eventually;
use serde_json::{Value, json};

const ALL_OFF: &str = "StorageVersionAPI=false,APIServerIdentity=false,StorageVersionHash=false";

#[tokio::test(flavor = "multi_thread")]
async fn turning_feature_gates_off_on_and_off_loses_nothing() {
    let mut fleet = Fleet::of(1).await;
    let config = fleet.client_config().await;
    let vote = ["--storage-versions", "vote"];
    let rounds: [&[&str]; 4] = [&["--feature-gates", ALL_OFF], &vote, &[], &["--feature-gates", ALL_OFF]];
    for (round, flags) in rounds.iter().enumerate() {
        fleet.start(0, "1.37", flags);
        let client = client_at(&config, fleet.addresses.read().unwrap()[0].as_ref().unwrap());
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
        let map = json!({"metadata": {"name": format!("round-{round}")}, "data": {"round": round.to_string()}});
        maps.create(&PostParams::default(), &serde_json::from_value(map).unwrap()).await.unwrap();
        for earlier in 0..=round {
            let found = maps.get(&format!("round-{earlier}")).await.unwrap();
            assert_eq!(found.data.unwrap()["round"], earlier.to_string());
        }
        let on = !flags.contains(&ALL_OFF);
        assert_eq!(fleet.has_lease(0).await, on, "round {round}");
        let listed = client.list_core_api_resources("v1").await.unwrap();
        assert_eq!(listed.resources.iter().any(|resource| resource.storage_version_hash.is_some()), on);
        let reported = fleet.status(SLICES).await["commonEncodingVersion"].clone();
        match round {
            0 | 3 => assert_eq!(reported, Value::Null, "nothing is reported while the gate is closed"),
            _ => assert_eq!(reported, NEW),
        }
        fleet.stop(0);
    }
    // A server that participates again finds the objects of the earlier ones, and continues from there.
    fleet.start(0, "1.37", &vote);
    eventually("it takes part", async || fleet.status(SLICES).await["commonEncodingVersion"] == NEW).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_starts_waits_for_etcd() {
    let mut fleet = Fleet::of(1).await;
    // Longer than one try to connect and one request to etcd may take together.
    fleet.start_while_etcd_is_paused(0, "1.37", std::time::Duration::from_secs(8));
    eventually("it takes part", async || fleet.has_lease(0).await).await;
}
