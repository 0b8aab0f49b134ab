//! Admission of subresources, of deletecollection, and of deletions by the server's own controllers. The tests in `admission.rs`
//! call these on each store.

use crate::admission::{asked_about_maps, configure};
use crate::custom_resources::{WIDGETS, widget};
use crate::webhook_server::{Reply, Webhook, admission, admission_patch};
use futures::FutureExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use restow_testkit::{Cluster, eventually_blocking};
use serde_json::{Value, json};

const DEPLOYMENT: &str = "---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {replicas: 1, selector: {matchLabels: {a: b}},
  template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}";
const POD: &str = "---
{apiVersion: v1, kind: Pod, metadata: {name: seen}, spec: {containers: [{name: c, image: i}]}}";
const FEW: &str = "---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: few}
spec:
  matchConstraints: {resourceRules: [{operations: [UPDATE], apiGroups: [apps], apiVersions: [v1], resources: [deployments/scale]}]}
  validations: [{expression: 'object.kind == \"Scale\" && object.spec.replicas <= oldObject.spec.replicas + 4', message: too many at once}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: few}
spec: {policyName: few, validationActions: [Deny]}";

/// One more replica than requested.
fn one_more(review: &Value) -> Reply {
    match review["request"]["object"]["kind"].as_str() {
        Some("Scale") => {
            let replicas = review["request"]["object"]["spec"]["replicas"].as_i64().unwrap_or_default() + 1;
            admission_patch(review, &json!([{"op": "replace", "path": "/spec/replicas", "value": replicas}]))
        }
        _ => admission(review, json!({"allowed": true})),
    }
}

/// The reviews that a webhook received, one line each. A decision on a cached object may be made again on the stored
/// one, so duplicates count once.
fn lines(webhook: &Webhook) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    let line = |review: &Value| {
        let request = &review["request"];
        let (kind, resource) = (&request["kind"], &request["resource"]);
        let [operation, name] = ["operation", "name"].map(|field| text(&request[field]));
        let place = format!("{}/{}", text(&resource["resource"]), text(&request["subResource"]));
        let (group, version) = (text(&kind["group"]), text(&kind["version"]));
        assert_eq!(request["requestKind"], *kind, "what lies beneath an object is never converted");
        format!("{operation} {place} {name} {group}/{version}/{}", text(&kind["kind"]))
    };
    let mut lines: Vec<String> = webhook.asked().iter().map(line).collect();
    lines.dedup();
    lines
}

pub(crate) async fn subresources_and_collections_are_admitted(cluster: &Cluster) {
    let server = &cluster.servers[0];
    cluster.kubectl(&["apply", "-f", &cluster.file("crd.yaml", WIDGETS)]);
    cluster.kubectl(&["create", "-f", &cluster.file("deployment.yaml", DEPLOYMENT)]);
    cluster.kubectl(&["create", "-f", &cluster.file("pod.yaml", POD)]);
    let object = cluster.file("widget.yaml", &widget("scaled", "{color: red}"));
    eventually_blocking("custom resources are served", || {
        server.try_kubectl(&["apply", "-f", &object]).status.success()
    });
    let webhook = Webhook::start(one_more).await;
    let resources = ["*/scale", "pods/binding", "pods/eviction", "serviceaccounts/token"];
    let rules =
        json!({"rules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": resources}]});
    configure(cluster, "MutatingWebhookConfiguration", "beneath", &[asked_about_maps(&webhook, "beneath", rules)]);
    let scale = |what: &str, replicas: u8| vec!["scale".into(), format!("--replicas={replicas}"), what.to_string()];
    let scaled = |what: &str, replicas: u8, flags: &[&str]| {
        let arguments = scale(what, replicas);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).chain(flags.iter().copied()).collect();
        server.try_kubectl(&arguments)
    };
    eventually_blocking("the webhook is asked", || {
        scaled("deployment/web", 1, &["--dry-run=server"]);
        !webhook.asked().is_empty()
    });
    cluster.kubectl(&["apply", "-f", &cluster.file("policy.yaml", FEW)]);
    eventually_blocking("the policy is in force", || {
        !scaled("deployment/web", 5, &["--dry-run=server"]).status.success()
    });
    webhook.asked();
    let refused = String::from_utf8_lossy(&scaled("deployment/web", 5, &[]).stderr).to_string();
    assert!(
        refused.contains("ValidatingAdmissionPolicy 'few' with binding 'few' denied request: too many at once"),
        "{refused}"
    );
    assert!(scaled("deployment/web", 4, &[]).status.success());
    assert!(scaled("widget/scaled", 6, &[]).status.success());
    let replicas = |what: &str, path: &str| cluster.kubectl(&["get", what, "-o", &format!("jsonpath={{{path}}}")]);
    assert_eq!(replicas("deployment/web", ".spec.replicas"), "5", "the policy saw what the webhook had made of it");
    assert_eq!(replicas("widget/scaled", ".spec.size"), "7");
    let post = |name: &str, body: &str| {
        let path = format!("/api/v1/namespaces/default/pods/seen/{name}");
        cluster.kubectl(&["create", "--raw", &path, "-f", &cluster.file("posted.json", body)]);
    };
    post("binding", r#"{"metadata": {"name": "seen"}, "target": {"kind": "Node", "name": "n"}}"#);
    post("eviction", r#"{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "seen"}}"#);
    let mut expected = vec![
        "UPDATE deployments/scale web autoscaling/v1/Scale",
        "UPDATE widgets/scale scaled autoscaling/v1/Scale",
        "CREATE pods/binding seen /v1/Binding",
        "CREATE pods/eviction seen policy/v1/Eviction",
    ];
    // A server without a key issues no tokens.
    if server.try_kubectl(&["get", "--raw", "/openid/v1/jwks"]).status.success() {
        cluster.kubectl(&["create", "token", "default"]);
        expected.push("CREATE serviceaccounts/token default authentication.k8s.io/v1/TokenRequest");
    }
    assert_eq!(lines(&webhook), expected);
    cluster.kubectl(&["delete", "mutatingwebhookconfiguration/beneath", "validatingadmissionpolicy/few"]);
    cluster.kubectl(&["delete", "validatingadmissionpolicybinding/few", "deployment/web"]);
}

/// A webhook that refuses to delete config maps with the name `kept`.
fn keeps(review: &Value) -> Reply {
    let kept = review["request"]["oldObject"]["metadata"]["name"] == "kept";
    admission(review, json!({"allowed": !kept, "status": {"message": "it is kept"}}))
}

/// Creates a config map that another one owns.
fn own(cluster: &Cluster, owner: &str, name: &str) {
    let uid = cluster.kubectl(&["get", "configmap", owner, "-o", "jsonpath={.metadata.uid}"]);
    let owners = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": uid}]);
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "ownerReferences": owners}});
    cluster.kubectl(&["create", "-f", &cluster.file("owned.json", &map.to_string())]);
}

pub(crate) async fn deletions_by_controllers_are_admitted(cluster: &Cluster) {
    let server = &cluster.servers[0];
    let webhook = Webhook::start(keeps).await;
    let deletions = json!({"timeoutSeconds": 30, "rules": [
        {"operations": ["DELETE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]});
    cluster.kubectl(&["create", "configmap", "first"]);
    configure(
        cluster,
        "ValidatingWebhookConfiguration",
        "keeping",
        &[asked_about_maps(&webhook, "keeping", deletions)],
    );
    eventually_blocking("the webhook is asked", || {
        cluster.kubectl(&["delete", "configmap", "first", "--dry-run=server"]);
        !webhook.asked().is_empty()
    });
    own(cluster, "first", "dependent");
    cluster.kubectl(&["delete", "configmap", "first"]);
    cluster.kubectl(&["wait", "--for=delete", "configmap/dependent", "--timeout=120s"]);
    let users = |name: &str| -> Vec<String> {
        let asked = webhook.asked().into_iter().filter(|it| it["request"]["oldObject"]["metadata"]["name"] == name);
        asked.map(|it| it["request"]["userInfo"]["username"].as_str().unwrap().to_string()).collect()
    };
    let collector = "system:serviceaccount:kube-system:generic-garbage-collector";
    let seen = users("dependent");
    assert!(!seen.is_empty() && seen.iter().all(|user| user == collector), "{seen:?}");

    // The response for one object is sent only when the webhook has received the next one.
    let next = tokio::sync::watch::Sender::new(false);
    webhook.behave(move |review| {
        let name = &review["request"]["oldObject"]["metadata"]["name"];
        let allowed = admission(review, json!({"allowed": true}));
        if name == "b-next" {
            next.send_replace(true);
        }
        if name != "a-slow" {
            return allowed;
        }
        let mut asked = next.subscribe();
        let waiting = async move { asked.wait_for(|was_asked| *was_asked).await.map(|_| allowed).unwrap() };
        Reply::Later(waiting.boxed())
    });
    cluster.kubectl(&["create", "configmap", "slowly"]);
    own(cluster, "slowly", "a-slow");
    own(cluster, "slowly", "b-next");
    cluster.kubectl(&["delete", "configmap", "slowly"]);
    cluster.kubectl(&["wait", "--for=delete", "configmap/a-slow", "configmap/b-next", "--timeout=120s"]);
    assert_eq!(users("a-slow").len(), 1, "one that takes long does not hold up the next");
    webhook.behave(keeps);

    for name in ["kept", "other"] {
        cluster.kubectl(&["create", "configmap", name]);
        cluster.kubectl(&["label", "configmap", name, "of=collection"]);
    }
    let maps: Api<ConfigMap> = Api::namespaced(server.client().await, "default");
    let labelled = ListParams::default().labels("of=collection");
    let refused = maps.delete_collection(&DeleteParams::default(), &labelled).await.unwrap_err().to_string();
    assert!(refused.contains("denied the request: it is kept"), "{refused}");
    assert!(maps.get("kept").await.is_ok());

    cluster.kubectl(&["create", "namespace", "emptied"]);
    for name in ["kept", "other"] {
        cluster.kubectl(&["create", "configmap", name, "-n", "emptied"]);
    }
    cluster.kubectl(&["delete", "namespace", "emptied", "--wait=false"]);
    cluster.kubectl(&["wait", "--for=delete", "configmap/other", "-n", "emptied", "--timeout=120s"]);
    cluster.kubectl(&["get", "configmap", "kept", "-n", "emptied"]);
    webhook.behave(|review| admission(review, json!({"allowed": true})));
    cluster.kubectl(&["wait", "--for=delete", "namespace/emptied", "--timeout=120s"]);
    cluster.kubectl(&["delete", "validatingwebhookconfiguration/keeping", "configmap/kept"]);
}
