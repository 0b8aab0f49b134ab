//! Compaction: removes old history, so that the store does not grow without bound.

use restow_store::{Store, StoreError};
use std::sync::Arc;
use std::time::Duration;

/// The minimum age of compacted history: paged lists and interrupted watches rely on it.
const COMPACTION_INTERVAL: Duration = Duration::from_secs(300);

/// Compacts to the revision of one interval ago, again and again. Several servers on one store do not conflict: the later one
/// finds the work done.
pub(crate) async fn compact_regularly(store: Arc<dyn Store>) {
    let mut before = None;
    loop {
        let now = store.status().await.map(|status| status.revision);
        if let Some(revision) = before {
            match store.compact(revision).await {
                Ok(()) | Err(StoreError::Compacted { .. }) => {}
                Err(error) => tracing::warn!(%error, "compaction failed; trying again later"),
            }
        }
        before = now.ok();
        tokio::time::sleep(COMPACTION_INTERVAL).await;
    }
}
