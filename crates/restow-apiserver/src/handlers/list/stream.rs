//! A long list that is written while it is read: while one page is on its way to the client, the next one comes from the
//! store. It never lies in memory whole.
//!
//! What goes wrong after the beginning was sent cannot be told with a `Status` any more: the answer breaks off, which no
//! client takes for the end. Where an object cannot be read, the next list of the same collection is not sent in parts, so
//! that its error arrives.

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

/// After which time a client that does not take what is there loses its permit among all requests in flight: it makes no work
/// while it waits. It keeps the one among those of its user, since it keeps pages in memory.
const SLOW: Duration = Duration::from_millis(500);

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

/// Why a list broke off.
enum Broken {
    /// The client went away, or does not read.
    Client,
    /// The store does not answer.
    Store(StoreError),
    /// An object cannot be read.
    Object(ApiError),
}

impl ListStream {
    pub(super) fn new(items: ItemWriter, metadata: &Value, entries: Vec<Entry>, pages: Pages) -> Self {
        ListStream { written: items.begin(metadata, &entries), items, entries, pages }
    }

    /// Starts to read and write. The request keeps its `permit` as long as there is work to do for it. A client that
    /// takes nothing for as long as `stall_timeout` is given up.
    pub(crate) fn start(
        self,
        permit: Option<InFlightPermit>,
        queue: FlowHandle,
        stall_timeout: Duration,
    ) -> impl Stream<Item = Result<Bytes, Interrupted>> + Send + 'static {
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(async move { queue.run(self.run(Outlet { sender, permit, stall_timeout })).await });
        futures::stream::unfold(Some(receiver), |receiver| async {
            let mut receiver = receiver?;
            match receiver.recv().await {
                Some(Part::More(bytes)) => Some((Ok(bytes), Some(receiver))),
                Some(Part::Last(bytes)) => Some((Ok(bytes), None)),
                None => Some((Err(Interrupted), None)),
            }
        })
    }

    async fn run(self, mut outlet: Outlet) {
        let resource = self.items.resource().clone();
        let name = &resource.group_resource;
        match self.write(&mut outlet).await {
            Ok(()) => {}
            Err(Broken::Client) => tracing::debug!(resource = %name, "a list was not read to its end"),
            Err(Broken::Store(error)) => tracing::warn!(resource = %name, %error, "a list broke off"),
            Err(Broken::Object(error)) => {
                tracing::warn!(resource = %name, %error, "a list broke off; the next one will say why");
                resource.storage.iter().for_each(|storage| storage.set_troubled(true));
            }
        }
    }

    async fn write(self, outlet: &mut Outlet) -> Result<(), Broken> {
        let ListStream { mut items, mut written, mut entries, mut pages } = self;
        let mut more = true;
        while more {
            // The store is asked for the next page before this one is written.
            let (next, done) = tokio::join!(biased; pages.next(), items.write(&entries, &mut written));
            done.map_err(Broken::Object)?;
            outlet.send(Part::More(written.into())).await?;
            let next = next.map_err(Broken::Store)?;
            written = Vec::with_capacity(items.room(&next.entries));
            (entries, more) = (next.entries, next.more);
        }
        items.write(&entries, &mut written).await.map_err(Broken::Object)?;
        items.end(&mut written);
        outlet.send(Part::Last(written.into())).await
    }
}

/// Where the parts of a list go.
struct Outlet {
    sender: mpsc::Sender<Part>,
    permit: Option<InFlightPermit>,
    stall_timeout: Duration,
}

impl Outlet {
    async fn send(&mut self, part: Part) -> Result<(), Broken> {
        let room = match tokio::time::timeout(SLOW, self.sender.reserve()).await {
            Ok(room) => room,
            Err(_) => {
                self.permit.iter_mut().for_each(InFlightPermit::release_shared);
                let room = tokio::time::timeout(self.stall_timeout.saturating_sub(SLOW), self.sender.reserve()).await;
                room.map_err(|_| Broken::Client)?
            }
        };
        room.map_err(|_| Broken::Client)?.send(part);
        Ok(())
    }
}
