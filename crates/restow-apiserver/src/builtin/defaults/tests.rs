//! Tests of defaults, by kind.

use super::*;
use serde_json::json;

fn completed(value: Value) -> Value {
    let mut object = Object::from_value(value).unwrap();
    apply(&mut object);
    let once = object.clone();
    apply(&mut object);
    assert_eq!(object, once, "setting defaults again changes nothing");
    object.into_value()
}

#[test]
fn the_rollout_settings_of_a_deployment_are_validated() {
    let found = completed(json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"template": {"spec": {"containers": [{"name": "c", "image": "nginx"}]}}},
    }));
    let spec = &found["spec"];
    assert_eq!(spec["replicas"], 1);
    assert_eq!(
        spec["strategy"],
        json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}})
    );
    let pod = &spec["template"]["spec"];
    assert_eq!((&pod["restartPolicy"], &pod["dnsPolicy"]), (&json!("Always"), &json!("ClusterFirst")));
    assert_eq!(pod["enableServiceLinks"], Value::Null, "only a pod itself has this");
    assert_eq!(pod["containers"][0]["imagePullPolicy"], "Always");
    let recreated = completed(json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "spec": {"strategy": {"type": "Recreate"}},
    }));
    assert_eq!(recreated["spec"]["strategy"], json!({"type": "Recreate"}));
}

#[test]
fn the_default_pull_policy_depends_on_the_image_tag() {
    for (image, policy) in [
        ("nginx", "Always"),
        ("nginx:latest", "Always"),
        ("nginx:1", "IfNotPresent"),
        ("host:5000/nginx", "Always"),
        ("host:5000/nginx:2", "IfNotPresent"),
        ("nginx@sha256:abc", "IfNotPresent"),
    ] {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "c", "image": image}]}});
        assert_eq!(completed(pod)["spec"]["containers"][0]["imagePullPolicy"], policy, "{image}");
    }
}

#[test]
fn defaults_of_other_kinds() {
    let service = completed(json!({"apiVersion": "v1", "kind": "Service", "spec": {"ports": [{"port": 80}]}}));
    assert_eq!(
        service["spec"],
        json!({"ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}], "sessionAffinity": "None",
            "type": "ClusterIP", "internalTrafficPolicy": "Cluster"})
    );
    let secret = completed(json!({"apiVersion": "v1", "kind": "Secret", "type": ""}));
    assert_eq!(secret["type"], "Opaque");
    let texts = json!({"apiVersion": "v1", "kind": "Secret", "stringData": {"a": "b"}, "data": {"c": "ZA=="}});
    assert_eq!(completed(texts)["data"], json!({"a": "Yg==", "c": "ZA=="}));
    let volume =
        json!({"apiVersion": "v1", "kind": "Pod", "spec": {"volumes": [{"name": "v"}, {"name": "s", "secret": {}}]}});
    assert_eq!(
        completed(volume)["spec"]["volumes"],
        json!([{"name": "v", "emptyDir": {}}, {"name": "s", "secret": {"defaultMode": 420}}])
    );
    let policy = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "spec": {"egress": [{}]}});
    assert_eq!(completed(policy)["spec"]["policyTypes"], json!(["Ingress", "Egress"]));
}
