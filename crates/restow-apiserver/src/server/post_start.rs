//! Post-start hooks: create the default objects of a cluster after the server has registered.

use crate::aggregator::Aggregator;
use crate::auth::Access;
use crate::builtin::kinds::service::allocation;
use crate::controllers::{KubernetesService, publish_servers};
use crate::core::Core;
use crate::error::ApiError;
use crate::namespaces::Namespaces;
use crate::storage_version::Agreement;
use std::sync::Arc;
use std::time::Duration;

/// The delay between attempts after an error of the store.
const PAUSE: Duration = Duration::from_millis(200);

/// The components that have post-start hooks.
pub(crate) struct PostStart {
    pub(crate) core: Arc<Core>,
    pub(crate) agreement: Arc<Agreement>,
    pub(crate) namespaces: Arc<Namespaces>,
    pub(crate) access: Arc<Access>,
    pub(crate) service: Arc<KubernetesService>,
    pub(crate) aggregator: Arc<Aggregator>,
}

/// Waits until the storage versions are reported, and then creates the default objects of a cluster.
pub(crate) async fn start(hooks: PostStart) {
    hooks.agreement.registered().await;
    loop {
        match hooks.run().await {
            Err(error @ (ApiError::Unavailable { .. } | ApiError::Timeout(_))) => {
                tracing::warn!(%error, "a post-start hook failed; trying again");
            }
            result => {
                if result.is_ok() {
                    hooks.core.spawn(publish_servers(hooks.service.clone()));
                    hooks.core.spawn(hooks.aggregator.clone().keep_authentication_published());
                }
                hooks.core.startup().finish(result);
                return;
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

impl PostStart {
    /// Creates the default objects of a cluster.
    async fn run(&self) -> Result<(), ApiError> {
        self.namespaces.create_system_namespaces().await?;
        allocation::repair(&self.core).await?;
        self.access.reconcile_default_policy().await?;
        self.aggregator.publish_authentication().await?;
        self.aggregator.register().await
    }
}
