//! MutatingAdmissionPolicies. The tests in `admission.rs` call this on each store.

use restow_testkit::{Cluster, eventually_blocking};

const POLICY: &str = r#"---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: counted}
spec:
  paramKind: {apiVersion: v1, kind: ConfigMap}
  matchConstraints: {resourceRules: [{operations: [CREATE], apiGroups: [''], apiVersions: [v1], resources: [secrets]}]}
  matchConditions: [{name: not-left-alone, expression: "object.metadata.name != 'left-alone'"}]
  variables: [{name: number, expression: "int(object.metadata.annotations.number)"}]
  reinvocationPolicy: IfNeeded
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration: {expression: 'Object{metadata: Object.metadata{labels: {"next": string(variables.number + 1)}}, type: params.data.type}'}
  - patchType: JSONPatch
    jsonPatch:
      expression: >-
        [JSONPatch{op: "test", path: "/metadata/labels/next", value: string(variables.number + 1)},
         JSONPatch{op: "add", path: "/metadata/labels/" + jsonpatch.escapeKey("example.com/made-by"), value: "policy"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: counted}
spec: {policyName: counted, paramRef: {name: kinds, namespace: default, parameterNotFoundAction: Deny}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: kinds}, data: {type: example.com/counted}}
"#;

const WRONG: &str = r#"---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: wrong}
spec:
  matchConstraints: {resourceRules: [{operations: [DELETE], apiGroups: [''], apiVersions: [v1], resources: [pods]}]}
  reinvocationPolicy: Never
  mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: '1'}}, {patchType: JSONPatch, jsonPatch: {expression: '[1]'}}]
"#;

const ATOMIC: &str = r#"---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: counted}
spec:
  matchConstraints: {resourceRules: [{operations: [CREATE], apiGroups: [''], apiVersions: [v1], resources: [pods]}]}
  reinvocationPolicy: Never
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration:
      expression: 'Object{spec: Object.spec{containers: object.spec.containers.map(c, Object.spec.containers{name: c.name, args: ["x"]})}}'
---
{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingAdmissionPolicyBinding, metadata: {name: counted}, spec: {policyName: counted}}
"#;

pub(crate) fn policies_change_objects(cluster: &Cluster) {
    let server = &cluster.servers[0];
    cluster.kubectl(&["apply", "-f", &cluster.file("policy.yaml", POLICY)]);
    let create = |name: &str, annotations: &str| {
        let text =
            format!("---\n{{apiVersion: v1, kind: Secret, metadata: {{name: {name}, annotations: {annotations}}}}}");
        server.try_kubectl(&["create", "--dry-run=server", "-o", "json", "-f", &cluster.file("secret.yaml", &text)])
    };
    let made =
        || -> serde_json::Value { serde_json::from_slice(&create("made", "{number: '4'}").stdout).unwrap_or_default() };
    eventually_blocking("the policy is in force", || made()["metadata"]["labels"]["next"] == "5");
    let made = made();
    assert_eq!(made["metadata"]["labels"]["example.com/made-by"], "policy", "{made}");
    assert_eq!(made["type"], "example.com/counted", "{made}");
    assert!(create("left-alone", "{}").status.success());
    let refused = String::from_utf8_lossy(&create("refused", "{number: x}").stderr).to_string();
    let words = "policy 'counted' with binding 'counted' denied request: expression 'Object{";
    assert!(refused.contains(words), "{refused}");

    let wrong = server.kubectl_fails(&["create", "-f", &cluster.file("wrong.yaml", WRONG)]);
    for words in [
        "spec.matchConstraints.resourceRules.operations: Unsupported value: \"DELETE\": supported values: \"*\", \"CONNECT\", \
         \"CREATE\", \"UPDATE\"",
        "spec.mutations[0].applyConfiguration.expression: Invalid value: \"1\": must evaluate to Object but got int",
        "spec.mutations[1].jsonPatch.expression: Invalid value: \"[1]\": must evaluate to list(JSONPatch) but got list(int)",
    ] {
        assert!(wrong.contains(words), "{wrong}");
    }
    cluster.kubectl(&["replace", "-f", &cluster.file("policy.yaml", ATOMIC)]);
    let run = || server.try_kubectl(&["run", "atomic", "--image=i", "--dry-run=server"]);
    let mut stderr = String::new();
    eventually_blocking("the other policy is in force", || {
        stderr = String::from_utf8_lossy(&run().stderr).to_string();
        !stderr.is_empty()
    });
    let words = "may not mutate atomic arrays, maps or structs: .spec.containers[0].args";
    assert!(stderr.contains(words), "{stderr}");
    cluster.kubectl(&["delete", "mutatingadmissionpolicy,mutatingadmissionpolicybinding", "counted"]);
}
