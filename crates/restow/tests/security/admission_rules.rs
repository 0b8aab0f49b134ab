//! Requests that admission and validation refuse to every user: certificates without permission for the signer,
//! deleting protected namespaces, deletecollection in all namespaces, unconditional updates, and changes of immutable
//! pod fields.

use crate::http_connection::{HttpConnection, grant};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateParams, DnType, KeyPair};
use restow_testkit::{Cluster, On, eventually_blocking};
use serde_json::{Value, json};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const PODS: &str = "/api/v1/namespaces/default/pods";

/// A request for a certificate.
fn request(name: &str, signer: &str, organization: &str) -> Value {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "eve");
    params.distinguished_name.push(DnType::OrganizationName, organization);
    let pem = params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
    json!({"metadata": {"name": name},
        "spec": {"request": STANDARD.encode(pem), "signerName": signer, "usages": ["client auth"]}})
}

/// A request with a condition more.
fn with_condition(request: &Value, kind: &str) -> Value {
    let mut changed = request.clone();
    changed["status"]["conditions"] = json!([{"type": kind, "status": "True", "reason": "Test", "message": ""}]);
    changed
}

#[tokio::test]
async fn approving_and_signing_certificates_needs_permission_for_the_signer() {
    let cluster = Cluster::one(On::Embedded).await;
    let mut admin = HttpConnection::admin(&cluster);
    let mut eve = HttpConnection::admin(&cluster).acting_as("eve");
    let resources = ["", "/approval", "/status"].map(|part| format!("certificatesigningrequests{part}"));
    let rule = json!([{"apiGroups": ["certificates.k8s.io"], "resources": resources, "verbs": ["*"]}]);
    grant(&mut admin, "handles-requests", "eve", rule);
    let client = "kubernetes.io/kube-apiserver-client";
    let answer = admin.post(REQUESTS, &request("masters", client, "system:masters")).expect(403);
    assert!(
        answer
            .message()
            .ends_with("use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed")
    );
    let mut torn = request("torn", client, "dev");
    torn["spec"]["request"] = STANDARD.encode("-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n").into();
    assert!(matches!(admin.post(REQUESTS, &torn).code, 403 | 422));
    let made = eve.post(REQUESTS, &request("r", client, "dev")).expect(201).body;
    let path = format!("{REQUESTS}/r");
    let approved = with_condition(&made, "Approved");
    let answer = eve.put(&format!("{path}/approval"), &approved).expect(403);
    assert!(answer.message().ends_with(&format!("user not permitted to approve requests with signerName {client:?}")));
    eve.patch(&format!("{path}/approval"), &json!({"status": approved["status"]})).expect(403);
    // The status does not decide, even for an administrator.
    admin.put(&format!("{path}/status"), &approved).expect(422);
    eve.patch(&path, &json!({"status": approved["status"]})).expect(200);
    assert!(admin.get(&path).body["status"]["conditions"].as_array().is_none_or(Vec::is_empty));
    let signed = json!({"status": {"certificate": STANDARD.encode("x")}});
    let answer = eve.patch(&format!("{path}/status"), &signed).expect(403);
    assert!(answer.message().ends_with(&format!("user not permitted to sign requests with signerName {client:?}")));
    eve.patch(&format!("{path}/status"), &with_condition(&json!({}), "Failed")).expect(403);
    // Permission for one signer, or for all signers of a domain.
    let signers = |name: &str, verbs: &[&str]| json!([{"apiGroups": ["certificates.k8s.io"], "resources": ["signers"], "resourceNames": [name], "verbs": verbs}]);
    grant(&mut admin, "other-signer", "eve", signers("example.com/*", &["approve", "sign"]));
    eve.put(&format!("{path}/approval"), &approved).expect(403);
    grant(&mut admin, "approves", "eve", signers(client, &["approve"]));
    eve.put(&format!("{path}/approval"), &approved).expect(200);
    eve.patch(&format!("{path}/status"), &signed).expect(403);
    grant(&mut admin, "signs", "eve", signers("kubernetes.io/*", &["sign"]));
    eve.patch(&format!("{path}/status"), &signed).expect(200);
    // An approval or denial is final.
    eve.patch(&format!("{path}/approval"), &json!({"status": {"conditions": []}})).expect(422);
    let other = json!({"status": {"certificate": STANDARD.encode("y")}});
    admin.patch(&format!("{path}/status"), &other).expect(422);
}

#[tokio::test]
async fn namespaces_that_a_cluster_needs_cannot_be_deleted() {
    for on in [On::Embedded, On::Etcd] {
        let cluster = Cluster::one(on).await;
        let mut admin = HttpConnection::admin(&cluster);
        for name in ["default", "kube-system", "kube-public"] {
            for query in ["", "?dryRun=All", "?gracePeriodSeconds=0"] {
                let answer = admin.delete(&format!("/api/v1/namespaces/{name}{query}")).expect(403);
                let expected = format!("namespaces {name:?} is forbidden: this namespace may not be deleted");
                assert_eq!(answer.message(), expected);
            }
            assert_eq!(admin.get(&format!("/api/v1/namespaces/{name}")).body["status"]["phase"], "Active");
        }
        admin.delete("/api/v1/namespaces").expect(405);
        // As in Kubernetes, this namespace is deleted and created again.
        let path = "/api/v1/namespaces/kube-node-lease";
        let before = admin.get(path).expect(200).body["metadata"]["uid"].clone();
        admin.delete(path).expect(200);
        eventually_blocking("the namespace is back", || {
            let now = admin.get(path);
            now.code == 200 && now.body["metadata"]["uid"] != before && now.body["status"]["phase"] == "Active"
        });
    }
}

#[tokio::test]
async fn deletecollection_needs_a_namespace() {
    let cluster = Cluster::one(On::Embedded).await;
    let mut admin = HttpConnection::admin(&cluster);
    let maps = "/api/v1/namespaces/default/configmaps";
    admin.post(maps, &json!({"metadata": {"name": "m"}})).expect(201);
    create_widgets_crd(&mut admin);
    let widgets = "/apis/example.com/v1/namespaces/default/widgets";
    admin.post(widgets, &widget("w")).expect(201);
    for query in ["", "?dryRun=All", "?fieldSelector=metadata.namespace%3Ddefault"] {
        admin.delete(&format!("/api/v1/configmaps{query}")).expect(405);
        admin.delete(&format!("/apis/example.com/v1/widgets{query}")).expect(404);
    }
    admin.post("/api/v1/configmaps", &json!({"metadata": {"name": "m", "namespace": "default"}})).expect(405);
    admin.get(&format!("{maps}/m")).expect(200);
    admin.get(&format!("{widgets}/w")).expect(200);
    admin.delete(widgets).expect(200);
    admin.get(&format!("{widgets}/w")).expect(404);
}

fn create_widgets_crd(admin: &mut HttpConnection) {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": schema,
        "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}}});
    let names = json!({"plural": "widgets", "kind": "Widget"});
    let definition = json!({"metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]}});
    admin.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).expect(201);
    eventually_blocking("widgets are served", || {
        admin.get("/apis/example.com/v1/namespaces/default/widgets").code == 200
    });
}

fn widget(name: &str) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": {"replicas": 1}})
}

#[tokio::test]
async fn put_without_a_resource_version_is_refused_where_kubernetes_requires_it() {
    for on in [On::Embedded, On::Etcd] {
        let cluster = Cluster::one(on).await;
        let mut admin = HttpConnection::admin(&cluster);
        create_widgets_crd(&mut admin);
        let namespaced = |group: &str, plural: &str| format!("/apis/{group}/v1/namespaces/default/{plural}");
        let hooks = |plural: &str| format!("/apis/admissionregistration.k8s.io/v1/{plural}");
        let selector = json!({"selector": {"matchLabels": {"a": "b"}}, "maxUnavailable": 1});
        let conditional = [
            (namespaced("coordination.k8s.io", "leases"), json!({"spec": {"holderIdentity": "a"}})),
            (namespaced("policy", "poddisruptionbudgets"), json!({"spec": selector})),
            (hooks("validatingwebhookconfigurations"), json!({"webhooks": []})),
            (hooks("mutatingwebhookconfigurations"), json!({"webhooks": []})),
            ("/apis/storage.k8s.io/v1/csidrivers".to_string(), json!({"spec": {}})),
            ("/apis/node.k8s.io/v1/runtimeclasses".to_string(), json!({"handler": "h"})),
            (namespaced("example.com", "widgets"), widget("x")),
        ];
        for (path, mut object) in conditional {
            object["metadata"] = json!({"name": "x"});
            admin.post(&path, &object).expect(201);
            let one = format!("{path}/x");
            let plural = path.rsplit('/').next().unwrap();
            for version in [Value::Null, "".into(), "0".into()] {
                object["metadata"]["resourceVersion"] = version;
                for query in ["", "?dryRun=All"] {
                    let answer = admin.put(&format!("{one}{query}"), &object).expect(422);
                    let text = answer.message();
                    let end =
                        "is invalid: metadata.resourceVersion: Invalid value: 0x0: must be specified for an update";
                    assert!(text.starts_with(plural) && text.ends_with(end), "{text}");
                }
            }
            let current = admin.get(&one).expect(200).body;
            admin.put(&one, &current).expect(200);
            // A patch begins with the object that is there.
            admin.patch(&one, &json!({"metadata": {"labels": {"a": "b"}}})).expect(200);
            admin.put(&one, &current).expect(409);
            admin.patch(&one, &json!({"metadata": {"resourceVersion": null}})).expect(422);
        }
        let status = format!("{}/x/status", namespaced("example.com", "widgets"));
        let mut object = widget("x");
        object["status"] = json!({"replicas": 1});
        admin.put(&status, &object).expect(422);
        let scale = format!("{}/x/scale", namespaced("example.com", "widgets"));
        admin.put(&scale, &json!({"metadata": {"name": "x"}, "spec": {"replicas": 2}})).expect(200);
        let map = json!({"metadata": {"name": "x"}});
        admin.post("/api/v1/namespaces/default/configmaps", &map).expect(201);
        admin.put("/api/v1/namespaces/default/configmaps/x", &map).expect(200);
    }
}

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i",
        "resources": {"requests": {"cpu": "1", "example.com/x": "1"}, "limits": {"example.com/x": "1"}}}]}})
}

#[tokio::test]
async fn pods_have_the_priority_and_preemption_of_their_class() {
    let cluster = Cluster::one(On::Embedded).await;
    let mut admin = HttpConnection::admin(&cluster);
    let class = json!({"metadata": {"name": "quiet"}, "value": 5, "preemptionPolicy": "Never"});
    admin.post("/apis/scheduling.k8s.io/v1/priorityclasses", &class).expect(201);
    let cases = [
        (json!({"priorityClassName": "quiet", "preemptionPolicy": "PreemptLowerPriority"}), 403),
        (json!({"priorityClassName": "quiet", "priority": 6}), 403),
        (json!({"preemptionPolicy": "Never"}), 403),
        (json!({"priority": 1}), 403),
        (json!({"priorityClassName": "quiet", "preemptionPolicy": "Never", "priority": 5}), 201),
        (json!({"preemptionPolicy": "PreemptLowerPriority", "priority": 0}), 201),
    ];
    for (number, (fields, code)) in cases.into_iter().enumerate() {
        let mut asked = pod(&format!("p{number}"));
        for (name, value) in fields.as_object().unwrap() {
            asked["spec"][name] = value.clone();
        }
        admin.post(PODS, &asked).expect(code);
    }
    let path = format!("{PODS}/p4");
    let found = admin.get(&path).expect(200).body;
    assert_eq!((&found["spec"]["priority"], &found["spec"]["preemptionPolicy"]), (&json!(5), &json!("Never")));
}

#[tokio::test]
async fn immutable_pod_fields_cannot_be_changed() {
    let cluster = Cluster::one(On::Embedded).await;
    let mut admin = HttpConnection::admin(&cluster);
    admin.post(PODS, &pod("p")).expect(201);
    let path = format!("{PODS}/p");
    let mut gated = pod("g");
    gated["spec"]["schedulingGates"] = json!([{"name": "a"}]);
    admin.post(PODS, &gated).expect(201);
    let mut placed = gated.clone();
    placed["metadata"]["name"] = "placed".into();
    placed["spec"]["nodeName"] = "n".into();
    admin.post(PODS, &placed).expect(422);
    for spec in [
        json!({"nodeName": "n"}),
        json!({"schedulingGates": [{"name": "a"}]}),
        json!({"serviceAccountName": "other"}),
        json!({"hostNetwork": true}),
        json!({"nodeSelector": {"a": "b"}}),
        json!({"ephemeralContainers": [{"name": "e", "image": "i"}]}),
        json!({"containers": [{"name": "c", "image": "i", "command": ["x"]}]}),
        json!({"containers": [{"name": "c", "image": "i"}, {"name": "d", "image": "i"}]}),
    ] {
        let answer = admin.patch(&path, &json!({"spec": spec}));
        assert_eq!(answer.code, 422, "{spec}: {}", answer.body);
    }
    let apply = [("Content-Type", b"application/apply-patch+yaml".as_slice())];
    let applied = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"nodeName": "n"}});
    admin.send("PATCH", &format!("{path}?fieldManager=m"), &apply, &applied).expect(422);
    // Subresources write only their own fields.
    admin
        .patch(&format!("{path}/status"), &json!({"spec": {"nodeName": "n"}, "status": {"phase": "Running"}}))
        .expect(200);
    let resize = format!("{path}/resize");
    let containers = |resources: Value, image: &str| json!({"spec": {"containers": [{"name": "c", "image": image, "resources": resources}]}});
    let own =
        |cpu: &str, x: &str| json!({"requests": {"cpu": cpu, "example.com/x": x}, "limits": {"example.com/x": x}});
    admin.patch(&resize, &containers(own("2", "1"), "other")).expect(200);
    admin.patch(&resize, &containers(own("2", "2"), "i")).expect(422);
    let now = admin.get(&path).expect(200).body;
    assert_eq!(now["spec"]["nodeName"], Value::Null);
    assert_eq!(now["spec"]["containers"][0]["image"], "i");
    assert_eq!(now["spec"]["containers"][0]["resources"]["requests"]["cpu"], "2");
    let ephemeral = format!("{path}/ephemeralcontainers");
    let with = |image: &str| json!({"spec": {"ephemeralContainers": [{"name": "e", "image": image}]}});
    admin.patch(&ephemeral, &with("one")).expect(200);
    admin.patch(&ephemeral, &with("two")).expect(422);
    admin.patch(&ephemeral, &json!({"spec": {"ephemeralContainers": []}})).expect(422);
    // A binding schedules a pod when it has no scheduling gates.
    let binding = |name: &str| json!({"metadata": {"name": name}, "target": {"kind": "Node", "name": "n"}});
    admin.post(&format!("{PODS}/g/binding"), &binding("g")).expect(409);
    admin.patch(&format!("{PODS}/g"), &json!({"spec": {"schedulingGates": null}})).expect(200);
    admin.patch(&format!("{PODS}/g"), &json!({"spec": {"schedulingGates": [{"name": "a"}]}})).expect(422);
    admin.post(&format!("{PODS}/g/binding"), &binding("g")).expect(201);
    admin.patch(&format!("{PODS}/g"), &json!({"spec": {"nodeName": "m"}})).expect(422);
    admin.patch(&format!("{PODS}/g"), &json!({"spec": {"nodeName": null}})).expect(422);
}

#[tokio::test]
async fn nothing_is_created_in_a_terminating_namespace() {
    let cluster = Cluster::one(On::Embedded).await;
    let mut admin = HttpConnection::admin(&cluster);
    admin.post("/api/v1/namespaces", &json!({"metadata": {"name": "going"}})).expect(201);
    let maps = "/api/v1/namespaces/going/configmaps";
    let held = json!({"metadata": {"name": "held", "finalizers": ["example.com/hold"]}});
    admin.post(maps, &held).expect(201);
    admin.delete("/api/v1/namespaces/going").expect(200);
    let service = json!({"metadata": {"name": "x"}, "spec": {"ports": [{"port": 80}]}});
    admin.post("/api/v1/namespaces/going/services", &service).expect(403);
    let answer = admin.put("/api/v1/namespaces/going/services/x", &service).expect(403);
    assert!(answer.message().contains("because it is being terminated"), "{}", answer.message());
    admin.patch(&format!("{maps}/held"), &json!({"metadata": {"finalizers": null}})).expect(200);
    eventually_blocking("the namespace is gone", || admin.get("/api/v1/namespaces/going").code == 404);
}

#[tokio::test]
async fn a_write_of_the_status_subresource_changes_no_metadata() {
    let cluster = Cluster::one(On::Embedded).await;
    let mut admin = HttpConnection::admin(&cluster);
    let constraints = json!({"resourceRules": [{"apiGroups": ["none.example.com"], "apiVersions": ["v1"], "operations": ["CREATE"],
        "resources": ["nothings"]}]});
    let policy = json!({"matchConstraints": constraints, "validations": [{"expression": "true"}]});
    let alone = [
        ("/apis/networking.k8s.io/v1/servicecidrs", json!({"cidrs": ["10.9.0.0/24"]})),
        ("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies", policy),
    ];
    let added = json!({"labels": {"a": "b"}, "annotations": {"a": "b"}, "finalizers": ["example.com/f"]});
    let fields = ["labels", "annotations", "finalizers", "ownerReferences"];
    for (path, spec) in alone {
        let made = admin.post(path, &json!({"metadata": {"name": "x"}, "spec": spec})).expect(201).body;
        let (one, status) = (format!("{path}/x"), format!("{path}/x/status"));
        admin.patch(&status, &json!({"metadata": added})).expect(200);
        let mut whole = admin.get(&one).expect(200).body;
        fields[..3].iter().for_each(|field| whole["metadata"][*field] = added[*field].clone());
        admin.put(&status, &whole).expect(200);
        let now = admin.get(&one).expect(200).body;
        for field in fields {
            assert_eq!(now["metadata"][field], made["metadata"][field], "{path}: {field}");
        }
        admin.patch(&one, &json!({"metadata": {"labels": {"a": "b"}}})).expect(200);
    }
    // A user who may run a pod may label it.
    admin.post(PODS, &pod("p")).expect(201);
    let labelled = admin.patch(&format!("{PODS}/p/status"), &json!({"metadata": {"labels": {"a": "b"}}})).expect(200);
    assert_eq!(labelled.body["metadata"]["labels"], json!({"a": "b"}));
}
