//! Conversion webhooks, on each store: when they work, and which errors clients get when they fail.

use crate::webhook_server::{Reply, Webhook};
use futures::{FutureExt, StreamExt, TryStreamExt};
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use restow_testkit::eventually_some;
use restow_testkit::{Cluster, On, Server, eventually_blocking, namespaced_api};
use serde_json::{Value, json};

/// In v1 a gadget has `size: WxH`, in v2 a width and a height. It is stored as v1.
fn definition(client_config: &Value) -> Value {
    let version = |name: &str, storage: bool, spec: Value| {
        let status = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        json!({
            "name": name, "served": true, "storage": storage, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                "spec": {"type": "object", "properties": spec}, "status": status}}},
        })
    };
    let number = json!({"type": "integer"});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "gadgets.conversion.example.com"},
        "spec": {
            "group": "conversion.example.com", "scope": "Namespaced", "names": {"plural": "gadgets", "kind": "Gadget"},
            "versions": [
                version("v1", true, json!({"size": {"type": "string"}})),
                version("v2", false, json!({"width": number, "height": number})),
            ],
            "conversion": {"strategy": "Webhook", "webhook": {
                "clientConfig": client_config, "conversionReviewVersions": ["v1"]}},
        },
    })
}

/// A response with each object converted, and then changed by the test.
fn answer(review: &Value, change: impl Fn(&mut Value)) -> Reply {
    let target = &review["request"]["desiredAPIVersion"];
    let objects = review["request"]["objects"].as_array().unwrap();
    let converted: Vec<Value> = objects.iter().map(|object| converted(object, target.as_str().unwrap())).collect();
    let mut answer = json!({
        "kind": "ConversionReview", "apiVersion": review["apiVersion"],
        "response": {"uid": review["request"]["uid"], "result": {"status": "Success"}, "convertedObjects": converted},
    });
    change(&mut answer);
    Reply::Json(answer)
}

fn converted(object: &Value, target: &str) -> Value {
    let mut object = object.clone();
    object["apiVersion"] = target.into();
    let spec = &object["spec"];
    object["spec"] = match spec["size"].as_str().and_then(|size| size.split_once('x')) {
        Some((width, height)) => {
            json!({"width": width.parse::<i64>().unwrap(), "height": height.parse::<i64>().unwrap()})
        }
        None => json!({"size": format!("{}x{}", spec["width"], spec["height"])}),
    };
    object
}

fn works(review: &Value) -> Reply {
    answer(review, |_| {})
}

async fn gadgets(server: &Server, version: &str) -> Api<DynamicObject> {
    namespaced_api(&server.client().await, "conversion.example.com", version, "Gadget", "gadgets")
}

fn gadget(version: &str, name: &str, spec: Value) -> DynamicObject {
    serde_json::from_value(json!({
        "apiVersion": format!("conversion.example.com/{version}"), "kind": "Gadget",
        "metadata": {"name": name}, "spec": spec,
    }))
    .unwrap()
}

/// Creates the CRD, and waits until it is established.
fn install(cluster: &Cluster, client_config: &Value) {
    cluster.kubectl(&["apply", "-f", &cluster.file("crd.json", &definition(client_config).to_string())]);
    cluster.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", "crd/gadgets.conversion.example.com"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhooks_convert_on_the_embedded_store() {
    webhooks_convert(On::Embedded).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhooks_convert_on_etcd() {
    webhooks_convert(On::Etcd).await;
}

async fn webhooks_convert(on: On) {
    let cluster = Cluster::one(on).await;
    let mut webhook = Webhook::start(works).await;
    install(&cluster, &json!({"url": webhook.url("/convert"), "caBundle": webhook.ca_bundle}));
    let server = &cluster.servers[0];
    let (v1, v2) = (gadgets(server, "v1").await, gadgets(server, "v2").await);
    eventually_some("the resource is served", async || v1.list(&ListParams::default()).await.ok()).await;
    stored_objects_are_served(&cluster);
    every_verb_converts(&v1, &v2, &webhook).await;
    one_bad_object_is_named(&v1, &v2, &webhook).await;
    wrong_answers_are_refused(&cluster, &v1, &v2, &webhook).await;
    a_conversion_loop_ends(&v1, &v2, &webhook).await;
    a_webhook_comes_and_goes(&v2, &mut webhook).await;
    services_are_found(&cluster, &v2, &webhook).await;
    strangers_are_not_trusted(&cluster, &v1, &v2, &webhook).await;
}

/// Without a webhook, an object that is stored in another version keeps only the fields of that version, and the
/// response shows it.
fn stored_objects_are_served(cluster: &Cluster) {
    let mut definition = definition(&Value::Null);
    definition["metadata"]["name"] = "plains.conversion.example.com".into();
    definition["spec"]["names"] = json!({"plural": "plains", "kind": "Plain"});
    definition["spec"]["conversion"] = json!({"strategy": "None"});
    cluster.kubectl(&["apply", "-f", &cluster.file("crd.json", &definition.to_string())]);
    cluster.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", "crd/plains.conversion.example.com"]);
    let object = json!({"apiVersion": "conversion.example.com/v2", "kind": "Plain", "metadata": {"name": "a"},
        "spec": {"width": 1, "height": 2}});
    let path = "/apis/conversion.example.com/v2/namespaces/default/plains";
    let object = cluster.file("plain.json", &object.to_string());
    let mut made = String::new();
    eventually_blocking("the resource is served", || {
        let output = cluster.servers[0].try_kubectl(&["create", "--raw", path, "-f", &object]);
        made = String::from_utf8_lossy(&output.stdout).to_string();
        output.status.success()
    });
    let made: Value = serde_json::from_str(&made).unwrap();
    assert_eq!((&made["apiVersion"], &made["spec"]), (&json!("conversion.example.com/v2"), &json!({})));
}

async fn every_verb_converts(v1: &Api<DynamicObject>, v2: &Api<DynamicObject>, webhook: &Webhook) {
    let create = PostParams::default();
    v1.create(&create, &gadget("v1", "a", json!({"size": "2x3"}))).await.unwrap();
    let seen = v2.get("a").await.unwrap();
    assert_eq!(seen.data["spec"], json!({"width": 2, "height": 3}));
    let mut events = v2.watch(&WatchParams::default(), &seen.metadata.resource_version.unwrap()).await.unwrap().boxed();
    let made = v2.create(&create, &gadget("v2", "b", json!({"width": 4, "height": 5}))).await.unwrap();
    assert_eq!(made.data["spec"], json!({"width": 4, "height": 5}));
    assert_eq!(v1.get("b").await.unwrap().data["spec"], json!({"size": "4x5"}));
    match events.try_next().await.unwrap().unwrap() {
        WatchEvent::Added(object) => assert_eq!(object.data["spec"], json!({"width": 4, "height": 5})),
        other => panic!("{other:?}"),
    }
    let merge = |patch: Value| Patch::Merge(patch);
    let params = PatchParams::default();
    v2.patch("b", &params, &merge(json!({"spec": {"width": 6}}))).await.unwrap();
    v2.patch_status("b", &params, &merge(json!({"status": {"ready": true}}))).await.unwrap();
    let stored = v1.get("b").await.unwrap();
    assert_eq!((&stored.data["spec"], &stored.data["status"]), (&json!({"size": "6x5"}), &json!({"ready": true})));
    assert_eq!(stored.metadata.generation, Some(2), "the status is no change of the specification");
    webhook.asked();
    let all = v2.list(&ListParams::default()).await.unwrap().items;
    let widths: Vec<&Value> = all.iter().map(|object| &object.data["spec"]["width"]).collect();
    assert_eq!(widths, [&json!(2), &json!(6)]);
    // The watch may still convert the events that it has received, one object at a time.
    let mut asked = webhook.asked();
    asked.retain(|review| review["request"]["objects"].as_array().unwrap().len() != 1);
    assert_eq!(asked.len(), 1, "a list is converted in one review");
    assert_eq!(asked[0]["request"]["objects"].as_array().unwrap().len(), 2);
    assert_eq!(asked[0]["request"]["desiredAPIVersion"], "conversion.example.com/v2");
}

async fn one_bad_object_is_named(v1: &Api<DynamicObject>, v2: &Api<DynamicObject>, webhook: &Webhook) {
    let names = ["c", "d", "e", "f", "g"];
    for name in names {
        v1.create(&PostParams::default(), &gadget("v1", name, json!({"size": "1x1"}))).await.unwrap();
    }
    webhook.behave(|review| {
        let objects = review["request"]["objects"].as_array().unwrap();
        match objects.iter().any(|object| object["metadata"]["name"] == "e") {
            true => answer(review, |it| it["response"]["result"] = json!({"status": "Failed", "message": "too odd"})),
            false => works(review),
        }
    });
    let failure = v2.list(&ListParams::default()).await.unwrap_err().to_string();
    assert!(failure.contains("default/e") && failure.contains("too odd"), "{failure}");
    assert_eq!(v2.get("d").await.unwrap().data["spec"]["width"], 1);
    webhook.behave(works);
    for name in names {
        v1.delete(name, &kube::api::DeleteParams::default()).await.unwrap();
    }
}

type Fault = (fn(&Value) -> Reply, &'static str);

/// Invalid responses, and the error that the client gets.
const FAULTS: [Fault; 16] = [
    (|review| answer(review, |it| it["response"]["convertedObjects"] = json!([])), "returned 0 objects, expected 1"),
    (
        |review| answer(review, |it| it["response"]["convertedObjects"][0]["metadata"]["name"] = "other".into()),
        "returned invalid object: must have the same name: a != other",
    ),
    (
        |review| answer(review, |it| it["response"]["convertedObjects"][0]["metadata"]["uid"] = "other".into()),
        "must have the same UID",
    ),
    (
        |review| answer(review, |it| it["response"]["convertedObjects"][0]["metadata"]["namespace"] = "other".into()),
        "must have the same namespace: default != other",
    ),
    (
        |review| answer(review, |it| it["response"]["convertedObjects"][0]["apiVersion"] = "x.com/v9".into()),
        "invalid groupVersion (expected conversion.example.com/",
    ),
    (
        |review| answer(review, |it| it["response"]["convertedObjects"][0]["kind"] = "Other".into()),
        "invalid kind (expected Gadget, received Other)",
    ),
    (
        |review| answer(review, |it| it["response"]["convertedObjects"][0]["metadata"] = Value::Null),
        "returned invalid object: must have the same name",
    ),
    (|review| answer(review, |it| it["response"]["convertedObjects"][0] = json!("text")), "conversion webhook for"),
    (|review| answer(review, |it| it["response"]["uid"] = "another".into()), "expected response.uid="),
    (|review| answer(review, |it| it["response"] = Value::Null), "no response provided"),
    (|review| answer(review, |it| it["kind"] = "Pod".into()), "expected webhook response of"),
    (
        |review| answer(review, |it| it["response"]["result"] = json!({"status": "Failed", "message": "not today"})),
        "not today",
    ),
    (|_| Reply::Bytes(200, b"<html>".to_vec()), "conversion webhook for"),
    (|_| Reply::Bytes(500, b"broken".to_vec()), "conversion webhook for"),
    (|_| Reply::HangUp, "conversion webhook for"),
    (|_| Reply::Bytes(200, vec![b' '; 40 << 20]), "conversion webhook for"),
];

async fn wrong_answers_are_refused(
    cluster: &Cluster,
    v1: &Api<DynamicObject>,
    v2: &Api<DynamicObject>,
    webhook: &Webhook,
) {
    let before = v1.get("a").await.unwrap();
    let patch = Patch::Merge(json!({"spec": {"width": 9}}));
    for (fault, words) in FAULTS {
        webhook.behave(fault);
        for failure in [
            v2.get("a").await.unwrap_err(),
            v2.patch("a", &PatchParams::default(), &patch).await.unwrap_err(),
            v2.create(&PostParams::default(), &gadget("v2", "a", json!({"width": 1, "height": 1}))).await.unwrap_err(),
        ] {
            let kube::Error::Api(status) = &failure else { panic!("{words}: {failure}") };
            assert_eq!(status.code, 500, "{words}: {failure}");
            assert!(status.message.contains(words), "{words}: {}", status.message);
        }
        assert_eq!(v1.get("a").await.unwrap(), before, "what is stored needs no conversion, and is as it was");
    }
    // Objects in another order than in the request are refused.
    webhook.behave(|review| answer(review, |it| it["response"]["convertedObjects"].as_array_mut().unwrap().reverse()));
    let failure = v2.list(&ListParams::default()).await.unwrap_err().to_string();
    assert!(failure.contains("must have the same name: a != b"), "{failure}");
    webhook.behave(|_| Reply::Silence);
    let path = "/apis/conversion.example.com/v2/namespaces/default/gadgets?timeout=1s";
    let failure = cluster.servers[0].kubectl_fails(&["get", "--raw", path]);
    assert!(failure.to_lowercase().contains("timeout") || failure.contains("deadline"), "{failure}");
    // A webhook may change labels and annotations, and no other metadata.
    webhook.behave(|review| {
        answer(review, |it| {
            let metadata = &mut it["response"]["convertedObjects"][0]["metadata"];
            metadata["labels"] = json!({"made-by": "webhook"});
            metadata["generation"] = 99.into();
            metadata["resourceVersion"] = "1".into();
        })
    });
    let seen = v2.get("a").await.unwrap();
    assert_eq!(seen.metadata.labels.unwrap()["made-by"], "webhook");
    assert_eq!(seen.metadata.generation, before.metadata.generation);
    assert_eq!(seen.metadata.resource_version, before.metadata.resource_version);
    webhook.behave(works);
    assert_eq!(v2.get("a").await.unwrap().data["spec"]["width"], 2, "it works again by itself");
}

/// To convert an object, the webhook reads it from the server in the version that it is to be converted to. It is an
/// administrator, so its requests are never refused with 429.
async fn a_conversion_loop_ends(v1: &Api<DynamicObject>, v2: &Api<DynamicObject>, webhook: &Webhook) {
    let reading = v2.clone();
    webhook.behave(move |review| {
        let (reading, review) = (reading.clone(), review.clone());
        let reply = async move {
            let Err(kube::Error::Api(status)) = reading.get("a").await else { return Reply::HangUp };
            // The message of a redirect loop is as long as the loop; its end has the reason.
            let (_, reason) = status.message.rsplit_once("failed: ").unwrap_or_default();
            let result = json!({"status": "Failed", "message": reason});
            answer(&review, |it| it["response"]["result"] = result.clone())
        };
        Reply::Later(reply.boxed())
    });
    webhook.asked();
    let failure = v2.get("a").await.unwrap_err();
    let kube::Error::Api(status) = &failure else { panic!("{failure}") };
    assert_eq!(status.code, 500, "{failure}");
    assert!(status.message.contains("does the webhook send requests that call it again?"), "{failure}");
    let asked = webhook.asked().len();
    assert!((2..=100).contains(&asked), "the webhook was asked {asked} times");
    assert_eq!(v1.get("a").await.unwrap().data["spec"]["size"], "2x3", "other requests do not wait for it");
    webhook.behave(works);
    assert_eq!(v2.get("a").await.unwrap().data["spec"]["width"], 2);
}

async fn a_webhook_comes_and_goes(v2: &Api<DynamicObject>, webhook: &mut Webhook) {
    for _ in 0..2 {
        webhook.stop();
        // Open connections are closed a moment later.
        let failure = eventually_some("it cannot be asked", async || v2.get("a").await.err()).await.to_string();
        assert!(failure.contains("conversion webhook for conversion.example.com/v1, Kind=Gadget failed"), "{failure}");
        webhook.resume();
        assert_eq!(v2.get("a").await.unwrap().data["spec"]["width"], 2);
    }
}

async fn services_are_found(cluster: &Cluster, v2: &Api<DynamicObject>, webhook: &Webhook) {
    // Endpoints may not name addresses of this machine, so an external name leads to it. Not every machine knows `localhost`.
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "hook", "namespace": "default"},
        "spec": {"type": "ExternalName", "externalName": "127.0.0.1"}});
    cluster.kubectl(&["apply", "-f", &cluster.file("service.json", &service.to_string())]);
    let port = webhook.address.port();
    let reference = json!({"name": "hook", "namespace": "default", "path": "/convert", "port": port});
    webhook.asked();
    install(cluster, &json!({"service": reference, "caBundle": webhook.ca_bundle}));
    let seen = eventually_some("the service is found", async || v2.get("a").await.ok()).await;
    assert_eq!(seen.data["spec"]["width"], 2);
}

async fn strangers_are_not_trusted(
    cluster: &Cluster,
    v1: &Api<DynamicObject>,
    v2: &Api<DynamicObject>,
    webhook: &Webhook,
) {
    let stranger = Webhook::start(works).await;
    for ca_bundle in [Some(&stranger.ca_bundle), None] {
        let mut config = json!({"url": webhook.url("/convert")});
        if let Some(ca_bundle) = ca_bundle {
            config["caBundle"] = ca_bundle.as_str().into();
        }
        install(cluster, &config);
        let failure = eventually_some("the change is seen", async || v2.get("a").await.err()).await.to_string();
        assert!(failure.to_lowercase().contains("certificate"), "{failure}");
        assert_eq!(v1.get("a").await.unwrap().data["spec"]["size"], "2x3");
    }
    install(cluster, &json!({"url": webhook.url("/convert"), "caBundle": webhook.ca_bundle}));
    eventually_blocking("it works with the right authority", || {
        cluster.servers[0].try_kubectl(&["get", "gadgets.v2.conversion.example.com"]).status.success()
    });
}
