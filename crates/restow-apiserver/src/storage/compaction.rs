//! Compaction: removes old history, so that the store does not grow without end.

use restow_store::{Store, StoreError};
use std::sync::Arc;
use std::time::Duration;

/// How long history is kept at least: lists that are read page by page and watches that were interrupted rely on it.
const KEPT: Duration = Duration::from_secs(300);

/// Compacts to where the store was a while ago, over and over. Several servers on one store do not harm each other: the
/// later one finds the work done.
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
        tokio::time::sleep(KEPT).await;
    }
}
