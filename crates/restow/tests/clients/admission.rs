//! Admission webhooks and policies, with kubectl and kube-rs, on each store.

use crate::admission_policies::policies_change_objects;
use crate::custom_resources::{CRONTABS, crontab};
use crate::subresource_admission::{deletions_by_controllers_are_admitted, subresources_and_collections_are_admitted};
use crate::webhook_server::{Reply, Webhook, admission, admission_patch};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::PostParams;
use restow_testkit::{Cluster, On, Server, eventually_blocking};
use serde_json::{Value, json};
use std::path::Path;

const GUARD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../restow-migrate/manifests/guard.yaml");

/// A webhook configuration for ConfigMaps.
pub(crate) fn asked_about_maps(webhook: &Webhook, name: &str, more: Value) -> Value {
    let mut entry = json!({
        "name": format!("{name}.example.com"), "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": {"url": webhook.url("/admit"), "caBundle": webhook.ca_bundle},
        "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
    });
    for (field, value) in more.as_object().unwrap() {
        entry[field] = value.clone();
    }
    entry
}

pub(crate) fn configure(cluster: &Cluster, kind: &str, name: &str, webhooks: &[Value]) {
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "webhooks": webhooks,
    });
    cluster.kubectl(&["apply", "-f", &cluster.file("webhooks.json", &configuration.to_string())]);
}

/// Waits until a configuration is in force: until config maps of this name are refused.
fn in_force(server: &Server, webhook: &Webhook) {
    eventually_blocking("the webhook is asked", || {
        let _ = server.try_kubectl(&["create", "configmap", "probe", "--dry-run=server"]);
        !webhook.asked().is_empty()
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_admitted_on_the_embedded_store() {
    requests_are_admitted(On::Embedded).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_admitted_on_etcd() {
    requests_are_admitted(On::Etcd).await;
}

async fn requests_are_admitted(on: On) {
    let cluster = Cluster::one(on).await;
    webhooks_change_objects_in_order(&cluster).await;
    webhooks_see_and_refuse(&cluster).await;
    webhooks_fail_as_configured(&cluster).await;
    custom_resources_are_shown_in_the_version_asked_for(&cluster).await;
    no_webhook_locks_its_configuration(&cluster).await;
    the_guard_of_migrations_works(&cluster);
    validating_admission_policies_work(&cluster);
    policies_change_objects(&cluster);
    subresources_and_collections_are_admitted(&cluster).await;
    deletions_by_controllers_are_admitted(&cluster).await;
}

/// A policy that finds something to do only after the second webhook.
const AFTER_WEBHOOKS: &str = r#"---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: after-webhooks}
spec:
  matchConstraints: {resourceRules: [{operations: [CREATE], apiGroups: [''], apiVersions: [v1], resources: [configmaps]}]}
  matchConditions: [{name: was-there, expression: "has(object.data) && 'second' in object.data"}]
  reinvocationPolicy: IfNeeded
  mutations:
  - patchType: JSONPatch
    jsonPatch: {expression: '[JSONPatch{op: "add", path: "/data/third", value: "yes"}]'}
---
{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingAdmissionPolicyBinding, metadata: {name: after-webhooks}, spec: {policyName: after-webhooks}}
"#;

async fn webhooks_change_objects_in_order(cluster: &Cluster) {
    let first = Webhook::start(|review| {
        let seen = review["request"]["object"]["data"]["second"].is_string();
        let seen_third = review["request"]["object"]["data"]["third"].is_string();
        let label = json!({"saw-second": seen.to_string(), "saw-third": seen_third.to_string()});
        admission_patch(review, &json!([{"op": "add", "path": "/metadata/labels", "value": label}]))
    })
    .await;
    let second = Webhook::start(|review| {
        admission_patch(review, &json!([{"op": "add", "path": "/data", "value": {"second": "yes"}}]))
    })
    .await;
    let again = asked_about_maps(&first, "first", json!({"reinvocationPolicy": "IfNeeded"}));
    let (kind, server) = ("MutatingWebhookConfiguration", &cluster.servers[0]);
    configure(cluster, kind, "a-first", &[again]);
    configure(cluster, kind, "b-second", &[asked_about_maps(&second, "second", json!({}))]);
    in_force(server, &first);
    in_force(server, &second);
    first.asked();
    let maps: Api<ConfigMap> = Api::namespaced(server.client().await, "default");
    let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "changed"}})).unwrap();
    let made = maps.create(&PostParams::default(), &map).await.unwrap();
    assert_eq!(made.data.unwrap()["second"], "yes");
    assert_eq!(made.metadata.labels.unwrap()["saw-second"], "true", "who wants to is asked again after a change");
    assert_eq!((first.asked().len(), second.asked().len()), (2, 1));

    cluster.kubectl(&["apply", "-f", &cluster.file("policy.yaml", AFTER_WEBHOOKS)]);
    let server_made = || cluster.kubectl(&["create", "configmap", "again", "--dry-run=server", "-o", "json"]);
    eventually_blocking("the policy is in force", || server_made().contains("saw-third\": \"true"));
    first.asked();
    second.asked();
    server_made();
    let counts = (first.asked().len(), second.asked().len());
    assert_eq!(counts, (2, 1), "webhooks come again after policies that came again, if they want to");
    cluster.kubectl(&["delete", "mutatingadmissionpolicy,mutatingadmissionpolicybinding", "after-webhooks"]);
    cluster.kubectl(&["delete", "mutatingwebhookconfigurations", "a-first", "b-second"]);
}

async fn webhooks_see_and_refuse(cluster: &Cluster) {
    let webhook = Webhook::start(|review| {
        let object = &review["request"]["object"];
        let bad = object["data"]["bad"].is_string();
        let status = json!({"code": 403, "message": "bad data", "reason": "Forbidden"});
        let annotations = json!({"seen": "yes"});
        admission(
            review,
            json!({"allowed": !bad, "status": status, "warnings": ["mind this"], "auditAnnotations": annotations}),
        )
    })
    .await;
    let (kind, server) = ("ValidatingWebhookConfiguration", &cluster.servers[0]);
    let conditions = json!({
        "matchConditions": [{"name": "not-told-to-skip", "expression": "request.operation == 'DELETE' || \
            !has(object.metadata.annotations) || !('skip' in object.metadata.annotations)"}],
        "objectSelector": {"matchExpressions": [{"key": "hidden", "operator": "DoesNotExist"}]},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}},
        "sideEffects": "NoneOnDryRun",
    });
    configure(cluster, kind, "seeing", &[asked_about_maps(&webhook, "seeing", conditions)]);
    in_force(server, &webhook);
    let warned = server.try_kubectl(&["create", "configmap", "good"]);
    assert!(String::from_utf8_lossy(&warned.stderr).contains("Warning: mind this"));
    let refused = server.kubectl_fails(&["create", "configmap", "bad", "--from-literal=bad=1"]);
    assert!(refused.contains("admission webhook \"seeing.example.com\" denied the request: bad data"), "{refused}");
    let map = |metadata: &str| {
        let text = format!("---\n{{apiVersion: v1, kind: ConfigMap, metadata: {metadata}, data: {{bad: '1'}}}}");
        cluster.kubectl(&["create", "-f", &cluster.file("map.yaml", &text)]);
    };
    map("{name: skipped, annotations: {skip: ''}}");
    map("{name: hidden, labels: {hidden: ''}}");
    map("{name: elsewhere, namespace: kube-public}");

    webhook.asked();
    cluster.kubectl(&["create", "configmap", "rehearsed", "--dry-run=server"]);
    cluster.kubectl(&["delete", "configmap", "good", "--dry-run=server"]);
    let finalizer = r#"{"metadata":{"finalizers":["example.com/hold"]}}"#;
    cluster.kubectl(&["patch", "configmap", "good", "--type=merge", "-p", finalizer]);
    cluster.kubectl(&["delete", "configmap", "good", "--wait=false"]);
    cluster.kubectl(&["patch", "configmap", "good", "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#]);
    let mut seen: Vec<String> = webhook
        .asked()
        .iter()
        .map(|review| {
            let request = &review["request"];
            format!("{} {} {}", request["operation"], request["name"], request["dryRun"])
        })
        .collect();
    // A decision on a cached object may be made again on the stored one.
    seen.dedup();
    assert_eq!(
        seen,
        [
            r#""CREATE" "rehearsed" true"#,
            r#""DELETE" "good" true"#,
            r#""UPDATE" "good" false"#,
            r#""DELETE" "good" false"#,
            r#""UPDATE" "good" false"#,
        ],
        "the removal of the last finalizer is seen too"
    );
    assert!(!server.try_kubectl(&["get", "configmap", "good"]).status.success());
    cluster.kubectl(&["delete", "validatingwebhookconfiguration", "seeing"]);
}

async fn webhooks_fail_as_configured(cluster: &Cluster) {
    let server = &cluster.servers[0];
    let mut webhook = Webhook::start(|review| admission(review, json!({"allowed": true}))).await;
    let strict = json!({"objectSelector": {"matchLabels": {"strict": "yes"}}, "timeoutSeconds": 1});
    let lenient = json!({"failurePolicy": "Ignore", "timeoutSeconds": 1});
    let both = [asked_about_maps(&webhook, "strict", strict), asked_about_maps(&webhook, "lenient", lenient)];
    configure(cluster, "ValidatingWebhookConfiguration", "failing", &both);
    in_force(server, &webhook);
    let create = |name: &str, strict: bool| {
        let label = if strict { "{strict: 'yes'}" } else { "{}" };
        let text = format!("---\n{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}, labels: {label}}}}}");
        server.try_kubectl(&["create", "-f", &cluster.file("map.yaml", &text)])
    };
    type Fault = (&'static str, fn(&Value) -> Reply, &'static str);
    let faults: [Fault; 4] = [
        ("silent", |_| Reply::Silence, "deadline exceeded"),
        ("garbled", |_| Reply::Bytes(200, b"no".to_vec()), "failed to call webhook"),
        ("broken", |_| Reply::Bytes(500, b"no".to_vec()), "failed to call webhook"),
        ("foreign", |review| Reply::Json(json!({"kind": "Pod", "uid": review["uid"]})), "failed to call webhook"),
    ];
    for (name, fault, words) in faults {
        webhook.behave(fault);
        assert!(create(&format!("lenient-{name}"), false).status.success(), "{name} is ignored");
        let refused = create(&format!("strict-{name}"), true);
        let stderr = String::from_utf8_lossy(&refused.stderr).to_string();
        assert!(stderr.contains("failed calling webhook \"strict.example.com\"") && stderr.contains(words), "{stderr}");
    }
    webhook.behave(|review| admission(review, json!({"allowed": true})));
    webhook.stop();
    assert!(create("lenient-down", false).status.success());
    let stderr = String::from_utf8_lossy(&create("strict-down", true).stderr).to_string();
    assert!(stderr.contains("failed calling webhook \"strict.example.com\""), "{stderr}");
    webhook.resume();
    assert!(create("strict-up", true).status.success(), "it recovers by itself");
    cluster.kubectl(&["delete", "validatingwebhookconfiguration", "failing"]);
}

async fn custom_resources_are_shown_in_the_version_asked_for(cluster: &Cluster) {
    let server = &cluster.servers[0];
    cluster.kubectl(&["apply", "-f", &cluster.file("crd.yaml", CRONTABS)]);
    cluster.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", "crd/crontabs.stable.example.com"]);
    let webhook =
        Webhook::start(|review| admission_patch(review, &json!([{"op": "add", "path": "/spec/replicas", "value": 7}])))
            .await;
    let rules = json!({"rules": [{"operations": ["CREATE", "UPDATE"], "apiGroups": ["stable.example.com"],
        "apiVersions": ["v1"], "resources": ["crontabs"]}]});
    configure(cluster, "MutatingWebhookConfiguration", "tabs", &[asked_about_maps(&webhook, "tabs", rules)]);
    let object = cluster.file("tab.yaml", &crontab("v2", "shown", "{cronSpec: x}"));
    eventually_blocking("the webhook is asked", || {
        let _ = server.try_kubectl(&["create", "-f", &object, "--dry-run=server"]);
        !webhook.asked().is_empty()
    });
    cluster.kubectl(&["create", "-f", &object]);
    assert_eq!(cluster.kubectl(&["get", "crontab", "shown", "-o", "jsonpath={.spec.replicas}"]), "7");
    let asked = webhook.asked();
    let request = &asked[0]["request"];
    assert_eq!((&request["kind"]["version"], &request["requestKind"]["version"]), (&json!("v1"), &json!("v2")));
    assert_eq!(request["object"]["apiVersion"], "stable.example.com/v1");
    cluster.kubectl(&["delete", "mutatingwebhookconfiguration", "tabs"]);
}

async fn no_webhook_locks_its_configuration(cluster: &Cluster) {
    let server = &cluster.servers[0];
    let webhook = Webhook::start(|review| admission(review, json!({"allowed": false}))).await;
    let everything =
        json!({"rules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}]});
    configure(cluster, "ValidatingWebhookConfiguration", "lock", &[asked_about_maps(&webhook, "lock", everything)]);
    eventually_blocking("everything is refused", || {
        !server.try_kubectl(&["create", "configmap", "locked", "--dry-run=server"]).status.success()
    });
    cluster.kubectl(&["delete", "validatingwebhookconfiguration", "lock"]);
    eventually_blocking("nothing is refused any more", || {
        server.try_kubectl(&["create", "configmap", "locked", "--dry-run=server"]).status.success()
    });
    let bad = "---\n{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: x}, \
               webhooks: [{name: a.b.c, clientConfig: {url: 'https://x'}, sideEffects: None, admissionReviewVersions: [v1], \
               matchConditions: [{name: c, expression: 'object.('}]}]}";
    let refused = server.kubectl_fails(&["create", "-f", &cluster.file("bad.yaml", bad)]);
    assert!(refused.contains("webhooks[0].matchConditions[0].expression: Invalid value: \"object.(\""), "{refused}");
}

/// The guard that `restow install` creates for migrations.
fn the_guard_of_migrations_works(cluster: &Cluster) {
    let server = &cluster.servers[0];
    assert!(Path::new(GUARD).exists());
    cluster.kubectl(&["apply", "-f", GUARD]);
    let annotate = ["annotate", "crd", "crontabs.stable.example.com", "--overwrite"];
    cluster.kubectl(&[annotate.as_slice(), &["ksvm.sigs.k8s.io/migrating=true"]].concat());
    let flip = cluster.file("flip.yaml", &crate::custom_resources::storage_version(false, true));
    let flipped = || server.try_kubectl(&["apply", "--dry-run=server", "-f", &flip]);
    eventually_blocking("the guard is in force", || !flipped().status.success());
    let stderr = String::from_utf8_lossy(&flipped().stderr).to_string();
    assert!(
        stderr.contains("the storage version cannot be changed while the stored objects are being migrated"),
        "{stderr}"
    );
    cluster.kubectl(&[annotate.as_slice(), &["other=change"]].concat());
    cluster.kubectl(&[annotate.as_slice(), &["ksvm.sigs.k8s.io/migrating-"]].concat());
    assert!(flipped().status.success());
    cluster.kubectl(&["delete", "-f", GUARD]);
}

fn validating_admission_policies_work(cluster: &Cluster) {
    let server = &cluster.servers[0];
    let policy = "
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: sizes}
spec:
  paramKind: {apiVersion: v1, kind: ConfigMap}
  matchConstraints: {resourceRules: [{operations: [CREATE, UPDATE], apiGroups: [''], apiVersions: [v1], resources: [secrets]}]}
  matchConditions: [{name: sized, expression: \"has(object.metadata.labels) && 'size' in object.metadata.labels\"}]
  variables: [{name: size, expression: 'int(object.metadata.labels.size)'}]
  validations:
  - {expression: 'variables.size <= int(params.data.most)', messageExpression: \"'at most ' + params.data.most + ', not ' + string(variables.size)\", reason: Forbidden}
";
    let binding = |action: &str| {
        format!(
            "---\n{{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicyBinding, metadata: {{name: sizes}}, \
             spec: {{policyName: sizes, validationActions: [{action}], paramRef: {{name: sizes, namespace: default, \
             parameterNotFoundAction: Deny}}}}}}"
        )
    };
    cluster.kubectl(&["create", "configmap", "sizes", "--from-literal=most=5"]);
    cluster.kubectl(&["apply", "-f", &cluster.file("policy.yaml", policy)]);
    cluster.kubectl(&["apply", "-f", &cluster.file("binding.yaml", &binding("Deny"))]);
    let secret = |size: u32| {
        let text =
            format!("---\n{{apiVersion: v1, kind: Secret, metadata: {{name: s{size}, labels: {{size: '{size}'}}}}}}");
        server.try_kubectl(&["create", "--dry-run=server", "-f", &cluster.file("secret.yaml", &text)])
    };
    eventually_blocking("the policy is in force", || !secret(9).status.success());
    let stderr = String::from_utf8_lossy(&secret(9).stderr).to_string();
    let words = "ValidatingAdmissionPolicy 'sizes' with binding 'sizes' denied request: at most 5, not 9";
    assert!(stderr.contains(words), "{stderr}");
    assert!(secret(5).status.success());
    cluster.kubectl(&["apply", "-f", &cluster.file("binding.yaml", &binding("Warn, Audit"))]);
    eventually_blocking("it only warns", || secret(9).status.success());
    let stderr = String::from_utf8_lossy(&secret(9).stderr).to_string();
    assert!(
        stderr.contains("Warning: Validation failed for ValidatingAdmissionPolicy 'sizes' with binding 'sizes'"),
        "{stderr}"
    );
    cluster.kubectl(&["delete", "configmap", "sizes"]);
    cluster.kubectl(&["apply", "-f", &cluster.file("binding.yaml", &binding("Deny"))]);
    eventually_blocking("without parameters it denies", || !secret(1).status.success());
    let stderr = String::from_utf8_lossy(&secret(1).stderr).to_string();
    assert!(stderr.contains("no params found for policy binding with `Deny` parameterNotFoundAction"), "{stderr}");
    cluster.kubectl(&["delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", "sizes"]);
    policies_check_permissions_of_users(cluster);
}

fn policies_check_permissions_of_users(cluster: &Cluster) {
    let server = &cluster.servers[0];
    let policy = "
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: deleters}
spec:
  matchConstraints: {resourceRules: [{operations: [CREATE], apiGroups: [''], apiVersions: [v1], resources: [secrets]}]}
  validations:
  - {expression: \"authorizer.requestResource.check('delete').allowed() && authorizer.group('apps').resource('deployments')\\
      .namespace('default').check('get').allowed()\", message: who makes must be able to remove}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: deleters}
spec: {policyName: deleters, validationActions: [Deny]}
";
    cluster.kubectl(&["apply", "-f", &cluster.file("policy.yaml", policy)]);
    cluster.kubectl(&["create", "role", "maker", "--verb=create", "--resource=secrets"]);
    cluster.kubectl(&["create", "rolebinding", "maker", "--role=maker", "--user=bob"]);
    let create = ["create", "secret", "generic", "made", "--dry-run=server"];
    let by_bob = || server.try_kubectl(&[create.as_slice(), &["--as=bob"]].concat());
    eventually_blocking("bob may make secrets, and the policy refuses it", || {
        String::from_utf8_lossy(&by_bob().stderr).contains("who makes must be able to remove")
    });
    assert!(server.try_kubectl(&create).status.success(), "the administrator may");
    cluster.kubectl(&["delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", "deleters"]);
}
