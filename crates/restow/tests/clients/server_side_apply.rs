//! Server-side apply with kubectl and kube-rs, for built-in and custom kinds, on each store.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams};
use restow_testkit::{Cluster, On, eventually_blocking, namespaced_api};
use serde_json::{Value, json};

const SHELVES: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: shelves.apply.example.com}
spec:
  group: apply.example.com
  scope: Namespaced
  names: {plural: shelves, kind: Shelf}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, properties: {
      status: {type: object, properties: {books: {type: integer}}},
      spec: {type: object, properties: {
        whole: {type: array, items: {type: string}},
        tags: {type: array, items: {type: string}, x-kubernetes-list-type: set},
        boards: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [name, side], items: {
          type: object, required: [name], properties: {
            name: {type: string}, side: {type: string, default: left}, width: {type: integer}}}}}}}}}
";

#[tokio::test]
async fn server_side_apply_works_on_the_embedded_store() {
    server_side_apply_works(On::Embedded).await;
}

#[tokio::test]
async fn server_side_apply_works_on_etcd() {
    server_side_apply_works(On::Etcd).await;
}

async fn server_side_apply_works(on: On) {
    let cluster = Cluster::one(on).await;
    cluster.kubectl(&["apply", "--server-side", "-f", &cluster.file("crd.yaml", SHELVES)]);
    cluster.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", "crd/shelves.apply.example.com"]);
    kubectl_applies(&cluster);
    managers_share_an_object(&cluster).await;
    custom_resources_are_applied(&cluster).await;
}

fn deployment(replicas: u32, containers: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web}}\nspec:\n  replicas: {replicas}\n  selector: \
         {{matchLabels: {{app: web}}}}\n  template: {{metadata: {{labels: {{app: web}}}}, spec: {{containers: \
         {containers}}}}}\n"
    )
}

fn kubectl_applies(cluster: &Cluster) {
    let server = &cluster.servers[0];
    let apply = |manager: &str, text: &str, more: &[&str]| {
        let file = cluster.file("applied.yaml", text);
        let manager = format!("--field-manager={manager}");
        server.try_kubectl(&[&["apply", "--server-side", "-f", &file, &manager], more].concat())
    };
    let get = |path: &str| cluster.kubectl(&["get", "deploy", "web", "-o", &format!("jsonpath={path}")]);
    let two = deployment(2, "[{name: a, image: 'i:1', ports: [{containerPort: 80}]}, {name: b, image: 'i:1'}]");
    assert!(apply("one", &two, &[]).status.success());
    let version = get("{.metadata.resourceVersion}");
    assert!(apply("one", &two, &[]).status.success());
    assert_eq!(get("{.metadata.resourceVersion}"), version, "what is so already is not written");
    assert_eq!(get("{.spec.template.spec.containers[*].name} {.spec.replicas}"), "a b 2");

    let other = deployment(3, "[{name: a, image: 'i:2'}]");
    let refused = apply("two", &other, &[]);
    let words = String::from_utf8_lossy(&refused.stderr).to_string();
    assert!(
        words.contains("Apply failed with 2 conflicts: conflicts with \"one\":")
            && words.contains("- .spec.replicas")
            && words.contains("- .spec.template.spec.containers[name=\"a\"].image"),
        "{words}"
    );
    assert!(apply("two", &other, &["--force-conflicts"]).status.success());
    assert_eq!(get("{.spec.template.spec.containers[*].image} {.spec.replicas}"), "i:2 i:1 3");
    // The first manager no longer applies the second container and the port: they have no manager and are removed. The
    // first container has another manager and stays.
    let none = deployment(3, "[]").replace("  replicas: 3\n", "");
    assert!(apply("one", &none, &[]).status.success());
    assert_eq!(get("{.spec.template.spec.containers[*].name} {.spec.replicas}"), "a 3");
    assert_eq!(get("{.spec.template.spec.containers[0].ports}"), "");
    cluster.kubectl(&["scale", "deployment", "web", "--replicas=5"]);
    let words = String::from_utf8_lossy(&apply("two", &other, &[]).stderr).to_string();
    assert!(words.contains("with subresource \"scale\" using apps/v1: .spec.replicas"), "{words}");
    let unknown = deployment(5, "[{name: a, image: x, imagee: y}]");
    let words = String::from_utf8_lossy(&apply("two", &unknown, &["--force-conflicts"]).stderr).to_string();
    assert!(words.contains("imagee"), "{words}");
}

async fn managers_share_an_object(cluster: &Cluster) {
    let maps: Api<ConfigMap> = Api::namespaced(cluster.servers[0].client().await, "default");
    let map = |data: Value| {
        Patch::Apply(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "shared"}, "data": data}))
    };
    let one = PatchParams::apply("one");
    let made = maps.patch("shared", &one, &map(json!({"x": "1", "y": "2"}))).await.unwrap();
    let entries = made.metadata.managed_fields.unwrap();
    assert_eq!((entries.len(), entries[0].operation.as_deref()), (1, Some("Apply")));
    assert_eq!(
        serde_json::to_value(&entries[0].fields_v1).unwrap(),
        json!({"f:data": {"f:x": {}, "f:y": {}}}),
        "who applies manages what it speaks of"
    );
    // Both may want the same.
    maps.patch("shared", &PatchParams::apply("two"), &map(json!({"y": "2", "z": "3"}))).await.unwrap();
    let failure = maps.patch("shared", &PatchParams::apply("two"), &map(json!({"x": "9"}))).await.unwrap_err();
    let kube::Error::Api(status) = failure else { panic!("{failure}") };
    assert_eq!((status.code, status.reason.as_str()), (409, "Conflict"));
    assert_eq!(status.message, "Apply failed with 1 conflict: conflict with \"one\": .data.x");
    let left = maps.patch("shared", &one, &map(json!({"x": "1"}))).await.unwrap().data.unwrap();
    assert_eq!(left.get("y").map(String::as_str), Some("2"), "the other manager still has it");
    let left = maps.patch("shared", &PatchParams::apply("two"), &map(json!({"z": "3"}))).await.unwrap().data.unwrap();
    assert_eq!(left.keys().collect::<Vec<_>>(), ["x", "z"], "y has no manager any more");
    let rehearsed = maps.patch("shared", &one.clone().dry_run(), &map(json!({}))).await.unwrap().data.unwrap();
    assert_eq!(rehearsed.keys().collect::<Vec<_>>(), ["z"]);
    assert_eq!(maps.get("shared").await.unwrap().data.unwrap().len(), 2, "a dry run changes nothing");
    let taken =
        maps.patch("shared", &PatchParams::apply("two").force(), &map(json!({"x": "9", "z": "3"}))).await.unwrap();
    let managers: Vec<String> =
        taken.metadata.managed_fields.unwrap().into_iter().filter_map(|entry| entry.manager).collect();
    assert_eq!(managers, ["two"], "who has nothing left is not named");
}

async fn custom_resources_are_applied(cluster: &Cluster) {
    let client = cluster.servers[0].client().await;
    let shelves = namespaced_api(&client, "apply.example.com", "v1", "Shelf", "shelves");
    eventually_blocking("the resource is served", || {
        cluster.servers[0].try_kubectl(&["get", "shelves"]).status.success()
    });
    let shelf = |spec: Value, status: Value| {
        Patch::Apply(json!({"apiVersion": "apply.example.com/v1", "kind": "Shelf", "metadata": {"name": "s"},
            "spec": spec, "status": status}))
    };
    let one = PatchParams::apply("one");
    let two = PatchParams::apply("two");
    let spec = json!({"whole": ["a"], "tags": ["x"], "boards": [{"name": "top", "width": 1}]});
    let made = shelves.patch("s", &one, &shelf(spec, json!({"books": 3}))).await.unwrap();
    assert_eq!(made.data["spec"]["boards"], json!([{"name": "top", "side": "left", "width": 1}]));
    assert!(made.data.get("status").is_none(), "the status is written apart");
    let spec = json!({"tags": ["y"], "boards": [{"name": "top", "side": "right", "width": 2}]});
    let merged = shelves.patch("s", &two, &shelf(spec, Value::Null)).await.unwrap();
    assert_eq!(merged.data["spec"]["tags"], json!(["x", "y"]));
    assert_eq!(merged.data["spec"]["boards"].as_array().unwrap().len(), 2);
    let failure = shelves.patch("s", &two, &shelf(json!({"whole": ["b"]}), Value::Null)).await.unwrap_err();
    assert!(failure.to_string().contains("conflict with \"one\": .spec.whole"), "{failure}");
    let failure = shelves.patch("s", &two, &shelf(json!({"boards": [{"name": "top", "width": 7}]}), Value::Null)).await;
    let failure = failure.unwrap_err().to_string();
    assert!(failure.contains(".spec.boards[name=\"top\",side=\"left\"].width"), "{failure}");
    let patched = shelves.patch_status("s", &two, &shelf(json!({"whole": ["z"]}), json!({"books": 4}))).await.unwrap();
    assert_eq!((&patched.data["status"], &patched.data["spec"]["whole"]), (&json!({"books": 4}), &json!(["a"])));
    let entries = patched.metadata.managed_fields.unwrap();
    let status = entries.iter().find(|entry| entry.subresource.as_deref() == Some("status")).unwrap();
    assert_eq!(serde_json::to_value(&status.fields_v1).unwrap(), json!({"f:status": {"f:books": {}}}));
    let pruned = shelves.patch("s", &two, &shelf(json!({}), Value::Null)).await.unwrap();
    assert_eq!(pruned.data["spec"]["tags"], json!(["x"]));
    assert_eq!(pruned.data["spec"]["boards"].as_array().unwrap().len(), 1);
    let failure = shelves.patch("s", &two, &shelf(json!({"colour": 1}), Value::Null)).await.unwrap_err();
    assert!(failure.to_string().contains(".spec.colour: field not declared in schema"), "{failure}");
    // A status that is written by hand takes no metadata with it.
    let patch = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}, "status": {"books": 5}}));
    let patched = shelves.patch_status("s", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!((patched.metadata.labels, &patched.data["status"]["books"]), (None, &json!(5)));
}
