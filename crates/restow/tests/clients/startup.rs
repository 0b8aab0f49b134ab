//! Start, stop and restart, and the errors of a server that cannot start.

use restow_testkit::{Server, restow_output};

fn fails(arguments: &[&str]) -> String {
    let (output, text) = restow_output(arguments);
    assert!(!output.status.success(), "restow {} succeeded", arguments.join(" "));
    text
}

#[tokio::test]
async fn all_objects_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::up(folder.path());
    server.kubectl(&["create", "configmap", "kept", "--from-literal=a=1"]);
    assert!(server.stop().success());
    let server = Server::up(folder.path());
    assert_eq!(server.kubectl(&["get", "cm", "kept", "-o", "jsonpath={.data.a}"]), "1");
    server.kubectl(&["create", "configmap", "kept-too"]);
    server.kill();
    let server = Server::up(folder.path());
    assert!(server.kubectl(&["get", "cm", "-o", "name"]).contains("configmap/kept-too"));
}

#[tokio::test]
async fn a_data_directory_or_address_in_use_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::up(folder.path());
    let data = folder.path().join("data");
    let said = fails(&["up", "--listen", "127.0.0.1:0", "--data-dir", data.to_str().unwrap()]);
    assert!(said.contains("in use by another process"), "{said}");
    let other = folder.path().join("other");
    let said = fails(&["up", "--listen", &server.address, "--data-dir", other.to_str().unwrap()]);
    assert!(said.contains("cannot listen on") && said.contains("--listen"), "{said}");
    server.kubectl(&["get", "namespaces"]);
}

#[test]
fn bad_flags_are_explained() {
    let said = fails(&["up", "--release", "1.5"]);
    assert!(said.contains("releases 1.28 to 1.37 are known"), "{said}");
    let said = fails(&["up", "--data-dir", "/proc/nowhere"]);
    assert!(said.contains("--data-dir"), "{said}");
    let said = fails(&[
        "serve",
        "--etcd-endpoints",
        "nonsense",
        "--tls-cert-file",
        "x",
        "--tls-private-key-file",
        "x",
        "--client-ca-file",
        "x",
    ]);
    assert!(said.contains("cannot read x"), "{said}");
}
