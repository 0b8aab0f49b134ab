//! Watches: one gRPC stream each, which is resumed after the last delivered revision whenever it breaks.
//!
//! A task reads the stream and sends batches to the consumer through a short queue. It ends when the consumer drops the
//! watch, when the revisions that it needs are compacted or rolled back, or when access is denied. After all other failures
//! it opens the stream again.

use crate::cluster::{CallKind, Client, EtcdCluster};
use crate::failure::{CallError, Failure, Rejection};
use crate::keyspace::{EtcdRange, Keyspace, number, revision};
use crate::proto::{self, WatchCreateRequest, WatchProgressRequest, WatchResponse, watch_request};
use crate::rollback::RollbackDetector;
use crate::store::EtcdStore;
use crate::version::Feature;
use backon::{BackoffBuilder, ExponentialBuilder};
use bytes::Bytes;
use restow_store::{Change, Event, StoreError, Watch, WatchBatch, WatchRequest};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Streaming};

/// How many batches may wait for the consumer.
const QUEUED_BATCHES: usize = 16;
/// How long the queue may be full. After that the watch is closed at the server, and resumed when the consumer has caught up:
/// the server would keep unread events in memory, and some versions lose them.
const STALL_TIMEOUT: Duration = Duration::from_millis(500);
/// The timeout for connecting, and for the creation of a watch.
const OPEN_TIMEOUT: Duration = Duration::from_secs(3);
const MIN_DELAY: Duration = Duration::from_millis(50);
const MAX_DELAY: Duration = Duration::from_secs(2);
/// The delays before a stream is opened again.
const BACKOFF: ExponentialBuilder =
    ExponentialBuilder::new().with_min_delay(MIN_DELAY).with_max_delay(MAX_DELAY).without_max_times();
/// The shortest interval between requests for progress notifications.
const MIN_PROGRESS_INTERVAL: Duration = Duration::from_millis(10);

impl EtcdStore {
    pub(crate) async fn start_watch(&self, request: WatchRequest) -> Result<Watch, StoreError> {
        let next = match request.from {
            // etcd takes 0 for "from now on".
            Some(from) => number(from.get()).max(1),
            // Fixed here, so that a stream that breaks before its first event resumes at the right revision.
            None => number(self.current_revision().await?.get()).saturating_add(1),
        };
        let (batches, received) = mpsc::channel(QUEUED_BATCHES);
        let mut rollbacks = self.rollback_detector.subscribe();
        let mut task = WatchTask {
            cluster: self.cluster.clone(),
            rollback_detector: self.rollback_detector.clone(),
            last: None,
            keyspace: self.keyspace.clone(),
            range: self.keyspace.range(&request.range),
            previous: request.previous,
            progress: request.progress.map(|idle| idle.max(MIN_PROGRESS_INTERVAL)),
            next,
            batches,
        };
        let stream = task.open_within(self.cluster.request_timeout()).await?;
        // etcd would cancel the stream for the same reason, but only after a while.
        let start = revision(task.start_revision(&stream.client));
        if let Some(from) = request.from {
            if !self.is_readable(start).await? {
                return Err(self.compacted(start.next()).await);
            }
            // After a rollback, a start revision in the future belongs to the lost history.
            let was_rolled_back = *rollbacks.borrow() > 0;
            if was_rolled_back && from > self.current_revision().await?.next() {
                return Err(StoreError::HistoryLost);
            }
        }
        tokio::spawn(async move {
            let consumer = task.batches.clone();
            tokio::select! {
                () = consumer.closed() => {}
                Ok(()) = rollbacks.changed() => drop(consumer.send(Err(StoreError::HistoryLost)).await),
                () = task.run(stream) => {}
            }
        });
        Ok(Watch::new(ReceiverStream::new(received)))
    }
}

/// The task that serves a watch.
struct WatchTask {
    cluster: Arc<EtcdCluster>,
    rollback_detector: Arc<RollbackDetector>,
    /// The last delivered change: its key and revision, and whether the key exists since then.
    last: Option<(Bytes, i64, Presence)>,
    keyspace: Keyspace,
    range: EtcdRange,
    previous: bool,
    progress: Option<Duration>,
    /// The first revision that was not delivered yet.
    next: i64,
    batches: mpsc::Sender<Result<WatchBatch, StoreError>>,
}

/// Whether a key exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Stored,
    Deleted,
}

/// An open watch stream at one member.
struct OpenStream {
    client: Client,
    responses: Streaming<WatchResponse>,
    /// It also keeps the stream of requests open, whose end would end the watch.
    requests: mpsc::Sender<proto::WatchRequest>,
}

/// Why reading a stream ended.
enum Interruption {
    /// The connection, the member or the cluster failed.
    Failed(Failure),
    /// The queue is full, and this batch is not delivered yet.
    Stalled(WatchBatch),
    /// The next revision is compacted; this is the compact revision.
    Compacted(i64),
    /// The consumer has dropped the watch.
    Dropped,
    /// The server sent an invalid event.
    Corrupted(StoreError),
}

impl WatchTask {
    async fn run(mut self, mut stream: OpenStream) {
        let mut backoff = BACKOFF.build();
        loop {
            let opened = Instant::now();
            let interruption = self.deliver_all(&mut stream).await;
            let client = stream.client;
            drop(stream.responses);
            let end = match interruption {
                Interruption::Failed(failure) => {
                    tracing::debug!(reason = failure.reason(), next = self.next, "a watch was interrupted");
                    self.cluster.report(&client, &failure);
                    // The delays grow while streams break soon after they were opened.
                    if opened.elapsed() > MAX_DELAY {
                        backoff = BACKOFF.build();
                    }
                    sleep(backoff.next().unwrap_or(MAX_DELAY)).await;
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

    /// Opens the stream again, if the history was not rolled back.
    async fn reopen(&mut self) -> Result<OpenStream, StoreError> {
        loop {
            let stream = self.open_within(Duration::MAX).await?;
            match self.resumes_same_history().await {
                Ok(true) => return Ok(stream),
                Ok(false) => {
                    self.rollback_detector.report();
                    return Err(StoreError::HistoryLost);
                }
                Err(error) => {
                    tracing::debug!(error = %StoreError::from(error), "could not check whether the history was rolled back; trying again");
                    sleep(MIN_DELAY).await;
                }
            }
        }
    }

    /// Whether the last delivered change is still part of the history. A store that was restored from a backup may have
    /// reached the same revision again, so comparing revisions is not enough.
    async fn resumes_same_history(&self) -> Result<bool, CallError> {
        let Some((key, changed, presence)) = self.last.clone() else { return Ok(true) };
        let request = proto::RangeRequest { key, revision: changed, keys_only: true, ..Default::default() };
        let seen = self.rollback_detector.seen();
        let call = self.cluster.call(CallKind::Read, |client| {
            let request = request.clone();
            async move { client.kv().range(client.request(request)).await }
        });
        match call.await {
            Ok(answer) => {
                self.rollback_detector.observe(seen, answer.header);
                Ok(match presence {
                    Presence::Stored => answer.kvs.first().is_some_and(|kv| kv.mod_revision == changed),
                    Presence::Deleted => answer.kvs.is_empty(),
                })
            }
            Err(CallError::Rejected(Rejection::FutureRevision)) => Ok(false),
            // If a revision that the watch needs is compacted, the stream reports it.
            Err(CallError::Rejected(Rejection::Compacted)) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Opens a stream at a member that can serve it, with backoff between attempts.
    async fn open_within(&mut self, time: Duration) -> Result<OpenStream, StoreError> {
        let begun = Instant::now();
        let mut backoff = BACKOFF.build();
        let mut delay = MIN_DELAY;
        let mut token_renewed = false;
        loop {
            let (client, failure) = match self.open().await {
                Ok(stream) => return Ok(stream),
                Err(failed) => failed,
            };
            let refused = match failure {
                // Before 3.5 an expired token fails with "permission denied".
                Failure::Rejected(Rejection::Denied(reason)) | Failure::Unauthenticated(reason) => reason,
                Failure::Rejected(rejection) => return Err(CallError::Rejected(rejection).into()),
                Failure::NotApplied(problem) | Failure::OutcomeUnknown(problem) => {
                    delay = backoff.next().unwrap_or(MAX_DELAY);
                    if begun.elapsed().saturating_add(delay) >= time {
                        return Err(StoreError::Unavailable(problem.reason));
                    }
                    sleep(delay).await;
                    continue;
                }
            };
            let Some(client) = client.filter(|_| !token_renewed) else {
                return Err(StoreError::Denied(refused));
            };
            match timeout(OPEN_TIMEOUT, self.cluster.replace_token(&client, refused)).await {
                Ok(Ok(())) => token_renewed = true,
                Ok(Err(Failure::Rejected(rejection))) => return Err(CallError::Rejected(rejection).into()),
                // The next attempt requests a token again.
                Ok(Err(_)) | Err(_) => sleep(delay).await,
            }
        }
    }

    /// Opens a stream at the current member, and waits until the server has created the watch.
    async fn open(&self) -> Result<OpenStream, (Option<Client>, Failure)> {
        let client = match timeout(OPEN_TIMEOUT, self.cluster.client()).await {
            Ok(client) => client.map_err(|failure| (None, failure))?,
            Err(_) => return Err((None, Failure::unreachable("connecting took too long"))),
        };
        let opened = match timeout(OPEN_TIMEOUT, self.create(&client)).await {
            Ok(opened) => opened,
            Err(_) => Err(Failure::no_response(format!("a watch was not created within {OPEN_TIMEOUT:?}"))),
        };
        opened.map_err(|failure| {
            self.cluster.report(&client, &failure);
            (Some(client), failure)
        })
    }

    /// The start revision for the server. With the bug of [`Feature::WatchFromCompactRevision`] a watch from the compact
    /// revision would miss deletions; started one revision earlier, it fails as compacted.
    fn start_revision(&self, client: &Client) -> i64 {
        if client.has(Feature::WatchFromCompactRevision) { self.next } else { (self.next - 1).max(1) }
    }

    async fn create(&self, client: &Client) -> Result<OpenStream, Failure> {
        let create = WatchCreateRequest {
            key: self.range.key.clone(),
            range_end: self.range.range_end.clone(),
            start_revision: self.start_revision(client),
            // Also if no progress was requested: notifications advance the revision from which an idle watch resumes.
            progress_notify: true,
            prev_kv: self.previous,
        };
        let (requests, outgoing) = mpsc::channel(4);
        let create = watch_request::RequestUnion::CreateRequest(create);
        let sent = requests.send(proto::WatchRequest { request_union: Some(create) }).await;
        sent.map_err(|_| Failure::unreachable("the stream of requests is closed"))?;
        let answer = client.watch().watch(client.request(ReceiverStream::new(outgoing))).await;
        let mut responses = answer.map_err(|status| Failure::from_status(&status))?.into_inner();
        match responses.message().await {
            Ok(Some(response)) if response.created && !response.canceled => {
                Ok(OpenStream { client: client.clone(), responses, requests })
            }
            Ok(Some(response)) => Err(Failure::from_message(Code::Unknown, &response.cancel_reason)),
            Ok(None) => Err(Failure::no_response("the watch was closed")),
            Err(status) => Err(Failure::from_status(&status)),
        }
    }

    /// Delivers events until the stream, the queue or the consumer ends it.
    async fn deliver_all(&mut self, stream: &mut OpenStream) -> Interruption {
        let prompting = self.progress.filter(|_| stream.client.has(Feature::PromptProgress));
        let mut delivered = Instant::now();
        loop {
            let idle = prompting.unwrap_or(Duration::from_secs(3600));
            let response = tokio::select! {
                response = stream.responses.message() => response,
                () = sleep_until(delivered + idle), if prompting.is_some() => {
                    let request = watch_request::RequestUnion::ProgressRequest(WatchProgressRequest {});
                    // If the queue is full, requests are waiting already.
                    let _ = stream.requests.try_send(proto::WatchRequest { request_union: Some(request) });
                    delivered = Instant::now();
                    continue;
                }
            };
            let accepted = match response {
                Ok(Some(response)) => self.accept(response).await,
                Ok(None) => Err(Interruption::Failed(Failure::no_response("the watch was closed"))),
                Err(status) => Err(Interruption::Failed(Failure::from_status(&status))),
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
            return Err(Interruption::Failed(Failure::from_message(Code::Unknown, &response.cancel_reason)));
        }
        if response.created {
            return Ok(());
        }
        match response.events.last().map(|event| event.kv.as_ref().map_or(0, |kv| kv.mod_revision)) {
            None => self.notify_progress(response.header.unwrap_or_default().revision).await,
            // Delivered already, before the stream was resumed.
            Some(last) if last < self.next => Ok(()),
            Some(last) => {
                self.last = response.events.last().and_then(changed);
                let events = self.translate(response.events).map_err(Interruption::Corrupted)?;
                self.next = last.saturating_add(1);
                self.deliver(WatchBatch { revision: revision(last), events }).await
            }
        }
    }

    /// A progress notification: the server has sent everything up to this revision.
    async fn notify_progress(&mut self, up_to: i64) -> Result<(), Interruption> {
        // A member may be behind the one that served the stream before.
        let stale = up_to.saturating_add(1) < self.next;
        self.next = self.next.max(up_to.saturating_add(1));
        if stale || self.progress.is_none() {
            return Ok(());
        }
        self.deliver(WatchBatch { revision: revision(up_to), events: Vec::new() }).await
    }

    async fn deliver(&self, batch: WatchBatch) -> Result<(), Interruption> {
        match timeout(STALL_TIMEOUT, self.batches.reserve()).await {
            Ok(Ok(permit)) => {
                permit.send(Ok(batch));
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

/// The key and revision of an event, and whether the key exists since then.
fn changed(event: &proto::Event) -> Option<(Bytes, i64, Presence)> {
    let presence = match event.r#type() {
        proto::event::EventType::Delete => Presence::Deleted,
        proto::event::EventType::Put => Presence::Stored,
    };
    event.kv.as_ref().map(|kv| (kv.key.clone().into(), kv.mod_revision, presence))
}
