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
    under_way: BoxFuture<'static, Duration>,
}

/// How long to wait between two reads.
const PAUSE: Duration = Duration::from_millis(20);

impl Probe {
    pub(super) fn new(client: Client, resource: StoredResource, object: ListedObject) -> Self {
        let under_way = read(client.clone(), resource.clone(), object.clone(), Duration::ZERO);
        Probe { client, resource, object, under_way }
    }

    /// Waits for the read that is under way, begins the next one, and says how long it took.
    pub(super) async fn next(&mut self) -> Duration {
        let took = (&mut self.under_way).await;
        self.under_way = read(self.client.clone(), self.resource.clone(), self.object.clone(), PAUSE);
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
