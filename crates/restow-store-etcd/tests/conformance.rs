//! The conformance suite on private etcd servers: one for each check, because a check counts revisions.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use async_trait::async_trait;
use restow_local_etcd::{LocalEtcd, LocalEtcdOptions};
use restow_store::conformance::{Fixture, Opened};
use restow_store::{
    Limits, Mutation, RangeRequest, RangeResponse, Revision, Store, StoreError, StoreExt, StoreStatus, Txn, TxnOutcome,
    Watch, WatchRequest,
};
use restow_store_etcd::{EtcdConfig, EtcdStore};
use std::sync::Arc;

struct Etcd;

impl Etcd {
    async fn open_with(quota_bytes: Option<u64>) -> (EtcdStore, Limits, LocalEtcd) {
        let options = LocalEtcdOptions {
            quota_bytes,
            // etcd counts the whole request against its limit, and its own is that of our values alone.
            max_request_bytes: Some(2 * 1024 * 1024),
            ..Default::default()
        };
        let etcd = LocalEtcd::start_with(options).await.unwrap();
        // The prefix must make no difference.
        let config = EtcdConfig { prefix: "/registry".into(), ..EtcdConfig::new([etcd.endpoint()]) };
        let limits = Limits { store_bytes: quota_bytes, ..config.limits };
        (EtcdStore::connect(config).await.unwrap(), limits, etcd)
    }
}

#[async_trait]
impl Fixture for Etcd {
    async fn open(&self) -> Opened {
        let (store, limits, etcd) = Self::open_with(None).await;
        Opened::new(Arc::new(store), limits).keep(etcd)
    }

    async fn open_small(&self) -> Option<Opened> {
        let (store, limits, etcd) = Self::open_with(Some(4 * 1024 * 1024)).await;
        Some(Opened::new(Arc::new(SoleWriter(store)), limits).keep(etcd))
    }
}

/// etcd may apply the write that exceeds its quota and still return NOSPACE, which the store reports as unknown. The suite
/// expects that a store is either full or not. It is the only writer here, so reading the key tells the outcome.
struct SoleWriter(EtcdStore);

#[async_trait]
impl Store for SoleWriter {
    async fn txn(&self, txn: Txn) -> Result<TxnOutcome, StoreError> {
        let outcome = self.0.txn(txn.clone()).await;
        let (Err(StoreError::OutcomeUnknown(reason)), [Mutation::Put(put)]) = (&outcome, txn.then.as_slice()) else {
            return outcome;
        };
        assert!(reason.contains("ran out of space"), "nothing else can have gone wrong: {reason}");
        match self.0.get(&put.key).await? {
            Some(entry) if entry.value == put.value => Ok(TxnOutcome::Committed { revision: entry.mod_revision }),
            _ => Err(StoreError::Full(reason.clone())),
        }
    }

    async fn range(&self, request: RangeRequest) -> Result<RangeResponse, StoreError> {
        self.0.range(request).await
    }

    async fn watch(&self, request: WatchRequest) -> Result<Watch, StoreError> {
        self.0.watch(request).await
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.0.compact(revision).await
    }

    async fn status(&self) -> Result<StoreStatus, StoreError> {
        self.0.status().await
    }

    async fn ready(&self) -> Result<(), StoreError> {
        self.0.ready().await
    }
}

restow_store::conformance_tests!(Etcd);
