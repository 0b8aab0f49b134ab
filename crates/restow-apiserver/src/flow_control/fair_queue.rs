//! A fair queue for CPU-heavy work, which runs on separate threads.
//!
//! Most requests need little CPU. One with a large body, a large object or a long list takes whole cores, and would block
//! everything that waits for a thread: health checks, leases, administrators. So code that is about to process many bytes
//! calls [`wait_for_turn`] first. From then on the request is polled only while it has a turn: a bounded number of turns at
//! once, fewer per flow, first come first served, on threads that other tasks do not wait for. Long work gives up its turn
//! from time to time ([`YieldBudget`]), and is cancelled there when its deadline has passed or its client is gone.
//!
//! The queue also bounds the memory of request bodies and of stored objects that are changed, per flow and in total.

use futures::FutureExt;
use futures::future::BoxFuture;
use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Poll, ready};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Fewer bytes than this are light work (a millisecond at most), which needs no turn.
const LIGHT_BYTES: usize = 16 << 10;
/// After how many bytes long work gives up its turn: some milliseconds.
const YIELD_BYTES: usize = 256 << 10;
/// Turns for administrators at once, per processor.
const EXEMPT_FACTOR: usize = 8;
/// Kilobytes of bodies that are processed at once, without those of administrators. A decoded body may take thirty times
/// as much memory.
const BODY_KILOBYTES: usize = 48 << 10;

/// Kilobytes of bodies that are received at once, without those of administrators. They are not decoded yet.
const INCOMING_KILOBYTES: usize = 192 << 10;
/// Kilobytes of stored objects that are changed at once, without those that administrators change. A decoded object may
/// take as many times its length as a body.
const STORED_KILOBYTES: usize = 48 << 10;

tokio::task_local! {
    static TASK: Arc<TaskState>;
}

/// The state of a task that runs in the queue.
struct TaskState {
    /// Whether the task needs a turn to continue.
    heavy: AtomicBool,
    flow: Flow,
    stored: Arc<MemoryBudget>,
    /// Whether it holds a [`StoredMemory`].
    has_stored_memory: AtomicBool,
}

/// The fair queue of a server.
pub(crate) struct FairQueue {
    all: Arc<Semaphore>,
    exempt: Arc<Semaphore>,
    flows: KeyedSemaphore,
    /// Memory for bodies that arrive, for bodies that are processed, and for stored objects that are changed. A request
    /// acquires them in this order, and each at most once, so that there is no deadlock.
    incoming: MemoryBudget,
    bodies: MemoryBudget,
    stored: Arc<MemoryBudget>,
}

/// A budget of so many kilobytes. One flow has at most a quarter of it.
struct MemoryBudget {
    all: Arc<Semaphore>,
    flows: KeyedSemaphore,
    flow_limit: usize,
}

/// A part of a [`MemoryBudget`]. Dropping it gives it back.
pub(crate) struct MemoryPermit {
    _own: OwnedSemaphorePermit,
    _shared: OwnedSemaphorePermit,
}

/// Memory for a stored object.
pub(crate) struct StoredMemory {
    work: Arc<TaskState>,
    _memory: MemoryPermit,
}

impl Drop for StoredMemory {
    fn drop(&mut self) {
        self.work.has_stored_memory.store(false, Ordering::Relaxed);
    }
}

impl MemoryBudget {
    fn new(kilobytes: usize) -> Self {
        let flow_limit = kilobytes / 4;
        MemoryBudget { all: Arc::new(Semaphore::new(kilobytes)), flows: KeyedSemaphore::new(flow_limit), flow_limit }
    }

    /// Waits until so many bytes are available. Light work, and administrators, need none.
    async fn acquire(&self, flow: &Flow, bytes: usize) -> Option<MemoryPermit> {
        let Flow::Named(flow) = flow else { return None };
        if bytes < LIGHT_BYTES {
            return None;
        }
        let kilobytes = u32::try_from((bytes >> 10).min(self.flow_limit)).unwrap_or(1);
        // The semaphores are never closed.
        let own = self.flows.get(flow).acquire_many_owned(kilobytes).await.ok()?;
        Some(MemoryPermit { _own: own, _shared: self.all.clone().acquire_many_owned(kilobytes).await.ok()? })
    }
}

/// A semaphore for each key: for each flow of requests, or each namespace. A flow that acquires its own permit before one of
/// a shared semaphore has few waiters there, so that flows take turns.
pub(crate) struct KeyedSemaphore {
    permits: usize,
    known: Mutex<HashMap<String, Weak<Semaphore>>>,
}

impl KeyedSemaphore {
    pub(crate) fn new(permits: usize) -> Self {
        KeyedSemaphore { permits: permits.max(1), known: Mutex::default() }
    }

    /// The semaphore of a key. It is dropped when nobody holds or awaits a permit.
    pub(crate) fn get(&self, name: &str) -> Arc<Semaphore> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = known.get(name).and_then(Weak::upgrade) {
            return own;
        }
        known.retain(|_, own| own.strong_count() > 0);
        let own = Arc::new(Semaphore::new(self.permits));
        known.insert(name.to_string(), Arc::downgrade(&own));
        own
    }
}

/// The flow that a request belongs to, as in API Priority and Fairness.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// The flow of a user, which competes with the others. See
    /// [`User::flow_distinguisher`](restow_auth::User::flow_distinguisher).
    Named(String),
    /// Administrators and health checks, which have turns of their own.
    Exempt,
}

/// The queue and the flow of a request, for work that continues after its response began.
#[derive(Clone)]
pub(crate) struct FlowHandle {
    pub(crate) queue: Arc<FairQueue>,
    pub(crate) flow: Flow,
}

impl FlowHandle {
    /// Runs the work. Once it is heavy, it is polled only while it has a turn.
    pub(crate) async fn run<F: Future>(&self, work: F) -> F::Output {
        self.queue.run(&self.flow, work).await
    }
}

/// A turn. It ends when this is dropped.
struct Turn {
    _own: Option<OwnedSemaphorePermit>,
    _shared: Option<OwnedSemaphorePermit>,
}

impl Default for FairQueue {
    fn default() -> Self {
        Self::new(std::thread::available_parallelism().map_or(1, usize::from))
    }
}

impl FairQueue {
    /// A queue for so many processors. One flow never has all turns.
    pub(crate) fn new(processors: usize) -> Self {
        let all = processors.max(2);
        FairQueue {
            all: Arc::new(Semaphore::new(all)),
            exempt: Arc::new(Semaphore::new(all * EXEMPT_FACTOR)),
            flows: KeyedSemaphore::new(all - 1),
            incoming: MemoryBudget::new(INCOMING_KILOBYTES),
            bodies: MemoryBudget::new(BODY_KILOBYTES),
            stored: Arc::new(MemoryBudget::new(STORED_KILOBYTES)),
        }
    }

    /// Waits for the memory to process a body of so many bytes, decoded objects included.
    pub(crate) async fn acquire_body_memory(&self, flow: &Flow, bytes: usize) -> Option<MemoryPermit> {
        self.bodies.acquire(flow, bytes).await
    }

    /// Waits for the memory to receive a body of so many bytes.
    pub(crate) async fn acquire_incoming_memory(&self, flow: &Flow, bytes: usize) -> Option<MemoryPermit> {
        self.incoming.acquire(flow, bytes).await
    }

    /// Runs the work. Once it is heavy, it is polled only while it has a turn.
    pub(crate) async fn run<F: Future>(&self, flow: &Flow, work: F) -> F::Output {
        let own = Arc::new(TaskState {
            heavy: AtomicBool::new(false),
            flow: flow.clone(),
            stored: self.stored.clone(),
            has_stored_memory: AtomicBool::new(false),
        });
        let heavy = &own.heavy;
        let mut work = pin!(TASK.scope(own.clone(), work));
        let mut waiting: Option<BoxFuture<'_, Turn>> = None;
        poll_fn(|context| {
            if !heavy.load(Ordering::Relaxed) {
                waiting = None;
                let polled = work.as_mut().poll(context);
                if polled.is_ready() || !heavy.load(Ordering::Relaxed) {
                    return polled;
                }
            }
            let turn = ready!(waiting.get_or_insert_with(|| self.turn(flow).boxed()).poll_unpin(context));
            waiting = None;
            let polled = on_blocking_thread(|| work.as_mut().poll(context));
            drop(turn);
            polled
        })
        .await
    }

    /// Waits for a turn: first within the flow, so that other flows wait for few of its tasks only.
    async fn turn(&self, flow: &Flow) -> Turn {
        // The semaphores are never closed.
        match flow {
            Flow::Exempt => Turn { _own: None, _shared: self.exempt.clone().acquire_owned().await.ok() },
            Flow::Named(flow) => {
                let own = self.flows.get(flow).acquire_owned().await.ok();
                Turn { _own: own, _shared: self.all.clone().acquire_owned().await.ok() }
            }
        }
    }
}

/// Call before processing so many bytes. If they are many, the task is heavy from now on, and continues on its turn.
pub(crate) async fn wait_for_turn(bytes: usize) {
    let is_new = |work: &Arc<TaskState>| !work.heavy.swap(true, Ordering::Relaxed);
    if bytes >= LIGHT_BYTES && TASK.try_with(is_new).unwrap_or(false) {
        yield_turn().await;
    }
}

/// Ends the heavy part: the rest of the task needs no turn.
pub(crate) fn end_heavy_work() {
    // Tasks outside of requests are not queued.
    let _ = TASK.try_with(|work| work.heavy.store(false, Ordering::Relaxed));
}

/// Waits for the memory to decode and change a stored object of so many bytes. A task acquires it once; tasks outside of
/// requests need none.
pub(crate) async fn acquire_stored_memory(bytes: usize) -> Option<StoredMemory> {
    let work = TASK.try_with(Arc::clone).ok()?;
    if work.has_stored_memory.load(Ordering::Relaxed) {
        return None;
    }
    let memory = work.stored.acquire(&work.flow, bytes).await?;
    work.has_stored_memory.store(true, Ordering::Relaxed);
    Some(StoredMemory { work, _memory: memory })
}

/// Counts the bytes of long work, and gives up the turn in between.
#[derive(Default)]
pub(crate) struct YieldBudget {
    bytes: usize,
}

impl YieldBudget {
    /// So many bytes were processed.
    pub(crate) async fn spend(&mut self, bytes: usize) {
        self.bytes += bytes;
        if self.bytes >= YIELD_BYTES {
            self.bytes = 0;
            yield_turn().await;
        }
    }
}

/// Gives up the turn once, so that others can run.
async fn yield_turn() {
    let mut paused = false;
    poll_fn(|context| {
        if std::mem::replace(&mut paused, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Runs something on a thread that no other task waits for. A runtime with one thread has no other.
fn on_blocking_thread<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use tokio::sync::oneshot;

    fn of(user: &str) -> Flow {
        Flow::Named(user.into())
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn heavy_work_is_bounded_by_user_and_in_all_and_light_work_is_not() {
        let queue = Arc::new(FairQueue::new(3));
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let work = |user: &'static str, bytes: usize| {
            let (queue, running, most) = (queue.clone(), running.clone(), most.clone());
            restow_host::spawn(async move {
                let work = async {
                    wait_for_turn(bytes).await;
                    for _ in 0..100 {
                        most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        std::thread::yield_now();
                        running.fetch_sub(1, Ordering::SeqCst);
                        yield_turn().await;
                    }
                };
                queue.run(&of(user), work).await;
            })
        };
        let all = futures::future::join_all((0..8).map(|_| work("anna", LIGHT_BYTES))).await;
        assert!(all.into_iter().all(|done| done.is_ok()) && most.load(Ordering::SeqCst) <= 2, "{most:?}");
        let users = ["anna", "bert", "carl", "dora", "emil"];
        futures::future::join_all(users.into_iter().cycle().take(20).map(|user| work(user, LIGHT_BYTES))).await;
        assert!(most.load(Ordering::SeqCst) <= 3, "{most:?}");
        assert_eq!(queue.all.available_permits(), 3, "all turns are given back");
    }

    /// Two workers, and more heavy work than that which ends only when light work was done: it would never end if it held
    /// the workers up.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn heavy_work_does_not_delay_light_work() {
        let queue = Arc::new(FairQueue::new(4));
        let mut ends = Vec::new();
        let mut started = Vec::new();
        let mut heavy = Vec::new();
        for number in 0..4 {
            let (end, ended) = std::sync::mpsc::channel::<()>();
            let (start, begun) = oneshot::channel();
            let queue = queue.clone();
            heavy.push(restow_host::spawn(async move {
                let work = async move {
                    wait_for_turn(LIGHT_BYTES).await;
                    start.send(()).unwrap();
                    ended.recv().unwrap();
                };
                queue.run(&of(&format!("user-{number}")), work).await;
            }));
            ends.push(end);
            started.push(begun);
        }
        for begun in started {
            begun.await.unwrap();
        }
        let light = queue.clone();
        let light = restow_host::spawn(async move {
            light.run(&of("user-0"), async { wait_for_turn(LIGHT_BYTES - 1).await }).await
        });
        light.await.unwrap();
        let exempt = queue.clone();
        restow_host::spawn(async move { exempt.run(&Flow::Exempt, wait_for_turn(LIGHT_BYTES)).await }).await.unwrap();
        for end in ends {
            end.send(()).unwrap();
        }
        for work in heavy {
            work.await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_task_that_stops_waiting_leaves_no_permits_behind() {
        let queue = FairQueue::new(2);
        let held = queue.turn(&of("anna")).await;
        let anna = of("anna");
        let mut second = Box::pin(queue.run(&anna, wait_for_turn(LIGHT_BYTES)));
        assert!(second.as_mut().now_or_never().is_none(), "one user has one turn of two");
        assert!(queue.run(&of("bert"), wait_for_turn(LIGHT_BYTES)).now_or_never().is_some());
        drop(second);
        drop(held);
        queue.run(&of("anna"), wait_for_turn(LIGHT_BYTES)).await;
        assert_eq!(queue.all.available_permits(), 2);
        queue.flows.get("carl");
        queue.flows.get("dora");
        assert_eq!(queue.flows.known.lock().unwrap().len(), 1, "those who are gone are forgotten");
    }

    #[tokio::test]
    async fn one_user_has_a_quarter_of_the_memory_for_bodies() {
        let queue = FairQueue::new(2);
        let (anna, body) = (of("anna"), BODY_KILOBYTES << 8);
        let first = queue.acquire_body_memory(&anna, body).await;
        assert!(queue.acquire_body_memory(&anna, body).now_or_never().is_none());
        assert!(queue.acquire_body_memory(&anna, LIGHT_BYTES - 1).now_or_never().is_some());
        assert!(queue.acquire_body_memory(&Flow::Exempt, body).now_or_never().is_some());
        let others = ["bert", "carl", "dora"].map(of);
        let taken =
            futures::future::join_all(others.iter().map(|user| queue.acquire_body_memory(user, usize::MAX))).await;
        assert!(queue.acquire_body_memory(&of("emil"), body).now_or_never().is_none());
        drop((first, taken));
        queue.acquire_body_memory(&of("emil"), body).await;
    }

    #[tokio::test]
    async fn work_after_the_heavy_part_needs_no_turn() {
        let queue = FairQueue::new(2);
        let (release, released) = oneshot::channel::<()>();
        let work = async {
            wait_for_turn(LIGHT_BYTES).await;
            end_heavy_work();
            released.await.unwrap();
        };
        let anna = of("anna");
        let mut work = Box::pin(queue.run(&anna, work));
        assert!(futures::poll!(work.as_mut()).is_pending());
        let _all = [queue.turn(&of("bert")).await, queue.turn(&of("carl")).await];
        release.send(()).unwrap();
        work.await;
    }
}
