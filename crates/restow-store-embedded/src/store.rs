//! The store itself: opening, reading, and handing work to the threads behind it.

use crate::compactor;
use crate::config::EmbeddedConfig;
use crate::directory::{Directory, OpenError};
use crate::engine::{Engine, Opened};
use crate::index::Index;
use crate::opening::{self, OpenFiles};
use crate::recent::Recent;
use crate::space::Space;
use crate::view::View;
use crate::watcher::Watcher;
use crate::writer::{Job, Ledger, Writer, size_of};
use async_trait::async_trait;
use bytes::Bytes;
use restow_store::{
    At, Content, Entry, RangeRequest, RangeResponse, Revision, Status, Store, StoreError, Txn, TxnOutcome, Watch,
    WatchRequest,
};
use std::sync::mpsc::Sender;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot, watch};

/// How much may wait for the writer: so many transactions, or fewer that are larger than the room for one.
const WAITING_TXNS: u32 = 8192;
const WAITING_TXN_BYTES: usize = 32 << 10;
/// From how many values that are not in memory on a range is read in order from the disk.
const SCAN_FROM: usize = 64;
/// Up to how many keys a read is so quick that it is done on the spot.
const QUICK_KEYS: usize = 1000;

/// An embedded store. It is closed when it is dropped.
pub struct EmbeddedStore {
    shared: Arc<Shared>,
    config: EmbeddedConfig,
    jobs: Sender<Job>,
    orders: Sender<compactor::Order>,
    waiting: Arc<Semaphore>,
    threads: Vec<JoinHandle<()>>,
}

/// What the threads, the watchers and the store share.
pub(crate) struct Shared {
    pub(crate) recent: Recent,
    pub(crate) progress: watch::Sender<Progress>,
    pub(crate) directory: Directory,
    index: RwLock<Index>,
    /// Absent for as long as it is being opened again.
    engine: RwLock<Option<Arc<Engine>>>,
    /// Why nothing can be written at present.
    obstacle: RwLock<Option<StoreError>>,
}

/// How far the store is, as watchers see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) revision: Revision,
    pub(crate) closed: bool,
}

impl Shared {
    pub(crate) fn index(&self) -> RwLockReadGuard<'_, Index> {
        // A change to the index is complete before anything in it can panic.
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn index_mut(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The engine. Nobody keeps it for long, so that it can be opened again.
    pub(crate) fn engine(&self) -> Result<Arc<Engine>, StoreError> {
        let engine = self.engine.read().unwrap_or_else(PoisonError::into_inner);
        engine.clone().ok_or_else(|| StoreError::Unavailable("the store is being opened again".into()))
    }

    /// A view of the engine as it is now.
    pub(crate) fn view(&self) -> Result<View, StoreError> {
        self.engine().map(View::of)
    }

    /// Puts another engine in the place of this one, or none.
    pub(crate) fn replace_engine(&self, engine: Option<Arc<Engine>>) -> Option<Arc<Engine>> {
        std::mem::replace(&mut *self.engine.write().unwrap_or_else(PoisonError::into_inner), engine)
    }

    /// Says why nothing can be written at present, or that everything can.
    pub(crate) fn set_obstacle(&self, obstacle: Option<StoreError>) {
        *self.obstacle.write().unwrap_or_else(PoisonError::into_inner) = obstacle;
    }
}

impl EmbeddedStore {
    /// Opens the store, or makes a new one where there is none. It blocks while it reads from the disk.
    pub fn open(config: EmbeddedConfig) -> Result<Self, OpenError> {
        let OpenFiles { directory, witness, opened } = opening::open(&config)?;
        let Opened { engine, account, keys } = opened;
        let (revision, compacted) = (account.revision, account.compacted);
        let shared = Arc::new(Shared {
            recent: Recent::after(revision),
            progress: watch::channel(Progress { revision, closed: false }).0,
            directory,
            index: RwLock::new(Index::new(revision, compacted, keys, config.cache_bytes)),
            engine: RwLock::new(Some(Arc::new(engine))),
            obstacle: RwLock::new(None),
        });
        let (jobs, job_queue) = mpsc::channel();
        let (orders, order_queue) = mpsc::channel();
        let ledger = Ledger { account, witness };
        let writer = Writer::new(shared.clone(), ledger, Space::new(&config), orders.clone());
        let (compactor_shared, compactor_space) = (shared.clone(), Space::new(&config));
        let threads = vec![
            spawn("restow-store-writer", &config, move || writer.run(&job_queue))?,
            spawn("restow-store-compactor", &config, move || {
                compactor::run(&compactor_shared, compactor_space, &order_queue);
            })?,
        ];
        if compacted > Revision::ZERO {
            // Takes up what the last run left; the thread was just started, so it is there to hear it.
            let _ = orders.send(compactor::Order::UpTo(compacted));
        }
        let waiting = Arc::new(Semaphore::new(WAITING_TXNS as usize));
        Ok(EmbeddedStore { shared, config, jobs, orders, waiting, threads })
    }

    #[cfg(test)]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn read(shared: &Shared, request: &RangeRequest) -> Result<RangeResponse, StoreError> {
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
            return read_present(shared, index, request);
        }
        let mut answer = Answer::new(request, latest);
        if request.content == Content::CountOnly
            && let Some(count) = index.count_at(&request.range, at)
        {
            answer.response.count = Some(count);
            return Ok(answer.response);
        }
        // Taken under the lock, so that no compaction can come in between.
        let view = shared.view()?;
        drop(index);
        view.scan(&request.range, at, |key, state, value| answer.add(|| state.entry(key, value)))?;
        Ok(answer.response)
    }
}

/// Reads the latest revision from the index, and says at which places the value is not in memory.
fn read_in_memory(index: &Index, request: &RangeRequest) -> (RangeResponse, Vec<usize>) {
    let mut answer = Answer::new(request, index.revision());
    let mut missing = Vec::new();
    for (key, slot) in index.range(&request.range) {
        let place = answer.response.entries.len();
        let goes_on = answer.add(|| slot.state.entry(key.clone(), slot.value.clone().unwrap_or_default()));
        if slot.value.is_none() && request.content == Content::Full && answer.response.entries.len() > place {
            missing.push(place);
        }
        if !goes_on {
            break;
        }
    }
    (answer.response, missing)
}

/// Reads the latest revision from the index, and only values that are not in memory from the disk.
fn read_present(
    shared: &Shared,
    index: RwLockReadGuard<'_, Index>,
    request: &RangeRequest,
) -> Result<RangeResponse, StoreError> {
    let (mut response, missing) = read_in_memory(&index, request);
    if missing.is_empty() {
        return Ok(response);
    }
    // Taken under the lock, so that no compaction can come in between; read without it.
    let view = shared.view()?;
    let revision = index.revision();
    drop(index);
    if missing.len() > SCAN_FROM {
        // So much has to be read that reading all of it in order is quicker than seeking each.
        let mut answer = Answer::new(request, revision);
        view.scan(&request.range, revision, |key, state, value| answer.add(|| state.entry(key, value)))?;
        return Ok(answer.response);
    }
    for place in &missing {
        let entry = &mut response.entries[*place];
        entry.value = view.value(&entry.key, entry.mod_revision)?;
    }
    let mut index = shared.index_mut();
    for entry in missing.iter().map(|place| &response.entries[*place]) {
        index.remember(&entry.key, entry.mod_revision, &entry.value);
    }
    Ok(response)
}

/// Gathers an answer within the limits of its request.
struct Answer<'a> {
    request: &'a RangeRequest,
    response: RangeResponse,
    seen: u64,
}

impl<'a> Answer<'a> {
    fn new(request: &'a RangeRequest, revision: Revision) -> Self {
        let response = RangeResponse { revision, entries: Vec::new(), more: false, count: Some(0) };
        Answer { request, response, seen: 0 }
    }

    /// Takes a key of the range; returns whether it wants another one.
    fn add(&mut self, entry: impl FnOnce() -> Entry) -> bool {
        if self.request.content == Content::CountOnly {
            self.seen += 1;
            self.response.count = Some(self.seen);
            return true;
        }
        if self.request.limit.is_some_and(|limit| self.response.entries.len() >= limit.get()) {
            // The rest is not looked at, so it is not counted either.
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
        let quick = request.limit.is_some_and(|limit| limit.get() <= QUICK_KEYS) || single;
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
        let permit = self.waiting.clone().acquire_many_owned(places_for(&txn));
        let permit = tokio::time::timeout(timeout, permit).await;
        let Ok(Ok(permit)) = permit else {
            return Err(StoreError::Unavailable("too many writes wait for the disk".into()));
        };
        let (reply, answer) = oneshot::channel();
        let job = Job::Txn { txn, reply, _permit: permit };
        self.jobs.send(job).map_err(|_| StoreError::Unavailable("the store is closed".into()))?;
        answer_within(timeout, answer).await
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
        answer_within(self.config.request_timeout, answer).await
    }

    async fn status(&self) -> Result<Status, StoreError> {
        Ok(Status {
            backend: "embedded (fjall)".into(),
            revision: self.shared.index().revision(),
            disk_bytes: self.shared.engine()?.disk_bytes(),
            prompt_progress: true,
        })
    }

    async fn ready(&self) -> Result<(), StoreError> {
        self.shared.engine()?;
        self.shared.obstacle.read().unwrap_or_else(PoisonError::into_inner).clone().map_or(Ok(()), Err)
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        self.shared.progress.send_modify(|progress| progress.closed = true);
        // A thread that is gone already needs no telling.
        let _ = self.jobs.send(Job::Stop);
        let _ = self.orders.send(compactor::Order::Stop);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the store ended with a panic");
            }
        }
        if let Ok(engine) = self.shared.engine() {
            engine.settle();
        }
    }
}

/// Waits for the writer's answer.
async fn answer_within<T>(
    timeout: Duration,
    answer: oneshot::Receiver<Result<T, StoreError>>,
) -> Result<T, StoreError> {
    match tokio::time::timeout(timeout, answer).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Err(StoreError::OutcomeUnknown("the store was closed meanwhile".into())),
        Err(_) => Err(StoreError::OutcomeUnknown(format!("the disk did not answer within {timeout:?}"))),
    }
}

/// How many of the waiting places a transaction takes, so that large ones do not fill the memory.
fn places_for(txn: &Txn) -> u32 {
    let places = 1 + size_of(txn) / WAITING_TXN_BYTES;
    u32::try_from(places).unwrap_or(u32::MAX).min(WAITING_TXNS)
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
    async fn an_answer_that_does_not_come_leaves_the_outcome_unknown() {
        let (reply, answer) = oneshot::channel::<Result<(), StoreError>>();
        let outcome = answer_within(Duration::from_millis(10), answer).await;
        assert!(matches!(outcome, Err(StoreError::OutcomeUnknown(reason)) if reason.contains("10ms")));
        drop(reply);
        let (reply, answer) = oneshot::channel::<Result<(), StoreError>>();
        drop(reply);
        let outcome = answer_within(Duration::from_secs(10), answer).await;
        assert!(matches!(outcome, Err(StoreError::OutcomeUnknown(reason)) if reason.contains("closed")));
    }

    #[test]
    fn large_transactions_take_more_of_the_places() {
        let key = |n: usize| Key::try_from(format!("k{n}")).unwrap();
        let put = |n: usize, size: usize| Txn::new().put(&key(n), vec![0; size]);
        assert_eq!(places_for(&Txn::new()), 1);
        assert_eq!(places_for(&put(1, 2000)), 1);
        assert_eq!(places_for(&put(1, 1 << 20)), 33);
        assert_eq!(places_for(&put(1, WAITING_TXNS as usize * WAITING_TXN_BYTES)), WAITING_TXNS);
    }
}
