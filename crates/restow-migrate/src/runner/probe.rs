//! Small reads, like those of other clients, that measure their latency.

use super::listing::{Detail, ListedObject, object};
use crate::discovery::StoredResource;
use futures::FutureExt;
use futures::future::BoxFuture;
use kube::Client;
use std::time::Duration;
use tokio::time::Instant;

/// Reads one object repeatedly.
pub(super) struct Probe {
    client: Client,
    resource: StoredResource,
    object: ListedObject,
    under_way: Option<BoxFuture<'static, Duration>>,
}

/// The pause between two reads, which are work for the server too.
pub(super) const PAUSE: Duration = Duration::from_millis(40);
/// The pause while nothing else may be sent.
pub(super) const SHORT_PAUSE: Duration = Duration::from_millis(5);

impl Probe {
    pub(super) fn new(client: Client, resource: StoredResource, object: ListedObject) -> Self {
        Probe { client, resource, object, under_way: None }
    }

    /// Waits for the pending read, or starts one after a pause, and returns its latency.
    pub(super) async fn next(&mut self, pause: Duration) -> Duration {
        let begin = || read(self.client.clone(), self.resource.clone(), self.object.clone(), pause);
        let took = self.under_way.get_or_insert_with(begin).await;
        self.under_way = None;
        took
    }
}

fn read(
    client: Client,
    resource: StoredResource,
    listed: ListedObject,
    pause: Duration,
) -> BoxFuture<'static, Duration> {
    async move {
        tokio::time::sleep(pause).await;
        let started = Instant::now();
        // The latency counts even if the object was deleted.
        let _ = object(&client, &resource, &listed, Detail::Identity).await;
        started.elapsed()
    }
    .boxed()
}
