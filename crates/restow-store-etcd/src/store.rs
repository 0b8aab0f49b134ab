//! `EtcdStore`: connects to the cluster, and implements the trait. Each call has a file of its own.

use crate::cluster::{CallKind, EtcdCluster};
use crate::config::{ConfigError, EtcdConfig};
use crate::failure::{CallError, Rejection};
use crate::keyspace::Keyspace;
use crate::lease::Leases;
use crate::proto;
use crate::rollback::RollbackDetector;
use crate::version::{Feature, ServerVersion};
use async_trait::async_trait;
use restow_store::{
    Limits, RangeRequest, RangeResponse, Revision, Store, StoreError, StoreStatus, Txn, TxnOutcome, Watch, WatchRequest,
};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use thiserror::Error;

/// A store on an etcd cluster.
pub struct EtcdStore {
    pub(crate) cluster: Arc<EtcdCluster>,
    pub(crate) keyspace: Keyspace,
    pub(crate) limits: Limits,
    pub(crate) leases: Leases,
    /// The last known compact revision; 0 if none is known.
    pub(crate) last_compact_revision: AtomicU64,
    pub(crate) rollback_detector: Arc<RollbackDetector>,
}

/// Why a store could not be connected.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectError {
    /// The configuration is invalid; nothing was sent.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The server is older than [`ServerVersion::OLDEST`].
    #[error("etcd {0} is too old; {oldest} is the oldest that works", oldest = ServerVersion::OLDEST)]
    TooOld(ServerVersion),
    /// The first request failed.
    #[error(transparent)]
    Store(StoreError),
}

impl EtcdStore {
    /// Checks the configuration, connects to a member, and checks its version.
    pub async fn connect(config: EtcdConfig) -> Result<Self, ConnectError> {
        let endpoints = config.resolve()?;
        let keyspace = Keyspace::new(&config.prefix);
        let store = EtcdStore {
            cluster: Arc::new(EtcdCluster::new(&config, endpoints, &keyspace.any_key())),
            keyspace,
            limits: config.limits,
            leases: Leases::default(),
            last_compact_revision: AtomicU64::new(0),
            rollback_detector: Arc::default(),
        };
        match store.current_revision().await {
            Ok(_) => Ok(store),
            Err(CallError::Rejected(Rejection::TooOld(version))) => Err(ConnectError::TooOld(version)),
            Err(error) => Err(ConnectError::Store(error.into())),
        }
    }

    /// The latest revision, by a linearizable read.
    pub(crate) async fn current_revision(&self) -> Result<Revision, CallError> {
        let request = proto::RangeRequest { key: self.keyspace.any_key(), count_only: true, ..Default::default() };
        let seen = self.rollback_detector.seen();
        let answer = self
            .cluster
            .call(CallKind::Read, |client| {
                let request = request.clone();
                async move { client.kv().range(client.request(request)).await }
            })
            .await?;
        Ok(self.rollback_detector.observe(seen, answer.header))
    }

    /// The error for a revision that does not exist yet.
    pub(crate) async fn future_revision(&self, requested: Revision) -> StoreError {
        match self.current_revision().await {
            Ok(current) => StoreError::FutureRevision { requested, current },
            Err(error) => error.into(),
        }
    }
}

#[async_trait]
impl Store for EtcdStore {
    async fn range(&self, request: RangeRequest) -> Result<RangeResponse, StoreError> {
        self.read_range(request).await
    }

    async fn txn(&self, txn: Txn) -> Result<TxnOutcome, StoreError> {
        self.run_txn(txn).await
    }

    async fn watch(&self, request: WatchRequest) -> Result<Watch, StoreError> {
        self.start_watch(request).await
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.compact_at(revision).await
    }

    async fn status(&self) -> Result<StoreStatus, StoreError> {
        let revision = self.current_revision().await?;
        let call = self.cluster.call(CallKind::Read, |client| async move {
            let answer = match client.maintenance().status(client.request(proto::StatusRequest {})).await {
                Ok(answer) => answer.into_inner(),
                // Some releases report their status only to root. The read above has shown that the store works.
                Err(refused) if refused.code() == tonic::Code::PermissionDenied => Default::default(),
                Err(status) => return Err(status),
            };
            Ok(tonic::Response::new((client, answer)))
        });
        let (client, answer) = call.await?;
        Ok(StoreStatus {
            backend: match client.version() {
                Some(version) => format!("etcd {version}"),
                None => "etcd (it reports its version and size only to root)".into(),
            },
            revision,
            disk_bytes: answer.db_size.try_into().unwrap_or_default(),
            prompt_progress: client.has(Feature::PromptProgress),
        })
    }

    async fn ready(&self) -> Result<(), StoreError> {
        // As in Kubernetes: a full etcd is ready, and refuses writes.
        self.status().await.map(drop)
    }
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdStore").field("keyspace", &self.keyspace).finish_non_exhaustive()
    }
}
