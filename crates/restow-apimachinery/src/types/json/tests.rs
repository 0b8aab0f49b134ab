//! Decoding as Go decodes: what is dropped, what is filled in, and how problems are worded.

use serde_json::json;

use super::*;

fn kind(api_version: &str, kind: &str) -> TypeId {
    TypeTable::shared().kind(api_version, kind).unwrap()
}

fn problems(api_version: &str, name: &str, text: &str) -> Vec<String> {
    match decode_json(kind(api_version, name), text.as_bytes()) {
        Ok(decoded) => decoded.problems.iter().map(ToString::to_string).collect(),
        Err(error) => vec![error.to_string()],
    }
}

#[test]
fn finds_unknown_and_duplicate_fields_in_their_order() {
    let text = r#"{
        "zoo": 1,
        "spec": {
            "foo": {"a": {"a": 1, "a": 2}},
            "template": {"spec": {"containers": [{"name": "a"}, {"name": "b", "name": "c", "bar": []}]}},
            "replicas": 1, "replicas": 2
        },
        "metadata": {"labels": {"a": "1", "a": "2"}, "Name": "x"}
    }"#;
    let expected = [
        r#"unknown field "zoo""#,
        r#"unknown field "spec.foo""#,
        r#"duplicate field "spec.template.spec.containers[1].name""#,
        r#"unknown field "spec.template.spec.containers[1].bar""#,
        r#"duplicate field "spec.replicas""#,
        r#"duplicate field "metadata.labels.a""#,
        r#"unknown field "metadata.Name""#,
    ];
    assert_eq!(problems("apps/v1", "Deployment", text), expected);
    let decoded = decode_json(kind("apps/v1", "Deployment"), text.as_bytes()).unwrap();
    assert_eq!(decoded.value["spec"]["replicas"], 2);
    assert_eq!(decoded.value["spec"].get("foo"), None);
    assert_eq!(
        strict_decoding_error(&decoded.problems[..2]).as_deref(),
        Some(r#"strict decoding error: unknown field "zoo", unknown field "spec.foo""#)
    );
    assert_eq!(strict_decoding_error(&[]), None);
}

#[test]
fn reports_at_most_a_hundred_problems() {
    let fields: Vec<_> = (0..300).map(|number| format!("\"x{number}\": 0")).collect();
    assert_eq!(problems("v1", "Pod", &format!("{{{}}}", fields.join(","))).len(), 100);
}

#[test]
fn wrong_types_are_reported_with_gos_messages() {
    for (name, text, expected) in [
        (
            "Deployment",
            r#"{"spec": {"replicas": "3"}}"#,
            "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32",
        ),
        (
            "Deployment",
            r#"{"spec": {"replicas": 1.5}}"#,
            "json: cannot unmarshal number 1.5 into Go struct field DeploymentSpec.spec.replicas of type int32",
        ),
        (
            "Deployment",
            r#"{"spec": {"replicas": 3000000000}}"#,
            "json: cannot unmarshal number 3000000000 into Go struct field DeploymentSpec.spec.replicas of type int32",
        ),
        (
            "Deployment",
            r#"{"spec": {"template": {"spec": {"containers": [{"name": 1, "image": 2}]}}}}"#,
            "json: cannot unmarshal number into Go struct field Container.spec.template.spec.containers.name of type string",
        ),
        (
            "Deployment",
            r#"{"spec": {"template": {"spec": {"containers": {}}}}}"#,
            "json: cannot unmarshal object into Go struct field PodSpec.spec.template.spec.containers of type []v1.Container",
        ),
        (
            "Deployment",
            r#"{"spec": {"template": {"spec": {"restartPolicy": true}}}}"#,
            "json: cannot unmarshal bool into Go struct field PodSpec.spec.template.spec.restartPolicy of type v1.RestartPolicy",
        ),
        (
            "Deployment",
            r#"{"metadata": {"labels": []}}"#,
            "json: cannot unmarshal array into Go struct field ObjectMeta.metadata.labels of type map[string]string",
        ),
        (
            "Deployment",
            r#"{"spec": 1}"#,
            "json: cannot unmarshal number into Go struct field Deployment.spec of type v1.DeploymentSpec",
        ),
        (
            "Deployment",
            r#"{"kind": 1}"#,
            "json: cannot unmarshal number into Go struct field Deployment.TypeMeta.kind of type string",
        ),
        ("Deployment", "[]", "json: cannot unmarshal array into Go value of type v1.Deployment"),
        (
            "Deployment",
            r#"{"metadata": {"creationTimestamp": 5}}"#,
            "json: cannot unmarshal number into Go value of type string",
        ),
        (
            "Deployment",
            r#"{"spec": {"replicas": "x"}, "metadata": {"creationTimestamp": "x"}}"#,
            r#"parsing time "x" as "2006-01-02T15:04:05Z07:00": cannot parse "x" as "2006""#,
        ),
        (
            "Deployment",
            r#"{"spec": {"strategy": {"rollingUpdate": {"maxSurge": true}}}}"#,
            "json: cannot unmarshal bool into Go value of type int32",
        ),
        (
            "Deployment",
            r#"{"spec": {"template": {"spec": {"containers": [{"resources": {"limits": {"cpu": "lots"}}}]}}}}"#,
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
    ] {
        assert_eq!(problems("apps/v1", name, text), [expected], "{text}");
    }
    assert_eq!(problems("v1", "Secret", r#"{"data": {"a": "%%"}}"#), ["illegal base64 data at input byte 0"]);
    assert!(problems("v1", "Secret", r#"{"data": "#)[0].contains("EOF"));
}

#[test]
fn decoded_objects_are_normalized_as_in_go() {
    let text = r#"{
        "kind": "Deployment", "apiVersion": "apps/v1", "unknown": true,
        "metadata": {"name": "x", "labels": {}, "annotations": null, "generation": 0, "creationTimestamp": "2020-01-02T04:04:05+01:00"},
        "spec": {"replicas": 0, "paused": false, "selector": null, "template": {"spec": {"containers": [
            {"name": "a", "resources": {"limits": {"cpu": 0.5, "memory": "1024Mi"}}, "ports": [null]}]}}}
    }"#;
    let expected = json!({
        "kind": "Deployment", "apiVersion": "apps/v1",
        "metadata": {"name": "x", "creationTimestamp": "2020-01-02T03:04:05Z"},
        "spec": {
            "replicas": 0, "selector": null, "strategy": {},
            "template": {"metadata": {}, "spec": {"containers": [
                {"name": "a", "resources": {"limits": {"cpu": "500m", "memory": "1Gi"}}, "ports": [{"containerPort": 0}]}]}},
        },
        "status": {},
    });
    let decoded = decode_json(kind("apps/v1", "Deployment"), text.as_bytes()).unwrap();
    assert_eq!(decoded.value, expected);
    assert_eq!(decoded.problems, [FieldProblem::Unknown("unknown".to_owned())]);
    let again = normalize(kind("apps/v1", "Deployment"), expected.clone()).unwrap();
    assert_eq!(again, Decoded { value: expected, problems: Vec::new() });
}

#[test]
fn reads_schemas_of_custom_resources() {
    let schema = json!({
        "type": "object",
        "default": {"any": [1, null]},
        "enum": [1, "a", null],
        "items": [{"type": "string"}],
        "additionalProperties": false,
        "additionalItems": {"type": "string", "minLength": 1},
        "dependencies": {"a": ["b"], "c": {"type": "string"}},
        "properties": {"p": {"x-kubernetes-preserve-unknown-fields": true, "maximum": 1.5}},
    });
    let definition = |schema: &Value| {
        json!({"spec": {"group": "g", "scope": "Namespaced", "names": {"plural": "p", "kind": "K"}, "versions":
            [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}})
    };
    let kind = kind("apiextensions.k8s.io/v1", "CustomResourceDefinition");
    let decoded = normalize(kind, definition(&schema)).unwrap();
    assert_eq!(decoded.value["spec"]["versions"][0]["schema"]["openAPIV3Schema"], schema);
    assert_eq!(decoded.problems, []);

    // Unknown fields are reported in properties, but not below the types that decode themselves.
    let unknown = json!({"properties": {"p": {"foo": 1}}, "items": {"foo": 1}});
    assert_eq!(
        check_fields(kind, &definition(&unknown)),
        [FieldProblem::Unknown("spec.versions[0].schema.openAPIV3Schema.properties.p.foo".to_owned())]
    );
    let check = |schema: Value, expected: &str| {
        assert_eq!(check_fields(kind, &definition(&schema)), [FieldProblem::Undecodable(expected.to_owned())]);
    };
    check(
        json!({"items": {"properties": {"a": {"maximum": "x"}}}}),
        "json: cannot unmarshal string into Go struct field JSONSchemaProps.properties.maximum of type float64",
    );
    check(json!({"additionalProperties": 1}), "boolean or JSON schema expected");
}

#[test]
fn deeply_nested_json_is_refused() {
    let mut value = json!({});
    for _ in 0..300 {
        value = json!({"properties": {"p": value}});
    }
    let value = json!({"spec": {"versions": [{"schema": {"openAPIV3Schema": value}}]}});
    let kind = kind("apiextensions.k8s.io/v1", "CustomResourceDefinition");
    assert!(matches!(normalize(kind, value.clone()), Err(JsonError::TooDeep)));
    let text = value.to_string();
    assert!(matches!(decode_json(kind, text.as_bytes()), Err(JsonError::Syntax(_))));
}
