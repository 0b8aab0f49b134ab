//! Schemas of a few types that between them show every rule.

use serde_json::json;

use super::*;

fn v3(group_version: &str, name: &str) -> Value {
    openapi_v3(group_version).unwrap()[name].clone()
}

#[test]
fn a_schema_includes_the_types_that_it_refers_to() {
    let schemas = openapi_v3("apps/v1").unwrap();
    let deployment = &schemas["io.k8s.api.apps.v1.Deployment"];
    assert_eq!(
        deployment["x-kubernetes-group-version-kind"],
        json!([{"group": "apps", "kind": "Deployment", "version": "v1"}])
    );
    assert_eq!(
        deployment["properties"]["metadata"],
        json!({"allOf": [{"$ref": "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}], "default": {}})
    );
    for name in schemas.as_object().unwrap().values().flat_map(references) {
        assert!(schemas.get(&name).is_some(), "{name}");
    }
    assert_eq!(openapi_v3("example.com/v1"), None);
}

fn references(value: &Value) -> Vec<String> {
    match value {
        Value::Object(entries) => entries
            .iter()
            .flat_map(|(key, value)| match (key.as_str(), value) {
                ("$ref", Value::String(target)) => vec![target.rsplit('/').next().unwrap().to_owned()],
                _ => references(value),
            })
            .collect(),
        Value::Array(items) => items.iter().flat_map(references).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn carries_patch_strategies_list_types_and_defaults() {
    let container = v3("v1", "io.k8s.api.core.v1.Container");
    assert_eq!(container["required"], json!(["name"]));
    assert_eq!(
        container["properties"]["ports"],
        json!({
            "type": "array",
            "items": {"$ref": "#/components/schemas/io.k8s.api.core.v1.ContainerPort"},
            "x-kubernetes-list-map-keys": ["containerPort", "protocol"],
            "x-kubernetes-list-type": "map",
            "x-kubernetes-patch-merge-key": "containerPort",
            "x-kubernetes-patch-strategy": "merge",
        })
    );
    let port = v3("v1", "io.k8s.api.core.v1.ContainerPort");
    assert_eq!(port["properties"]["protocol"], json!({"type": "string", "default": "TCP"}));
    assert_eq!(port["properties"]["containerPort"], json!({"type": "integer", "format": "int32", "default": 0}));
    assert_eq!(v3("v1", "io.k8s.api.core.v1.ConfigMapKeySelector")["x-kubernetes-map-type"], "atomic");
    assert_eq!(
        v3("v1", "io.k8s.api.core.v1.SeccompProfile")["x-kubernetes-unions"],
        json!([{"discriminator": "type", "fields-to-discriminateBy": {"localhostProfile": "LocalhostProfile"}}])
    );
    let volume = v3("v1", "io.k8s.api.core.v1.Volume");
    assert!(volume["properties"].get("hostPath").is_some());
}

#[test]
fn shared_kinds_list_all_group_versions() {
    let options = v3("apps/v1", "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions");
    assert_eq!(
        options["x-kubernetes-group-version-kind"],
        json!([
            {"group": "", "kind": "DeleteOptions", "version": "v1"},
            {"group": "apps", "kind": "DeleteOptions", "version": "v1"},
        ])
    );
}

#[test]
fn version_2_has_plain_references_and_no_defaults() {
    let roots = group_version_roots("apps", "v1");
    let definitions = openapi_v2_definitions(&roots, &[("", "v1"), ("apps", "v1"), ("batch", "v1")]);
    assert_eq!(
        definitions["io.k8s.api.apps.v1.DeploymentSpec"]["properties"]["strategy"],
        json!({"$ref": "#/definitions/io.k8s.api.apps.v1.DeploymentStrategy", "x-kubernetes-patch-strategy": "retainKeys"})
    );
    assert_eq!(
        definitions["io.k8s.apimachinery.pkg.util.intstr.IntOrString"],
        json!({"type": "string", "format": "int-or-string"})
    );
    let options = &definitions["io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"];
    assert_eq!(options["x-kubernetes-group-version-kind"].as_array().unwrap().len(), 3);
    assert!(!Value::Object(definitions).to_string().contains("\"default\":{}"));
}
