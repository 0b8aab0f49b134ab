//! A long list as a stream: while one page is sent to the client, the next one is read from the store. The list is
//! never in memory as a whole.
//!
//! An error after the first bytes were sent cannot be reported as a `Status`. The response is cut off, and clients
//! notice that. If an object cannot be decoded, the next list of the same collection is not streamed, so that the
//! client gets the error.

use crate::error::ApiError;
use crate::flow_control::fair_queue::FlowHandle;
use crate::flow_control::limits::InFlightPermit;
use crate::handlers::Interrupted;
use crate::handlers::list::items::ItemWriter;
use crate::handlers::pages::Pages;
use bytes::Bytes;
use futures::Stream;
use restow_store::{Entry, StoreError};
use serde_json::Value;
use std::time::Duration;
use tokio::sync::mpsc;

/// After this time, a client that does not read loses its place among all requests in flight, since it causes no work
/// while it waits. It keeps its place among the requests of its user, since it keeps pages in memory.
const SLOW_CLIENT: Duration = Duration::from_millis(500);

/// A long list whose first page was read.
pub(crate) struct ListStream {
    items: ItemWriter,
    /// The beginning of the list, without any items.
    written: Vec<u8>,
    entries: Vec<Entry>,
    pages: Pages,
}

/// A part of a list.
enum Part {
    More(Bytes),
    Last(Bytes),
}

/// Why a list was cut off.
enum ListFailure {
    /// The client closed the connection, or does not read.
    Client,
    /// Reading from the store failed.
    Store(StoreError),
    /// An object cannot be decoded.
    Object(ApiError),
}

impl ListStream {
    pub(super) fn new(items: ItemWriter, metadata: &Value, entries: Vec<Entry>, pages: Pages) -> Self {
        ListStream { written: items.begin(metadata, &entries), items, entries, pages }
    }

    /// Starts to read and encode. The request keeps its `permit` while it causes work. A client that reads nothing for
    /// `stall_timeout` is disconnected.
    pub(crate) fn start(
        self,
        permit: Option<InFlightPermit>,
        queue: FlowHandle,
        stall_timeout: Duration,
    ) -> impl Stream<Item = Result<Bytes, Interrupted>> + Send + 'static {
        let (sender, receiver) = mpsc::channel(1);
        restow_host::spawn(async move { queue.run(self.run(PartSender { sender, permit, stall_timeout })).await });
        futures::stream::unfold(Some(receiver), |receiver| async {
            let mut receiver = receiver?;
            match receiver.recv().await {
                Some(Part::More(bytes)) => Some((Ok(bytes), Some(receiver))),
                Some(Part::Last(bytes)) => Some((Ok(bytes), None)),
                None => Some((Err(Interrupted), None)),
            }
        })
    }

    async fn run(self, mut sender: PartSender) {
        let resource = self.items.resource().clone();
        let name = &resource.group_resource;
        match self.write(&mut sender).await {
            Ok(()) => {}
            Err(ListFailure::Client) => tracing::debug!(resource = %name, "the client did not read a list to its end"),
            Err(ListFailure::Store(error)) => {
                tracing::warn!(resource = %name, %error, "a list was cut off because reading from the store failed")
            }
            Err(ListFailure::Object(error)) => {
                tracing::warn!(resource = %name, %error, "a list was cut off because an object cannot be decoded; the next list of the resource reports the error");
                resource.storage.iter().for_each(|storage| storage.set_has_undecodable(true));
            }
        }
    }

    async fn write(self, sender: &mut PartSender) -> Result<(), ListFailure> {
        let ListStream { mut items, mut written, mut entries, mut pages } = self;
        let mut more = true;
        while more {
            // Read the next page while this one is encoded.
            let (next, done) = tokio::join!(biased; pages.next(), items.write(&entries, &mut written));
            done.map_err(ListFailure::Object)?;
            sender.send(Part::More(written.into())).await?;
            let next = next.map_err(ListFailure::Store)?;
            written = Vec::with_capacity(items.room(&next.entries));
            (entries, more) = (next.entries, next.more);
        }
        items.write(&entries, &mut written).await.map_err(ListFailure::Object)?;
        items.end(&mut written);
        sender.send(Part::Last(written.into())).await
    }
}

/// Sends the parts of a list to the client.
struct PartSender {
    sender: mpsc::Sender<Part>,
    permit: Option<InFlightPermit>,
    stall_timeout: Duration,
}

impl PartSender {
    async fn send(&mut self, part: Part) -> Result<(), ListFailure> {
        let room = match tokio::time::timeout(SLOW_CLIENT, self.sender.reserve()).await {
            Ok(room) => room,
            Err(_) => {
                self.permit.iter_mut().for_each(InFlightPermit::release_shared);
                let room =
                    tokio::time::timeout(self.stall_timeout.saturating_sub(SLOW_CLIENT), self.sender.reserve()).await;
                room.map_err(|_| ListFailure::Client)?
            }
        };
        room.map_err(|_| ListFailure::Client)?.send(part);
        Ok(())
    }
}
