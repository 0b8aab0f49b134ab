//! The official Python client, on each store. `./test` brings it; without it these tests are skipped.

use restow_testkit::{Cluster, On, output};
use std::path::{Path, PathBuf};
use std::process::Command;

#[tokio::test]
async fn the_python_client_works_on_the_embedded_store() {
    the_python_client_works(On::Embedded).await;
}

#[tokio::test]
async fn the_python_client_works_on_etcd() {
    the_python_client_works(On::Etcd).await;
}

async fn the_python_client_works(on: On) {
    let Some(python) = python() else {
        restow_testkit::skip("no Python client; ./test brings one, unless RESTOW_TEST_PYTHON is 'skip'");
        return;
    };
    let cluster = Cluster::one(on).await;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/python/drive.py");
    let output = output(Command::new(python).arg(script).arg(&cluster.servers[0].kubeconfig));
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.ends_with("ok\n"), "{said}{errors}");
}

/// The Python with the client: the one that is named, or the one that `./test` made. `None` if the tests are skipped.
fn python() -> Option<PathBuf> {
    match std::env::var("RESTOW_TEST_PYTHON") {
        Ok(named) if named == "skip" => None,
        Ok(named) => Some(named.into()),
        Err(_) => {
            let made = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/python-client/bin/python");
            made.exists().then_some(made)
        }
    }
}
