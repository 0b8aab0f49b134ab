//! Namespaces with objects on a server behind the main one, and owners that are there.

use crate::fixture::{Authorities, Backend, Main, eventually, json_response, store};
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use restow_store::{Key, StoreExt};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use tokio::sync::watch;

const API_SERVICE: &str = "v1.garden.example";
const PLANTS: &str = "/apis/garden.example/v1/namespaces/bed/plants";

fn plant(name: &str) -> Value {
    json!({"apiVersion": "garden.example/v1", "kind": "Plant", "metadata": {"name": name}})
}

async fn start(authorities: &Authorities) -> (Main, Backend) {
    let main = Main::start(&store(), authorities).await;
    let backend = Backend::garden(&store(), authorities, 0).await;
    main.create_service(&[backend.address]).await;
    main.create_api_service("garden.example", "v1", &authorities.servers.pem).await;
    main.wait_for_condition(API_SERVICE, "True", "Passed").await;
    main.create_namespace("bed").await;
    main.create(PLANTS, plant("rose")).await;
    (main, backend)
}

async fn is_gone(main: &Main, path: &str) -> Option<()> {
    (main.get(path).await.0 == 404).then_some(())
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_on_another_server_are_deleted_with_their_namespace() {
    let authorities = Authorities::new();
    let (main, _backend) = start(&authorities).await;
    let mut kept = plant("kept");
    kept["metadata"]["finalizers"] = json!(["garden.example/gardener"]);
    main.create(PLANTS, kept).await;
    main.ask(Method::DELETE, "/api/v1/namespaces/bed", &Value::Null).await;
    eventually("the plant is deleted", async || is_gone(&main, &format!("{PLANTS}/rose")).await).await;
    let remaining = eventually("the namespace says what is left", async || {
        let (_, namespace) = main.get("/api/v1/namespaces/bed").await;
        let conditions = namespace["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|condition| condition["status"] == "True")
    })
    .await;
    assert_eq!(remaining["type"], "NamespaceContentRemaining");
    assert_eq!(remaining["message"], "Some resources are remaining: plants.garden.example has 1 resource instances");
    let release = json!({"metadata": {"finalizers": null}});
    let (code, answer) = main.ask(Method::PATCH, &format!("{PLANTS}/kept"), &release).await;
    assert_eq!(code, 200, "{answer}");
    eventually("the namespace is gone", async || is_gone(&main, "/api/v1/namespaces/bed").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_waits_for_a_server_that_cannot_be_asked() {
    let authorities = Authorities::new();
    let (main, backend) = start(&authorities).await;
    backend.stop().await;
    // Its endpoints are gone, so it is checked at once.
    let slices = "/apis/discovery.k8s.io/v1/namespaces/garden/endpointslices";
    main.ask(Method::DELETE, slices, &Value::Null).await;
    main.wait_for_condition(API_SERVICE, "False", "EndpointsNotFound").await;
    main.ask(Method::DELETE, "/api/v1/namespaces/bed", &Value::Null).await;
    let failure = eventually("the namespace says that discovery failed", async || {
        let (_, namespace) = main.get("/api/v1/namespaces/bed").await;
        let conditions = namespace["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|condition| condition["type"] == "NamespaceDeletionDiscoveryFailure")
    })
    .await;
    assert_eq!((&failure["status"], &failure["reason"]), (&json!("True"), &json!("DiscoveryFailed")));
    let (code, _) = main
        .ask(Method::DELETE, &format!("/apis/apiregistration.k8s.io/v1/apiservices/{API_SERVICE}"), &Value::Null)
        .await;
    assert_eq!(code, 200);
    // Nobody claims to have objects in it any more.
    eventually("the namespace is gone", async || is_gone(&main, "/api/v1/namespaces/bed").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dependents_of_an_owner_on_another_server_stay() {
    let authorities = Authorities::new();
    let (main, _backend) = start(&authorities).await;
    let config_map = |name: &str, owner: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "ownerReferences": [owner]}});
    let maps = "/api/v1/namespaces/bed/configmaps";
    let rose = json!({"apiVersion": "garden.example/v1", "kind": "Plant", "name": "nobody", "uid": "u-1"});
    main.create(maps, config_map("of-a-plant", rose)).await;
    let nothing = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "nobody", "uid": "u-2"});
    main.create(maps, config_map("of-nothing", nothing)).await;
    eventually("garbage is collected", async || is_gone(&main, &format!("{maps}/of-nothing")).await).await;
    assert_eq!(main.get(&format!("{maps}/of-a-plant")).await.0, 200);
}

/// A server of plants that answers lists when it may, and records them and the deletions.
struct SlowGarden {
    may_answer: watch::Sender<bool>,
    plants: Mutex<Vec<Value>>,
    seen: Mutex<Vec<String>>,
}

impl SlowGarden {
    fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (method, path) = (request.method().clone(), request.uri().path().to_string());
        match (method, path.strip_prefix(PLANTS)) {
            (Method::GET, Some("")) => {
                self.seen.lock().unwrap().push("list".into());
                self.may_answer.subscribe().wait_for(|may| *may).await.unwrap();
                json_response(200, &json!({"kind": "PlantList", "items": *self.plants.lock().unwrap()}))
            }
            (Method::DELETE, Some(name)) => {
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let uid = serde_json::from_slice::<Value>(&body).unwrap()["preconditions"]["uid"].clone();
                self.seen.lock().unwrap().push(format!("delete {name} of {uid}"));
                self.plants.lock().unwrap().retain(|plant| plant["metadata"]["uid"] != uid);
                json_response(200, &json!({"kind": "Status"}))
            }
            _ if path == "/apis/garden.example/v1" => {
                let verbs = ["delete", "deletecollection", "list"];
                let plants = json!({"name": "plants", "namespaced": true, "kind": "Plant", "verbs": verbs});
                json_response(200, &json!({"kind": "APIResourceList", "resources": [plants]}))
            }
            _ => json_response(404, &json!({})),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_pass_over_a_namespace_deletes_nothing_in_the_next_one_of_its_name() {
    let (store, authorities) = (store(), Authorities::new());
    let main = Main::start(&store, &authorities).await;
    let garden = Arc::new(SlowGarden {
        may_answer: watch::Sender::new(false),
        plants: Mutex::default(),
        seen: Mutex::default(),
    });
    let answering = garden.clone();
    let backend = Backend::answering(&authorities, move |request| answering.clone().answer(request)).await;
    main.create_service(&[backend.address]).await;
    main.create_api_service("garden.example", "v1", &authorities.servers.pem).await;
    main.wait_for_condition(API_SERVICE, "True", "Passed").await;
    main.create_namespace("bed").await;
    main.ask(Method::DELETE, "/api/v1/namespaces/bed", &Value::Null).await;
    eventually("the plants are listed", async || (garden.seen() == ["list"]).then_some(())).await;

    // Another API server finds it empty before, and somebody creates it again.
    let key = Key::try_from("/core/namespaces/bed").unwrap();
    let terminating = store.get(&key).await.unwrap().unwrap();
    store.remove(&key, terminating.mod_revision).await.unwrap();
    main.create_namespace("bed").await;
    garden.plants.lock().unwrap().push(json!({"metadata": {"name": "rose:red", "uid": "u-2"}}));
    garden.may_answer.send_replace(true);

    // Its own deletion is another pass, which begins when the late one has ended.
    let (code, answer) = main.ask(Method::DELETE, "/api/v1/namespaces/bed", &Value::Null).await;
    assert_eq!(code, 200, "{answer}");
    eventually("the namespace is gone", async || is_gone(&main, "/api/v1/namespaces/bed").await).await;
    assert_eq!(garden.seen(), ["list", "list", "delete /rose%3Ared of \"u-2\"", "list"]);
}
