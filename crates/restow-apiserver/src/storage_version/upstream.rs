//! The upstream: the main API server, to which an aggregated server reports its storage versions as well.
//!
//! The aggregated server's own store has its own leases, reports and fence. A transaction in that store cannot compare the
//! lease at the main API server. So that lease names the lease in the own store, and stays until that one is gone: then no write
//! under it can be committed any more, however long its server was paused. Servers on the same store delete it
//! ([`restow_rules::collect::ended`] decides). Beside that, an aggregated server writes only while it has renewed its lease at the
//! main API server recently enough.

use super::lease_watch::Leases;
use super::{Agreement, AgreementError, RegistrationState, keys};
use async_trait::async_trait;
use restow_api::GroupResource;
use restow_rules::ServerReport;
use restow_rules::collect::{MainLease, OwnLease, ended};
use restow_store::{Compare, StoreExt, Txn};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How often the leases at the main API server are compared with those in the own store.
const INTERVAL: Duration = Duration::from_secs(3);

/// The main API server of an aggregated server, which reports there as well as in its own store.
#[async_trait]
pub trait Upstream: Send + Sync + fmt::Debug {
    /// Takes a new identity lease there. Every write of this server compares `own_lease`. Fails while a process that can still
    /// write to the own store has the identity. The error is a message for people.
    async fn join(&self, own_lease: &OwnLease) -> Result<(), String>;

    /// Reports there. Returns when the report is stored.
    async fn report(&self, resource: &GroupResource, report: &ServerReport) -> Result<(), String>;

    /// Withdraws a report.
    async fn withdraw(&self, resource: &GroupResource) -> Result<(), String>;

    /// Withdraws everything that this server or an earlier process of it has reported there. A server without an identity lease
    /// does so only while nobody has one with its identity.
    async fn withdraw_everything(&self) -> Result<(), String>;

    /// Whether the identity lease is still valid, by this server's own clock.
    fn holds(&self) -> bool;

    /// Completes when the identity lease is lost, or was not renewed in time.
    async fn lost(&self);

    /// Releases the identity lease. No write of this server can be committed any more.
    async fn leave(&self);

    /// Does not renew the identity lease any more, and keeps it: a write of this server may still be committed.
    fn stop_renewing(&self);

    /// The identity leases there of all servers on the store with this id.
    async fn leases(&self, store: &str) -> Result<Vec<MainLease>, String>;

    /// Deletes one of them, unless its server has taken another one since.
    async fn delete_lease(&self, lease: &MainLease) -> Result<(), String>;
}

/// Deletes the leases of servers that are gone at the main API server, until this server leaves.
pub(super) async fn run(agreement: Arc<Agreement>) {
    loop {
        tokio::time::sleep(INTERVAL).await;
        if matches!(agreement.state(), RegistrationState::Left) {
            return;
        }
        if let Err(error) = agreement.sweep_upstream_leases().await {
            tracing::warn!(
                reason = error.chain(),
                "identity leases of servers that are gone could not be deleted at the main API server; trying again"
            );
        }
    }
}

impl Agreement {
    /// Deletes the leases at the main API server whose servers cannot write any more. One that cannot be deleted holds up no
    /// other.
    async fn sweep_upstream_leases(&self) -> Result<(), AgreementError> {
        let Some(upstream) = &self.config.upstream else { return Ok(()) };
        let mut outcome = Ok(());
        for lease in self.ended_upstream_leases(upstream.as_ref()).await? {
            if lease.id != self.config.identity.as_str() {
                tracing::warn!(
                    identity = lease.id,
                    "an API server that shared this store is gone; its identity lease at the main API server is deleted"
                );
            }
            outcome = upstream.delete_lease(&lease).await.map_err(AgreementError::Upstream).and(outcome);
        }
        outcome
    }

    /// Deletes the leases of earlier processes of this server at the main API server, unless a write of them may still be committed.
    /// Those of other servers are left to the sweep: nobody has to wait for them.
    pub(super) async fn delete_earlier_upstream_lease(&self) -> Result<(), AgreementError> {
        let Some(upstream) = &self.config.upstream else { return Ok(()) };
        let ended = self.ended_upstream_leases(upstream.as_ref()).await?;
        for lease in ended.iter().filter(|lease| lease.id == self.config.identity.as_str()) {
            upstream.delete_lease(lease).await.map_err(AgreementError::Upstream)?;
        }
        Ok(())
    }

    /// The leases at the main API server whose servers cannot write any more, because the lease in the own store is gone.
    async fn ended_upstream_leases(&self, upstream: &dyn Upstream) -> Result<Vec<MainLease>, AgreementError> {
        // A lease there is younger than the one that it names in the own store, so it has to be read first.
        let main = upstream.leases(&self.store_id().await?).await.map_err(AgreementError::Upstream)?;
        Ok(ended(main, &Leases::read(self.store.as_ref()).await?.own_leases()))
    }

    /// Joins at the main API server, if there is one, under a lease in the own store with this uid. The lease of an earlier process
    /// goes first.
    pub(super) async fn join_upstream(&self, uid: &str) -> Result<(), AgreementError> {
        let Some(upstream) = &self.config.upstream else { return Ok(()) };
        self.delete_earlier_upstream_lease().await?;
        let own_lease = OwnLease { uid: uid.to_owned(), store: self.store_id().await? };
        upstream.join(&own_lease).await.map_err(AgreementError::Upstream)
    }

    /// The id of the own store, which the first server gives it.
    async fn store_id(&self) -> Result<String, AgreementError> {
        let key = keys::key(keys::STORE_ID.to_owned())?;
        if self.store.get(&key).await?.is_none() {
            let id = restow_host::uuid().to_string();
            self.store.txn(Txn::new().when(Compare::absent(&key)).put(&key, id)).await?;
        }
        let id = self.store.get(&key).await?.map(|entry| String::from_utf8_lossy(&entry.value).into_owned());
        id.ok_or_else(|| AgreementError::Upstream("the id of the own store is missing".to_owned()))
    }

    /// Completes when the lease at the main API server is lost; never where there is no such server.
    pub(super) async fn upstream_lost(&self) {
        match &self.config.upstream {
            Some(upstream) => upstream.lost().await,
            None => std::future::pending().await,
        }
    }
}
