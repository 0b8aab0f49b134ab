//! Servers that report to a main API server: two processes with one identity, and administrators who delete leases. The main API
//! server is a real one, in this process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams};
use kube::client::Body;
use restow_aggregated::MainServer;
use restow_api::{GroupResource, GroupVersion};
use restow_apiserver::builtin::{self, RuntimeConfig};
use restow_apiserver::resource::registry::Registry;
use restow_apiserver::storage_version::Upstream;
use restow_apiserver::{
    AccessConfig, AgreementConfig, ApiServer, AuthorizationMode, Gates, LoadLimits, ServerConfig, StorageVersions,
};
use restow_auth::User;
use restow_auth::authenticate::{AnonymousAccess, Authenticators};
use restow_rules::ServerReport;
use restow_rules::collect::OwnLease;
use restow_store::conformance::ModelStore;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const ID: &str = "garden";

/// A main API server, and a client of it.
struct Main {
    client: kube::Client,
}

impl Main {
    async fn start() -> Self {
        let gates: Gates = "StorageVersionAPI=true".parse().unwrap();
        let authenticators = Authenticators {
            token_file: None,
            tokens: None,
            api_audiences: Vec::new(),
            anonymous: AnonymousAccess::health_and_version(),
        };
        let release = "1.37".parse().unwrap();
        let internal = GroupVersion::new("internal.apiserver.k8s.io", "v1alpha1").unwrap();
        let served = RuntimeConfig { versions: vec![(internal, true)], ..RuntimeConfig::default() };
        let config = ServerConfig {
            store: Arc::new(ModelStore::default()),
            registry: Registry::new(builtin::resources(release, &served).into_iter().map(Arc::new)),
            release,
            address: "127.0.0.1:6443".parse().unwrap(),
            access: AccessConfig { authenticators, authorization: AuthorizationMode::AllowAll },
            limits: LoadLimits::default(),
            audit: None,
            root_ca: None,
            aggregator: Default::default(),
            gates,
            agreement: AgreementConfig {
                storage_versions: StorageVersions::Report,
                ..AgreementConfig::new("main".parse().unwrap(), "host", &gates)
            },
        };
        let server = ApiServer::new(config).await.unwrap();
        server.ready().await.unwrap();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let (head, body) = request.into_parts();
                let request = Request::from_parts(head, Full::new(body.collect().await?.to_bytes()));
                let groups = vec!["system:masters".to_owned()];
                let user = User { name: "test".to_owned(), uid: String::new(), groups, extra: BTreeMap::new() };
                let response = restow_apiserver::call(&server, request, user).await;
                let (head, body) = response.into_parts();
                let body = body.collect().await.expect("a body in memory").to_bytes();
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>(Response::from_parts(head, Full::new(body)))
            }
        });
        Main { client: kube::Client::new(service, "default") }
    }

    /// A process of the aggregated server, which has not joined.
    fn process(&self) -> Arc<MainServer> {
        let config = AgreementConfig::new(ID.parse().unwrap(), "host", &Gates::default());
        // A test ends before the lease is renewed, unless it waits for that.
        let config = AgreementConfig { renew_interval: Duration::from_millis(300), ..config };
        MainServer::new(self.client.clone(), "garden", &config)
    }

    async fn joined(&self, own_lease: &str) -> Arc<MainServer> {
        let process = self.process();
        process.join(&own(own_lease)).await.unwrap();
        process
    }

    fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), "kube-system")
    }

    async fn lease(&self) -> Option<Lease> {
        self.leases().get_opt(ID).await.unwrap()
    }

    /// The entry of the aggregated server, and the resourceVersion of the object.
    async fn entry(&self) -> (Option<String>, String) {
        let path = "/apis/internal.apiserver.k8s.io/v1alpha1/storageversions/example.com.plants";
        let object: Value = self.client.request(Request::get(path).body(Vec::new()).unwrap()).await.unwrap_or_default();
        let entries = object["status"]["storageVersions"].as_array().cloned().unwrap_or_default();
        let entry = entries.into_iter().find(|entry| entry["apiServerID"] == ID);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (entry.map(|entry| text(&entry["encodingVersion"])), text(&object["metadata"]["resourceVersion"]))
    }

    async fn ended(&self, process: &MainServer) {
        for lease in process.leases("store").await.unwrap() {
            process.delete_lease(&lease).await.unwrap();
        }
    }
}

fn own(uid: &str) -> OwnLease {
    OwnLease { uid: uid.into(), store: "store".into() }
}

fn plants() -> GroupResource {
    "plants.example.com".parse().unwrap()
}

fn report(version: &str) -> ServerReport {
    let all: Vec<GroupVersion> = ["example.com/v1", "example.com/v2"].map(|version| version.parse().unwrap()).to_vec();
    ServerReport::new(ID.parse().unwrap(), version.parse().unwrap(), all.clone(), all).unwrap()
}

#[tokio::test]
async fn a_process_joins_when_the_lease_of_the_earlier_one_is_gone_and_not_before() {
    let main = Main::start().await;
    let _first = main.joined("1").await;
    let second = main.process();
    let refused = second.join(&own("2")).await.unwrap_err();
    assert!(refused.contains("another process has the identity lease garden"), "{refused}");
    assert_eq!(main.lease().await.unwrap().annotations()["restow.dev/own-lease-uid"], "1");
    main.ended(&second).await;
    assert!(main.lease().await.is_none(), "its finalizer is removed, too");
    second.join(&own("2")).await.unwrap();
    assert_eq!(main.lease().await.unwrap().annotations()["restow.dev/own-lease-uid"], "2");
}

#[tokio::test]
async fn a_lease_of_another_store_is_replaced() {
    let main = Main::start().await;
    main.process().join(&OwnLease { uid: "1".into(), store: "lost".into() }).await.unwrap();
    main.process().join(&own("2")).await.unwrap();
    assert_eq!(main.lease().await.unwrap().labels()["restow.dev/own-store"], "store");
}

#[tokio::test]
async fn a_lease_that_an_administrator_deletes_stays_until_the_one_in_the_own_store_is_gone() {
    let main = Main::start().await;
    let process = main.joined("1").await;
    main.leases().delete(ID, &DeleteParams::default()).await.unwrap();
    assert!(main.lease().await.is_some_and(|lease| lease.metadata.deletion_timestamp.is_some()));
    tokio::time::timeout(Duration::from_secs(20), process.lost()).await.expect("the process notices when it renews");
    main.ended(&process).await;
    assert!(main.lease().await.is_none());
    process.join(&own("2")).await.unwrap();
}

#[tokio::test]
async fn a_process_that_leaves_removes_its_lease() {
    let main = Main::start().await;
    main.joined("1").await.leave().await;
    assert!(main.lease().await.is_none());
}

#[tokio::test]
async fn the_first_report_under_a_lease_is_written_even_if_an_equal_one_is_there() {
    let main = Main::start().await;
    let first = main.joined("1").await;
    first.report(&plants(), &report("example.com/v1")).await.unwrap();
    let before = main.entry().await;
    first.report(&plants(), &report("example.com/v1")).await.unwrap();
    assert_eq!(main.entry().await, before, "it has been reported under this lease");
    main.ended(&first).await;
    main.joined("2").await.report(&plants(), &report("example.com/v1")).await.unwrap();
    let (entry, revision) = main.entry().await;
    assert_eq!(entry, before.0);
    assert_ne!(revision, before.1, "what an earlier process has read is not current any more");
}

#[tokio::test]
async fn a_process_that_was_replaced_neither_reports_nor_withdraws() {
    let main = Main::start().await;
    let first = main.joined("1").await;
    first.report(&plants(), &report("example.com/v1")).await.unwrap();
    main.ended(&first).await;
    let second = main.joined("2").await;
    second.report(&plants(), &report("example.com/v2")).await.unwrap();
    let reported = main.entry().await;
    assert_eq!(reported.0.as_deref(), Some("example.com/v2"));
    for refused in [
        first.report(&plants(), &report("example.com/v1")).await,
        first.withdraw(&plants()).await,
        first.withdraw_everything().await,
        // A process without an identity, which finds that another one has it.
        main.process().withdraw_everything().await,
    ] {
        refused.unwrap_err();
        assert_eq!(main.entry().await, reported);
    }
    second.withdraw(&plants()).await.unwrap();
    assert_eq!(main.entry().await.0, None);
}

#[tokio::test]
async fn a_process_without_an_identity_withdraws_what_an_earlier_one_has_reported() {
    let main = Main::start().await;
    let first = main.joined("1").await;
    first.report(&plants(), &report("example.com/v1")).await.unwrap();
    first.stop_renewing();
    main.ended(&first).await;
    main.process().withdraw_everything().await.unwrap();
    assert_eq!(main.entry().await.0, None);
}
