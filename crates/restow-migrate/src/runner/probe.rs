//! Small reads, as any other client could send them, that tell how long others wait.

use super::listing::{Detail, ListedObject, object};
use crate::discovery::StoredResource;
use futures::FutureExt;
use futures::future::BoxFuture;
use kube::Client;
use std::time::{Duration, Instant};

/// One object that is read again and again.
pub(super) struct Probe {
    client: Client,
    resource: StoredResource,
    object: ListedObject,
    under_way: Option<BoxFuture<'static, Duration>>,
}

/// How long to wait between two reads. They are work for the server, too.
pub(super) const PAUSE: Duration = Duration::from_millis(40);
/// And how long while nothing else may be sent.
pub(super) const SHORT_PAUSE: Duration = Duration::from_millis(5);

impl Probe {
    pub(super) fn new(client: Client, resource: StoredResource, object: ListedObject) -> Self {
        Probe { client, resource, object, under_way: None }
    }

    /// Waits for the read that is under way, or begins one after a pause, and says how long it took.
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
        // Whether the object is still there does not matter: the answer took as long.
        let _ = object(&client, &resource, &listed, Detail::Identity).await;
        started.elapsed()
    }
    .boxed()
}
