//! Watches: one gRPC stream each, resumed after the last delivered revision whenever it breaks.
//!
//! A task reads the stream and hands batches to the consumer through a short queue. It ends when the consumer drops the
//! watch, when the history that it needs is compacted, or when access is denied; everything else it sits out.

use crate::cluster::{Cluster, Kind, Link};
use crate::failure::{CallError, Failure, Rejection};
use crate::history::History;
use crate::keyspace::{EtcdRange, Keyspace, number, revision};
use crate::proto::{self, WatchCreateRequest, WatchProgressRequest, WatchResponse, watch_request};
use crate::store::EtcdStore;
use crate::version::Feature;
use bytes::Bytes;
use restow_store::{Change, Event, StoreError, Watch, WatchBatch, WatchRequest};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Streaming};

/// The batches that may wait for the consumer.
const QUEUE: usize = 16;
/// How long a full queue is borne with. After that the watch is closed at the server, to be resumed when the consumer
/// has caught up: the server would keep what is not fetched in its memory, and some versions lose it.
const STALL: Duration = Duration::from_millis(500);
/// How long a server may take to confirm a watch.
const OPEN_PATIENCE: Duration = Duration::from_secs(3);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// The most often that progress is asked for.
const SHORTEST_IDLE: Duration = Duration::from_millis(10);

impl EtcdStore {
    pub(crate) async fn start_watch(&self, request: WatchRequest) -> Result<Watch, StoreError> {
        let next = match request.from {
            // To etcd 0 is "from now on".
            Some(from) => number(from.get()).max(1),
            // Fixed here, so that a stream that breaks before it delivers anything resumes at the right place.
            None => number(self.current_revision().await?.get()).saturating_add(1),
        };
        let (batches, received) = mpsc::channel(QUEUE);
        let mut losses = self.history.losses();
        let mut follower = Follower {
            cluster: self.cluster.clone(),
            history: self.history.clone(),
            last: None,
            keyspace: self.keyspace.clone(),
            range: self.keyspace.range(&request.range),
            previous: request.previous,
            progress: request.progress.map(|idle| idle.max(SHORTEST_IDLE)),
            next,
            batches,
        };
        let stream = follower.open_within(self.cluster.request_timeout()).await?;
        // etcd would say so by the stream, too, but only after a while.
        let start = revision(follower.start_revision(&stream.link));
        if let Some(from) = request.from {
            if !self.is_readable(start).await? {
                return Err(self.compacted(start.next()).await);
            }
            // Whoever asks for more than there is speaks of a history that is lost, unless none ever was.
            let was_lost = *losses.borrow() > 0;
            if was_lost && from > self.current_revision().await?.next() {
                return Err(StoreError::HistoryLost);
            }
        }
        tokio::spawn(async move {
            let consumer = follower.batches.clone();
            tokio::select! {
                () = consumer.closed() => {}
                Ok(()) = losses.changed() => drop(consumer.send(Err(StoreError::HistoryLost)).await),
                () = follower.run(stream) => {}
            }
        });
        Ok(Watch::new(ReceiverStream::new(received)))
    }
}

/// The task behind a watch.
struct Follower {
    cluster: Arc<Cluster>,
    history: Arc<History>,
    /// The last change that was delivered: where, when, and whether something was there afterwards.
    last: Option<(Bytes, i64, Presence)>,
    keyspace: Keyspace,
    range: EtcdRange,
    previous: bool,
    progress: Option<Duration>,
    /// The first revision that is not delivered yet.
    next: i64,
    batches: mpsc::Sender<Result<WatchBatch, StoreError>>,
}

/// Whether a key exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Stored,
    Deleted,
}

/// An open watch at one member.
struct OpenStream {
    link: Link,
    responses: Streaming<WatchResponse>,
    /// Also keeps the stream of requests from ending, which would end the watch.
    requests: mpsc::Sender<proto::WatchRequest>,
}

/// Why a stream is not read any further.
enum Interruption {
    /// The connection, the member or the cluster has a problem.
    Failed(Failure),
    /// The consumer has left no room for this batch.
    Stalled(WatchBatch),
    /// The history from the next revision on is gone; it now begins here.
    Compacted(i64),
    /// The consumer is gone.
    Dropped,
    /// The server sends what makes no sense.
    Corrupted(StoreError),
}

impl Follower {
    async fn run(mut self, mut stream: OpenStream) {
        let mut pause = FIRST_PAUSE;
        loop {
            let opened = Instant::now();
            let interruption = self.follow(&mut stream).await;
            let link = stream.link;
            drop(stream.responses);
            let end = match interruption {
                Interruption::Failed(failure) => {
                    tracing::debug!(reason = failure.reason(), next = self.next, "a watch was interrupted");
                    self.cluster.report(&link, &failure);
                    // Streams that break as soon as they are opened are opened less and less often.
                    pause = if opened.elapsed() > LONGEST_PAUSE { FIRST_PAUSE } else { pause };
                    sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    None
                }
                Interruption::Stalled(batch) => self.batches.send(Ok(batch)).await.err().map(|_| None),
                Interruption::Compacted(oldest) => Some(Some(StoreError::Compacted { oldest: revision(oldest) })),
                Interruption::Corrupted(error) => Some(Some(error)),
                Interruption::Dropped => Some(None),
            };
            let reopened = match end {
                None => self.reopen().await.map_err(Some),
                Some(end) => Err(end),
            };
            stream = match reopened {
                Ok(stream) => stream,
                Err(error) => {
                    if let Some(error) = error {
                        let _ = self.batches.send(Err(error)).await;
                    }
                    return;
                }
            };
        }
    }

    /// Opens a stream anew, if the history is still the one of which changes were delivered.
    async fn reopen(&mut self) -> Result<OpenStream, StoreError> {
        loop {
            let stream = self.open_within(Duration::MAX).await?;
            match self.goes_on().await {
                Ok(true) => return Ok(stream),
                Ok(false) => {
                    self.history.lose();
                    return Err(StoreError::HistoryLost);
                }
                Err(error) => {
                    tracing::debug!(error = %StoreError::from(error), "whether a watch can go on is not known yet");
                    sleep(FIRST_PAUSE).await;
                }
            }
        }
    }

    /// Whether the last change that was delivered is part of the history. A store that was restored from a backup may
    /// have gone on meanwhile, and then its revision says nothing.
    async fn goes_on(&self) -> Result<bool, CallError> {
        let Some((key, changed, presence)) = self.last.clone() else { return Ok(true) };
        let request = proto::RangeRequest { key, revision: changed, keys_only: true, ..Default::default() };
        let seen = self.history.seen();
        let call = self.cluster.call(Kind::Read, |link| {
            let request = request.clone();
            async move { link.kv().range(link.request(request)).await }
        });
        match call.await {
            Ok(answer) => {
                self.history.meet(seen, answer.header);
                Ok(match presence {
                    Presence::Stored => answer.kvs.first().is_some_and(|kv| kv.mod_revision == changed),
                    Presence::Deleted => answer.kvs.is_empty(),
                })
            }
            Err(CallError::Rejected(Rejection::FutureRevision)) => Ok(false),
            // What cannot be compared any more is told by the stream, if it matters.
            Err(CallError::Rejected(Rejection::Compacted)) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Opens a stream at a member that can serve it, with growing pauses between the attempts.
    async fn open_within(&mut self, time: Duration) -> Result<OpenStream, StoreError> {
        let begun = Instant::now();
        let mut pause = FIRST_PAUSE;
        let mut renewed = false;
        loop {
            let (link, failure) = match self.open().await {
                Ok(stream) => return Ok(stream),
                Err(failed) => failed,
            };
            let refused = match failure {
                // Before 3.5 a token that has run out is answered with "permission denied".
                Failure::Rejected(Rejection::Denied(reason)) | Failure::Unauthenticated(reason) => reason,
                Failure::Rejected(rejection) => return Err(CallError::Rejected(rejection).into()),
                Failure::NotApplied(trouble) | Failure::InDoubt(trouble) => {
                    if begun.elapsed().saturating_add(pause) >= time {
                        return Err(StoreError::Unavailable(trouble.reason));
                    }
                    sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    continue;
                }
            };
            let Some(link) = link.filter(|_| !renewed) else {
                return Err(StoreError::Denied(refused));
            };
            match timeout(OPEN_PATIENCE, self.cluster.replace_token(&link, refused)).await {
                Ok(Ok(())) => renewed = true,
                Ok(Err(Failure::Rejected(rejection))) => return Err(CallError::Rejected(rejection).into()),
                // The next attempt asks again.
                Ok(Err(_)) | Err(_) => sleep(pause).await,
            }
        }
    }

    /// Opens a stream at the current member and waits until the watch is confirmed.
    async fn open(&self) -> Result<OpenStream, (Option<Link>, Failure)> {
        let link = match timeout(OPEN_PATIENCE, self.cluster.link()).await {
            Ok(link) => link.map_err(|failure| (None, failure))?,
            Err(_) => return Err((None, Failure::unreachable("connecting took too long"))),
        };
        let opened = match timeout(OPEN_PATIENCE, self.create(&link)).await {
            Ok(opened) => opened,
            Err(_) => Err(Failure::no_answer(format!("a watch was not confirmed within {OPEN_PATIENCE:?}"))),
        };
        opened.map_err(|failure| {
            self.cluster.report(&link, &failure);
            (Some(link), failure)
        })
    }

    /// Where to begin. A server that forgets the deletions of the revision that it compacts at would let a watch from
    /// there miss them; asked for one revision more, it says that this one is compacted.
    fn start_revision(&self, link: &Link) -> i64 {
        if link.has(Feature::WatchFromCut) { self.next } else { (self.next - 1).max(1) }
    }

    async fn create(&self, link: &Link) -> Result<OpenStream, Failure> {
        let create = WatchCreateRequest {
            key: self.range.key.clone(),
            range_end: self.range.range_end.clone(),
            start_revision: self.start_revision(link),
            // Also where nobody asked for marks: they move the point from which an idle watch resumes.
            progress_notify: true,
            prev_kv: self.previous,
        };
        let (requests, outgoing) = mpsc::channel(4);
        let create = watch_request::RequestUnion::CreateRequest(create);
        let sent = requests.send(proto::WatchRequest { request_union: Some(create) }).await;
        sent.map_err(|_| Failure::unreachable("the stream of requests is closed"))?;
        let answer = link.watch().watch(link.request(ReceiverStream::new(outgoing))).await;
        let mut responses = answer.map_err(|status| Failure::of(&status))?.into_inner();
        match responses.message().await {
            Ok(Some(response)) if response.created && !response.canceled => {
                Ok(OpenStream { link: link.clone(), responses, requests })
            }
            Ok(Some(response)) => Err(Failure::said(Code::Unknown, &response.cancel_reason)),
            Ok(None) => Err(Failure::no_answer("the watch was closed")),
            Err(status) => Err(Failure::of(&status)),
        }
    }

    /// Delivers what comes until something is in the way.
    async fn follow(&mut self, stream: &mut OpenStream) -> Interruption {
        let prompting = self.progress.filter(|_| stream.link.has(Feature::PromptProgress));
        let mut delivered = Instant::now();
        loop {
            let idle = prompting.unwrap_or(Duration::from_secs(3600));
            let response = tokio::select! {
                response = stream.responses.message() => response,
                () = sleep_until(delivered + idle), if prompting.is_some() => {
                    let ask = watch_request::RequestUnion::ProgressRequest(WatchProgressRequest {});
                    // A full queue holds requests enough.
                    let _ = stream.requests.try_send(proto::WatchRequest { request_union: Some(ask) });
                    delivered = Instant::now();
                    continue;
                }
            };
            let accepted = match response {
                Ok(Some(response)) => self.accept(response).await,
                Ok(None) => Err(Interruption::Failed(Failure::no_answer("the watch was closed"))),
                Err(status) => Err(Interruption::Failed(Failure::of(&status))),
            };
            match accepted {
                Ok(()) => delivered = Instant::now(),
                Err(interruption) => return interruption,
            }
        }
    }

    async fn accept(&mut self, response: WatchResponse) -> Result<(), Interruption> {
        if response.compact_revision > 0 {
            return Err(Interruption::Compacted(response.compact_revision));
        }
        if response.canceled {
            return Err(Interruption::Failed(Failure::said(Code::Unknown, &response.cancel_reason)));
        }
        if response.created {
            return Ok(());
        }
        match response.events.last().map(|event| event.kv.as_ref().map_or(0, |kv| kv.mod_revision)) {
            None => self.mark(response.header.unwrap_or_default().revision).await,
            // Sent again after the stream was resumed.
            Some(last) if last < self.next => Ok(()),
            Some(last) => {
                self.last = response.events.last().and_then(changed);
                let events = self.translate(response.events).map_err(Interruption::Corrupted)?;
                self.next = last.saturating_add(1);
                self.deliver(WatchBatch { revision: revision(last), events }).await
            }
        }
    }

    /// The server says that it has sent everything up to this revision.
    async fn mark(&mut self, up_to: i64) -> Result<(), Interruption> {
        // A member that lags behind the one that was asked before has nothing new to say.
        let stale = up_to.saturating_add(1) < self.next;
        self.next = self.next.max(up_to.saturating_add(1));
        if stale || self.progress.is_none() {
            return Ok(());
        }
        self.deliver(WatchBatch { revision: revision(up_to), events: Vec::new() }).await
    }

    async fn deliver(&self, batch: WatchBatch) -> Result<(), Interruption> {
        match timeout(STALL, self.batches.reserve()).await {
            Ok(Ok(room)) => {
                room.send(Ok(batch));
                Ok(())
            }
            Ok(Err(_)) => Err(Interruption::Dropped),
            Err(_) => Err(Interruption::Stalled(batch)),
        }
    }

    fn translate(&self, events: Vec<proto::Event>) -> Result<Vec<Event>, StoreError> {
        let mut translated = Vec::with_capacity(events.len());
        for event in events {
            let deleted = event.r#type() == proto::event::EventType::Delete;
            let Some(kv) = event.kv else {
                return Err(StoreError::Corrupted("etcd sent an event without a key".into()));
            };
            if kv.mod_revision < self.next {
                continue;
            }
            let revision = revision(kv.mod_revision);
            let change = if deleted {
                Change::Delete(self.keyspace.strip(kv.key)?)
            } else {
                Change::Put(self.keyspace.entry(kv)?)
            };
            let previous = event.prev_kv.map(|previous| self.keyspace.entry(previous)).transpose()?;
            translated.push(Event { revision, change, previous });
        }
        Ok(translated)
    }
}

/// Where and when an event changed something.
fn changed(event: &proto::Event) -> Option<(Bytes, i64, Presence)> {
    let presence = match event.r#type() {
        proto::event::EventType::Delete => Presence::Deleted,
        proto::event::EventType::Put => Presence::Stored,
    };
    event.kv.as_ref().map(|kv| (kv.key.clone().into(), kv.mod_revision, presence))
}
