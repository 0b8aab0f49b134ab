//! The condition of an APIService while the store fails.

use crate::fixture::{Authorities, Backend, Main, eventually, store};
use async_trait::async_trait;
use http::Method;
use restow_store::{
    Mutation, RangeRequest, RangeResponse, Revision, Store, StoreError, StoreStatus, Txn, TxnOutcome, Watch,
    WatchRequest,
};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const API_SERVICE: &str = "v1.garden.example";

/// A store that fails where a test says.
struct Failing {
    store: Arc<dyn Store>,
    /// How many writes of the condition that the check has passed still fail.
    conditions: AtomicUsize,
    /// Whether EndpointSlices cannot be read.
    slices: AtomicBool,
    /// How many requests have failed.
    failed: AtomicUsize,
}

impl Failing {
    fn new() -> Arc<Self> {
        let (conditions, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(Failing { store: store(), conditions, slices: AtomicBool::new(false), failed })
    }

    fn fail(&self) -> StoreError {
        self.failed.fetch_add(1, Ordering::SeqCst);
        StoreError::Unavailable("a test said so".into())
    }

    fn failed(&self) -> usize {
        self.failed.load(Ordering::SeqCst)
    }
}

/// Whether a transaction writes that the check has passed.
fn passes(txn: &Txn) -> bool {
    txn.then.iter().any(|mutation| match mutation {
        Mutation::Put(put) => {
            put.key.to_string().ends_with(API_SERVICE) && put.value.windows(6).any(|word| word == b"Passed")
        }
        Mutation::Delete(_) => false,
    })
}

#[async_trait]
impl Store for Failing {
    async fn range(&self, request: RangeRequest) -> Result<RangeResponse, StoreError> {
        let slices = request.range.start().starts_with(b"/discovery.k8s.io/endpointslices/garden/");
        match slices && self.slices.load(Ordering::SeqCst) {
            true => Err(self.fail()),
            false => self.store.range(request).await,
        }
    }

    async fn txn(&self, txn: Txn) -> Result<TxnOutcome, StoreError> {
        let less = |left: usize| left.checked_sub(1);
        match passes(&txn) && self.conditions.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok() {
            true => Err(self.fail()),
            false => self.store.txn(txn).await,
        }
    }

    async fn watch(&self, request: WatchRequest) -> Result<Watch, StoreError> {
        self.store.watch(request).await
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.store.compact(revision).await
    }

    async fn status(&self) -> Result<StoreStatus, StoreError> {
        self.store.status().await
    }

    async fn ready(&self) -> Result<(), StoreError> {
        self.store.ready().await
    }
}

async fn start(store: &Arc<Failing>, authorities: &Authorities) -> (Main, Backend) {
    let shared: Arc<dyn Store> = store.clone();
    let main = Main::start(&shared, authorities).await;
    let backend = Backend::garden(&crate::fixture::store(), authorities, 0).await;
    main.create_service(&[backend.address]).await;
    main.create_api_service("garden.example", "v1", &authorities.servers.pem).await;
    (main, backend)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_condition_that_could_not_be_written_is_written_again_soon() {
    let (store, authorities) = (Failing::new(), Authorities::new());
    // The first pass is followed by another one when this server begins to lead.
    store.conditions.store(2, Ordering::SeqCst);
    let (main, _backend) = start(&store, &authorities).await;
    eventually("a write has failed", async || (store.failed() > 0).then_some(())).await;
    let begun = Instant::now();
    main.wait_for_condition(API_SERVICE, "True", "Passed").await;
    // The server is checked again after 30 seconds.
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_reads_of_the_store_do_not_make_a_server_unavailable_at_once() {
    let (store, authorities) = (Failing::new(), Authorities::new());
    let (main, _backend) = start(&store, &authorities).await;
    main.wait_for_condition(API_SERVICE, "True", "Passed").await;
    store.slices.store(true, Ordering::SeqCst);
    // A change of the service is a reason to read it again.
    let ports = json!({"spec": {"ports": [{"name": "https", "port": 443, "targetPort": 8444}]}});
    main.ask(Method::PATCH, "/api/v1/namespaces/garden/services/api", &ports).await;
    // The condition after a failed read is written before the next one.
    eventually("the slices were read twice", async || (store.failed() > 1).then_some(())).await;
    assert_eq!(main.condition(API_SERVICE).await, ("True".to_string(), "Passed".to_string()));
}
