//! The status of a cluster with incomplete information: resources of aggregated API servers, missing permissions, and API
//! servers that cannot be reached. The cluster is a table of responses.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use restow_migrate::cluster::Cluster;
use restow_migrate::cluster_status::{ClusterStatus, NO_ANSWER, read_cluster_status};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;

const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Responses by path, with their codes. Other paths are not found.
type Answers = BTreeMap<&'static str, (u16, Value)>;

/// A cluster with a core group that has storage version hashes in discovery, and an aggregated group that has none.
fn answers() -> Answers {
    let verbs = json!(["get", "list", "patch", "create"]);
    let resource = |name: &str, kind: &str| json!({"name": name, "singularName": "", "namespaced": true, "kind": kind, "verbs": verbs});
    let mut maps = resource("configmaps", "ConfigMap");
    maps["storageVersionHash"] = json!(restow_api::storage_version_hash("", "v1", "ConfigMap"));
    let document = |version: &str, resource: Value| json!({"kind": "APIResourceList", "groupVersion": version, "resources": [resource]});
    let version = json!({"groupVersion": "projectcalico.org/v3", "version": "v3"});
    let groups = json!({"kind": "APIGroupList", "groups": [
        {"name": "projectcalico.org", "versions": [version], "preferredVersion": version},
    ]});
    let empty = |kind: &str| json!({"kind": kind, "apiVersion": "v1", "metadata": {}, "items": []});
    let mut leases = empty("LeaseList");
    leases["items"] = json!([{"metadata": {"name": "apiserver-a"}, "spec": {"holderIdentity": "a"}}]);
    Answers::from([
        ("/api", (200, json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}))),
        ("/api/v1", (200, document("v1", maps))),
        ("/apis", (200, groups)),
        (
            "/apis/projectcalico.org/v3",
            (200, document("projectcalico.org/v3", resource("networkpolicies", "NetworkPolicy"))),
        ),
        (SLICES, (200, empty("EndpointSliceList"))),
        ("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", (200, leases)),
        (CRDS, (200, empty("CustomResourceDefinitionList"))),
    ])
}

fn forbidden(path: &str) -> (u16, Value) {
    let message = format!("{path} is forbidden: User \"someone\" cannot list it");
    (403, json!({"kind": "Status", "status": "Failure", "reason": "Forbidden", "message": message, "code": 403}))
}

async fn look_at(answers: Answers) -> ClusterStatus {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let answers = Arc::new(answers);
    let serving = tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            let answers = Arc::clone(&answers);
            tokio::spawn(async move {
                let mut connection = BufReader::new(connection);
                let mut lines = String::new();
                // None of these requests has a body: an empty line ends it.
                while connection.read_line(&mut lines).await.is_ok_and(|read| read > 2) {}
                let path = lines.split([' ', '?']).nth(1).unwrap_or_default();
                let not_found = json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404});
                let (code, body) = answers.get(path).cloned().unwrap_or((404, not_found));
                let body = body.to_string();
                let head = format!("HTTP/1.1 {code} x\r\ncontent-type: application/json\r\nconnection: close\r\n");
                let answer = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
                // A client that has disconnected needs no response.
                let _ = connection.write_all(answer.as_bytes()).await;
            });
        }
    });
    let cluster = Cluster::from_config(kube::Config::new(url.parse().unwrap())).unwrap();
    let overview = read_cluster_status(&cluster).await.unwrap();
    serving.abort();
    overview
}

#[tokio::test]
async fn a_resource_without_a_storage_version_hash_is_not_managed_and_no_disagreement() {
    let overview = look_at(answers()).await;
    let shown: Vec<(&str, bool, bool)> = overview
        .resources
        .iter()
        .map(|one| (one.resource.as_str(), one.is_managed, one.disagreement.is_some()))
        .collect();
    assert_eq!(shown, [("configmaps", true, false), ("networkpolicies.projectcalico.org", false, false)]);
    assert_eq!(overview.hidden, Vec::<String>::new());
}

#[tokio::test]
async fn resources_that_aggregated_servers_do_not_report_are_not_managed() {
    let mut answers = answers();
    let mut document = answers["/apis/projectcalico.org/v3"].1.clone();
    document["resources"][0]["storageVersionHash"] = json!("abc=");
    answers.insert("/apis/projectcalico.org/v3", (200, document));
    let service = json!({"metadata": {"name": "v3.projectcalico.org"},
                         "spec": {"group": "projectcalico.org", "service": {"namespace": "calico", "name": "api"}}});
    let list = json!({"kind": "APIServiceList", "metadata": {}, "items": [service]});
    answers.insert(SERVICES, (200, list));
    let overview = look_at(answers.clone()).await;
    let policies = &overview.resources[1];
    assert!(!policies.is_managed && policies.disagreement.is_none() && policies.storage_version.is_none());
    assert!(policies.aggregated.as_ref().is_some_and(|words| words.contains("calico/api")), "{policies:?}");
    let because = policies.not_managed_because.as_ref().unwrap();
    assert!(because.contains("do not report what they store"), "{because}");
    assert!(overview.resources[0].is_managed && overview.resources[0].aggregated.is_none());
    // The resources of a group are unknown while its server is down, and aggregated groups without the permission to list.
    answers.insert(SERVICES, forbidden(SERVICES));
    let (_, down) = forbidden("it");
    answers.insert("/apis/projectcalico.org/v3", (503, down));
    let overview = look_at(answers).await;
    let hidden = overview.hidden.join("\n");
    assert!(hidden.contains("which resources projectcalico.org/v3 has"), "{hidden}");
    assert!(hidden.contains("which resources aggregated API servers serve"), "{hidden}");
}

/// The network policies of the aggregated servers, which one of them reports to be stored in v3.
fn reported() -> Answers {
    let mut answers = answers();
    let hash = restow_api::storage_version_hash("projectcalico.org", "v3", "NetworkPolicy");
    answers.get_mut("/apis/projectcalico.org/v3").unwrap().1["resources"][0]["storageVersionHash"] = json!(hash);
    let service = json!({"metadata": {"name": "v3.projectcalico.org"},
                         "spec": {"group": "projectcalico.org", "service": {"namespace": "calico", "name": "api"}}});
    answers.insert(SERVICES, (200, json!({"kind": "APIServiceList", "metadata": {}, "items": [service]})));
    let lease = json!({
        "metadata": {"name": "calico-a", "annotations": {"restow.dev/own-lease-uid": "1"}, "labels": {
            "apiserver.kubernetes.io/identity": "kube-apiserver", "restow.dev/control-plane": "calico"}},
        "spec": {"holderIdentity": "a"},
    });
    let leases = &mut answers.get_mut("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases").unwrap().1;
    leases["items"].as_array_mut().unwrap().push(lease);
    let version = "projectcalico.org/v3";
    let report = json!({
        "metadata": {"name": "projectcalico.org.networkpolicies", "resourceVersion": "7"}, "spec": {},
        "status": {"storageVersions": [{"apiServerID": "calico-a", "encodingVersion": version}], "commonEncodingVersion": version},
    });
    let reports = json!({"kind": "StorageVersionList", "metadata": {}, "items": [report]});
    answers.insert("/apis/internal.apiserver.k8s.io/v1alpha1/storageversions", (200, reports));
    answers
}

/// The EndpointSlice of their service, with so many addresses.
fn behind_the_service(addresses: usize) -> (u16, Value) {
    let endpoint = |number: usize| json!({"addresses": [format!("10.0.0.{number}")], "conditions": {"ready": false}});
    let slice = json!({"metadata": {"name": "api-1"}, "addressType": "IPv4", "ports": [{"name": "https", "port": 443}],
                       "endpoints": (0..addresses).map(endpoint).collect::<Vec<_>>()});
    (200, json!({"kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1", "metadata": {}, "items": [slice]}))
}

#[tokio::test]
async fn resources_that_all_aggregated_servers_report_are_shown_with_their_version() {
    let slices = "/apis/discovery.k8s.io/v1/namespaces/calico/endpointslices";
    let policies = async |answer: (u16, Value)| {
        let mut answers = reported();
        answers.insert(slices, answer);
        look_at(answers).await.resources.remove(1)
    };
    let agreed = policies(behind_the_service(1)).await;
    assert_eq!((agreed.storage_version.as_deref(), agreed.is_managed), (Some("v3"), true), "{agreed:?}");
    assert!(agreed.aggregated.is_some_and(|words| words.contains("calico/api")));
    assert_eq!(agreed.servers, BTreeMap::from([("calico-a".to_owned(), "v3".to_owned())]));
    for (answer, words) in
        [(behind_the_service(2), "the EndpointSlices name 2"), (forbidden(slices), "calico/api cannot be read")]
    {
        let doubtful = policies(answer).await;
        assert_eq!((doubtful.storage_version, doubtful.is_managed), (None, true));
        assert!(doubtful.disagreement.as_ref().is_some_and(|why| why.contains(words)), "{:?}", doubtful.disagreement);
    }
}

#[tokio::test]
async fn missing_permissions_are_reported_and_the_rest_is_shown() {
    let mut answers = answers();
    answers.insert(CRDS, forbidden(CRDS));
    let reports = "/apis/internal.apiserver.k8s.io/v1alpha1/storageversions";
    answers.insert(reports, forbidden(reports));
    let overview = look_at(answers).await;
    assert!(overview.hidden.iter().any(|words| words.contains("customresourcedefinitions")), "{:?}", overview.hidden);
    assert_eq!(overview.resources[0].storage_version.as_deref(), Some("v1"));
}

#[tokio::test]
async fn if_no_server_is_reachable_directly_the_common_address_is_shown() {
    let mut answers = answers();
    let slice = |port: u16| {
        json!({"metadata": {"name": format!("s{port}")}, "addressType": "IPv4", "ports": [{"name": "https", "port": port}],
               "endpoints": [{"addresses": ["127.0.0.1"]}]})
    };
    let slices = json!({"kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1", "metadata": {},
                        "items": [slice(1), slice(2)]});
    answers.insert(SLICES, (200, slices));
    let overview = look_at(answers).await;
    let maps = &overview.resources[0];
    assert_eq!(maps.resource, "configmaps");
    assert!(maps.disagreement.is_some(), "servers that cannot be queried may store anything");
    let shown: Vec<&str> = maps.servers.values().map(String::as_str).collect();
    assert!(shown.contains(&"v1") && shown.contains(&NO_ANSWER), "{shown:?}");
}
