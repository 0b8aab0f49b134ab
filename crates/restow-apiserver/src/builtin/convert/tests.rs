//! Tests of each conversion, and of round trips.

use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};

fn convert(value: &Value, target: &str) -> Value {
    let group = value["apiVersion"].as_str().unwrap().split_once('/').map_or("", |(group, _)| group);
    let reshaping = reshaping(group, value["kind"].as_str().unwrap()).unwrap();
    let object = Object::from_value(value.clone()).unwrap();
    reshaped(reshaping, object, target).unwrap().into_value()
}

/// Normalizes an object by its type.
fn written(value: &Value) -> Value {
    let kind = TypeTable::shared().kind(value["apiVersion"].as_str().unwrap(), value["kind"].as_str().unwrap());
    types::normalize(kind.unwrap(), value.clone()).unwrap().value
}

/// Checks that both are the same object in two versions.
fn check_both_ways(one: Value, other: Value) {
    let (one, other) = (written(&one), written(&other));
    assert_eq!(convert(&one, other["apiVersion"].as_str().unwrap()), other);
    assert_eq!(convert(&other, one["apiVersion"].as_str().unwrap()), one);
}

fn check_there_and_back(object: Value, through: &str) {
    let object = written(&object);
    let there = convert(&object, through);
    assert_eq!(written(&there), there, "the converted object is as its type writes it");
    let back = convert(&there, object["apiVersion"].as_str().unwrap());
    assert_eq!(back, object, "through {there:#}");
}

#[test]
fn autoscalers_of_v1_have_a_cpu_target() {
    let reference = json!({"kind": "Deployment", "name": "web", "apiVersion": "apps/v1"});
    check_both_ways(
        json!({
            "apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "a"},
            "spec": {"scaleTargetRef": reference, "maxReplicas": 3, "targetCPUUtilizationPercentage": 50},
            "status": {"currentReplicas": 1, "desiredReplicas": 2},
        }),
        json!({
            "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "a"},
            "spec": {"scaleTargetRef": reference, "maxReplicas": 3, "metrics": [cpu_metric(50)]},
            "status": {"currentReplicas": 1, "desiredReplicas": 2},
        }),
    );
    let bare = json!({
        "apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "a"},
        "spec": {"scaleTargetRef": reference, "maxReplicas": 3},
    });
    assert_eq!(convert(&bare, "autoscaling/v2")["spec"]["metrics"], json!([cpu_metric(80)]));
}

fn cpu_metric(utilization: i64) -> Value {
    let target = json!({"type": "Utilization", "averageUtilization": utilization});
    json!({"type": "Resource", "resource": {"name": "cpu", "target": target}})
}

#[test]
fn invalid_annotations_are_ignored_in_conversion() {
    let odd = json!({
        "apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "a", "annotations": {
            "autoscaling.alpha.kubernetes.io/metrics": "{not json", "autoscaling.alpha.kubernetes.io/behavior": "7",
            "mine": "stays",
        }},
        "spec": {"maxReplicas": 3},
    });
    let converted = convert(&odd, "autoscaling/v2");
    assert_eq!(converted["metadata"]["annotations"], json!({"mine": "stays"}));
    assert_eq!(converted["spec"]["behavior"], Value::Null);
}

#[test]
fn events_convert_between_both_api_groups() {
    check_both_ways(
        json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"},
            "involvedObject": {"kind": "Pod", "name": "p"}, "reason": "Started", "message": "it began",
            "source": {"component": "kubelet"}, "firstTimestamp": "2026-01-01T00:00:00Z",
            "lastTimestamp": "2026-01-02T00:00:00Z", "count": 3, "type": "Normal", "eventTime": null,
            "reportingComponent": "kubelet", "reportingInstance": "n1",
        }),
        json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"},
            "regarding": {"kind": "Pod", "name": "p"}, "reason": "Started", "note": "it began",
            "deprecatedSource": {"component": "kubelet"}, "deprecatedFirstTimestamp": "2026-01-01T00:00:00Z",
            "deprecatedLastTimestamp": "2026-01-02T00:00:00Z", "deprecatedCount": 3, "type": "Normal",
            "eventTime": null, "reportingController": "kubelet", "reportingInstance": "n1",
        }),
    );
}

#[test]
fn endpoint_slices_convert_between_topology_and_zone() {
    let slice = |version: &str, endpoint: Value| {
        json!({
            "apiVersion": format!("discovery.k8s.io/{version}"), "kind": "EndpointSlice", "metadata": {"name": "s"},
            "addressType": "IPv4", "endpoints": [endpoint],
        })
    };
    let topology = json!({"topology.kubernetes.io/zone": "z", "kubernetes.io/hostname": "n", "x": "y"});
    check_both_ways(
        slice("v1", json!({"addresses": ["1.2.3.4"], "nodeName": "n", "zone": "z", "deprecatedTopology": {"x": "y"}})),
        slice("v1beta1", json!({"addresses": ["1.2.3.4"], "nodeName": "n", "topology": topology})),
    );
    let host = json!({"kubernetes.io/hostname": "other"});
    check_both_ways(
        slice("v1", json!({"addresses": ["1.2.3.4"], "nodeName": "n", "deprecatedTopology": host})),
        slice("v1beta1", json!({"addresses": ["1.2.3.4"], "nodeName": "n", "topology": host})),
    );
}

#[test]
fn zero_concurrency_shares_are_marked_with_an_annotation() {
    let level = |version: &str, annotations: Value, limited: Value| {
        json!({
            "apiVersion": format!("flowcontrol.apiserver.k8s.io/{version}"), "kind": "PriorityLevelConfiguration",
            "metadata": {"name": "l", "annotations": annotations}, "spec": {"type": "Limited", "limited": limited},
        })
    };
    let mark = json!({"flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares": ""});
    check_both_ways(
        level("v1", json!({}), json!({"nominalConcurrencyShares": 0})),
        level("v1beta3", mark, json!({"nominalConcurrencyShares": 0})),
    );
    check_both_ways(
        level("v1", json!({}), json!({"nominalConcurrencyShares": 7})),
        level("v1beta2", json!({}), json!({"assuredConcurrencyShares": 7})),
    );
    let silent = level("v1beta3", json!({}), json!({}));
    let converted = convert(&silent, "flowcontrol.apiserver.k8s.io/v1");
    assert_eq!(converted["spec"]["limited"]["nominalConcurrencyShares"], 30);
}

#[test]
fn crd_v1beta1_has_the_fields_of_all_versions_at_the_top() {
    let definition = |version: &str, spec: Value| {
        let mut spec = spec;
        spec["group"] = "example.com".into();
        spec["scope"] = "Namespaced".into();
        spec["names"] = json!({"plural": "things", "kind": "Thing"});
        json!({
            "apiVersion": format!("apiextensions.k8s.io/{version}"), "kind": "CustomResourceDefinition",
            "metadata": {"name": "things.example.com"}, "spec": spec,
            "status": {"conditions": null, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": null},
        })
    };
    let schema = json!({"openAPIV3Schema": {"type": "object"}});
    let other = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let client = json!({"url": "https://example.com/convert"});
    check_both_ways(
        definition(
            "v1",
            json!({
                "versions": [
                    {"name": "v1", "served": true, "storage": true, "schema": schema,
                     "additionalPrinterColumns": [{"name": "A", "type": "string", "jsonPath": ".a"}]},
                    {"name": "v2", "served": true, "storage": false, "schema": schema},
                ],
                "conversion": {"strategy": "Webhook",
                    "webhook": {"clientConfig": client, "conversionReviewVersions": ["v1"]}},
            }),
        ),
        definition(
            "v1beta1",
            json!({
                "version": "v1", "validation": schema, "preserveUnknownFields": false,
                "versions": [
                    {"name": "v1", "served": true, "storage": true,
                     "additionalPrinterColumns": [{"name": "A", "type": "string", "JSONPath": ".a"}]},
                    {"name": "v2", "served": true, "storage": false},
                ],
                "conversion": {"strategy": "Webhook", "webhookClientConfig": client,
                    "conversionReviewVersions": ["v1"]},
            }),
        ),
    );
    check_there_and_back(
        definition(
            "v1",
            json!({"versions": [
                {"name": "v1", "served": true, "storage": true, "schema": schema, "subresources": {"status": {}}},
                {"name": "v2", "served": true, "storage": false, "schema": other, "subresources": {"status": {}}},
            ]}),
        ),
        "apiextensions.k8s.io/v1beta1",
    );
}

/// A schema is not walked through when a CRD is converted.
#[test]
fn schemas_are_the_same_in_all_versions_of_a_crd() {
    let table = TypeTable::shared();
    let named = |version: &str, name: &str| table.type_by_name(&format!("apiextensions/{version}.{name}")).unwrap();
    for name in ["JSONSchemaProps", "ExternalDocumentation", "ValidationRule"] {
        let fields = |version: &str| {
            let fields = table.fields(named(version, name)).iter();
            fields.map(|field| (field.name, table.go_name(field.shape).replace("v1beta1.", "v1."))).collect::<Vec<_>>()
        };
        assert_eq!(fields("v1"), fields("v1beta1"), "{name}");
    }
}

#[test]
fn conversions_of_single_fields() {
    check_both_ways(
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "i"}, "spec": {
            "defaultBackend": {"service": {"name": "s", "port": {"number": 80}}},
            "rules": [{"http": {"paths": [
                {"path": "/", "pathType": "Prefix", "backend": {"service": {"name": "t", "port": {"name": "http"}}}}]}}],
        }}),
        json!({"apiVersion": "networking.k8s.io/v1beta1", "kind": "Ingress", "metadata": {"name": "i"}, "spec": {
            "backend": {"serviceName": "s", "servicePort": 80},
            "rules": [{"http": {"paths": [
                {"path": "/", "pathType": "Prefix", "backend": {"serviceName": "t", "servicePort": "http"}}]}}],
        }}),
    );
    let budget = |version: &str, selector: Value| {
        json!({"apiVersion": format!("policy/{version}"), "kind": "PodDisruptionBudget",
            "metadata": {"name": "b"}, "spec": {"selector": selector}})
    };
    let label = "pdb.kubernetes.io/deprecated-v1beta1-empty-selector-match";
    let expression = |operator: &str| json!({"matchExpressions": [{"key": label, "operator": operator}]});
    check_both_ways(budget("v1", json!({})), budget("v1beta1", expression("DoesNotExist")));
    check_both_ways(budget("v1", expression("Exists")), budget("v1beta1", json!({})));
    let binding = |version: &str, subject: Value| {
        json!({"apiVersion": format!("rbac.authorization.k8s.io/{version}"), "kind": "ClusterRoleBinding",
            "metadata": {"name": "b"}, "subjects": [subject],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"}})
    };
    check_both_ways(
        binding("v1", json!({"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "u"})),
        binding("v1alpha1", json!({"kind": "User", "apiVersion": "rbac.authorization.k8s.io/v1alpha1", "name": "u"})),
    );
}

#[test]
fn resource_claims_convert_between_flat_and_nested_devices() {
    let claim = |version: &str, request: Value| {
        json!({"apiVersion": format!("resource.k8s.io/{version}"), "kind": "ResourceClaim", "metadata": {"name": "c"},
            "spec": {"devices": {"requests": [request]}}})
    };
    check_both_ways(
        claim(
            "v1",
            json!({"name": "r", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2}}),
        ),
        claim("v1beta1", json!({"name": "r", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2})),
    );
    let slice = |version: &str, device: Value| {
        json!({"apiVersion": format!("resource.k8s.io/{version}"), "kind": "ResourceSlice", "metadata": {"name": "s"},
            "spec": {"driver": "d", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}, "nodeName": "n",
                "devices": [device]}})
    };
    check_both_ways(
        slice("v1", json!({"name": "a", "capacity": {"memory": {"value": "1Gi"}}})),
        slice("v1beta1", json!({"name": "a", "basic": {"capacity": {"memory": {"value": "1Gi"}}}})),
    );
    check_both_ways(
        slice("v1beta2", json!({"name": "a", "capacity": {"memory": {"value": "1Gi"}}})),
        slice("v1alpha3", json!({"name": "a", "basic": {"capacity": {"memory": "1Gi"}}})),
    );
}

#[test]
fn converting_an_alpha_version_without_a_conversion_fails() {
    let claim = json!({"apiVersion": "resource.k8s.io/v1alpha2", "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": "n"}});
    let reshaping = reshaping("resource.k8s.io", "ResourceClaim").unwrap();
    let refused = reshaped(reshaping, Object::from_value(claim).unwrap(), "resource.k8s.io/v1").unwrap_err();
    assert!(refused.to_string().contains("n/c to resource.k8s.io/v1 failed: v1alpha2 was replaced"), "{refused}");
}

/// A quantity in its canonical form.
fn quantity() -> impl Strategy<Value = Value> {
    (1..900_u32).prop_map(|number| json!(number.to_string()))
}

fn selector() -> impl Strategy<Value = Option<Value>> {
    proptest::option::of("[a-z]{1,5}".prop_map(|value| json!({"matchLabels": {"k": value}})))
}

fn identifier() -> impl Strategy<Value = Value> {
    ("[a-z]{1,6}", selector()).prop_map(|(name, selector)| match selector {
        Some(selector) => json!({"name": name, "selector": selector}),
        None => json!({"name": name}),
    })
}

fn metric() -> impl Strategy<Value = Value> {
    let described = json!({"kind": "Service", "name": "s", "apiVersion": "v1"});
    let other = described.clone();
    prop_oneof![
        (identifier(), quantity()).prop_map(|(metric, quantity)| json!({"type": "Pods",
            "pods": {"metric": metric, "target": {"type": "AverageValue", "averageValue": quantity}}})),
        (identifier(), quantity()).prop_map(move |(metric, quantity)| json!({"type": "Object", "object": {
            "describedObject": described, "metric": metric, "target": {"type": "Value", "value": quantity}}})),
        (identifier(), quantity()).prop_map(move |(metric, quantity)| json!({"type": "Object", "object": {
            "describedObject": other, "metric": metric,
            "target": {"type": "AverageValue", "averageValue": quantity}}})),
        (identifier(), quantity()).prop_map(|(metric, quantity)| json!({"type": "External",
            "external": {"metric": metric, "target": {"type": "Value", "value": quantity}}})),
        (1..100_i64).prop_map(|number| json!({"type": "Resource", "resource": {"name": "memory",
            "target": {"type": "Utilization", "averageUtilization": number}}})),
        quantity().prop_map(|quantity| json!({"type": "ContainerResource", "containerResource": {"name": "cpu",
            "container": "c", "target": {"type": "AverageValue", "averageValue": quantity}}})),
    ]
}

fn status_metric() -> impl Strategy<Value = Value> {
    prop_oneof![
        (identifier(), quantity()).prop_map(|(metric, quantity)| json!({"type": "Pods",
            "pods": {"metric": metric, "current": {"averageValue": quantity}}})),
        (1..100_i64, quantity()).prop_map(|(number, quantity)| json!({"type": "Resource", "resource": {"name": "cpu",
            "current": {"averageUtilization": number, "averageValue": quantity}}})),
    ]
}

fn autoscaler() -> impl Strategy<Value = Value> {
    let behavior = (0..300_i64).prop_map(|seconds| {
        json!({"scaleUp": {"stabilizationWindowSeconds": seconds, "selectPolicy": "Max",
            "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}], "tolerance": "50m"}})
    });
    let metrics = proptest::collection::vec(metric(), 0..4);
    let cpu = 1..100_i64;
    let current = proptest::collection::vec(status_metric(), 0..3);
    (metrics, cpu, proptest::option::of(behavior), current, any::<bool>()).prop_map(
        |(mut metrics, cpu, behavior, current, conditions)| {
            metrics.push(cpu_metric(cpu));
            let mut object = json!({
                "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
                "metadata": {"name": "a", "annotations": {"mine": "stays"}, "resourceVersion": "7"},
                "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "web"}, "maxReplicas": 3,
                    "metrics": metrics},
                "status": {"desiredReplicas": 1, "currentMetrics": current},
            });
            if let Some(behavior) = behavior {
                object["spec"]["behavior"] = behavior;
            }
            if object["status"]["currentMetrics"] == json!([]) {
                object["status"]["currentMetrics"] = Value::Null;
            }
            if conditions {
                object["status"]["conditions"] = json!([{"type": "AbleToScale", "status": "True",
                    "lastTransitionTime": "2026-01-01T00:00:00Z", "reason": "r", "message": "m"}]);
            }
            object
        },
    )
}

proptest! {
    #[test]
    fn autoscalers_survive_an_update_through_the_old_version(object in autoscaler()) {
        check_there_and_back(object, "autoscaling/v1");
    }

    #[test]
    fn slices_survive_the_old_version(
        zone in proptest::option::of("[a-z]{1,4}"), node in proptest::option::of("[a-z]{1,4}"),
        extra in proptest::collection::btree_map("[a-z]{1,4}", "[a-z]{0,4}", 0..3),
    ) {
        let mut endpoint = json!({"addresses": ["1.2.3.4"]});
        if let Some(zone) = zone { endpoint["zone"] = zone.into(); }
        if let Some(node) = node { endpoint["nodeName"] = node.into(); }
        if !extra.is_empty() { endpoint["deprecatedTopology"] = json!(extra); }
        check_there_and_back(json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "s"},
            "addressType": "IPv4", "endpoints": [endpoint],
        }), "discovery.k8s.io/v1beta1");
    }
}
