//! The store itself: opens it, and hands each call of the trait to the file that is about it.

use crate::cluster::{Cluster, Kind};
use crate::config::{ConfigError, EtcdConfig};
use crate::failure::{CallError, Rejection};
use crate::history::History;
use crate::keyspace::Keyspace;
use crate::lease::Leases;
use crate::proto;
use crate::version::{Feature, ServerVersion};
use async_trait::async_trait;
use restow_store::{
    Limits, RangeRequest, RangeResponse, Revision, Status, Store, StoreError, Txn, TxnOutcome, Watch, WatchRequest,
};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use thiserror::Error;

/// A store on an etcd cluster.
pub struct EtcdStore {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) keyspace: Keyspace,
    pub(crate) limits: Limits,
    pub(crate) leases: Leases,
    /// Where the history began when that was last found out; 0 if it never was.
    pub(crate) last_cut: AtomicU64,
    /// How far the history was seen to go.
    pub(crate) history: Arc<History>,
}

/// Why a cluster cannot be used.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectError {
    /// The configuration is wrong; nothing was sent.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The server does not know calls that are needed.
    #[error("etcd {0} is too old; {oldest} is the oldest that works", oldest = ServerVersion::OLDEST)]
    TooOld(ServerVersion),
    /// The cluster did not answer as it should.
    #[error(transparent)]
    Store(StoreError),
}

impl EtcdStore {
    /// Checks the configuration, connects to a member, and makes sure that it can be worked with.
    pub async fn connect(config: EtcdConfig) -> Result<Self, ConnectError> {
        let endpoints = config.resolve()?;
        let keyspace = Keyspace::new(&config.prefix);
        let store = EtcdStore {
            cluster: Arc::new(Cluster::new(&config, endpoints, &keyspace.any_key())),
            keyspace,
            limits: config.limits,
            leases: Leases::default(),
            last_cut: AtomicU64::new(0),
            history: Arc::default(),
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
        let seen = self.history.seen();
        let answer = self
            .cluster
            .call(Kind::Read, |link| {
                let request = request.clone();
                async move { link.kv().range(link.request(request)).await }
            })
            .await?;
        Ok(self.history.meet(seen, answer.header))
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
        self.cut_history(revision).await
    }

    async fn status(&self) -> Result<Status, StoreError> {
        let revision = self.current_revision().await?;
        let call = self.cluster.call(Kind::Read, |link| async move {
            let answer = match link.maintenance().status(link.request(proto::StatusRequest {})).await {
                Ok(answer) => answer.into_inner(),
                // Some releases tell this to root alone; that they can be read from is known by now.
                Err(refused) if refused.code() == tonic::Code::PermissionDenied => Default::default(),
                Err(status) => return Err(status),
            };
            Ok(tonic::Response::new((link, answer)))
        });
        let (link, answer) = call.await?;
        Ok(Status {
            backend: match link.version() {
                Some(version) => format!("etcd {version}"),
                None => "etcd (it tells its version and size to root alone)".into(),
            },
            revision,
            disk_bytes: answer.db_size.try_into().unwrap_or_default(),
            prompt_progress: link.has(Feature::PromptProgress),
        })
    }

    async fn ready(&self) -> Result<(), StoreError> {
        // As Kubernetes does: an etcd that is full says so to whoever writes.
        self.status().await.map(drop)
    }
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdStore").field("keyspace", &self.keyspace).finish_non_exhaustive()
    }
}
