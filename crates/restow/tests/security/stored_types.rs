//! Every stored object can be encoded as protobuf: numbers and metadata have the types of protobuf for all requests
//! with any verb. One object that cannot be encoded would end every protobuf list and watch of its kind.

use crate::http_connection::HttpConnection;
use restow_store::{Key, StoreExt};
use restow_testkit::{Cluster, On, etcd_store, eventually_blocking};
use serde_json::{Value, json};

const GAUGES: &str = "/apis/example.com/v1/namespaces/default/gauges";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const PROTOBUF: &[u8] = b"application/vnd.kubernetes.protobuf";
const METADATA: &[u8] = b"application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// Creates a CRD of a kind that can be scaled up to 10, but not to 7, with an embedded resource.
fn create_gauges_crd(admin: &mut HttpConnection) {
    let replicas = json!({"type": "integer", "maximum": 10});
    let template = json!({"type": "object", "x-kubernetes-embedded-resource": true,
        "x-kubernetes-preserve-unknown-fields": true});
    let rule = json!([{"rule": "!has(self.replicas) || self.replicas != 7"}]);
    let spec = json!({"type": "object", "properties": {"replicas": replicas, "template": template},
        "x-kubernetes-validations": rule});
    let status = json!({"type": "object", "properties": {"replicas": {"type": "integer"}}});
    let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": status}}});
    let scale = json!({"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"});
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": schema,
        "subresources": {"status": {}, "scale": scale}});
    let definition = json!({"metadata": {"name": "gauges.example.com"}, "spec": {"group": "example.com",
        "scope": "Namespaced", "names": {"plural": "gauges", "kind": "Gauge"}, "versions": [version]}});
    admin.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).expect(201);
    eventually_blocking("gauges are served", || admin.get(GAUGES).code == 200);
}

fn gauge(name: &str) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Gauge", "metadata": {"name": name}, "spec": {"replicas": 1}})
}

fn deployment(name: &str) -> Value {
    let labels = json!({"a": "b"});
    json!({"metadata": {"name": name}, "spec": {"replicas": 1, "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}})
}

/// Sends a patch of this kind: `json`, `merge` or `strategic-merge`.
fn patch(line: &mut HttpConnection, kind: &str, path: &str, body: &Value) -> u16 {
    let content = format!("application/{kind}-patch+json");
    line.send("PATCH", path, &[("Content-Type", content.as_bytes())], body).code
}

fn apply(line: &mut HttpConnection, path: &str, body: &Value) -> u16 {
    let path = format!("{path}?fieldManager=m&force=true");
    line.send("PATCH", &path, &[("Content-Type", b"application/apply-patch+yaml")], body).code
}

/// Sends a number of replicas every way that there is, and returns the codes.
fn scale_by_all_means(admin: &mut HttpConnection, one: &str, replicas: &Value) -> Vec<u16> {
    let path = format!("{one}/scale");
    let name = one.rsplit('/').next().unwrap();
    let merge = json!({"spec": {"replicas": replicas}});
    let json = json!([{"op": "add", "path": "/spec/replicas", "value": replicas}]);
    let whole =
        json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": name}, "spec": merge["spec"]});
    let mut codes = vec![patch(admin, "merge", &path, &merge), patch(admin, "json", &path, &json)];
    codes.extend([admin.put(&path, &whole).code, apply(admin, &path, &whole)]);
    if one.starts_with(DEPLOYMENTS) {
        codes.push(patch(admin, "strategic-merge", &path, &merge));
    }
    codes
}

#[tokio::test]
async fn a_replica_count_outside_int32_is_not_stored() {
    for on in [On::Embedded, On::Etcd] {
        let cluster = Cluster::one(on).await;
        let mut admin = HttpConnection::admin(&cluster);
        create_gauges_crd(&mut admin);
        admin.post(GAUGES, &gauge("g")).expect(201);
        admin.post(DEPLOYMENTS, &deployment("d")).expect(201);
        for one in [format!("{GAUGES}/g"), format!("{DEPLOYMENTS}/d")] {
            for odd in [json!(3_000_000_000u64), json!(i64::MAX), json!(u64::MAX), json!(1.5), json!("2"), json!(-1)] {
                let codes = scale_by_all_means(&mut admin, &one, &odd);
                assert!(codes.iter().all(|code| matches!(code, 400 | 422)), "{one} {odd}: {codes:?}");
            }
            assert_eq!(admin.get(&one).expect(200).body["spec"]["replicas"], 1);
            let codes = scale_by_all_means(&mut admin, &one, &json!(4));
            assert!(codes.iter().all(|code| *code == 200), "{one}: {codes:?}");
            assert_eq!(admin.get(&one).expect(200).body["spec"]["replicas"], 4);
        }
        admin.send("GET", DEPLOYMENTS, &[("Accept", PROTOBUF)], &Value::Null).expect(200);
        // The scale refuses values that the schema and the rules of a kind refuse.
        for wrong in [11, 7] {
            let codes = scale_by_all_means(&mut admin, &format!("{GAUGES}/g"), &json!(wrong));
            assert!(codes.iter().all(|code| *code == 422), "{wrong}: {codes:?}");
        }
        // A number that is larger than a scale can say is shown as the largest.
        let many = json!({"status": {"replicas": 3_000_000_000u64}});
        admin.patch(&format!("{GAUGES}/g/status"), &many).expect(200);
        let scale = admin.get(&format!("{GAUGES}/g/scale")).expect(200).body;
        assert_eq!(scale["status"]["replicas"], i32::MAX);
        admin.patch(&format!("{GAUGES}/g/scale"), &json!({"spec": {"replicas": 2}})).expect(200);
    }
}

/// Fields of metadata with values of other types than theirs.
fn odd_metadata() -> Vec<(&'static str, Value)> {
    let owner = json!({"apiVersion": "v1", "kind": "X", "name": "n", "uid": "u", "controller": "yes"});
    vec![
        ("ownerReferences", json!("boom")),
        ("ownerReferences", json!([7])),
        ("ownerReferences", json!([owner])),
        ("finalizers", json!([1])),
        ("finalizers", json!("a/b")),
        ("labels", json!({"a": 1})),
        ("annotations", json!(["a"])),
        ("managedFields", json!(7)),
        (
            "managedFields",
            json!([{"manager": "m", "operation": "Update", "apiVersion": "example.com/v1", "time": 7,
            "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {}}}]),
        ),
        ("generateName", json!({})),
        ("generation", json!("x")),
        ("deletionGracePeriodSeconds", json!(1.5)),
        ("creationTimestamp", json!("soon")),
        ("selfLink", json!([])),
    ]
}

#[tokio::test]
async fn metadata_of_custom_resources_has_the_types_of_all_metadata() {
    let cluster = Cluster::one(On::Embedded).await;
    let mut admin = HttpConnection::admin(&cluster);
    create_gauges_crd(&mut admin);
    let one = format!("{GAUGES}/g");
    let made = admin.post(GAUGES, &gauge("g")).expect(201).body;
    for (field, value) in odd_metadata() {
        let with = |mut object: Value| {
            object["metadata"][field] = value.clone();
            object
        };
        let merge = json!({"metadata": {field: value}});
        let operations = json!([{"op": "add", "path": format!("/metadata/{field}"), "value": value}]);
        let codes = [
            admin.post(GAUGES, &with(gauge("new"))).code,
            admin.put(&one, &with(made.clone())).code,
            patch(&mut admin, "merge", &one, &merge),
            patch(&mut admin, "json", &one, &operations),
            patch(&mut admin, "strategic-merge", &one, &merge),
            apply(&mut admin, &one, &with(gauge("g"))),
            apply(&mut admin, &format!("{GAUGES}/new"), &with(gauge("new"))),
            admin.put(&format!("{one}/status"), &with(made.clone())).code,
            patch(&mut admin, "merge", &format!("{one}/status"), &merge),
        ];
        assert!(codes.iter().all(|code| matches!(code, 400 | 415 | 422)), "{field} {value}: {codes:?}");
        admin.send("GET", GAUGES, &[("Accept", METADATA)], &Value::Null).expect(200);
    }
    assert_eq!(admin.get(&one).expect(200).body["metadata"], made["metadata"]);
    admin.get(&format!("{GAUGES}/new")).expect(404);
}

#[tokio::test]
async fn unknown_metadata_fields_are_dropped_with_a_warning() {
    let cluster = Cluster::one(On::Embedded).await;
    let mut admin = HttpConnection::admin(&cluster);
    create_gauges_crd(&mut admin);
    let mut object = gauge("g");
    object["metadata"]["unknown"] = 7.into();
    object["metadata"]["labels"] = Value::Null;
    object["metadata"]["creationTimestamp"] = Value::Null;
    let answer = admin.post(&format!("{GAUGES}?fieldValidation=Strict"), &object).expect(400);
    assert!(
        answer.message().ends_with(r#"strict decoding error: unknown field "metadata.unknown""#),
        "{}",
        answer.message()
    );
    let made = admin.post(GAUGES, &object).expect(201).body;
    assert_eq!(made["metadata"]["unknown"], Value::Null);
    let merge = json!({"metadata": {"other": {"a": "b"}, "labels": {"c": "d"}}});
    let patched = admin.patch(&format!("{GAUGES}/g"), &merge).expect(200).body;
    assert_eq!((&patched["metadata"]["other"], &patched["metadata"]["labels"]), (&Value::Null, &json!({"c": "d"})));
    // An embedded resource has metadata, too.
    let inside =
        |metadata: Value| json!({"spec": {"template": {"apiVersion": "v1", "kind": "X", "metadata": metadata}}});
    let patched = admin.patch(&format!("{GAUGES}/g"), &inside(json!({"name": "x", "unknown": 7}))).expect(200).body;
    assert_eq!(patched["spec"]["template"]["metadata"], json!({"name": "x"}));
    admin.patch(&format!("{GAUGES}/g"), &inside(json!({"labels": {"a": 1}}))).expect(422);
}

/// Metadata of the wrong types that was stored before it was refused.
#[tokio::test]
async fn stored_objects_with_malformed_metadata_can_be_repaired_and_deleted() {
    let cluster = Cluster::one(On::Etcd).await;
    let mut admin = HttpConnection::admin(&cluster);
    create_gauges_crd(&mut admin);
    let store = etcd_store(&cluster.etcd_endpoint(), "/registry").await;
    for name in ["mended", "deleted"] {
        let mut made = admin.post(GAUGES, &gauge(name)).expect(201).body;
        made["metadata"]["finalizers"] = json!([1]);
        made["metadata"]["managedFields"][0]["time"] = 7.into();
        made["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        let key = Key::try_from(format!("/example.com/gauges/default/{name}")).unwrap();
        assert!(store.get(&key).await.unwrap().is_some());
        store.put(&key, made.to_string().into_bytes().into()).await.unwrap();
        let path = format!("{GAUGES}/{name}");
        eventually_blocking("it is seen", || admin.get(&path).expect(200).body["metadata"]["finalizers"] == json!([1]));
    }
    let path = format!("{GAUGES}/mended");
    admin.patch(&path, &json!({"spec": {"replicas": 2}})).expect(422);
    admin
        .patch(&path, &json!({"metadata": {"finalizers": null, "managedFields": []}, "spec": {"replicas": 2}}))
        .expect(200);
    admin.patch(&path, &json!({"spec": {"replicas": 3}})).expect(200);
    admin.delete(&format!("{GAUGES}/deleted")).expect(200);
    admin.get(&format!("{GAUGES}/deleted")).expect(404);
    admin.send("GET", GAUGES, &[("Accept", METADATA)], &Value::Null).expect(200);
}
