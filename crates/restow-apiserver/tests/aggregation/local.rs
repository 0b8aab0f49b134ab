//! The APIServices of what the server itself serves.

use crate::fixture::{Authorities, Main, eventually, store};
use http::Method;
use serde_json::{Value, json};

const API_SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn crd() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "stones.quarry.example"},
        "spec": {
            "group": "quarry.example", "scope": "Namespaced",
            "names": {"plural": "stones", "singular": "stone", "kind": "Stone", "listKind": "StoneList"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    })
}

async fn code_of(main: &Main, name: &str) -> u16 {
    main.get(&format!("{API_SERVICES}/{name}")).await.0
}

#[tokio::test]
async fn built_in_group_versions_have_local_api_services_when_the_server_is_ready() {
    let main = Main::start(&store(), &Authorities::new()).await;
    let (_, list) = main.get(API_SERVICES).await;
    let services = list["items"].as_array().unwrap();
    let (_, groups) = main.get("/apis").await;
    for group in groups["groups"].as_array().unwrap() {
        for version in group["versions"].as_array().unwrap() {
            let name = format!("{}.{}", version["version"].as_str().unwrap(), group["name"].as_str().unwrap());
            let found = services.iter().any(|service| service["metadata"]["name"] == name.as_str());
            assert_eq!(found, group["name"] != "apiregistration.k8s.io", "{name}");
        }
    }
    let (_, apps) = main.get(&format!("{API_SERVICES}/v1.apps")).await;
    assert_eq!(apps["metadata"]["labels"], json!({"kube-aggregator.kubernetes.io/automanaged": "onstart"}));
    let spec = json!({"group": "apps", "version": "v1", "groupPriorityMinimum": 17800, "versionPriority": 15});
    assert_eq!(apps["spec"], spec);
    let condition = &apps["status"]["conditions"][0];
    assert_eq!((&condition["reason"], &condition["status"]), (&json!("Local"), &json!("True")));
    assert_eq!(condition["message"], "Local APIServices are always available");
    assert_eq!(code_of(&main, "v1.").await, 200);
    let order: Vec<&str> =
        groups["groups"].as_array().unwrap().iter().map(|group| group["name"].as_str().unwrap()).collect();
    assert_eq!(order[..4], ["apiregistration.k8s.io", "apps", "events.k8s.io", "authentication.k8s.io"]);
}

#[tokio::test]
async fn a_restart_changes_no_api_service() {
    let (store, authorities) = (store(), Authorities::new());
    let main = Main::start(&store, &authorities).await;
    let versions = async |main: &Main| {
        let (_, list) = main.get(API_SERVICES).await;
        let versions = list["items"].as_array().unwrap().iter();
        versions.map(|service| service["metadata"]["resourceVersion"].clone()).collect::<Vec<_>>()
    };
    let before = versions(&main).await;
    assert!(before.len() > 20, "{before:?}");
    main.server.leave().await;
    drop(main);
    let again = Main::start(&store, &authorities).await;
    assert_eq!(versions(&again).await, before);
}

#[tokio::test]
async fn the_api_service_of_a_custom_resource_comes_and_goes_with_its_crd() {
    let main = Main::start(&store(), &Authorities::new()).await;
    main.create(CRDS, crd()).await;
    let registered = eventually("the APIService is registered", async || {
        let (code, service) = main.get(&format!("{API_SERVICES}/v1.quarry.example")).await;
        (code == 200).then_some(service)
    })
    .await;
    assert_eq!(registered["metadata"]["labels"], json!({"kube-aggregator.kubernetes.io/automanaged": "true"}));
    assert_eq!(registered["spec"]["groupPriorityMinimum"], 1000);
    assert_eq!(registered["spec"]["versionPriority"], 100);
    main.ask(Method::DELETE, &format!("{API_SERVICES}/v1.quarry.example"), &Value::Null).await;
    eventually("the APIService is registered again", async || {
        (code_of(&main, "v1.quarry.example").await == 200).then_some(())
    })
    .await;
    let (code, _) = main.ask(Method::DELETE, &format!("{CRDS}/stones.quarry.example"), &Value::Null).await;
    assert_eq!(code, 200);
    eventually("the APIService is removed", async || (code_of(&main, "v1.quarry.example").await == 404).then_some(()))
        .await;
}

#[tokio::test]
async fn an_api_service_of_a_user_is_left_alone() {
    let main = Main::start(&store(), &Authorities::new()).await;
    main.create_api_service("quarry.example", "v1", "").await;
    main.create(CRDS, crd()).await;
    // It is registered for every other version: by then the server has seen the CRD.
    let mut other = crd();
    other["metadata"]["name"] = "rocks.other.example".into();
    other["spec"]["group"] = "other.example".into();
    other["spec"]["names"] = json!({"plural": "rocks", "singular": "rock", "kind": "Rock", "listKind": "RockList"});
    main.create(CRDS, other).await;
    eventually("the other APIService is registered", async || {
        (code_of(&main, "v1.other.example").await == 200).then_some(())
    })
    .await;
    let (_, service) = main.get(&format!("{API_SERVICES}/v1.quarry.example")).await;
    assert_eq!(service["spec"]["service"]["name"], "api");
    assert_eq!(service["metadata"]["labels"], Value::Null);
    for name in ["rocks.other.example", "stones.quarry.example"] {
        main.ask(Method::DELETE, &format!("{CRDS}/{name}"), &Value::Null).await;
    }
    eventually("the other APIService is removed", async || {
        (code_of(&main, "v1.other.example").await == 404).then_some(())
    })
    .await;
    assert_eq!(code_of(&main, "v1.quarry.example").await, 200);
}
