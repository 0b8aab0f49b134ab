//! CRUD with kubectl, on each store; namespaces; several servers on one etcd.

mod edit;
mod output_formats;
mod wait_and_watch;

use restow_testkit::{Cluster, On, Server, eventually_blocking, next_line};
use std::io::BufReader;
use std::process::Stdio;

const DEPLOYMENT: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: demo, labels: {app: web}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: nginx, image: 'nginx:1'}
";

#[tokio::test]
async fn objects_are_created_changed_and_deleted_on_the_embedded_store() {
    objects_are_created_changed_and_deleted(On::Embedded).await;
}

#[tokio::test]
async fn objects_are_created_changed_and_deleted_on_etcd() {
    objects_are_created_changed_and_deleted(On::Etcd).await;
}

async fn objects_are_created_changed_and_deleted(on: On) {
    let cluster = Cluster::one(on).await;
    let server = &cluster.servers[0];
    cluster.kubectl(&["create", "namespace", "demo"]);
    cluster.kubectl(&["-n", "demo", "create", "configmap", "settings", "--from-literal=a=1"]);
    let again = server.kubectl_fails(&["-n", "demo", "create", "configmap", "settings"]);
    assert!(again.contains("configmaps \"settings\" already exists"), "{again}");
    let get = |path: &str| cluster.kubectl(&["-n", "demo", "get", "cm", "settings", "-o", &format!("jsonpath={path}")]);
    assert_eq!(get("{.data.a}"), "1");

    cluster.kubectl(&["-n", "demo", "patch", "cm", "settings", "--type=merge", "-p", r#"{"data":{"b":"2"}}"#]);
    cluster.kubectl(&[
        "-n",
        "demo",
        "patch",
        "cm",
        "settings",
        "--type=json",
        "-p",
        r#"[{"op":"remove","path":"/data/a"}]"#,
    ]);
    cluster.kubectl(&["-n", "demo", "patch", "cm", "settings", "-p", r#"{"data":{"c":"3"}}"#]);
    assert_eq!(get("{.data}"), r#"{"b":"2","c":"3"}"#);
    cluster.kubectl(&["-n", "demo", "label", "cm", "settings", "tier=front"]);
    assert_eq!(
        cluster.kubectl(&["-n", "demo", "get", "cm", "-l", "tier in (front)", "-o", "name"]),
        "configmap/settings\n"
    );
    assert_eq!(cluster.kubectl(&["-n", "demo", "get", "cm", "-l", "tier,tier!=front", "-o", "name"]), "");
    let by_field = ["-n", "demo", "get", "cm", "--field-selector", "metadata.name=settings", "-o", "name"];
    assert_eq!(cluster.kubectl(&by_field), "configmap/settings\n");

    let before = get("{.metadata.resourceVersion}");
    cluster.kubectl(&["-n", "demo", "patch", "cm", "settings", "--type=merge", "-p", "{}"]);
    assert_eq!(get("{.metadata.resourceVersion}"), before, "a write that changes nothing is none");

    for form in ["yaml", "json", "wide", "name", "custom-columns=NAME:.metadata.name"] {
        assert!(cluster.kubectl(&["-n", "demo", "get", "cm", "settings", "-o", form]).contains("settings"), "{form}");
    }
    assert!(cluster.kubectl(&["-n", "demo", "describe", "cm", "settings"]).contains("Data"));
    assert!(cluster.kubectl(&["api-resources"]).contains("deployments"));
    assert!(cluster.kubectl(&["explain", "deployment.spec.replicas"]).contains("integer"));
    cluster.kubectl(&["-n", "demo", "delete", "cm", "settings"]);
    let gone = server.kubectl_fails(&["-n", "demo", "get", "cm", "settings"]);
    assert!(gone.contains("configmaps \"settings\" not found"), "{gone}");
}

#[tokio::test]
async fn apply_changes_only_what_differs() {
    let cluster = Cluster::one(On::Embedded).await;
    cluster.kubectl(&["create", "namespace", "demo"]);
    let file = cluster.file("web.yaml", DEPLOYMENT);
    assert!(cluster.kubectl(&["apply", "-f", &file]).contains("created"));
    assert!(cluster.kubectl(&["apply", "-f", &file]).contains("unchanged"));
    cluster.kubectl(&["-n", "demo", "patch", "deploy", "web", "-p", r#"{"spec":{"paused":true}}"#]);
    let file = cluster.file("web.yaml", &DEPLOYMENT.replace("nginx:1", "nginx:2"));
    assert!(cluster.kubectl(&["apply", "-f", &file]).contains("configured"));
    let get = |path: &str| cluster.kubectl(&["-n", "demo", "get", "deploy", "web", "-o", &format!("jsonpath={path}")]);
    assert_eq!(
        get("{.spec.template.spec.containers[0].image} {.spec.paused} {.metadata.generation}"),
        "nginx:2 true 3"
    );

    let server = &cluster.servers[0];
    let file = cluster.file("bad.yaml", &DEPLOYMENT.replace("replicas: 2", "replcas: 2"));
    let refused = server.kubectl_fails(&["apply", "-f", &file]);
    assert!(refused.contains("unknown field \"spec.replcas\""), "{refused}");
    let file = cluster.file("bad.yaml", &DEPLOYMENT.replace("name: web,", "name: Web,"));
    let refused = server.kubectl_fails(&["apply", "-f", &file]);
    assert!(refused.contains("a lowercase RFC 1123 subdomain"), "{refused}");
}

#[tokio::test]
async fn a_namespace_is_emptied_before_it_is_deleted() {
    let cluster = Cluster::one(On::Embedded).await;
    let server = &cluster.servers[0];
    cluster.kubectl(&["create", "namespace", "demo"]);
    let has_certificates = || {
        let names = cluster.kubectl(&["-n", "demo", "get", "cm", "-o", "name"]);
        names.lines().any(|name| name == "configmap/kube-root-ca.crt")
    };
    eventually_blocking("the namespace has the servers' certificates", has_certificates);
    cluster.kubectl(&["-n", "demo", "delete", "cm", "kube-root-ca.crt", "--wait=false"]);
    eventually_blocking("the namespace has them again", has_certificates);
    for name in ["a", "b"] {
        cluster.kubectl(&["-n", "demo", "create", "configmap", name]);
    }
    cluster.kubectl(&[
        "-n",
        "demo",
        "patch",
        "cm",
        "b",
        "--type=merge",
        "-p",
        r#"{"metadata":{"finalizers":["example.com/hold"]}}"#,
    ]);
    cluster.kubectl(&["delete", "namespace", "demo", "--wait=false"]);
    eventually_blocking("what nothing holds is gone", || {
        cluster.kubectl(&["-n", "demo", "get", "cm", "-o", "name"]) == "configmap/b\n"
    });
    let refused = server.kubectl_fails(&["-n", "demo", "create", "configmap", "late"]);
    assert!(refused.contains("because it is being terminated"), "{refused}");
    cluster.kubectl(&["-n", "demo", "patch", "cm", "b", "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#]);
    cluster.kubectl(&["wait", "--for=delete", "namespace/demo", "--timeout=60s"]);
    let refused = server.kubectl_fails(&["-n", "demo", "create", "configmap", "late"]);
    assert!(refused.contains("namespaces \"demo\" not found"), "{refused}");
}

#[tokio::test]
async fn three_servers_on_one_etcd_serve_the_same_objects() {
    let cluster = Cluster::on_etcd(&["1.37", "1.37", "1.36"]).await;
    let [first, second, third] = cluster.servers.as_slice() else { panic!("three servers were started") };
    first.kubectl(&["create", "namespace", "demo"]);
    let mut watch = second
        .kubectl_command(&["-n", "demo", "get", "cm", "-w", "-o", "name"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut seen = BufReader::new(watch.stdout.take().unwrap());
    for (number, server) in [first, second, third].into_iter().enumerate() {
        server.kubectl(&["-n", "demo", "create", "configmap", &format!("by-{number}")]);
        let (line, rest) = next_line(seen);
        assert_eq!(line, format!("configmap/by-{number}\n"), "a watch crosses servers");
        seen = rest;
    }
    watch.kill().unwrap();
    watch.wait().unwrap();
    for server in [first, second, third] {
        assert_eq!(server.kubectl(&["-n", "demo", "get", "cm", "-o", "name"]).lines().count(), 3);
    }
}

#[tokio::test]
async fn each_release_stores_its_own_version_and_reads_the_others() {
    let cluster = Cluster::on_etcd(&["1.30", "1.31"]).await;
    let [old, new] = cluster.servers.as_slice() else { panic!("two servers were started") };
    old.kubectl(&["create", "namespace", "demo"]);
    let slice = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s, namespace: demo}\n\
                 addressType: IPv4\nendpoints: []\n";
    let file = cluster.file("slice.yaml", slice);
    old.kubectl(&["create", "-f", &file]);
    let version = |server: &Server| {
        server.kubectl(&[
            "-n",
            "demo",
            "get",
            "endpointslice",
            "s",
            "-o",
            "jsonpath={.apiVersion} {.metadata.resourceVersion}",
        ])
    };
    let created = version(old);
    assert!(created.starts_with("discovery.k8s.io/v1 "), "{created}");
    assert_eq!(version(new), created, "both show the object in the version asked for");
    let patch = ["-n", "demo", "patch", "endpointslice", "s", "--type=merge", "-p", "{}"];
    old.kubectl(&patch);
    assert_eq!(version(old), created, "for the old release the object is current");
    new.kubectl(&patch);
    let migrated = version(new);
    assert_ne!(migrated, created, "the new release writes it in its own storage version");
    new.kubectl(&patch);
    assert_eq!(version(new), migrated, "after which it is current");
}
