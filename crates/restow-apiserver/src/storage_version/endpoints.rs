//! The addresses of all servers, and changes to the list of servers.

use super::lease_watch::Leases;
use super::{Agreement, RegistrationState, keys};
use crate::error::ApiError;
use crate::storage::watch_cache::WatchCache;
use restow_store::KeyRange;
use std::collections::BTreeSet;
use std::future::Future;
use std::net::SocketAddr;

impl Agreement {
    /// The addresses of the servers on this store, from their leases. A server without a lease is not among them.
    pub(crate) async fn all_addresses(&self) -> Result<BTreeSet<SocketAddr>, ApiError> {
        let leases = Leases::read(self.store.as_ref()).await;
        let unreadable = |error: super::AgreementError| ApiError::Internal(error.chain());
        Ok(leases.map_err(unreadable)?.addresses())
    }

    /// Whether this server has left for good.
    pub(crate) fn has_left(&self) -> bool {
        matches!(self.state(), RegistrationState::Left)
    }

    /// Completes when a lease is created or deleted after this call; perhaps never.
    pub(crate) fn server_list_changed(&self, watch_cache: &WatchCache) -> impl Future<Output = ()> + Send + use<> {
        let leases = watch_cache.subscribe(keys::LEASE_FOLDER, KeyRange::prefix(keys::LEASES), watch_cache.reached());
        async move {
            let Ok(mut leases) = leases else { return std::future::pending().await };
            while let Ok((events, _)) = leases.next().await {
                if events.iter().any(|event| event.current.is_none() || event.previous.is_none()) {
                    return;
                }
            }
        }
    }
}
