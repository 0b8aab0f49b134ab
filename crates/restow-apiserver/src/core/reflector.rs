//! A reflector lists a collection, subscribes to its changes in the watch cache, and keeps an in-memory store in step with it.

use crate::core::Core;
use crate::error::ApiError;
use crate::storage::watch_cache::{CacheEvent, Subscription};
use async_trait::async_trait;
use restow_api::GroupVersion;
use restow_store::{Entry, RangeRequest};
use std::sync::Arc;
use std::time::Duration;

/// How long a reflector waits for a change before it resyncs, and before it lists again after a failure.
pub(crate) const RESYNC_PERIOD: Duration = Duration::from_millis(500);

/// The in-memory store that a reflector fills.
#[async_trait]
pub(crate) trait ReflectedStore: Send + Sync + 'static {
    /// Replaces everything with these objects.
    fn replace(&self, entries: &[Entry]);

    /// Applies the change of one object.
    fn apply(&self, event: &CacheEvent);

    /// Called after each `replace` and `apply`, and after each [`RESYNC_PERIOD`] without a change.
    async fn resync(&self) {}
}

/// Reflects a collection into `store` until the server ends.
pub(crate) async fn reflect(core: Arc<Core>, version: GroupVersion, plural: &'static str, store: impl ReflectedStore) {
    loop {
        match list(&core, &version, plural).await {
            Ok(Some((entries, subscription))) => {
                store.replace(&entries);
                keep_up(subscription, &store).await;
            }
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, plural, "a collection could not be listed"),
        }
        tokio::time::sleep(RESYNC_PERIOD).await;
    }
}

/// The objects of a collection, and a subscription to later changes. `None` if the resource is not served, or if the list is
/// already too old for the watch cache.
async fn list(
    core: &Core,
    version: &GroupVersion,
    plural: &str,
) -> Result<Option<(Vec<Entry>, Subscription)>, ApiError> {
    let registry = core.registry();
    let Some(resource) = registry.find(version, plural) else { return Ok(None) };
    let Some(storage) = &resource.storage else { return Ok(None) };
    let listed = core.objects().store().range(RangeRequest::new(storage.range(""))).await?;
    let subscription = core.watch_cache().subscribe(&storage.folder(), storage.range(""), listed.revision);
    Ok(subscription.ok().map(|subscription| (listed.entries, subscription)))
}

/// Applies changes until the subscription expires.
async fn keep_up(mut subscription: Subscription, store: &impl ReflectedStore) {
    loop {
        store.resync().await;
        match tokio::time::timeout(RESYNC_PERIOD, subscription.next()).await {
            Ok(Err(_)) => return,
            Ok(Ok((events, _))) => events.iter().for_each(|event| store.apply(event)),
            Err(_) => {}
        }
    }
}
