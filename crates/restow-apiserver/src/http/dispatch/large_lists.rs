//! Lists that are too large to be read and sent in one piece.

use super::tests::{admin, ask, bytes_of, certificates, server};
use super::*;
use crate::flow_control::limits::LoadLimits;
use http_body_util::BodyExt;
use restow_apimachinery::types;
use restow_store::{Key, StoreExt};
use std::io::Read;
use std::net::IpAddr;
use std::time::Duration;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const MANY: usize = 1300;

/// A server with many config maps, put directly into the store.
async fn filled(limits: LoadLimits) -> Arc<ApiServer> {
    let server = server(limits, None).await;
    for number in 0..MANY {
        put(&server, number, &map(number)).await;
    }
    server
}

fn map(number: usize) -> String {
    let padding = "x".repeat(1500);
    format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"map-{number:05}"}},"data":{{"a":"{padding}"}}}}"#
    )
}

fn key(number: usize) -> Key {
    Key::try_from(format!("/core/configmaps/default/map-{number:05}")).unwrap()
}

async fn put(server: &ApiServer, number: usize, json: &str) {
    server.objects().store().put(&key(number), json.to_string().into()).await.unwrap();
}

async fn list(server: &ApiServer, query: &str, headers: &[(&str, &str)]) -> Response<Body> {
    let request = Request::get(format!("{MAPS}{query}"));
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    ask(server, &admin(), request, "").await
}

fn is_stream(response: &Response<Body>) -> bool {
    matches!(response.body(), Body::Stream(_))
}

async fn collect(response: Response<Body>) -> Result<Bytes, crate::handlers::Interrupted> {
    Ok(response.into_body().collect().await?.to_bytes())
}

async fn json(response: Response<Body>) -> Value {
    serde_json::from_slice(&collect(response).await.unwrap()).unwrap()
}

#[tokio::test]
async fn a_long_list_is_the_same_as_its_pages() {
    let server = filled(LoadLimits::default()).await;
    for accept in ["application/json", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"] {
        let accept = [("accept", accept)];
        let response = list(&server, "", &accept).await;
        assert!(is_stream(&response));
        let whole = json(response).await;
        let mut pages = Vec::new();
        let mut token = String::new();
        loop {
            let page = list(&server, &format!("?limit=400&continue={token}"), &accept).await;
            assert!(!is_stream(&page));
            let page = json(page).await;
            pages.extend(page["items"].as_array().unwrap().clone());
            match page["metadata"]["continue"].as_str() {
                Some(next) => token = next.to_string(),
                None => break,
            }
            assert_eq!((&page["kind"], &page["apiVersion"]), (&whole["kind"], &whole["apiVersion"]));
            assert_eq!(page["metadata"]["resourceVersion"], whole["metadata"]["resourceVersion"]);
        }
        assert_eq!(whole["metadata"].as_object().unwrap().len(), 1);
        assert_eq!(whole["items"].as_array().unwrap().len(), MANY);
        assert_eq!(whole["items"].as_array().unwrap(), &pages);
    }
}

#[tokio::test]
async fn a_long_list_is_served_in_every_format() {
    let server = filled(LoadLimits::default()).await;
    let whole = json(list(&server, "", &[]).await).await;
    let items = whole["items"].as_array().unwrap();
    // Leases are renewed meanwhile, so that the latest revision is another one each time.
    let revision = whole["metadata"]["resourceVersion"].as_str().unwrap();
    let same = format!("?resourceVersion={revision}&resourceVersionMatch=Exact");

    let table = list(&server, &same, &[("accept", "application/json;as=Table;g=meta.k8s.io;v=v1")]).await;
    assert!(is_stream(&table));
    let table = json(table).await;
    assert_eq!((&table["kind"], &table["metadata"]), (&"Table".into(), &whole["metadata"]));
    assert_eq!(table["columnDefinitions"][1]["name"], "Data");
    let rows = table["rows"].as_array().unwrap();
    assert_eq!(rows.len(), MANY);
    assert_eq!(rows[MANY - 1]["cells"][0], items[MANY - 1]["metadata"]["name"]);
    assert_eq!(rows[MANY - 1]["object"]["metadata"], items[MANY - 1]["metadata"]);

    let protobuf = |list: Bytes| types::decode_protobuf(&list).unwrap();
    let accept = [("accept", "application/vnd.kubernetes.protobuf")];
    let found = protobuf(bytes_of(list(&server, &same, &accept).await));
    assert_eq!((&found["kind"], &found["apiVersion"]), (&whole["kind"], &whole["apiVersion"]));
    assert_eq!(found["metadata"]["resourceVersion"], whole["metadata"]["resourceVersion"]);
    assert_eq!(found["items"].as_array().unwrap().len(), MANY);
    assert_eq!(found["items"][MANY - 1]["data"], items[MANY - 1]["data"]);
    let page = protobuf(bytes_of(list(&server, "?limit=3", &accept).await));
    assert_eq!(page["items"].as_array().unwrap()[..], found["items"].as_array().unwrap()[..3]);
    assert_eq!(page["metadata"]["remainingItemCount"], MANY - 3);
    let accept = [("accept", "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")];
    let metadata = protobuf(bytes_of(list(&server, "", &accept).await));
    assert_eq!(metadata["kind"], "PartialObjectMetadataList");
    assert_eq!(metadata["items"][7]["metadata"], found["items"][7]["metadata"]);
}

#[tokio::test]
async fn a_long_list_is_compressed_where_that_is_accepted() {
    let server = filled(LoadLimits::default()).await;
    let plain = collect(list(&server, "", &[]).await).await.unwrap();
    let response = list(&server, "", &[("accept-encoding", "gzip")]).await;
    assert!(is_stream(&response));
    assert_eq!(response.headers()[header::CONTENT_ENCODING], "gzip");
    let compressed = collect(response).await.unwrap();
    assert!(compressed.len() < plain.len() / 5, "{} of {}", compressed.len(), plain.len());
    let mut read = Vec::new();
    flate2::read::GzDecoder::new(&*compressed).read_to_end(&mut read).unwrap();
    assert_eq!(read, plain);
}

#[tokio::test]
async fn an_undecodable_object_cuts_off_a_long_list_and_the_next_list_names_it() {
    let server = filled(LoadLimits::default()).await;
    put(&server, 1200, "{").await;
    let interrupted = collect(list(&server, "", &[]).await).await;
    assert_eq!(interrupted, Err(crate::handlers::Interrupted));
    for _ in 0..2 {
        let response = list(&server, "", &[]).await;
        assert_eq!(response.status(), 500);
        let status: Value = serde_json::from_slice(&bytes_of(response)).unwrap();
        assert!(
            status["message"]
                .as_str()
                .unwrap()
                .contains("corrupt object, Code: 7, Key: /core/configmaps/default/map-01200,"),
            "{status}"
        );
    }
    put(&server, 1200, &map(1200)).await;
    // All of them can be read, which is found out by reading all of them; then they come in parts again.
    assert!(!is_stream(&list(&server, "", &[]).await));
    for expected in [false, true] {
        let all = ask(&server, &admin(), Request::get("/api/v1/configmaps"), "").await;
        assert_eq!((is_stream(&all), json(all).await["items"].as_array().unwrap().len()), (expected, MANY));
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_its_list_blocks_no_other_client() {
    let limits = LoadLimits { requests_in_flight: 1, stall_timeout: Duration::from_secs(600), ..LoadLimits::default() };
    let server = filled(limits).await;
    let binding = r#"{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"x"},
        "roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},
        "subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"reader"},
                    {"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"other"}]}"#;
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    let request = Request::post(path).header("content-type", "application/json");
    assert_eq!(ask(&server, &admin(), request, binding).await.status(), 201);
    let peer =
        |name: &str| Peer { address: IpAddr::from([127, 0, 0, 1]), certificates: certificates(User::named(name)) };
    let (reader, other) = (peer("reader"), peer("other"));
    // The binding takes a moment to be known, and requests are rejected while the only permit is taken.
    let ask_for = async |who: &Peer, path: &str| loop {
        let response = ask(&server, who, Request::get(path), "").await;
        if !matches!(response.status().as_u16(), 403 | 429) {
            return response;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let unread = ask_for(&reader, MAPS).await;
    assert!(is_stream(&unread));
    // It holds the only shared permit, and loses it long before the stall timeout.
    let one = format!("{MAPS}/map-00000");
    assert_eq!(ask_for(&other, &one).await.status(), 200);
    // Its user cannot have more unread responses than permits.
    assert_eq!(ask(&server, &reader, Request::get(&one), "").await.status(), 429);
    assert_eq!(json(unread).await["items"].as_array().unwrap().len(), MANY);
    // A list that is read gives its permit back at the end.
    for _ in 0..3 {
        assert_eq!(json(ask_for(&reader, MAPS).await).await["items"].as_array().unwrap().len(), MANY);
    }
}

#[tokio::test]
async fn a_list_that_the_client_does_not_read_is_cancelled() {
    let server = filled(LoadLimits { stall_timeout: Duration::from_secs(1), ..LoadLimits::default() }).await;
    let unread = list(&server, "", &[]).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(collect(unread).await, Err(crate::handlers::Interrupted));
}

/// The events of a watch that is over, in whichever form they came.
fn events(body: &[u8]) -> Vec<Value> {
    if body.starts_with(b"{") {
        return serde_json::Deserializer::from_slice(body).into_iter().collect::<Result<_, _>>().unwrap();
    }
    let (mut rest, mut found) = (body, Vec::new());
    while let Some((length, frames)) = rest.split_first_chunk::<4>() {
        let (frame, others) = frames.split_at(u32::from_be_bytes(*length) as usize);
        found.push(types::decode_watch_frame(frame).unwrap());
        rest = others;
    }
    found
}

#[tokio::test]
async fn a_watch_can_begin_with_more_objects_than_are_read_at_once() {
    let server = filled(LoadLimits::default()).await;
    let initial = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    for accept in [
        "application/json",
        "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
        "application/vnd.kubernetes.protobuf",
        "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
    ] {
        let query = format!("?watch=1&timeoutSeconds=2&{initial}");
        let response = list(&server, &query, &[("accept", accept)]).await;
        put(&server, 7, &map(7)).await;
        let lines = events(&collect(response).await.unwrap());
        let objects = &lines[..MANY];
        for (number, line) in objects.iter().enumerate() {
            assert_eq!(line["type"], "ADDED");
            assert_eq!(line["object"]["metadata"]["name"], format!("map-{number:05}"));
        }
        assert_eq!(lines[MANY]["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
        let change = &lines[MANY + 1..][0];
        assert_eq!((&change["type"], &change["object"]["metadata"]["name"]), (&"MODIFIED".into(), &"map-00007".into()));
        assert_eq!(lines.len(), MANY + 2);
    }
}
