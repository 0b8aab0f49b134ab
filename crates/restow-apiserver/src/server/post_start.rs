//! What a server does once after it has joined the others: it creates what every cluster has.

use crate::authorization::Access;
use crate::builtin::kinds::service::allocation;
use crate::controllers::{KubernetesService, publish_servers};
use crate::core::Core;
use crate::error::ApiError;
use crate::namespaces::Namespaces;
use crate::storage_version::Agreement;
use std::sync::Arc;
use std::time::Duration;

/// How long to wait before trying again what the store could not do.
const PAUSE: Duration = Duration::from_millis(200);

/// The parts that are started.
pub(crate) struct PostStart {
    pub(crate) core: Arc<Core>,
    pub(crate) agreement: Arc<Agreement>,
    pub(crate) namespaces: Arc<Namespaces>,
    pub(crate) access: Arc<Access>,
    pub(crate) service: Arc<KubernetesService>,
}

/// Starts: waits until the storage versions are reported, then creates what every cluster has.
pub(crate) async fn start(hooks: PostStart) {
    hooks.agreement.registered().await;
    loop {
        match hooks.run().await {
            Err(error @ (ApiError::Unavailable { .. } | ApiError::Timeout(_))) => {
                tracing::warn!(%error, "the server cannot start yet; trying again");
            }
            result => {
                if result.is_ok() {
                    hooks.core.spawn(publish_servers(hooks.service.clone()));
                }
                hooks.core.startup().finish(result);
                return;
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

impl PostStart {
    /// Creates what every cluster has.
    async fn run(&self) -> Result<(), ApiError> {
        self.namespaces.create_system_namespaces().await?;
        allocation::repair(&self.core).await?;
        self.access.reconcile_default_policy().await
    }
}
