//! The CRDs of well-known projects, all on one server. They are not part of the repository: RESTOW_TEST_CRDS names their folder,
//! or it is beside the checkout.

use http::Request;
use restow_testkit::{Cluster, On};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn folder() -> Option<PathBuf> {
    let named = std::env::var_os("RESTOW_TEST_CRDS").map(PathBuf::from);
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let beside = ["../shared/data/crds", "../../shared/data/crds"].map(|path| checkout.join(path));
    named.into_iter().chain(beside).find(|folder| folder.is_dir())
}

#[tokio::test]
async fn real_crds_install_and_are_served_on_the_embedded_store() {
    real_crds_install_and_are_served(On::Embedded).await;
}

#[tokio::test]
async fn real_crds_install_and_are_served_on_etcd() {
    real_crds_install_and_are_served(On::Etcd).await;
}

async fn real_crds_install_and_are_served(on: On) {
    let Some(folder) = folder() else {
        restow_testkit::skip("set RESTOW_TEST_CRDS to a folder of CustomResourceDefinitions");
        return;
    };
    let cluster = Cluster::one(on).await;
    let client = cluster.servers[0].client().await;
    cluster.kubectl(&["create", "-f", folder.to_str().unwrap()]);
    cluster.kubectl(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=120s"]);
    let list: Value = serde_json::from_str(&cluster.kubectl(&["get", "crd", "-o", "json"])).unwrap();
    let definitions = list["items"].as_array().unwrap();
    assert!(definitions.len() > 1, "the folder holds definitions");
    let known = cluster.kubectl(&["api-resources", "-o", "name"]);
    let mut described = 0;
    for definition in definitions {
        let name = definition["metadata"]["name"].as_str().unwrap();
        assert!(known.lines().any(|line| line == name), "{name} is in discovery");
        let (group, kind) = (&definition["spec"]["group"], &definition["spec"]["names"]["kind"]);
        let (group, kind) = (group.as_str().unwrap(), kind.as_str().unwrap());
        for version in definition["spec"]["versions"].as_array().unwrap().iter().filter(|it| it["served"] == true) {
            let version = version["name"].as_str().unwrap();
            let request = Request::get(format!("/openapi/v3/apis/{group}/{version}")).body(Vec::new()).unwrap();
            let document: Value = client.request(request).await.unwrap();
            let schemas = document["components"]["schemas"].as_object().unwrap();
            let wanted = serde_json::json!([{"group": group, "version": version, "kind": kind}]);
            let found = schemas.values().any(|schema| schema["x-kubernetes-group-version-kind"] == wanted);
            assert!(found, "{kind} of {group}/{version} is described");
            described += 1;
        }
    }
    for name in definitions.iter().step_by(30).map(|it| it["metadata"]["name"].as_str().unwrap()) {
        assert!(cluster.kubectl(&["explain", name]).contains("KIND:"), "{name} is explained");
    }
    println!("{} definitions, {described} versions described", definitions.len());
}
