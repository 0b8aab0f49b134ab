//! Tests of validation errors and their messages.

use super::*;
use crate::builtin::kinds;
use serde_json::json;

fn rules(object: &Object) -> &'static dyn Strategy {
    let group = object.api_version().split_once('/').map_or("", |(group, _)| group);
    kinds::rules(group, object.kind())
}

fn problems(object: &Object) -> Vec<FieldError> {
    rules(object).validate_create(object)
}

fn change_problems(object: &Object, old: &Object) -> Vec<FieldError> {
    super::change_problems(rules(object), object, old)
}

fn object(value: Value) -> Object {
    Object::from_value(value).unwrap()
}

fn check(value: Value, expected: &[&str]) {
    let found: Vec<String> = problems(&object(value.clone())).iter().map(FieldError::to_string).collect();
    assert_eq!(found, expected, "{value}");
}

fn check_change(old: Value, new: Value, expected: &[&str]) {
    let found = change_problems(&object(new.clone()), &object(old));
    let found: Vec<String> = found.iter().map(FieldError::to_string).collect();
    assert_eq!(found, expected, "{new}");
}

fn deployment(selector: Value, labels: Value, containers: Value) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": {
        "selector": selector, "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}}}})
}

#[test]
fn pod_templates_must_match_the_selector_and_have_containers() {
    let selector = json!({"matchLabels": {"app": "a"}});
    let containers = json!([{"name": "c", "image": "i"}]);
    check(deployment(selector.clone(), json!({"app": "a"}), containers.clone()), &[]);
    check(
        deployment(selector.clone(), json!({"app": "b"}), containers.clone()),
        &["spec.template.metadata.labels: Invalid value: {\"app\":\"b\"}: `selector` does not match template `labels`"],
    );
    check(
        deployment(Value::Null, json!({}), containers),
        &[
            "spec.selector: Required value",
            "spec.template.metadata.labels: Invalid value: {}: `selector` does not match template `labels`",
        ],
    );
    check(
        deployment(selector.clone(), json!({"app": "a"}), json!([])),
        &["spec.template.spec.containers: Required value"],
    );
    check(
        deployment(selector, json!({"app": "a"}), json!([{"name": "C"}])),
        &[
            "spec.template.spec.containers[0].name: Invalid value: \"C\": a lowercase RFC 1123 label must consist of lower \
             case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  \
             or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')",
            "spec.template.spec.containers[0].image: Required value",
        ],
    );
}

#[test]
fn a_stateful_set_may_mount_its_volume_claim_templates() {
    let container = json!({"name": "c", "image": "i", "volumeMounts": [{"name": "data", "mountPath": "/data"}]});
    let set = |claim: &str| {
        json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "spec": {
            "selector": {"matchLabels": {"app": "a"}}, "volumeClaimTemplates": [{"metadata": {"name": claim}}],
            "template": {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [container]}}}})
    };
    check(set("data"), &[]);
    check(set("other"), &["spec.template.spec.containers[0].volumeMounts[0].name: Not found: \"data\""]);
}

#[test]
fn requests_above_limits_are_refused() {
    let pod = |requests: Value| {
        json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "c", "image": "i",
            "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": requests}}]}})
    };
    check(pod(json!({"cpu": "1000m", "memory": "1000M", "example.com/x": "5"})), &[]);
    check(
        pod(json!({"cpu": "1001m"})),
        &[
            "spec.containers[0].resources.requests: Invalid value: \"1001m\": must be less than or equal to cpu limit of 1",
        ],
    );
}

#[test]
fn selectors_and_immutable_maps_cannot_change() {
    let of = |app: &str| deployment(json!({"matchLabels": {"app": app}}), json!({}), json!([]));
    check_change(of("a"), of("a"), &[]);
    check_change(
        of("a"),
        of("b"),
        &["spec.selector: Invalid value: {\"matchLabels\":{\"app\":\"b\"}}: field is immutable"],
    );
    let map = |immutable: bool, text: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "immutable": immutable, "data": {"a": text}});
    check_change(map(false, "1"), map(true, "2"), &[]);
    let frozen = "Forbidden: field is immutable when `immutable` is set";
    check_change(map(true, "1"), map(true, "2"), &[&format!("data: {frozen}")]);
    check_change(map(true, "1"), map(false, "1"), &[&format!("immutable: {frozen}")]);
    let secret = |kind: &str| json!({"apiVersion": "v1", "kind": "Secret", "type": kind});
    check_change(secret("Opaque"), secret("x"), &["type: Invalid value: \"x\": field is immutable"]);
}

#[test]
fn services_need_ports_and_keep_their_cluster_ip() {
    let service = |spec: Value| json!({"apiVersion": "v1", "kind": "Service", "spec": spec});
    let port = |number: i64| json!({"port": number, "protocol": "TCP", "targetPort": 80});
    check(service(json!({"type": "ClusterIP", "ports": [port(80)]})), &[]);
    check(service(json!({"type": "ClusterIP"})), &["spec.ports: Required value"]);
    check(service(json!({"type": "ClusterIP", "clusterIP": "None"})), &[]);
    check(service(json!({"type": "ExternalName"})), &["spec.externalName: Required value"]);
    check(
        service(json!({"type": "X", "ports": [port(0)]})),
        &[
            "spec.type: Unsupported value: \"X\": supported values: \"ClusterIP\", \"ExternalName\", \"LoadBalancer\", \
             \"NodePort\"",
            "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
        ],
    );
    check(
        service(json!({"type": "ClusterIP", "ports": [port(80), port(81)]})),
        &["spec.ports[0].name: Required value", "spec.ports[1].name: Required value"],
    );
    let with = |address: &str| service(json!({"type": "ClusterIP", "clusterIP": address, "clusterIPs": [address]}));
    check_change(with("10.0.0.1"), with("10.0.0.1"), &[]);
    check_change(
        with("10.0.0.1"),
        with("10.0.0.2"),
        &["spec.clusterIPs[0]: Invalid value: [\"10.0.0.2\"]: may not change once set"],
    );
}

#[test]
fn only_some_fields_of_a_pod_can_change() {
    let pod = |image: &str, command: Value| {
        let container = json!({"name": "c", "image": image, "command": command});
        json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [container]}})
    };
    check_change(pod("a", json!(["x"])), pod("b", json!(["x"])), &[]);
    let found = change_problems(&object(pod("a", json!(["y"]))), &object(pod("a", json!(["x"]))));
    assert!(found[0].to_string().starts_with("spec: Forbidden: pod updates may not change fields other than"));
    let sized = |cpu: &str| {
        let container = json!({"name": "c", "image": "a", "resources": {"requests": {"cpu": cpu}}});
        object(json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [container]}}))
    };
    assert_eq!(change_problems(&sized("1"), &sized("2")).len(), 1);
}

#[test]
fn node_name_is_immutable_and_scheduling_gates_cannot_be_added() {
    let pod = |spec: Value| json!({"apiVersion": "v1", "kind": "Pod", "spec": spec});
    let other = "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,\
                 `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing \
                 tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";
    let added = "spec.schedulingGates[1].name: Forbidden: only deletion is allowed, but found new scheduling gate 'b'";
    let gates =
        |names: &[&str]| json!({"schedulingGates": names.iter().map(|name| json!({"name": name})).collect::<Vec<_>>()});
    check_change(pod(json!({})), pod(json!({"nodeName": "n"})), &[other]);
    check_change(pod(json!({"nodeName": "n"})), pod(json!({})), &[other]);
    check_change(pod(gates(&["a"])), pod(gates(&["a", "b"])), &[added]);
    check_change(pod(gates(&["a", "b"])), pod(gates(&["b"])), &[]);
    check_change(pod(gates(&["a"])), pod(json!({})), &[]);
    check_change(
        pod(json!({"containers": [{"name": "a"}]})),
        pod(json!({"containers": [{"name": "a"}, {"name": "b"}]})),
        &["spec.containers: Forbidden: pod updates may not add or remove containers"],
    );
    check_change(
        pod(json!({"terminationGracePeriodSeconds": -1})),
        pod(json!({"terminationGracePeriodSeconds": 1})),
        &[],
    );
    check_change(
        pod(json!({"terminationGracePeriodSeconds": 2})),
        pod(json!({"terminationGracePeriodSeconds": 1})),
        &[other],
    );
    for field in ["serviceAccountName", "hostNetwork", "volumes", "securityContext", "priority", "ephemeralContainers"]
    {
        check_change(pod(json!({})), pod(json!({field: [{"name": "x"}]})), &[other]);
    }
    let one = json!({"ephemeralContainers": [{"name": "a", "image": "x"}]});
    check_change(
        pod(one.clone()),
        pod(json!({"ephemeralContainers": [{"name": "a", "image": "y"}]})),
        &["spec.ephemeralContainers: Forbidden: existing ephemeral containers \"a\" may not be changed\n"],
    );
    check_change(
        pod(one),
        pod(json!({})),
        &["spec.ephemeralContainers: Forbidden: existing ephemeral containers \"a\" may not be removed\n"],
    );
}

#[test]
fn the_mirror_annotation_and_qos_class_of_a_pod_are_immutable() {
    let pod = |annotation: Option<&str>, class: &str| {
        let annotations = annotation.map(|value| json!({"kubernetes.io/config.mirror": value})).unwrap_or_default();
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"annotations": annotations},
            "spec": {}, "status": {"qosClass": class},
        })
    };
    let check = |old: Value, new: Value, expected: &str| {
        let found = change_problems(&object(new), &object(old));
        assert!(found.len() == 1 && found[0].to_string().contains(expected), "{found:?}");
    };
    check_change(pod(Some("a"), "Burstable"), pod(Some("a"), "Burstable"), &[]);
    check_change(pod(None, ""), pod(None, "Burstable"), &[]);
    check(pod(Some("a"), ""), pod(Some("b"), ""), "may not remove or update mirror pod annotation");
    check(pod(Some("a"), ""), pod(None, ""), "may not remove or update mirror pod annotation");
    check(pod(None, ""), pod(Some("a"), ""), "may not add mirror pod annotation");
    check(pod(None, "Burstable"), pod(None, "Guaranteed"), "status.qosClass: Invalid value");
    check(pod(None, "Burstable"), pod(None, ""), "status.qosClass: Invalid value");
}

#[test]
fn a_gated_pod_may_get_a_narrower_node_selector() {
    let pod = |gated: bool, spec: Value| {
        let mut spec = spec;
        if gated {
            spec["schedulingGates"] = json!([{"name": "a"}]);
        }
        json!({"apiVersion": "v1", "kind": "Pod", "spec": spec})
    };
    let (one, two) = (json!({"nodeSelector": {"a": "1"}}), json!({"nodeSelector": {"a": "1", "b": "2"}}));
    check_change(pod(true, one.clone()), pod(true, two.clone()), &[]);
    check_change(
        pod(true, two.clone()),
        pod(true, one.clone()),
        &[
            "spec.nodeSelector: Invalid value: {\"a\":\"1\"}: only additions to spec.nodeSelector are allowed (no mutations or \
           deletions)",
        ],
    );
    assert_eq!(change_problems(&object(pod(false, two)), &object(pod(false, one))).len(), 1);
    let affine = |terms: Value| {
        let required = json!({"nodeSelectorTerms": terms});
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}})
    };
    let key = |name: &str| json!({"key": name, "operator": "Exists"});
    let first = affine(json!([{"matchExpressions": [key("a")]}]));
    let more = affine(json!([{"matchExpressions": [key("a"), key("b")]}]));
    let other = affine(json!([{"matchExpressions": [key("b")]}]));
    check_change(pod(true, json!({})), pod(true, first.clone()), &[]);
    check_change(pod(true, first.clone()), pod(true, more.clone()), &[]);
    for wrong in [other, affine(json!([])), json!({})] {
        assert_eq!(change_problems(&object(pod(true, wrong)), &object(pod(true, first.clone()))).len(), 1);
    }
    assert_eq!(change_problems(&object(pod(false, more)), &object(pod(false, first))).len(), 1);
}

#[test]
fn certificate_requests_are_approved_and_signed_once_by_the_right_subresource() {
    let request = |conditions: Value, certificate: &str| {
        json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "status": {"conditions": conditions, "certificate": certificate}})
    };
    let condition = |kind: &str| json!({"type": kind, "status": "True"});
    let (none, approved) = (json!([]), json!([condition("Approved")]));
    check_change(request(none.clone(), ""), request(json!([condition("Other")]), ""), &[]);
    check_change(
        request(none.clone(), ""),
        request(approved.clone(), ""),
        &["status.conditions: Forbidden: updates may not add a condition of type \"Approved\""],
    );
    check_change(
        request(approved.clone(), ""),
        request(none.clone(), ""),
        &["status.conditions: Forbidden: updates may not remove a condition of type \"Approved\""],
    );
    check_change(
        request(none.clone(), ""),
        request(none.clone(), "x"),
        &["status.certificate: Forbidden: updates may not set certificate content"],
    );
    check_change(
        request(none.clone(), "x"),
        request(none, "y"),
        &["status.certificate: Forbidden: updates may not modify existing certificate content"],
    );
    let both = problems(&object(request(json!([condition("Approved"), condition("Denied")]), "")));
    assert!(both.iter().any(|problem| problem.to_string().contains("mutually exclusive")), "{both:?}");
}

#[test]
fn tolerations_can_only_be_added() {
    let pod = |tolerations: Value, deadline: Value| json!({"apiVersion": "v1", "kind": "Pod", "spec": {"tolerations": tolerations, "activeDeadlineSeconds": deadline}});
    let (one, two) = (json!({"key": "a", "operator": "Exists"}), json!({"key": "b", "operator": "Exists"}));
    let mut patient = one.clone();
    patient["tolerationSeconds"] = 5.into();
    let old = || pod(json!([one]), json!(10));
    check_change(old(), pod(json!([patient, two]), json!(9)), &[]);
    check_change(
        old(),
        pod(json!([two]), json!(10)),
        &["spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds"],
    );
    check_change(
        old(),
        pod(json!([one]), json!(11)),
        &["spec.activeDeadlineSeconds: Invalid value: 11: must be less than or equal to previous value"],
    );
    check_change(
        old(),
        pod(json!([one]), Value::Null),
        &["spec.activeDeadlineSeconds: Invalid value: null: must not update from a positive integer to nil value"],
    );
}

#[test]
fn volume_sources_and_job_completions_cannot_change() {
    let volume = |path: &str, size: &str| {
        json!({"apiVersion": "v1", "kind": "PersistentVolume",
            "spec": {"hostPath": {"path": path}, "capacity": {"storage": size}}})
    };
    check_change(volume("/a", "1Gi"), volume("/a", "2Gi"), &[]);
    check_change(
        volume("/a", "1Gi"),
        volume("/b", "1Gi"),
        &["spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation"],
    );
    let job = |mode: &str, completions: u32, parallelism: u32| {
        json!({"apiVersion": "batch/v1", "kind": "Job",
            "spec": {"completionMode": mode, "completions": completions, "parallelism": parallelism}})
    };
    check_change(job("Indexed", 2, 2), job("Indexed", 3, 3), &[]);
    let tandem = "spec.completions: Invalid value: 3: can only be modified in tandem with spec.parallelism";
    check_change(job("Indexed", 2, 2), job("Indexed", 3, 2), &[tandem]);
    let fixed = "spec.completions: Invalid value: 3: field is immutable";
    check_change(job("NonIndexed", 2, 2), job("NonIndexed", 3, 3), &[fixed]);
}
