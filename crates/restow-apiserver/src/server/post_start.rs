//! What a server does once when it starts, after it has joined the others: make what every cluster has.

use crate::builtin::addresses;
use crate::controllers;
use crate::error::ApiError;
use crate::server::ApiServer;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::watch;

/// How long to wait before trying again what the store could not do.
const PAUSE: Duration = Duration::from_millis(200);

/// How far the server has come in starting.
#[derive(Debug)]
pub(crate) struct Starting {
    done: watch::Sender<Option<Result<(), ApiError>>>,
}

impl Default for Starting {
    fn default() -> Self {
        Starting { done: watch::Sender::new(None) }
    }
}

impl Starting {
    /// Completes when the server has started, or cannot.
    pub(crate) async fn done(&self) -> Result<(), ApiError> {
        let mut done = self.done.subscribe();
        match done.wait_for(Option::is_some).await.map(|done| done.clone()) {
            Ok(Some(result)) => result,
            _ => Err(ApiError::Internal("the server ended while it was starting".into())),
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        matches!(*self.done.borrow(), Some(Ok(())))
    }
}

/// Starts: waits until the storage versions are reported, then makes what every cluster has.
pub(crate) async fn start(server: Weak<ApiServer>) {
    let Some(agreement) = server.upgrade().map(|server| server.agreement().clone()) else { return };
    agreement.settled().await;
    drop(agreement);
    while let Some(server) = server.upgrade() {
        match make(&server).await {
            Err(error @ (ApiError::Unavailable { .. } | ApiError::Timeout(_))) => {
                tracing::warn!(%error, "the server cannot start yet; trying again");
            }
            result => {
                if result.is_ok() {
                    tokio::spawn(controllers::publish_servers(Arc::downgrade(&server)));
                }
                server.starting().done.send_replace(Some(result));
                return;
            }
        }
        drop(server);
        tokio::time::sleep(PAUSE).await;
    }
}

async fn make(server: &ApiServer) -> Result<(), ApiError> {
    server.make_namespaces().await?;
    addresses::repair(server).await?;
    server.establish_policy().await
}
