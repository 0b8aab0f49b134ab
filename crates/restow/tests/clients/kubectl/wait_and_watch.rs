//! kubectl wait, get --watch, delete with finalizers, and kubectl proxy.

use crate::kube_rs::config_map;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, PostParams};
use restow_testkit::{Cluster, On, Process, Server, next_line};
use std::io::BufReader;
use std::process::{ChildStdout, Stdio};

#[tokio::test]
async fn kubectl_waits_and_watches_on_the_embedded_store() {
    kubectl_waits_and_watches(On::Embedded).await;
}

#[tokio::test]
async fn kubectl_waits_and_watches_on_etcd() {
    kubectl_waits_and_watches(On::Etcd).await;
}

async fn kubectl_waits_and_watches(on: On) {
    let cluster = Cluster::one(on).await;
    let server = &cluster.servers[0];
    waits_end_when_their_condition_is_met(server);
    watches_show_every_change(server);
    deletions_wait_for_finalizers(server);
    the_proxy_passes_everything_on(server).await;
}

/// A kubectl that runs beside the test. It is killed when this is dropped.
struct Running {
    process: Process,
    lines: Option<BufReader<ChildStdout>>,
}

impl Running {
    fn start(server: &Server, arguments: &[&str]) -> Self {
        let mut process = Process::spawn(server.kubectl_command(arguments).stdout(Stdio::piped()));
        let lines = Some(BufReader::new(process.take_stdout()));
        Running { process, lines }
    }

    fn line(&mut self) -> String {
        let (line, lines) = next_line(self.lines.take().unwrap());
        self.lines = Some(lines);
        line.strip_suffix('\n').expect("kubectl ended early").to_string()
    }
}

fn waits_end_when_their_condition_is_met(server: &Server) {
    server.kubectl(&["create", "configmap", "awaited"]);
    let too_long = server.kubectl_fails(&["wait", "cm/awaited", "--for=jsonpath={.data.x}=1", "--timeout=1s"]);
    assert!(too_long.contains("timed out waiting"), "{too_long}");
    let mut waiting = Running::start(server, &["wait", "cm/awaited", "--for=jsonpath={.data.x}=1", "--timeout=60s"]);
    server.kubectl(&["patch", "cm", "awaited", "--type=merge", "-p", r#"{"data":{"x":"1"}}"#]);
    assert_eq!(waiting.line(), "configmap/awaited condition met");
    server.kubectl(&["create", "deployment", "ready", "--image=web:1"]);
    let mut waiting = Running::start(server, &["wait", "deploy/ready", "--for=condition=Available", "--timeout=60s"]);
    let status = r#"{"status":{"conditions":[{"type":"Available","status":"True"}]}}"#;
    server.kubectl(&["patch", "deploy", "ready", "--subresource=status", "--type=merge", "-p", status]);
    assert_eq!(waiting.line(), "deployment.apps/ready condition met");
}

fn watches_show_every_change(server: &Server) {
    let watch = ["get", "cm", "-l", "watched", "-w", "--output-watch-events", "--no-headers"];
    let mut watching = Running::start(server, &watch);
    let made = |name: &str| {
        server.kubectl(&["create", "configmap", name]);
        server.kubectl(&["label", "cm", name, "watched=yes"]);
    };
    made("first");
    let first = watching.line();
    assert!(first.starts_with("ADDED") && first.contains("first"), "{first}");
    server.kubectl(&["label", "cm", "first", "watched-"]);
    let left = watching.line();
    assert!(left.starts_with("DELETED") && left.contains("first"), "what matches no longer is gone: {left}");
}

fn deletions_wait_for_finalizers(server: &Server) {
    server.kubectl(&["create", "configmap", "held"]);
    let finalizers = |list: &str| {
        let patch = format!(r#"{{"metadata":{{"finalizers":{list}}}}}"#);
        server.kubectl(&["patch", "cm", "held", "--type=merge", "-p", &patch]);
    };
    finalizers(r#"["example.com/hold"]"#);
    let mut deleting = Running::start(server, &["delete", "cm", "held", "--wait=true", "--timeout=60s"]);
    assert_eq!(deleting.line(), "configmap \"held\" deleted");
    let marked = server.kubectl(&["get", "cm", "held", "-o", "jsonpath={.metadata.deletionTimestamp}"]);
    assert!(!marked.is_empty(), "the object is marked and held");
    finalizers("null");
    assert!(deleting.process.wait().success());
    server.kubectl_fails(&["get", "cm", "held"]);
    assert_eq!(server.kubectl(&["delete", "cm", "held", "--ignore-not-found"]), "");
    server.kubectl(&["wait", "--for=delete", "cm/held", "--timeout=60s"]);
}

async fn the_proxy_passes_everything_on(server: &Server) {
    let mut proxy = Running::start(server, &["proxy", "--port=0"]);
    let line = proxy.line();
    let address = line.rsplit(' ').next().unwrap();
    let mut config = kube::Config::new(format!("http://{address}").parse().unwrap());
    // The machine may have no CA certificates, and the client reads them even without TLS.
    config.root_cert = Some(Vec::new());
    let maps: Api<ConfigMap> = Api::namespaced(kube::Client::try_from(config).unwrap(), "default");
    let made = maps.create(&PostParams::default(), &config_map("proxied", &[], &[])).await.unwrap();
    assert!(made.metadata.uid.is_some());
    assert_eq!(maps.get("proxied").await.unwrap().metadata.uid, made.metadata.uid);
    maps.delete("proxied", &DeleteParams::default()).await.unwrap();
    assert!(maps.get_opt("proxied").await.unwrap().is_none());
}
