//! Keeping something in memory in step with a collection of objects.

use crate::error::ApiError;
use crate::server::ApiServer;
use crate::storage::watch_cache::{CacheEvent, Subscription};
use async_trait::async_trait;
use restow_api::GroupVersion;
use restow_store::{Content, Entry, Key, KeyRange, RangeRequest};
use std::sync::Weak;
use std::time::Duration;

/// How long a follower waits before it looks again whether the server is still there.
pub(crate) const BREATH: Duration = Duration::from_millis(500);

/// What is kept in step.
#[async_trait]
pub(crate) trait ReflectedStore: Send + Sync + 'static {
    /// These are all objects there are.
    fn reset(&self, server: &ApiServer, entries: &[Entry]);

    /// One object was changed.
    fn change(&self, server: &ApiServer, event: &CacheEvent);

    /// Called after the above, and again from time to time.
    async fn settle(&self, _server: &ApiServer) {}
}

/// How many keys are read at once.
const KEYS: usize = 500;

/// The keys in a range, page after page: whoever needs no more than the names of objects never reads the objects.
pub(crate) struct KeyPages {
    rest: Option<KeyRange>,
}

impl KeyPages {
    pub(crate) fn new(range: KeyRange) -> Self {
        KeyPages { rest: Some(range) }
    }

    /// The next page; `None` after the last one. What is written behind the last key meanwhile is seen.
    pub(crate) async fn next(&mut self, server: &ApiServer) -> Result<Option<Vec<Key>>, ApiError> {
        let Some(rest) = self.rest.take() else { return Ok(None) };
        let request = RangeRequest::new(rest.clone()).content(Content::KeysOnly).limit(KEYS);
        let page = server.objects().store().range(request).await?;
        self.rest = page.entries.last().filter(|_| page.more).map(|last| rest.after(&last.key));
        Ok(Some(page.entries.into_iter().map(|entry| entry.key).collect()))
    }
}

/// Follows a collection for as long as the server lives.
pub(crate) async fn follow(
    server: Weak<ApiServer>,
    version: GroupVersion,
    plural: &'static str,
    follower: impl ReflectedStore,
) {
    while let Some(strong) = server.upgrade() {
        match list(&strong, &version, plural).await {
            Ok(Some((entries, subscription))) => {
                follower.reset(&strong, &entries);
                drop(strong);
                keep_up(&server, subscription, &follower).await;
            }
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, plural, "a collection could not be listed"),
        }
        tokio::time::sleep(BREATH).await;
    }
}

/// Everything in a collection, and a subscription to what comes after; `None` when there is no such collection, or the
/// list is out of date already.
async fn list(
    server: &ApiServer,
    version: &GroupVersion,
    plural: &str,
) -> Result<Option<(Vec<Entry>, Subscription)>, ApiError> {
    let registry = server.registry();
    let Some(resource) = registry.find(version, plural) else { return Ok(None) };
    let Some(storage) = &resource.storage else { return Ok(None) };
    let listed = server.objects().store().range(RangeRequest::new(storage.range(""))).await?;
    let subscription = server.watch_cache().subscribe(&storage.folder(), storage.range(""), listed.revision);
    Ok(subscription.ok().map(|subscription| (listed.entries, subscription)))
}

/// Applies changes until they have overtaken this, or the server is gone.
async fn keep_up(server: &Weak<ApiServer>, mut subscription: Subscription, follower: &impl ReflectedStore) {
    while let Some(strong) = server.upgrade() {
        follower.settle(&strong).await;
        drop(strong);
        match tokio::time::timeout(BREATH, subscription.next()).await {
            Ok(Err(_)) => return,
            Ok(Ok((events, _))) => {
                let Some(strong) = server.upgrade() else { return };
                events.iter().for_each(|event| follower.change(&strong, event));
            }
            Err(_) => {}
        }
    }
}

/// The last part of a key: the object's name.
pub(crate) fn name_of(key: &Key) -> &str {
    std::str::from_utf8(key.as_ref()).ok().and_then(|key| key.rsplit('/').next()).unwrap_or_default()
}

/// The part before the last of a key: the object's namespace, where it has one.
pub(crate) fn namespace_of(key: &Key) -> &str {
    std::str::from_utf8(key.as_ref()).ok().and_then(|key| key.rsplit('/').nth(1)).unwrap_or_default()
}
