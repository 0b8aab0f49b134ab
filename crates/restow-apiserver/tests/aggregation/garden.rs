//! A server made with the library behind the main server.

use crate::fixture::{Authorities, Backend, Main, PLANTS, admin, eventually, json_response, store};
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const API_SERVICE: &str = "v1.garden.example";

fn plant(name: &str) -> Value {
    json!({"apiVersion": "garden.example/v1", "kind": "Plant", "metadata": {"name": name}, "spec": {"size": 1}})
}

#[tokio::test(flavor = "multi_thread")]
async fn all_verbs_reach_the_server_behind_an_api_service() {
    let (store, authorities) = (store(), Authorities::new());
    let (main, plants) = (Main::start(&store, &authorities).await, crate::fixture::store());
    let backend = Backend::garden(&plants, &authorities, 0).await;
    main.create_service(&[backend.address]).await;
    main.create_api_service("garden.example", "v1", &authorities.servers.pem).await;
    main.wait_for_condition(API_SERVICE, "True", "Passed").await;

    let request = Request::get(format!("{PLANTS}?watch=1")).body(Full::default()).unwrap();
    let mut watch = main.send(request, admin()).await.into_body();
    main.create(PLANTS, plant("rose")).await;
    let event = tokio::time::timeout(Duration::from_secs(20), watch.frame()).await.expect("the watch delivers");
    let event: Value = serde_json::from_slice(event.unwrap().unwrap().data_ref().unwrap()).unwrap();
    assert_eq!((&event["type"], &event["object"]["metadata"]["name"]), (&json!("ADDED"), &json!("rose")));

    let rose = format!("{PLANTS}/rose");
    let (code, patched) = main.ask(Method::PATCH, &rose, &json!({"spec": {"size": 2}})).await;
    assert_eq!((code, &patched["spec"]["size"]), (200, &json!(2)));
    let (_, mut found) = main.get(&rose).await;
    assert_eq!(found["spec"]["size"], 2);
    found["spec"]["size"] = 3.into();
    let (code, updated) = main.ask(Method::PUT, &rose, &found).await;
    assert_eq!((code, &updated["spec"]["size"]), (200, &json!(3)));
    let (_, list) = main.get(PLANTS).await;
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    assert_eq!(main.ask(Method::DELETE, &rose, &Value::Null).await.0, 200);
    assert_eq!(main.get(&rose).await.0, 404);
    let (code, status) = main.get("/apis/garden.example/v1/nothing").await;
    assert_eq!((code, &status["kind"]), (404, &json!("Status")));
    // The objects are in the store of the server behind, and only there.
    let stored = store.range(restow_store::RangeRequest::prefix("/garden.example/")).await.unwrap();
    assert!(stored.entries.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn discovery_shows_what_the_server_behind_serves() {
    let authorities = Authorities::new();
    let (main, plants) = (Main::start(&store(), &authorities).await, store());
    let backend = Backend::garden(&plants, &authorities, 0).await;
    main.create_service(&[backend.address]).await;
    main.create_api_service("garden.example", "v1", &authorities.servers.pem).await;
    main.create_api_service("garden.example", "v2", &authorities.servers.pem).await;
    let found = eventually("discovery is current", async || {
        let found = main.discovered("garden.example", "v1").await;
        (found["freshness"] == "Current").then_some(found)
    })
    .await;
    let resource = &found["resources"][0];
    assert_eq!((&resource["resource"], &resource["shortNames"]), (&json!("plants"), &json!(["pl"])));
    assert_eq!(resource["subresources"][0]["subresource"], "status");
    main.wait_for_condition("v2.garden.example", "True", "Passed").await;
    main.wait_for_condition(API_SERVICE, "True", "Passed").await;
    let (_, group) = main.get("/apis/garden.example").await;
    assert_eq!(group["preferredVersion"]["version"], "v2");
    let (_, groups) = main.get("/apis").await;
    assert_eq!(groups["groups"].as_array().unwrap().last().unwrap()["name"], "garden.example");
    let (_, list) = main.get("/apis/garden.example/v1").await;
    let hash = restow_api::storage_version_hash("garden.example", "v2", "Plant");
    let plants = list["resources"].as_array().unwrap().iter().find(|resource| resource["name"] == "plants").unwrap();
    assert_eq!(plants["storageVersionHash"], hash.as_str());
    let (_, index) = main.get("/openapi/v3").await;
    let url = index["paths"]["apis/garden.example/v1"]["serverRelativeURL"].as_str().unwrap().to_string();
    let (code, document) = main.get(&url).await;
    assert_eq!((code, &document["openapi"]), (200, &json!("3.0.0")));
    let (_, root) = main.get("/").await;
    assert!(root["paths"].as_array().unwrap().contains(&json!("/apis/garden.example/v1")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_gone_is_answered_for_with_503_until_it_is_back() {
    let authorities = Authorities::new();
    let (main, plants) = (Main::start(&store(), &authorities).await, store());
    let backend = Backend::garden(&plants, &authorities, 0).await;
    let address = backend.address;
    main.create_service(&[address]).await;
    main.create_api_service("garden.example", "v1", &authorities.servers.pem).await;
    main.wait_for_condition(API_SERVICE, "True", "Passed").await;
    main.create(PLANTS, plant("rose")).await;
    backend.stop().await;

    let (code, text) = main.get(PLANTS).await;
    assert_eq!(code, 503, "{text}");
    // A change of its endpoints is a reason to check again at once.
    let slice = format!("/apis/discovery.k8s.io/v1/namespaces/garden/endpointslices/api-{}", address.port());
    let ready = json!([{"addresses": ["127.0.0.1"], "conditions": {"ready": true, "serving": true}}]);
    main.ask(Method::PATCH, &slice, &json!({"endpoints": ready})).await;
    main.wait_for_condition(API_SERVICE, "False", "FailedDiscoveryCheck").await;
    eventually("requests are refused", async || {
        (main.get(PLANTS).await == (503, json!("service unavailable\n"))).then_some(())
    })
    .await;
    eventually("discovery is stale", async || {
        let found = main.discovered("garden.example", "v1").await;
        (found["freshness"] == "Stale" && found["resources"][0]["resource"] == "plants").then_some(())
    })
    .await;
    let (_, service) = main.get(&format!("/apis/apiregistration.k8s.io/v1/apiservices/{API_SERVICE}")).await;
    let url = format!("https://{address}/apis/garden.example/v1");
    let cause = format!("Get \"{url}\": dial tcp {address}: connect: connection refused");
    let expected = format!("failing or missing response from {url}: {cause}");
    assert_eq!(service["status"]["conditions"][0]["message"], expected.as_str());

    let _again = Backend::garden(&plants, &authorities, address.port()).await;
    main.wait_for_condition(API_SERVICE, "True", "Passed").await;
    eventually("requests are passed on again", async || {
        (main.get(&format!("{PLANTS}/rose")).await.0 == 200).then_some(())
    })
    .await;
    eventually("discovery is current again", async || {
        (main.discovered("garden.example", "v1").await["freshness"] == "Current").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_condition_says_what_is_missing() {
    let authorities = Authorities::new();
    let main = Main::start(&store(), &authorities).await;
    main.create_api_service("garden.example", "v1", &authorities.servers.pem).await;
    main.wait_for_condition(API_SERVICE, "False", "ServiceNotFound").await;
    main.create_service(&[]).await;
    main.wait_for_condition(API_SERVICE, "False", "EndpointsNotFound").await;
    let backend = Backend::garden(&store(), &authorities, 0).await;
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "api", "labels": {"kubernetes.io/service-name": "api"}}, "addressType": "IPv4",
        "endpoints": [], "ports": [{"name": "https", "port": backend.address.port()}],
    });
    let slices = "/apis/discovery.k8s.io/v1/namespaces/garden/endpointslices";
    main.create(slices, slice).await;
    main.wait_for_condition(API_SERVICE, "False", "MissingEndpoints").await;
    let endpoints = json!({"endpoints": [{"addresses": ["127.0.0.1"]}]});
    main.ask(Method::PATCH, &format!("{slices}/api"), &endpoints).await;
    main.wait_for_condition(API_SERVICE, "True", "Passed").await;
    let ports = json!({"spec": {"ports": [{"name": "https", "port": 8443}]}});
    main.ask(Method::PATCH, "/api/v1/namespaces/garden/services/api", &ports).await;
    main.wait_for_condition(API_SERVICE, "False", "ServicePortError").await;
    let local = json!({"spec": {"service": null, "caBundle": null}});
    main.ask(Method::PATCH, &format!("/apis/apiregistration.k8s.io/v1/apiservices/{API_SERVICE}"), &local).await;
    main.wait_for_condition(API_SERVICE, "True", "Local").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_of_another_authority_or_name_is_refused() {
    let (authorities, others) = (Authorities::new(), Authorities::new());
    let main = Main::start(&store(), &authorities).await;
    let backend = Backend::garden(&store(), &authorities, 0).await;
    main.create_service(&[backend.address]).await;
    main.create_api_service("garden.example", "v1", &others.servers.pem).await;
    main.wait_for_condition(API_SERVICE, "False", "FailedDiscoveryCheck").await;
    let path = format!("/apis/apiregistration.k8s.io/v1/apiservices/{API_SERVICE}");
    let insecure = json!({"spec": {"caBundle": null, "insecureSkipTLSVerify": true}});
    let (code, answer) = main.ask(Method::PATCH, &path, &insecure).await;
    assert_eq!(code, 200, "{answer}");
    main.wait_for_condition(API_SERVICE, "True", "Passed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_answer_slows_down_nobody() {
    let authorities = Authorities::new();
    let main = Main::start(&store(), &authorities).await;
    // It accepts connections, and is silent.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    main.create_service(&[silent.local_addr().unwrap()]).await;
    main.create_api_service("garden.example", "v1", &authorities.servers.pem).await;
    let listed = async || main.get("/apis").await.1.to_string().contains("garden.example");
    eventually("the group is listed", async || listed().await.then_some(())).await;
    let begun = Instant::now();
    assert!(listed().await);
    assert_eq!(main.discovered("garden.example", "v1").await["freshness"], "Stale");
    assert_eq!(main.get(PLANTS).await, (503, json!("service unavailable\n")));
    assert_eq!(main.get("/api/v1/namespaces/garden/configmaps").await.0, 200);
    // One request to the silent server takes five seconds.
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    main.wait_for_condition(API_SERVICE, "False", "FailedDiscoveryCheck").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_main_servers_do_not_take_turns_in_writing_the_condition() {
    let (store, authorities) = (store(), Authorities::new());
    let one = Main::start_as(&store, &authorities, "one").await;
    let other = Main::start_as(&store, &authorities, "other").await;
    let backend = Backend::garden(&crate::fixture::store(), &authorities, 0).await;
    one.create_service(&[backend.address]).await;
    one.create_api_service("garden.example", "v1", &authorities.servers.pem).await;
    for main in [&one, &other] {
        main.wait_for_condition(API_SERVICE, "True", "Passed").await;
        eventually("requests are passed on", async || (main.get(PLANTS).await.0 == 200).then_some(())).await;
    }
    let path = format!("/apis/apiregistration.k8s.io/v1/apiservices/{API_SERVICE}");
    let version = async || one.get(&path).await.1["metadata"]["resourceVersion"].clone();
    let before = version().await;
    // Every change of the service makes both servers check it.
    for port in 8444..8454 {
        let ports = json!({"spec": {"ports": [{"name": "https", "port": 443, "targetPort": port}]}});
        let (code, answer) = one.ask(Method::PATCH, "/api/v1/namespaces/garden/services/api", &ports).await;
        assert_eq!(code, 200, "{answer}");
    }
    // Both have checked again when they know a server that was not there before.
    let second = Backend::garden(&crate::fixture::store(), &authorities, 0).await;
    one.create(
        "/apis/discovery.k8s.io/v1/namespaces/garden/endpointslices",
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": "second", "labels": {"kubernetes.io/service-name": "api"}}, "addressType": "IPv4",
            "endpoints": [{"addresses": ["127.0.0.1"]}], "ports": [{"name": "https", "port": second.address.port()}],
        }),
    )
    .await;
    backend.stop().await;
    for main in [&one, &other] {
        eventually("requests reach the second server", async || (main.get(PLANTS).await.0 == 200).then_some(())).await;
    }
    assert_eq!(version().await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_discovery_of_a_server_is_not_shown_to_clients() {
    let authorities = Authorities::new();
    let main = Main::start(&store(), &authorities).await;
    let backend = Backend::answering(&authorities, |request: Request<Incoming>| async move {
        match request.uri().path() {
            "/apis/garden.example/v1" => {
                let plants = json!({"name": "plants", "namespaced": true, "kind": "Plant", "verbs": "get"});
                json_response(200, &json!({"kind": "APIResourceList", "resources": [plants]}))
            }
            _ => json_response(404, &json!({})),
        }
    })
    .await;
    main.create_service(&[backend.address]).await;
    main.create_api_service("garden.example", "v1", &authorities.servers.pem).await;
    // The discovery is fetched before.
    main.wait_for_condition(API_SERVICE, "True", "Passed").await;
    let found = main.discovered("garden.example", "v1").await;
    assert_eq!(found, json!({"version": "v1", "resources": [], "freshness": "Stale"}));
}
