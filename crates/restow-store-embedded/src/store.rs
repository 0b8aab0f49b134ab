//! `EmbeddedStore`: opens the store, serves reads, and passes writes and compactions to its threads.

use crate::compactor;
use crate::config::EmbeddedConfig;
use crate::directory::OpenError;
use crate::disk_space::DiskSpace;
use crate::engine::Opened;
use crate::index::Index;
use crate::open::{self, OpenFiles};
use crate::pending::value_bytes;
use crate::shared::SharedState;
use crate::watcher::Watcher;
use crate::writer::{Acknowledged, Job, Writer};
use async_trait::async_trait;
use bytes::Bytes;
use restow_store::{
    At, Content, Entry, RangeRequest, RangeResponse, Revision, Store, StoreError, StoreStatus, Txn, TxnOutcome, Watch,
    WatchRequest,
};
use std::sync::mpsc::Sender;
use std::sync::{Arc, RwLockReadGuard, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};

/// The queue of the writer: how many transactions may wait, or fewer if they are large. A transaction takes one permit, and
/// another one for each of so many bytes.
const MAX_QUEUED_TXNS: u32 = 8192;
const BYTES_PER_PERMIT: usize = 32 << 10;
/// If more values than this are not cached, the whole range is scanned on disk.
const SCAN_THRESHOLD: usize = 64;
/// A read of at most so many keys is served without a blocking task.
const MAX_INLINE_KEYS: usize = 1000;

/// An embedded store. It is closed when it is dropped.
pub struct EmbeddedStore {
    shared: Arc<SharedState>,
    config: EmbeddedConfig,
    jobs: Sender<Job>,
    commands: Sender<compactor::Command>,
    waiting: Arc<Semaphore>,
    threads: Vec<JoinHandle<()>>,
}

impl EmbeddedStore {
    /// Opens the store, or creates it if the directory is empty. It blocks while it reads the disk.
    pub fn open(config: EmbeddedConfig) -> Result<Self, OpenError> {
        let OpenFiles { directory, witness, opened } = open::open(&config)?;
        let Opened { engine, fingerprint, keys } = opened;
        let (revision, compacted) = (fingerprint.revision, fingerprint.compacted);
        let index = Index::new(revision, compacted, keys, config.cache_bytes);
        let shared = Arc::new(SharedState::new(directory, engine, index));
        let (jobs, job_queue) = mpsc::channel();
        let (commands, command_queue) = mpsc::channel();
        let acknowledged = Acknowledged { fingerprint, witness };
        let writer = Writer::new(shared.clone(), acknowledged, DiskSpace::new(&config), commands.clone());
        let (compactor_shared, compactor_space) = (shared.clone(), DiskSpace::new(&config));
        let threads = vec![
            spawn("restow-store-writer", &config, move || writer.run(&job_queue))?,
            spawn("restow-store-compactor", &config, move || {
                compactor::run(&compactor_shared, compactor_space, &command_queue);
            })?,
        ];
        if compacted > Revision::ZERO {
            // Continues a compaction that the last run did not finish. The thread was just started, so it receives this.
            let _ = commands.send(compactor::Command::UpTo(compacted));
        }
        let waiting = Arc::new(Semaphore::new(MAX_QUEUED_TXNS as usize));
        Ok(EmbeddedStore { shared, config, jobs, commands, waiting, threads })
    }

    #[cfg(test)]
    pub(crate) fn shared(&self) -> &Arc<SharedState> {
        &self.shared
    }

    fn read(shared: &SharedState, request: &RangeRequest) -> Result<RangeResponse, StoreError> {
        let index = shared.index();
        let latest = index.revision();
        let at = match request.at {
            At::Latest => latest,
            At::Revision(revision) => revision,
        };
        if at > latest {
            return Err(StoreError::FutureRevision { requested: at, current: latest });
        }
        if at < index.compacted() {
            return Err(StoreError::Compacted { oldest: index.compacted() });
        }
        if at == latest {
            return read_latest(shared, index, request);
        }
        let mut builder = ResponseBuilder::new(request, latest);
        if request.content == Content::CountOnly
            && let Some(count) = index.count_at(&request.range, at)
        {
            builder.response.count = Some(count);
            return Ok(builder.response);
        }
        // Taken under the lock, so that no compaction can happen in between.
        let snapshot = shared.snapshot()?;
        drop(index);
        snapshot.scan(&request.range, at, |key, state, value| builder.add(|| state.entry(key, value)))?;
        Ok(builder.response)
    }
}

/// Reads the latest revision from the index. Also returns the positions of the entries whose value is not cached.
fn read_in_memory(index: &Index, request: &RangeRequest) -> (RangeResponse, Vec<usize>) {
    let mut builder = ResponseBuilder::new(request, index.revision());
    let mut missing = Vec::new();
    for (key, slot) in index.range(&request.range) {
        let position = builder.response.entries.len();
        let wants_more = builder.add(|| slot.state.entry(key.clone(), slot.value.clone().unwrap_or_default()));
        if slot.value.is_none() && request.content == Content::Full && builder.response.entries.len() > position {
            missing.push(position);
        }
        if !wants_more {
            break;
        }
    }
    (builder.response, missing)
}

/// Reads the latest revision from the index, and values that are not cached from the disk.
fn read_latest(
    shared: &SharedState,
    index: RwLockReadGuard<'_, Index>,
    request: &RangeRequest,
) -> Result<RangeResponse, StoreError> {
    let (mut response, missing) = read_in_memory(&index, request);
    if missing.is_empty() {
        return Ok(response);
    }
    // Taken under the lock, so that no compaction can happen in between; read without the lock.
    let snapshot = shared.snapshot()?;
    let revision = index.revision();
    drop(index);
    if missing.len() > SCAN_THRESHOLD {
        // One scan is faster than so many lookups.
        let mut builder = ResponseBuilder::new(request, revision);
        snapshot.scan(&request.range, revision, |key, state, value| builder.add(|| state.entry(key, value)))?;
        return Ok(builder.response);
    }
    for position in &missing {
        let entry = &mut response.entries[*position];
        entry.value = snapshot.value(&entry.key, entry.mod_revision)?;
    }
    let mut index = shared.index_mut();
    for entry in missing.iter().map(|position| &response.entries[*position]) {
        index.cache_value(&entry.key, entry.mod_revision, &entry.value);
    }
    Ok(response)
}

/// Builds a response within the limits of its request.
struct ResponseBuilder<'a> {
    request: &'a RangeRequest,
    response: RangeResponse,
    seen: u64,
}

impl<'a> ResponseBuilder<'a> {
    fn new(request: &'a RangeRequest, revision: Revision) -> Self {
        let response = RangeResponse { revision, entries: Vec::new(), more: false, count: Some(0) };
        ResponseBuilder { request, response, seen: 0 }
    }

    /// Adds an entry; returns whether there should be more.
    fn add(&mut self, entry: impl FnOnce() -> Entry) -> bool {
        if self.request.content == Content::CountOnly {
            self.seen += 1;
            self.response.count = Some(self.seen);
            return true;
        }
        if self.request.limit.is_some_and(|limit| self.response.entries.len() >= limit.get()) {
            // The rest is not read, so it is not counted either.
            self.response.more = true;
            self.response.count = None;
            return false;
        }
        self.seen += 1;
        self.response.count = Some(self.seen);
        let mut entry = entry();
        if self.request.content == Content::KeysOnly {
            entry.value = Bytes::new();
        }
        self.response.entries.push(entry);
        true
    }
}

#[async_trait]
impl Store for EmbeddedStore {
    async fn range(&self, request: RangeRequest) -> Result<RangeResponse, StoreError> {
        let single = request.range.end().is_some_and(|end| end.len() == request.range.start().len() + 1);
        let quick = request.limit.is_some_and(|limit| limit.get() <= MAX_INLINE_KEYS) || single;
        if quick && request.at == At::Latest {
            let (response, missing) = read_in_memory(&self.shared.index(), &request);
            if missing.is_empty() {
                return Ok(response);
            }
        }
        let shared = self.shared.clone();
        let read = tokio::task::spawn_blocking(move || Self::read(&shared, &request));
        let timeout = self.config.request_timeout;
        match tokio::time::timeout(timeout, read).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => Err(StoreError::Unavailable(format!("reading failed: {error}"))),
            Err(_) => Err(StoreError::Unavailable(format!("the disk did not answer within {timeout:?}"))),
        }
    }

    async fn txn(&self, txn: Txn) -> Result<TxnOutcome, StoreError> {
        txn.check(&self.config.limits)?;
        let timeout = self.config.request_timeout;
        let permit = self.waiting.clone().acquire_many_owned(permits_for(&txn));
        let permit = tokio::time::timeout(timeout, permit).await;
        let Ok(Ok(permit)) = permit else {
            return Err(StoreError::Unavailable("too many writes are queued for the disk".into()));
        };
        let (reply, answer) = oneshot::channel();
        let job = Job::Txn { txn, reply, _permit: permit };
        self.jobs.send(job).map_err(|_| StoreError::Unavailable("the store is closed".into()))?;
        reply_within(timeout, answer).await
    }

    async fn watch(&self, request: WatchRequest) -> Result<Watch, StoreError> {
        let first = {
            let index = self.shared.index();
            let first = request.from.unwrap_or_else(|| index.revision().next());
            if first < index.compacted() {
                return Err(StoreError::Compacted { oldest: index.compacted() });
            }
            first
        };
        Ok(Watch::new(Watcher::new(&self.shared, request, first).into_stream()))
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        let (reply, answer) = oneshot::channel();
        let job = Job::Compact { revision, reply };
        self.jobs.send(job).map_err(|_| StoreError::Unavailable("the store is closed".into()))?;
        reply_within(self.config.request_timeout, answer).await
    }

    async fn status(&self) -> Result<StoreStatus, StoreError> {
        Ok(StoreStatus {
            backend: "embedded (fjall)".into(),
            revision: self.shared.index().revision(),
            disk_bytes: self.shared.engine()?.disk_bytes(),
            prompt_progress: true,
        })
    }

    async fn ready(&self) -> Result<(), StoreError> {
        self.shared.engine()?;
        self.shared.check_ready()
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        self.shared.progress.send_modify(|progress| progress.closed = true);
        // A send fails only if the thread has ended already.
        let _ = self.jobs.send(Job::Stop);
        let _ = self.commands.send(compactor::Command::Stop);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the store panicked");
            }
        }
        if let Ok(engine) = self.shared.engine() {
            engine.flush();
        }
    }
}

/// Waits for the reply of the writer.
async fn reply_within<T>(timeout: Duration, answer: oneshot::Receiver<Result<T, StoreError>>) -> Result<T, StoreError> {
    match tokio::time::timeout(timeout, answer).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Err(StoreError::OutcomeUnknown("the store was closed before it replied".into())),
        Err(_) => Err(StoreError::OutcomeUnknown(format!("the disk did not answer within {timeout:?}"))),
    }
}

/// How many permits of the queue a transaction takes, so that large ones do not fill the memory.
fn permits_for(txn: &Txn) -> u32 {
    let permits = 1 + value_bytes(txn) / BYTES_PER_PERMIT;
    u32::try_from(permits).unwrap_or(u32::MAX).min(MAX_QUEUED_TXNS)
}

fn spawn(
    name: &str,
    config: &EmbeddedConfig,
    work: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, OpenError> {
    let spawned = std::thread::Builder::new().name(name.into()).spawn(work);
    spawned.map_err(|source| OpenError::Io { action: "start a thread for", path: config.directory.clone(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use restow_store::Key;

    #[tokio::test]
    async fn a_reply_that_does_not_come_leaves_the_outcome_unknown() {
        let (reply, answer) = oneshot::channel::<Result<(), StoreError>>();
        let outcome = reply_within(Duration::from_millis(10), answer).await;
        assert!(matches!(outcome, Err(StoreError::OutcomeUnknown(reason)) if reason.contains("10ms")));
        drop(reply);
        let (reply, answer) = oneshot::channel::<Result<(), StoreError>>();
        drop(reply);
        let outcome = reply_within(Duration::from_secs(10), answer).await;
        assert!(matches!(outcome, Err(StoreError::OutcomeUnknown(reason)) if reason.contains("closed")));
    }

    #[test]
    fn large_transactions_take_more_permits() {
        let key = |n: usize| Key::try_from(format!("k{n}")).unwrap();
        let put = |n: usize, size: usize| Txn::new().put(&key(n), vec![0; size]);
        assert_eq!(permits_for(&Txn::new()), 1);
        assert_eq!(permits_for(&put(1, 2000)), 1);
        assert_eq!(permits_for(&put(1, 1 << 20)), 33);
        assert_eq!(permits_for(&put(1, MAX_QUEUED_TXNS as usize * BYTES_PER_PERMIT)), MAX_QUEUED_TXNS);
    }
}
