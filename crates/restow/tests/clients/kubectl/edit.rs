//! All kubectl commands that change objects.

use restow_testkit::{Cluster, On, output};
use std::os::unix::fs::PermissionsExt;

const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata:
  name: web
  labels: {tier: front, team: a}
spec:
  clusterIP: None
  selector: {app: web}
  ports:
  - {name: http, port: 80, protocol: TCP, targetPort: 8080}
  - {name: metrics, port: 9090, protocol: TCP, targetPort: 9090}
";

#[tokio::test]
async fn objects_are_changed_with_every_kubectl_command_on_the_embedded_store() {
    objects_are_changed_with_every_kubectl_command(On::Embedded).await;
}

#[tokio::test]
async fn objects_are_changed_with_every_kubectl_command_on_etcd() {
    objects_are_changed_with_every_kubectl_command(On::Etcd).await;
}

async fn objects_are_changed_with_every_kubectl_command(on: On) {
    let cluster = Cluster::one(on).await;
    apply_merges_three_ways(&cluster);
    edits_differences_and_replacements(&cluster);
    labels_and_annotations(&cluster);
    dry_runs_change_nothing(&cluster);
}

/// Fields of other managers stay, fields that were removed from the file are removed, and fields that the file changes
/// are changed.
fn apply_merges_three_ways(cluster: &Cluster) {
    let service = |path: &str| cluster.kubectl(&["get", "service", "web", "-o", &format!("jsonpath={path}")]);
    let file = cluster.file("service.yaml", SERVICE);
    assert_eq!(cluster.kubectl(&["apply", "-f", &file]), "service/web created\n");
    assert_eq!(cluster.kubectl(&["apply", "-f", &file]), "service/web unchanged\n");
    let patch = r#"{"metadata":{"labels":{"by-hand":"yes"}},"spec":{"ports":[{"port":443,"name":"https"}]}}"#;
    cluster.kubectl(&["patch", "service", "web", "-p", patch]);
    let changed = SERVICE
        .replace(", team: a", "")
        .replace("  - {name: metrics, port: 9090, protocol: TCP, targetPort: 9090}\n", "")
        .replace("targetPort: 8080", "targetPort: 8081");
    let file = cluster.file("service.yaml", &changed);
    assert_eq!(cluster.kubectl(&["apply", "-f", &file]), "service/web configured\n");
    assert_eq!(service("{.metadata.labels}"), r#"{"by-hand":"yes","tier":"front"}"#);
    let mut ports: Vec<String> =
        service("{range .spec.ports[*]}{.name}={.port} {end}").split_whitespace().map(Into::into).collect();
    ports.sort();
    assert_eq!(ports, ["http=80", "https=443"]);
    assert_eq!(service("{.spec.ports[?(@.name=='http')].targetPort}"), "8081");
    let last = cluster.kubectl(&["apply", "view-last-applied", "service", "web"]);
    assert!(last.contains("8081") && !last.contains("9090"), "{last}");
}

fn edits_differences_and_replacements(cluster: &Cluster) {
    let server = &cluster.servers[0];
    let data = || cluster.kubectl(&["get", "cm", "edited", "-o", "jsonpath={.data.x}"]);
    cluster.kubectl(&["create", "configmap", "edited", "--from-literal=x=1"]);
    let editor = cluster.file("editor", "#!/bin/sh\nsed -i 's/x: \"1\"/x: \"2\"/' \"$1\"\n");
    std::fs::set_permissions(&editor, std::fs::Permissions::from_mode(0o755)).unwrap();
    let edit = |arguments: &[&str]| output(server.kubectl_command(arguments).env("KUBE_EDITOR", &editor));
    let done = edit(&["edit", "cm", "edited"]);
    assert_eq!(String::from_utf8_lossy(&done.stdout), "configmap/edited edited\n");
    assert_eq!(data(), "2");
    let unchanged = edit(&["edit", "cm", "edited"]);
    assert!(String::from_utf8_lossy(&unchanged.stderr).contains("no changes"), "{unchanged:?}");

    let object = cluster.kubectl(&["get", "cm", "edited", "-o", "yaml"]);
    let file = cluster.file("edited.yaml", &object);
    assert_eq!(cluster.kubectl(&["diff", "-f", &file]), "", "there is no difference yet");
    let file = cluster.file("edited.yaml", &object.replace("x: \"2\"", "x: \"3\""));
    let different = server.try_kubectl(&["diff", "-f", &file]);
    let shown = String::from_utf8_lossy(&different.stdout).to_string();
    assert_eq!(different.status.code(), Some(1), "{different:?}");
    assert!(shown.contains("-  x: \"2\"") && shown.contains("+  x: \"3\""), "{shown}");
    assert_eq!(data(), "2", "looking at a difference changes nothing");
    assert_eq!(cluster.kubectl(&["replace", "-f", &file]), "configmap/edited replaced\n");
    assert_eq!(data(), "3");
    let stale = server.kubectl_fails(&["replace", "-f", &file]);
    assert!(stale.contains("the object has been modified"), "{stale}");
    let uid = || cluster.kubectl(&["get", "cm", "edited", "-o", "jsonpath={.metadata.uid}"]);
    let before = uid();
    let fresh =
        cluster.file("fresh.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: edited}\ndata: {x: '4'}\n");
    cluster.kubectl(&["replace", "--force", "-f", &fresh]);
    assert_eq!(data(), "4");
    assert_ne!(uid(), before, "replacing by force makes a new object");
}

fn labels_and_annotations(cluster: &Cluster) {
    let server = &cluster.servers[0];
    cluster.kubectl(&["create", "configmap", "marked"]);
    let marked = |path: &str| cluster.kubectl(&["get", "cm", "marked", "-o", &format!("jsonpath={path}")]);
    cluster.kubectl(&["label", "cm", "marked", "tier=front", "team=a"]);
    let taken = server.kubectl_fails(&["label", "cm", "marked", "tier=back"]);
    assert!(taken.contains("already has a value"), "{taken}");
    cluster.kubectl(&["label", "cm", "marked", "tier=back", "--overwrite"]);
    cluster.kubectl(&["label", "cm", "marked", "team-"]);
    assert_eq!(marked("{.metadata.labels}"), r#"{"tier":"back"}"#);
    cluster.kubectl(&["annotate", "cm", "marked", "note=hello world"]);
    assert_eq!(marked("{.metadata.annotations.note}"), "hello world");
    let bad = server.kubectl_fails(&["label", "cm", "marked", "tier=not a label", "--overwrite"]);
    assert!(bad.contains("a valid label must be") || bad.contains("invalid label"), "{bad}");
    assert_eq!(
        cluster.kubectl(&["get", "cm", "-L", "tier", "-l", "tier=back", "--no-headers"]).split_whitespace().last(),
        Some("back")
    );
}

fn dry_runs_change_nothing(cluster: &Cluster) {
    let server = &cluster.servers[0];
    let rehearsed =
        cluster.kubectl(&["create", "configmap", "rehearsed", "--dry-run=server", "-o", "jsonpath={.metadata.uid}"]);
    assert!(!rehearsed.is_empty(), "the server takes part in a rehearsal");
    server.kubectl_fails(&["get", "cm", "rehearsed"]);
    cluster.kubectl(&["create", "configmap", "kept", "--from-literal=x=1"]);
    cluster.kubectl(&["patch", "cm", "kept", "--type=merge", "-p", r#"{"data":{"x":"2"}}"#, "--dry-run=server"]);
    cluster.kubectl(&["delete", "cm", "kept", "--dry-run=server"]);
    assert_eq!(cluster.kubectl(&["get", "cm", "kept", "-o", "jsonpath={.data.x}"]), "1");
}
