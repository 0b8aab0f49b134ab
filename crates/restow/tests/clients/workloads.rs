//! Workloads with kubectl: Deployments, Pods, autoscalers; and garbage collection of dependents.

use restow_testkit::{Cluster, On, eventually_blocking};

#[tokio::test]
async fn a_deployment_is_created_scaled_updated_and_exposed() {
    let cluster = Cluster::one(On::Embedded).await;
    let server = &cluster.servers[0];
    cluster.kubectl(&["create", "deployment", "web", "--image=nginx:1"]);
    let get = |kind: &str, path: &str| cluster.kubectl(&["get", kind, "web", "-o", &format!("jsonpath={path}")]);
    assert_eq!(get("deploy", "{.spec.replicas} {.spec.strategy.rollingUpdate.maxSurge}"), "1 25%");
    assert_eq!(get("deploy", "{.spec.template.spec.containers[0].imagePullPolicy}"), "IfNotPresent");
    assert_eq!(get("deploy", "{.metadata.managedFields[*].manager}"), "kubectl-create");

    cluster.kubectl(&["scale", "deployment", "web", "--replicas=3"]);
    assert_eq!(get("deploy", "{.spec.replicas} {.metadata.generation}"), "3 2");
    assert_eq!(get("deploy", "{.metadata.managedFields[*].subresource}"), "scale");
    cluster.kubectl(&["set", "image", "deployment/web", "nginx=nginx:2"]);
    assert_eq!(get("deploy", "{.spec.template.spec.containers[0].image}"), "nginx:2");
    let before = get("deploy", "{.metadata.resourceVersion}");
    cluster.kubectl(&["patch", "deployment", "web", "--type=merge", "-p", "{}", "--field-manager=other"]);
    assert_eq!(get("deploy", "{.metadata.resourceVersion}"), before, "a write that changes nothing is none");
    cluster.kubectl(&["rollout", "status", "deployment/web", "--watch=false"]);

    cluster.kubectl(&["expose", "deployment", "web", "--port=80"]);
    let address = get("svc", "{.spec.clusterIP}");
    assert!(address.starts_with("10."), "{address}");
    assert_eq!(get("svc", "{.spec.ports[0].targetPort} {.spec.type}"), "80 ClusterIP");
    cluster.kubectl(&["label", "svc", "web", "tier=front"]);
    assert_eq!(get("svc", "{.spec.clusterIP}"), address, "a service keeps its address");
    assert!(cluster.kubectl(&["describe", "deployment", "web"]).contains("25% max unavailable, 25% max surge"));
    assert!(cluster.kubectl(&["describe", "svc", "web"]).contains(&address));

    let selector =
        r#"{"spec":{"selector":{"matchLabels":{"app":"x"}},"template":{"metadata":{"labels":{"app":"x"}}}}}"#;
    let refused = server.kubectl_fails(&["patch", "deployment", "web", "-p", selector]);
    assert!(refused.contains("field is immutable"), "{refused}");
    let ports = r#"{"spec":{"ports":[{"port":99999}]}}"#;
    let refused = server.kubectl_fails(&["patch", "svc", "web", "--type=merge", "-p", ports]);
    assert!(refused.contains("must be between 1 and 65535, inclusive"), "{refused}");
}

#[tokio::test]
async fn dependents_are_deleted_with_their_owners_on_the_embedded_store() {
    dependents_are_deleted_with_their_owners(On::Embedded).await;
}

#[tokio::test]
async fn dependents_are_deleted_with_their_owners_on_etcd() {
    dependents_are_deleted_with_their_owners(On::Etcd).await;
}

async fn dependents_are_deleted_with_their_owners(on: On) {
    let cluster = Cluster::one(on).await;
    let names = || cluster.kubectl(&["get", "cm", "-l", "gc=yes", "-o", "name"]);
    for (policy, left) in
        [("background", ""), ("foreground", ""), ("orphan", "configmap/child\nconfigmap/grandchild\n")]
    {
        let mut owner = String::new();
        for name in ["owner", "child", "grandchild"] {
            let reference = match owner.is_empty() {
                true => String::new(),
                false => format!("ownerReferences: [{owner}]"),
            };
            let text = format!(
                "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\n  labels: {{gc: 'yes'}}\n  {reference}\n"
            );
            let file = cluster.file("object.yaml", &text);
            let uid = cluster.kubectl(&["create", "-f", &file, "-o", "jsonpath={.metadata.uid}"]);
            owner = format!("{{apiVersion: v1, kind: ConfigMap, name: {name}, uid: {uid}, blockOwnerDeletion: true}}");
        }
        cluster.kubectl(&["delete", "cm", "owner", &format!("--cascade={policy}")]);
        eventually_blocking(&format!("what is left after {policy} deletion"), || names() == left);
    }
    let owners = cluster.kubectl(&["get", "cm", "child", "-o", "jsonpath={.metadata.ownerReferences}"]);
    assert_eq!(owners, "", "an orphan has lost its owner");
}

#[tokio::test]
async fn a_pod_on_a_node_gets_its_grace_period() {
    let cluster = Cluster::one(On::Embedded).await;
    cluster.kubectl(&["run", "free", "--image=nginx"]);
    cluster.kubectl(&["delete", "pod", "free"]);
    let overrides = r#"{"spec":{"nodeName":"n1"}}"#;
    cluster.kubectl(&["run", "bound", "--image=nginx", "--overrides", overrides]);
    cluster.kubectl(&["delete", "pod", "bound", "--wait=false"]);
    let seconds = cluster.kubectl(&["get", "pod", "bound", "-o", "jsonpath={.metadata.deletionGracePeriodSeconds}"]);
    assert_eq!(seconds, "30");
    cluster.kubectl(&["delete", "pod", "bound", "--force", "--grace-period=0"]);
    assert_eq!(cluster.kubectl(&["get", "pods", "-o", "name"]), "");
}

#[tokio::test]
async fn namespace_finalizers_are_removed_by_the_finalize_subresource_only() {
    let cluster = Cluster::one(On::Embedded).await;
    cluster.kubectl(&["create", "namespace", "held"]);
    let without = r#"{"spec":{"finalizers":null}}"#;
    cluster.kubectl(&["patch", "namespace", "held", "--type=merge", "-p", without]);
    let finalizers = ["get", "namespace", "held", "-o", "jsonpath={.spec.finalizers}"];
    assert_eq!(cluster.kubectl(&finalizers), r#"["kubernetes"]"#);
    let text = r#"{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"held"},"spec":{"finalizers":[]}}"#;
    let file = cluster.file("held.json", text);
    cluster.kubectl(&["replace", "--raw", "/api/v1/namespaces/held/finalize", "-f", &file]);
    assert_eq!(cluster.kubectl(&finalizers), "");
}

#[tokio::test]
async fn a_horizontal_pod_autoscaler_is_the_same_in_both_versions() {
    let cluster = Cluster::one(On::Embedded).await;
    let text = "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: a}\nspec:\n  \
                scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}\n  maxReplicas: 3\n  metrics:\n  - type: Pods\n    \
                pods: {metric: {name: m}, target: {type: AverageValue, averageValue: '2'}}\n";
    let file = cluster.file("hpa.yaml", text);
    cluster.kubectl(&["create", "-f", &file]);
    let old = cluster.kubectl(&["get", "horizontalpodautoscalers.v1.autoscaling", "a", "-o", "json"]);
    assert!(old.contains("autoscaling.alpha.kubernetes.io/metrics"), "{old}");
    cluster.kubectl(&[
        "patch",
        "horizontalpodautoscalers.v1.autoscaling",
        "a",
        "--type=merge",
        "-p",
        r#"{"spec":{"maxReplicas":4}}"#,
    ]);
    let path = "jsonpath={.spec.maxReplicas} {.spec.metrics[0].pods.metric.name} {.metadata.annotations}";
    assert_eq!(cluster.kubectl(&["get", "horizontalpodautoscalers.v2.autoscaling", "a", "-o", path]), "4 m ");
}
