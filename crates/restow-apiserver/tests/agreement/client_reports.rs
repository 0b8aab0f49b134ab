//! What clients can do to StorageVersions through the API while the servers that reported in them run.

use crate::fixture::*;
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use restow_apiserver::ApiServer;
use restow_auth::User;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const NAME: &str = "discovery.k8s.io.endpointslices";

fn path(rest: &str) -> String {
    format!("/apis/internal.apiserver.k8s.io/v1alpha1/storageversions/{NAME}{rest}")
}

/// Sends a request as an administrator, and returns the code and the answer.
pub(crate) async fn request(server: &ApiServer, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
    let admin = User {
        name: "admin".into(),
        uid: String::new(),
        groups: vec!["system:masters".into()],
        extra: BTreeMap::new(),
    };
    let body = Full::new(Bytes::from(body.map(Value::to_string).unwrap_or_default()));
    let request = Request::builder().method(method).uri(path).header("content-type", "application/json").body(body);
    let response = restow_apiserver::call(server, request.unwrap(), admin).await;
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&bytes).unwrap())
}

#[tokio::test]
async fn a_storage_version_with_the_report_of_a_server_that_runs_cannot_be_deleted() {
    let store = store();
    let server = start(&store, "a", "1.37", "").await;
    let (code, answer) = request(&server, "DELETE", &path(""), None).await;
    assert_eq!((code, &answer["reason"]), (409, &json!("Conflict")), "{answer}");
    assert!(answer["message"].as_str().unwrap().contains("API servers that can write (a)"), "{answer}");
    let (_, all) = request(&server, "DELETE", path("").trim_end_matches(&format!("/{NAME}")), None).await;
    assert_eq!(all["reason"], "Conflict", "nor together with others: {all}");
    assert_eq!(servers_of(&status(&store, NAME).await), ["a"]);
}

#[tokio::test]
async fn a_client_cannot_change_or_make_up_the_report_of_a_server_that_runs() {
    let store = store();
    let server = start(&store, "a", "1.37", "").await;
    let before = status(&store, NAME).await;
    let entry = |id: &str| json!({"apiServerID": id, "encodingVersion": "x/v7", "decodableVersions": ["x/v7"]});
    for entries in [json!([]), json!([entry("a")]), json!([entry("a"), entry("gone")])] {
        let (_, mut object) = request(&server, "GET", &path(""), None).await;
        object["status"] = json!({"storageVersions": entries});
        let (code, answer) = request(&server, "PUT", &path("/status"), Some(&object)).await;
        assert_eq!(code, 200, "{answer}");
        let after = status(&store, NAME).await;
        let own = after["storageVersions"].as_array().unwrap().iter().find(|entry| entry["apiServerID"] == "a");
        assert_eq!(own, Some(&before["storageVersions"][0]), "{after}");
        assert_ne!(after["commonEncodingVersion"], "x/v7");
    }
}
