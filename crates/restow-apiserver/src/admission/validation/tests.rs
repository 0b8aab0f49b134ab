//! Configurations that are refused, and why.

use super::*;
use serde_json::json;

fn errors(object: Value) -> Vec<String> {
    problems(&Object::from_value(object).unwrap()).iter().map(ToString::to_string).collect()
}

fn webhook(change: Value) -> Vec<String> {
    let mut webhook = json!({
        "name": "a.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": {"url": "https://a/b"},
        "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
    });
    json_patch::merge(&mut webhook, &change);
    errors(json!({"kind": "MutatingWebhookConfiguration", "webhooks": [webhook]}))
}

fn policy(change: Value) -> Vec<String> {
    let rule = json!({"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]});
    let mut spec =
        json!({"matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": "object != null"}]});
    json_patch::merge(&mut spec, &change);
    errors(json!({"kind": "ValidatingAdmissionPolicy", "metadata": {"name": "p"}, "spec": spec}))
}

fn binding(change: Value) -> Vec<String> {
    let mut spec = json!({"policyName": "p", "validationActions": ["Deny"]});
    json_patch::merge(&mut spec, &change);
    errors(json!({"kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": "b"}, "spec": spec}))
}

#[test]
fn webhooks_are_checked() {
    assert_eq!(webhook(json!({})), [""; 0]);
    let check = |change: Value, expected: &str| assert_eq!(webhook(change), [expected]);
    check(
        json!({"name": "a.b"}),
        "webhooks[0].name: Invalid value: \"a.b\": should be a domain with at least three segments separated by dots",
    );
    check(
        json!({"sideEffects": null}),
        "webhooks[0].sideEffects: Required value: must specify one of None, NoneOnDryRun",
    );
    check(
        json!({"sideEffects": "Some"}),
        "webhooks[0].sideEffects: Unsupported value: \"Some\": supported values: \"None\", \"NoneOnDryRun\"",
    );
    check(
        json!({"admissionReviewVersions": ["v9"]}),
        "webhooks[0].admissionReviewVersions: Invalid value: [\"v9\"]: must include at least one of v1, v1beta1",
    );
    check(
        json!({"timeoutSeconds": 31}),
        "webhooks[0].timeoutSeconds: Invalid value: 31: the timeout value must be between 1 and 30 seconds",
    );
    check(
        json!({"clientConfig": {"url": "http://a"}}),
        "webhooks[0].clientConfig.url: Invalid value: \"http\": 'https' is the only allowed URL scheme; desired \
         format: https://host[/path]",
    );
    check(
        json!({"clientConfig": {"url": "https://u@a/b"}}),
        "webhooks[0].clientConfig.url: Invalid value: \"u\": user information is not permitted in the URL",
    );
    check(
        json!({"clientConfig": {"service": {"name": "s", "namespace": "n"}}}),
        "webhooks[0].clientConfig: Required value: exactly one of url or service is required",
    );
    check(
        json!({"matchConditions": [{"name": "a", "expression": "1"}]}),
        "webhooks[0].matchConditions[0].expression: Invalid value: \"1\": must evaluate to bool but got int",
    );
    check(
        json!({"reinvocationPolicy": "X"}),
        "webhooks[0].reinvocationPolicy: Unsupported value: \"X\": supported values: \"IfNeeded\", \"Never\"",
    );
    let service = json!({"url": null, "service": {"name": "s", "namespace": "n", "path": "x", "port": 99999}});
    assert_eq!(
        webhook(json!({"clientConfig": service})),
        [
            "webhooks[0].clientConfig.service.port: Invalid value: 99999: port is not valid: must be between 1 and 65535, \
             inclusive",
            "webhooks[0].clientConfig.service.path: Invalid value: \"x\": must start with a '/'",
            "webhooks[0].clientConfig.service.path: Invalid value: \"x\": segment[0] may not be empty",
        ]
    );
    let rule = json!({"operations": ["*", "CREATE"], "apiGroups": [""], "apiVersions": [], "resources": ["*", "x"]});
    assert_eq!(
        webhook(json!({"rules": [rule]})),
        [
            "webhooks[0].rules[0].operations: Invalid value: [\"*\",\"CREATE\"]: if '*' is present, must not specify other \
             operations",
            "webhooks[0].rules[0].apiVersions: Required value",
            "webhooks[0].rules[0].resources: Invalid value: [\"*\",\"x\"]: if '*' is present, must not specify other \
             resources without subresources",
        ]
    );
}

#[test]
fn policies_are_checked() {
    assert_eq!(policy(json!({})), [""; 0]);
    let check = |change: Value, expected: &str| assert_eq!(policy(change), [expected]);
    let validation = |validation: Value| json!({"validations": [validation]});
    check(json!({"matchConstraints": null}), "spec.matchConstraints: Required value");
    check(
        validation(json!({"expression": "foo.bar"})),
        "spec.validations[0].expression: Invalid value: \"foo.bar\": compilation failed: ERROR: <input>:1:1: undeclared \
         reference to 'foo' (in container '')\n | foo.bar\n | ^",
    );
    check(
        validation(json!({"expression": "true", "messageExpression": "1"})),
        "spec.validations[0].messageExpression: Invalid value: \"1\": must evaluate to string but got int",
    );
    check(
        validation(json!({"expression": "true", "message": "a\nb"})),
        "spec.validations[0].message: Invalid value: \"a\\nb\": must not contain line breaks",
    );
    assert_eq!(policy(validation(json!({"expression": "true", "reason": "Unauthorized"}))), [""; 0]);
    let params = policy(validation(json!({"expression": "params.x == 1"})));
    assert!(params[0].contains("undeclared reference to 'params'"), "{params:?}");
    let kind = json!({"apiVersion": "v1", "kind": "ConfigMap"});
    assert_eq!(policy(json!({"paramKind": kind, "validations": [{"expression": "params.x == 1"}]})), [""; 0]);
    check(
        json!({"variables": [{"name": "a b", "expression": "1"}]}),
        "spec.variables[0].name: Invalid value: \"a b\": must be a valid CEL identifier",
    );
    check(
        json!({"auditAnnotations": [{"key": "a", "valueExpression": "1"}]}),
        "spec.auditAnnotations[0].valueExpression: Invalid value: \"1\": must evaluate to one of [string null_type] but \
         got int",
    );
}

#[test]
fn bindings_are_checked() {
    assert_eq!(binding(json!({})), [""; 0]);
    let check = |change: Value, expected: &str| assert_eq!(binding(change), [expected]);
    check(json!({"policyName": null}), "spec.policyName: Required value");
    check(json!({"validationActions": null}), "spec.validationActions: Required value");
    check(
        json!({"validationActions": ["X"]}),
        "spec.validationActions[0]: Unsupported value: \"X\": supported values: \"Audit\", \"Deny\", \"Warn\"",
    );
    check(json!({"validationActions": ["Deny", "Deny"]}), "spec.validationActions[1]: Duplicate value: \"Deny\"");
    check(json!({"paramRef": {"name": "a"}}), "spec.paramRef.parameterNotFoundAction: Required value");
}
