//! `restow verify --etcd-endpoints` with a real etcd, and each of its exit codes.

mod stock_store;

use crate::custom_resources::{crontab, storage_version};
use restow_apiserver::storage::census::take_census;
use restow_store::{Key, Store, StoreExt};
use restow_testkit::{Cluster, On, Server, etcd_store, restow_binary, start_etcd};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use stock_store::{StockStore, protobuf};

/// The exit code and the output of `restow verify`.
struct Verified {
    code: Option<i32>,
    text: String,
    json: Value,
}

impl Verified {
    #[track_caller]
    fn is(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{}", self.text);
        for word in words {
            assert!(self.text.contains(word), "{word:?} is missing in {}", self.text);
        }
    }
}

/// Runs it with text and with JSON output, which must have the same exit code.
fn verify(kubeconfig: &Path, arguments: &[&str]) -> Verified {
    let run = |format: &str| {
        let mut command = Command::new(restow_binary());
        command.args(["verify", "-o", format]).args(arguments).arg("--kubeconfig").arg(kubeconfig);
        command.env("RESTOW_ETCD_PASSWORD", "rabbit").output().unwrap()
    };
    let (table, json) = (run("table"), run("json"));
    let text = format!("{}{}", String::from_utf8_lossy(&table.stdout), String::from_utf8_lossy(&table.stderr));
    assert_eq!(table.status.code(), json.status.code(), "{text}");
    let json = serde_json::from_slice(&json.stdout).unwrap_or(Value::Null);
    Verified { code: table.status.code(), text, json }
}

fn from_etcd(server: &Server, endpoint: &str, prefix: &str, more: &[&str]) -> Verified {
    verify(&server.kubeconfig, &[&["--etcd-endpoints", endpoint, "--etcd-prefix", prefix], more].concat())
}

fn key(text: &str) -> Key {
    Key::try_from(text).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_restow_servers_in_etcd_are_proven_and_an_empty_prefix_proves_nothing() {
    let cluster = Cluster::one(On::Etcd).await;
    let (server, endpoint) = (&cluster.servers[0], cluster.etcd_endpoint());
    // Another prefix that begins with the same characters must be ignored.
    let neighbour = etcd_store(&endpoint, "/registry-b").await;
    neighbour.put(&key("/foreign"), "?".into()).await.unwrap();
    for prefix in ["/registry", "/registry/"] {
        let healthy = from_etcd(server, &endpoint, prefix, &[]);
        healthy.is(0, &["Nothing old is stored", "namespaces"]);
        assert_eq!(healthy.json["verdict"], "Current");
        assert_eq!(healthy.json["identity"]["is"], "same");
        assert_eq!(healthy.json["doubts"], json!([]));
    }
    let empty = from_etcd(server, &endpoint, "/nothing", &[]);
    empty.is(
        4,
        &["It is unknown whether something old is stored", "nothing is stored under this prefix", "--etcd-prefix"],
    );
    assert_eq!(empty.json["doubts"][0]["reason"], "nothingStored");
    from_etcd(server, &endpoint, "/nothing", &["configmaps"]).is(4, &["nothing is stored under this prefix"]);
    let root = from_etcd(server, &endpoint, "", &[]);
    root.is(4, &["could not be checked", "kube-system is not stored under this prefix"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_of_another_cluster_proves_nothing_about_this_one() {
    let (cluster, other) = (Cluster::one(On::Etcd).await, Cluster::one(On::Etcd).await);
    let server = &cluster.servers[0];
    let different = from_etcd(server, &other.etcd_endpoint(), "/registry", &[]);
    different.is(4, &["different clusters", "kube-system has the uid"]);
    assert_eq!(different.json["verdict"], "Unknown");
    assert_eq!(different.json["doubts"][0]["reason"], "otherCluster");
    assert_eq!(different.json["next"], json!([]), "nothing of this cluster is to be migrated because of that");

    // A copy of this cluster, as from a backup: the same uids, at another revision.
    let copied = start_etcd().await;
    let copy = etcd_store(&copied.endpoint(), "/registry").await;
    StockStore::mirror(&etcd_store(&cluster.etcd_endpoint(), "/registry").await, copy).await;
    from_etcd(server, &copied.endpoint(), "/registry", &[]).is(4, &["different clusters", "copy of the other"]);

    // A user who may not read namespaces cannot find out which cluster the store belongs to.
    let limited = limited(&cluster);
    let endpoint = cluster.etcd_endpoint();
    let unchecked = verify(&limited, &["--etcd-endpoints", &endpoint]);
    unchecked.is(4, &["could not be checked", "the API does not show the namespace kube-system", "permission"]);
    assert_eq!(unchecked.json["doubts"][0]["reason"], "clusterNotCompared");
}

/// A kubeconfig of a user with all required permissions except for namespaces.
fn limited(cluster: &Cluster) -> std::path::PathBuf {
    let server = &cluster.servers[0];
    let role = "
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: limited}
rules:
- {apiGroups: ['apiextensions.k8s.io', 'apiregistration.k8s.io', 'internal.apiserver.k8s.io', 'discovery.k8s.io', \
                'coordination.k8s.io'], resources: ['*'], verbs: [get, list]}
- {nonResourceURLs: ['*'], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: limited}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: limited}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: limited}]
";
    server.kubectl(&["apply", "-f", &cluster.file("role.yaml", role)]);
    let mut config: Value = serde_json::from_str(&server.kubectl(&["config", "view", "--raw", "-o", "json"])).unwrap();
    config["users"][0]["user"]["as"] = "limited".into();
    let path = server.kubeconfig.with_extension("limited");
    std::fs::write(&path, config.to_string()).unwrap();
    path
}

#[tokio::test(flavor = "multi_thread")]
async fn verify_reads_the_store_of_a_stock_cluster() {
    let cluster = Cluster::one(On::Etcd).await;
    let (server, endpoint) = (&cluster.servers[0], cluster.etcd_endpoint());
    server.kubectl(&["apply", "-f", &cluster.file("crd.yaml", &storage_version(false, true))]);
    server.kubectl(&["wait", "--for=condition=Established", "crd/crontabs.stable.example.com"]);
    server.kubectl(&["apply", "-f", &cluster.file("object.yaml", &crontab("v1", "job", "{replicas: 1}"))]);
    server.kubectl(&["create", "secret", "generic", "s"]);
    let stock =
        StockStore::mirror(&etcd_store(&endpoint, "/registry").await, etcd_store(&endpoint, "/stock").await).await;
    let verify = |more: &[&str]| from_etcd(server, &endpoint, "/stock", more);
    let range = protobuf("v1", "RangeAllocation", "r", "");
    for name in ["/ranges/serviceips", "/ranges/servicenodeports"] {
        stock.put(name, range.clone()).await;
    }
    stock.put("/masterleases/10.0.0.1", protobuf("v1", "Endpoints", "", "")).await;
    stock.put("/health", br#"{"health":"true"}"#.to_vec()).await;
    etcd_store(&endpoint, "").await.put(&key("compact_rev_key"), "7".into()).await.unwrap();
    verify(&[]).is(0, &["Nothing old is stored", "RangeAllocation", "crontabs.stable.example.com"]);

    let custom = |version: &str, kind: &str| json!({"apiVersion": version, "kind": kind}).to_string().into_bytes();
    let ingresses = "ingresses.networking.k8s.io";
    for (place, value, code, words) in [
        ("/endpointslices/default/a", protobuf("discovery.k8s.io/v1beta1", "EndpointSlice", "a", ""), 3, "v1beta1"),
        ("/ingress/default/a", protobuf("extensions/v1beta1", "Ingress", "a", ""), 3, ingresses),
        (
            "/deployments/default/a",
            protobuf("extensions/v1beta1", "Deployment", "a", ""),
            3,
            "restow migrate deployments",
        ),
        ("/events/default/a", protobuf("events.k8s.io/v1", "Event", "a", ""), 3, "Event.events.k8s.io"),
        ("/stable.example.com/crontabs/default/a", custom("stable.example.com/v1", "CronTab"), 3, "stored in v1"),
        ("/stable.example.com/crontabs/default/a", custom("stable.example.com/v0", "CronTab"), 3, "CRD does not have"),
        ("/gone.example.com/things/default/a", custom("gone.example.com/v1", "Thing"), 4, "Thing.gone.example.com: no"),
        ("/podsecuritypolicy/a", protobuf("policy/v1beta1", "PodSecurityPolicy", "a", ""), 4, "no API server serves"),
        ("/foreign/a", vec![0, 159, 146, 150], 4, "/foreign: neither objects"),
        ("/empty", Vec::new(), 4, "/empty: neither objects"),
        ("/configmaps/default/a", b"k8s\0\x0a\xff".to_vec(), 4, "configmaps: neither objects"),
        ("/secrets/default/a", b"k8s:enc:kms:v2:name:\x01\x02".to_vec(), 4, "secrets: encrypted, so"),
        ("/elsewhere/a", b"k8s:enc:aescbc:v1:key1:\x01\x02".to_vec(), 4, "not known of which resource"),
    ] {
        stock.put(place, value).await;
        verify(&[]).is(code, &[words, place]);
        stock.remove(place).await;
    }
    verify(&["crontabs"]).is(0, &["v2: 1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn encrypted_values_are_verified_through_the_api_servers() {
    let cluster = Cluster::one(On::Etcd).await;
    let (server, endpoint) = (&cluster.servers[0], cluster.etcd_endpoint());
    for name in ["a", "b", "c"] {
        server.kubectl(&["create", "secret", "generic", name]);
    }
    let stock =
        StockStore::mirror(&etcd_store(&endpoint, "/registry").await, etcd_store(&endpoint, "/stock").await).await;
    for name in ["a", "b", "c"] {
        stock.put(&format!("/secrets/default/{name}"), b"k8s:enc:aescbc:v1:key1:\x01\x02".to_vec()).await;
    }
    let verify = |more: &[&str]| from_etcd(server, &endpoint, "/stock", more);
    let hidden = verify(&[]);
    hidden.is(4, &["encrypted with aescbc:v1, key key1: 3", "--etcd-prefix /stock", "--through-api"]);
    let next = hidden.json["next"][0].as_str().unwrap();
    assert!(next.starts_with("restow verify") && next.ends_with("--through-api"), "{next}");
    let asked = verify(&["--through-api"]);
    asked.is(0, &["Nothing old is stored", "secrets"]);
    // The store has more encrypted values than the API has objects: some were not read through the API.
    stock.put("/secrets/default/d", b"k8s:enc:aescbc:v1:key1:\x01\x02".to_vec()).await;
    verify(&["--through-api"]).is(4, &["4 encrypted values are stored"]);
    // The namespace kube-system itself is encrypted: the cluster of the store is unknown.
    stock.put("/namespaces/kube-system", b"k8s:enc:aescbc:v1:key1:\x01\x02".to_vec()).await;
    verify(&["--through-api"]).is(4, &["the namespace kube-system is stored encrypted"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_that_the_api_has_and_the_store_has_not_are_reported() {
    let cluster = Cluster::one(On::Etcd).await;
    let (server, endpoint) = (&cluster.servers[0], cluster.etcd_endpoint());
    server.kubectl(&["create", "configmap", "a"]);
    let stock =
        StockStore::mirror(&etcd_store(&endpoint, "/registry").await, etcd_store(&endpoint, "/stock").await).await;
    from_etcd(server, &endpoint, "/stock", &["configmaps"]).is(0, &["v1: "]);
    stock.remove_all("/configmaps/").await;
    for arguments in [&[][..], &["configmaps"]] {
        let elsewhere = from_etcd(server, &endpoint, "/stock", arguments);
        elsewhere.is(4, &["configmaps: the API has objects of it, and none is stored under this prefix"]);
        assert_eq!(elsewhere.json["doubts"][0]["reason"], "storedElsewhere");
    }
    from_etcd(server, &endpoint, "/stock", &["secrets"]).is(0, &["Nothing old is stored"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storage_version_that_is_not_served_is_known_from_the_crd() {
    let cluster = Cluster::one(On::Etcd).await;
    let (server, endpoint) = (&cluster.servers[0], cluster.etcd_endpoint());
    server.kubectl(&["apply", "-f", &cluster.file("crd.yaml", &storage_version(true, false))]);
    server.kubectl(&["wait", "--for=condition=Established", "crd/crontabs.stable.example.com"]);
    server.kubectl(&["apply", "-f", &cluster.file("object.yaml", &crontab("v2", "job", "{replicas: 1}"))]);
    let unserved = storage_version(true, false).replacen("served: true", "served: false", 1);
    server.kubectl(&["apply", "-f", &cluster.file("unserved.yaml", &unserved)]);
    let verify = || from_etcd(server, &endpoint, "/registry", &["crontabs"]);
    verify().is(0, &["v1: 1"]);
    // And one of which no version is served at all.
    let none = unserved.replacen("served: true", "served: false", 1);
    if server.try_kubectl(&["apply", "-f", &cluster.file("none.yaml", &none)]).status.success() {
        verify().is(0, &["v1: 1"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_that_cannot_be_used_is_a_failure_and_no_verdict() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::up(folder.path());
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    from_etcd(&server, &format!("http://{closed}"), "/registry", &[]).is(1, &["cannot use etcd"]);

    let etcd = start_etcd().await;
    for arguments in [
        "user add root:secret",
        "role add root",
        "user grant-role root root",
        "user add alice:wonderland",
        "auth enable",
    ] {
        let mut etcdctl = Command::new("etcdctl");
        etcdctl.env("ETCDCTL_API", "3").args(["--endpoints", &etcd.endpoint()]).args(arguments.split(' '));
        let output = etcdctl.output().unwrap();
        assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    }
    from_etcd(&server, &etcd.endpoint(), "/registry", &["--etcd-user", "alice"]).is(1, &["refused access"]);
    from_etcd(&server, &etcd.endpoint(), "/registry", &[]).is(1, &["cannot use etcd"]);

    let unreachable = folder.path().join("unreachable");
    let text = std::fs::read_to_string(&server.kubeconfig).unwrap();
    std::fs::write(&unreachable, text.replace(&server.address, &closed.to_string())).unwrap();
    verify(&unreachable, &["--etcd-endpoints", &etcd.endpoint()]).is(1, &["cannot query the API servers"]);
    let wrong = verify(&server.kubeconfig, &["--etcd-endpoints", &etcd.endpoint(), "--data-dir", "x"]);
    wrong.is(2, &["cannot be used with"]);
    verify(&server.kubeconfig, &["--through-api"]).is(1, &["needs the names of the resources"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_is_read_at_one_revision_even_if_it_is_compacted_meanwhile() {
    let etcd = start_etcd().await;
    let store = etcd_store(&etcd.endpoint(), "/registry").await;
    let widget = |version: &str| json!({"apiVersion": format!("example.com/{version}"), "kind": "Widget"}).to_string();
    for number in 0..200 {
        store.put(&key(&format!("/example.com/widgets/{number:03}")), widget("v1").into()).await.unwrap();
    }
    let now = |work: &dyn Fn() -> futures::future::BoxFuture<'static, ()>| {
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(work()));
    };
    let writer = std::sync::Arc::new(etcd_store(&etcd.endpoint(), "/registry").await);
    let change = |compacts: bool| {
        let (writer, value) = (writer.clone(), widget("v2"));
        move || -> futures::future::BoxFuture<'static, ()> {
            let (writer, value) = (writer.clone(), value.clone());
            Box::pin(async move {
                // The last one, which is not read yet, and the first one, which is.
                writer.put(&key("/example.com/widgets/199"), value.clone().into()).await.unwrap();
                let revision = writer.put(&key("/example.com/widgets/000"), value.into()).await.unwrap();
                if compacts {
                    writer.compact(revision).await.unwrap();
                }
            })
        }
    };
    let mut pages = 0;
    let changed = change(false);
    let census = take_census(&store, |_| {
        pages += 1;
        if pages == 1 {
            now(&changed);
        }
    });
    let census = census.await.unwrap();
    assert!(pages > 1, "it is read page by page");
    let counts: Vec<u64> = census.rows.iter().map(|row| row.count).collect();
    assert_eq!((census.from_revision, counts), (census.to_revision, vec![200]), "as it was before the change");

    let mut pages = 0;
    let compacted = change(true);
    let census = take_census(&store, |_| {
        pages += 1;
        if pages == 1 {
            now(&compacted);
        }
    });
    let census = census.await.unwrap();
    let counts: Vec<u64> = census.rows.iter().map(|row| row.count).collect();
    assert_eq!((census.from_revision, counts), (census.to_revision, vec![198, 2]), "as it is after the compaction");
    assert_eq!(census.total, 200);
}
