//! Heavy work, beside the threads that serve requests, and in fair turns.
//!
//! A request does most of its work in no time. One with a large body, a large object or a long list takes whole cores, and
//! would hold up everything that waits for a thread: health checks, leases, administrators. So whoever is about to read
//! much says so first ([`expect`]). From then on the request is carried on only in turns: a bounded number at once, fewer of
//! each flow, first come first served, and on threads that the others do not wait for. Long work gives its turn up from
//! time to time ([`YieldBudget`]), and ends there when its deadline has passed or its client is gone.

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

/// What less than this many bytes takes is no matter: a millisecond at most.
const LIGHT: usize = 16 << 10;
/// After how many bytes long work gives its turn up: some milliseconds.
const BREATH: usize = 256 << 10;
/// How many turns administrators have at once for each processor.
const EXEMPT_FACTOR: usize = 8;
/// How many kilobytes of bodies are worked on at once, beside those of administrators. What is read from a body may take
/// thirty times as much memory.
const ROOM: usize = 48 << 10;

/// How many kilobytes of bodies may be on their way at once, beside those of administrators. They are not read yet, so they
/// take no more memory than they are long.
const ROOM_TO_ARRIVE: usize = 192 << 10;
/// How many kilobytes of stored objects are changed at once, beside those that administrators change. An object that is
/// read may take as many times its length as a body.
const ROOM_FOR_STORED: usize = 48 << 10;

tokio::task_local! {
    static WORK: Arc<Work>;
}

/// The work of a task.
struct Work {
    heavy: AtomicBool,
    share: Share,
    stored: Arc<Room>,
    /// Whether it has room for a stored object.
    has_room: AtomicBool,
}

/// The turns of a server.
pub(crate) struct FairQueue {
    all: Arc<Semaphore>,
    exempt: Arc<Semaphore>,
    flows: PermitsByName,
    /// Room for bodies on their way, for bodies that are worked on, and for stored objects that are changed. A request takes
    /// them in this order, and each at most once, so that none waits for another that waits for it.
    arriving: Room,
    bodies: Room,
    stored: Arc<Room>,
}

/// Room for so many kilobytes. One flow has at most a quarter of it.
struct Room {
    all: Arc<Semaphore>,
    flows: PermitsByName,
    most: usize,
}

/// Room that is taken; it is free again when this is dropped.
pub(crate) struct InRoom {
    _own: OwnedSemaphorePermit,
    _common: OwnedSemaphorePermit,
}

/// Room for a stored object.
pub(crate) struct StoredRoom {
    work: Arc<Work>,
    _room: InRoom,
}

impl Drop for StoredRoom {
    fn drop(&mut self) {
        self.work.has_room.store(false, Ordering::Relaxed);
    }
}

impl Room {
    fn new(kilobytes: usize) -> Self {
        let most = kilobytes / 4;
        Room { all: Arc::new(Semaphore::new(kilobytes)), flows: PermitsByName::new(most), most }
    }

    /// Waits until there is room for so many bytes. Few of them need none.
    async fn take(&self, share: &Share, bytes: usize) -> Option<InRoom> {
        let Share::Of(flow) = share else { return None };
        if bytes < LIGHT {
            return None;
        }
        let kilobytes = u32::try_from((bytes >> 10).min(self.most)).unwrap_or(1);
        // The semaphores are never closed.
        let own = self.flows.of(flow).acquire_many_owned(kilobytes).await.ok()?;
        Some(InRoom { _own: own, _common: self.all.clone().acquire_many_owned(kilobytes).await.ok()? })
    }
}

/// So many permits for each name: of a flow of requests, or of a namespace. Whoever takes one of these before one of a common
/// number of permits queues up there with few requests only, so that flows take turns.
pub(crate) struct PermitsByName {
    permits: usize,
    known: Mutex<HashMap<String, Weak<Semaphore>>>,
}

impl PermitsByName {
    pub(crate) fn new(permits: usize) -> Self {
        PermitsByName { permits: permits.max(1), known: Mutex::default() }
    }

    /// The permits of a name. They are forgotten when nobody has or waits for one.
    pub(crate) fn of(&self, name: &str) -> Arc<Semaphore> {
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

/// Whose turns work takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// Those of this flow ([`User::flow`](restow_auth::User::flow)), among all others.
    Of(String),
    /// Those that are kept for administrators and health checks.
    Exempt,
}

/// Work that goes on after its request was answered, in the same turns.
#[derive(Clone)]
pub(crate) struct Taken {
    pub(crate) turns: Arc<FairQueue>,
    pub(crate) share: Share,
}

impl Taken {
    /// Does the work, in turns from where it becomes heavy on.
    pub(crate) async fn run<F: Future>(&self, work: F) -> F::Output {
        self.turns.run(&self.share, work).await
    }
}

/// A turn; it is over when this is dropped.
struct Turn {
    _own: Option<OwnedSemaphorePermit>,
    _common: Option<OwnedSemaphorePermit>,
}

impl Default for FairQueue {
    fn default() -> Self {
        Self::new(std::thread::available_parallelism().map_or(1, usize::from))
    }
}

impl FairQueue {
    /// FairQueue for so many processors. One flow never has them all.
    pub(crate) fn new(processors: usize) -> Self {
        let all = processors.max(2);
        FairQueue {
            all: Arc::new(Semaphore::new(all)),
            exempt: Arc::new(Semaphore::new(all * EXEMPT_FACTOR)),
            flows: PermitsByName::new(all - 1),
            arriving: Room::new(ROOM_TO_ARRIVE),
            bodies: Room::new(ROOM),
            stored: Arc::new(Room::new(ROOM_FOR_STORED)),
        }
    }

    /// Waits until there is room for a body of so many bytes, and all that is made of it, which is many times as much.
    pub(crate) async fn room(&self, share: &Share, bytes: usize) -> Option<InRoom> {
        self.bodies.take(share, bytes).await
    }

    /// Waits until there is room for a body of so many bytes that is about to arrive.
    pub(crate) async fn room_to_arrive(&self, share: &Share, bytes: usize) -> Option<InRoom> {
        self.arriving.take(share, bytes).await
    }

    /// Does the work, in turns from where it becomes heavy on.
    pub(crate) async fn run<F: Future>(&self, share: &Share, work: F) -> F::Output {
        let own = Arc::new(Work {
            heavy: AtomicBool::new(false),
            share: share.clone(),
            stored: self.stored.clone(),
            has_room: AtomicBool::new(false),
        });
        let heavy = &own.heavy;
        let mut work = pin!(WORK.scope(own.clone(), work));
        let mut waiting: Option<BoxFuture<'_, Turn>> = None;
        poll_fn(|context| {
            if !heavy.load(Ordering::Relaxed) {
                waiting = None;
                let polled = work.as_mut().poll(context);
                if polled.is_ready() || !heavy.load(Ordering::Relaxed) {
                    return polled;
                }
            }
            let turn = ready!(waiting.get_or_insert_with(|| self.turn(share).boxed()).poll_unpin(context));
            waiting = None;
            let polled = apart(|| work.as_mut().poll(context));
            drop(turn);
            polled
        })
        .await
    }

    /// Waits for a turn: first among those of the same flow, so that others have to wait for few of them only.
    async fn turn(&self, share: &Share) -> Turn {
        // The semaphores are never closed.
        match share {
            Share::Exempt => Turn { _own: None, _common: self.exempt.clone().acquire_owned().await.ok() },
            Share::Of(flow) => {
                let own = self.flows.of(flow).acquire_owned().await.ok();
                Turn { _own: own, _common: self.all.clone().acquire_owned().await.ok() }
            }
        }
    }
}

/// Says that so many bytes are about to be worked on. Where they are many, the work goes on when it is its turn.
pub(crate) async fn expect(bytes: usize) {
    let is_new = |work: &Arc<Work>| !work.heavy.swap(true, Ordering::Relaxed);
    if bytes >= LIGHT && WORK.try_with(is_new).unwrap_or(false) {
        pause().await;
    }
}

/// The heavy part is over: what is left is done at once, without a turn.
pub(crate) fn relieve() {
    // Whoever works outside of requests has no turns.
    let _ = WORK.try_with(|work| work.heavy.store(false, Ordering::Relaxed));
}

/// Waits until there is room for a stored object of so many bytes, and what is made of it. Work that has such room already
/// takes no more; whoever works outside of requests needs none.
pub(crate) async fn room_for_stored(bytes: usize) -> Option<StoredRoom> {
    let work = WORK.try_with(Arc::clone).ok()?;
    if work.has_room.load(Ordering::Relaxed) {
        return None;
    }
    let room = work.stored.take(&work.share, bytes).await?;
    work.has_room.store(true, Ordering::Relaxed);
    Some(StoredRoom { work, _room: room })
}

/// Counts the bytes of long work, and gives the turn up in between.
#[derive(Default)]
pub(crate) struct YieldBudget {
    bytes: usize,
}

impl YieldBudget {
    /// So many bytes were worked on.
    pub(crate) async fn spend(&mut self, bytes: usize) {
        self.bytes += bytes;
        if self.bytes >= BREATH {
            self.bytes = 0;
            pause().await;
        }
    }
}

/// Lets others go first.
async fn pause() {
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

/// Does something on a thread that no other task waits for. A runtime with one thread has no other.
fn apart<T>(work: impl FnOnce() -> T) -> T {
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

    fn of(user: &str) -> Share {
        Share::Of(user.into())
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn heavy_work_is_bounded_by_user_and_in_all_and_light_work_is_not() {
        let turns = Arc::new(FairQueue::new(3));
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let work = |user: &'static str, bytes: usize| {
            let (turns, running, most) = (turns.clone(), running.clone(), most.clone());
            tokio::spawn(async move {
                let work = async {
                    expect(bytes).await;
                    for _ in 0..100 {
                        most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        std::thread::yield_now();
                        running.fetch_sub(1, Ordering::SeqCst);
                        pause().await;
                    }
                };
                turns.run(&of(user), work).await;
            })
        };
        let all = futures::future::join_all((0..8).map(|_| work("anna", LIGHT))).await;
        assert!(all.into_iter().all(|done| done.is_ok()) && most.load(Ordering::SeqCst) <= 2, "{most:?}");
        let users = ["anna", "bert", "carl", "dora", "emil"];
        futures::future::join_all(users.into_iter().cycle().take(20).map(|user| work(user, LIGHT))).await;
        assert!(most.load(Ordering::SeqCst) <= 3, "{most:?}");
        assert_eq!(turns.all.available_permits(), 3, "all turns are given back");
    }

    /// Two workers, and more heavy work than that which ends only when light work was done: it would never end if it held
    /// the workers up.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn heavy_work_does_not_hold_light_work_up() {
        let turns = Arc::new(FairQueue::new(4));
        let mut ends = Vec::new();
        let mut started = Vec::new();
        let mut heavy = Vec::new();
        for number in 0..4 {
            let (end, ended) = std::sync::mpsc::channel::<()>();
            let (start, begun) = oneshot::channel();
            let turns = turns.clone();
            heavy.push(tokio::spawn(async move {
                let work = async move {
                    expect(LIGHT).await;
                    start.send(()).unwrap();
                    ended.recv().unwrap();
                };
                turns.run(&of(&format!("user-{number}")), work).await;
            }));
            ends.push(end);
            started.push(begun);
        }
        for begun in started {
            begun.await.unwrap();
        }
        let light = turns.clone();
        let light = tokio::spawn(async move { light.run(&of("user-0"), async { expect(LIGHT - 1).await }).await });
        light.await.unwrap();
        let exempt = turns.clone();
        tokio::spawn(async move { exempt.run(&Share::Exempt, expect(LIGHT)).await }).await.unwrap();
        for end in ends {
            end.send(()).unwrap();
        }
        for work in heavy {
            work.await.unwrap();
        }
    }

    #[tokio::test]
    async fn who_gives_up_waiting_leaves_no_trace() {
        let turns = FairQueue::new(2);
        let held = turns.turn(&of("anna")).await;
        let anna = of("anna");
        let mut second = Box::pin(turns.run(&anna, expect(LIGHT)));
        assert!(second.as_mut().now_or_never().is_none(), "one user has one turn of two");
        assert!(turns.run(&of("bert"), expect(LIGHT)).now_or_never().is_some());
        drop(second);
        drop(held);
        turns.run(&of("anna"), expect(LIGHT)).await;
        assert_eq!(turns.all.available_permits(), 2);
        turns.flows.of("carl");
        turns.flows.of("dora");
        assert_eq!(turns.flows.known.lock().unwrap().len(), 1, "those who are gone are forgotten");
    }

    #[tokio::test]
    async fn one_user_has_a_quarter_of_the_room_for_bodies() {
        let turns = FairQueue::new(2);
        let (anna, body) = (of("anna"), ROOM << 8);
        let first = turns.room(&anna, body).await;
        assert!(turns.room(&anna, body).now_or_never().is_none());
        assert!(turns.room(&anna, LIGHT - 1).now_or_never().is_some());
        assert!(turns.room(&Share::Exempt, body).now_or_never().is_some());
        let others = ["bert", "carl", "dora"].map(of);
        let taken = futures::future::join_all(others.iter().map(|user| turns.room(user, usize::MAX))).await;
        assert!(turns.room(&of("emil"), body).now_or_never().is_none());
        drop((first, taken));
        turns.room(&of("emil"), body).await;
    }

    #[tokio::test]
    async fn relieved_work_needs_no_turn() {
        let turns = FairQueue::new(2);
        let (release, released) = oneshot::channel::<()>();
        let work = async {
            expect(LIGHT).await;
            relieve();
            released.await.unwrap();
        };
        let anna = of("anna");
        let mut work = Box::pin(turns.run(&anna, work));
        assert!(futures::poll!(work.as_mut()).is_pending());
        let _all = [turns.turn(&of("bert")).await, turns.turn(&of("carl")).await];
        release.send(()).unwrap();
        work.await;
    }
}
