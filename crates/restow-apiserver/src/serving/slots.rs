//! The places for connections: who gets one, and who has to give way.
//!
//! A connection is *unproven* until a request on it has shown valid credentials. Unproven connections are limited for each
//! address and altogether; past a limit the one that has idled longest gives way to the new one, so that a client that is
//! quick is served however many others only wait. When every place is taken, whoever idles longest gives way; when all are
//! in use, a reserve is left for health checks and administrators. A client that does not take its answers idles too.

mod address;
mod table;

use address::AddressRange;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use table::{Outcome, Table};
use tokio::sync::Notify;
use tokio::time::Instant;

/// After how many milliseconds a connection whose client takes none of its answers counts as idle where places are short.
pub(super) const HESITATION: u64 = 1000;

/// How many connections there may be, and how long they may wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// The most connections at once, the reserve apart. Half of them may be unproven.
    pub connections: usize,
    /// The most unproven connections of one address; for IPv6, of one /64.
    pub unproven_per_address: usize,
    /// How long a client may take for its TLS handshake.
    pub handshake: Duration,
    /// How long a client may take from the beginning of its connection to its first request.
    pub first_request: Duration,
    /// How long a connection may idle between requests.
    pub idle: Duration,
    /// How long a client may go without taking what is sent to it.
    pub stall: Duration,
    /// How long running requests may go on after the server was asked to stop.
    pub drain: Duration,
}

impl ConnectionLimits {
    /// For a small listener beside the API server.
    pub fn small() -> Self {
        ConnectionLimits {
            connections: 128,
            unproven_per_address: 16,
            handshake: Duration::from_secs(5),
            first_request: Duration::from_secs(10),
            idle: Duration::from_secs(90),
            stall: Duration::from_secs(10),
            drain: Duration::from_secs(1),
        }
    }

    /// How many connections more there may be when all places are in use.
    fn reserve(&self) -> usize {
        (self.connections / 8).clamp(4, 64)
    }
}

/// All connections of a listener.
pub(super) struct Places {
    limits: ConnectionLimits,
    table: Mutex<Table>,
    begun: Instant,
}

/// What became of a new connection.
pub(super) enum Admission {
    Admitted(Place),
    Refused,
}

/// The place of one connection; it is free again when this is dropped.
pub(super) struct Place {
    places: Arc<Places>,
    accepted: Instant,
    connection: Connection,
}

/// Whether a connection has to end.
pub(super) enum Ending {
    /// It need not; look again then.
    NotYet(Instant),
    /// At once.
    Abrupt,
    /// After its client was told.
    Polite,
}

/// One connection, as requests on it see it.
#[derive(Clone)]
pub struct Connection(Arc<Activity>);

/// What a connection is doing.
struct Activity {
    id: u64,
    address: IpAddr,
    range: AddressRange,
    reserved: bool,
    /// How many requests are under way.
    running: AtomicUsize,
    /// Whether there was any request.
    asked: AtomicBool,
    /// Whether a request showed valid credentials.
    proven: AtomicBool,
    /// Since when no request is under way, in milliseconds of the listener's life.
    idle_since: AtomicU64,
    /// The number of the next request.
    next: AtomicU64,
    /// Requests whose client has not taken what it was last sent, and since when, in milliseconds of the listener's life.
    untaken: Mutex<HashMap<u64, u64>>,
    closing: AtomicBool,
    /// Whether its client need not be told.
    abruptly: AtomicBool,
    close: Notify,
    places: std::sync::Weak<Places>,
}

/// The mark that a request is under way.
pub(super) struct RequestInUse {
    activity: Arc<Activity>,
    number: u64,
}

impl Places {
    pub(super) fn new(limits: ConnectionLimits) -> Self {
        Places { limits, table: Mutex::default(), begun: Instant::now() }
    }

    /// Finds a place for a connection of this address.
    pub(super) fn admit(self: &Arc<Self>, address: IpAddr) -> Admission {
        let range = AddressRange::of(address);
        let mut table = self.table();
        let reserved = match table.make_place(range, &self.limits, self.now()) {
            Outcome::Place => false,
            Outcome::Reserve => true,
            Outcome::None => return Admission::Refused,
        };
        let connection = Connection(Arc::new(Activity {
            id: table.next_id(),
            address,
            range,
            reserved,
            running: AtomicUsize::new(0),
            asked: AtomicBool::new(false),
            proven: AtomicBool::new(false),
            idle_since: AtomicU64::new(self.now()),
            next: AtomicU64::new(0),
            untaken: Mutex::default(),
            closing: AtomicBool::new(false),
            abruptly: AtomicBool::new(false),
            close: Notify::new(),
            places: Arc::downgrade(self),
        }));
        table.insert(connection.0.clone());
        Admission::Admitted(Place { places: self.clone(), accepted: Instant::now(), connection })
    }

    /// Ends a connection that is not in use, if there is any.
    pub(super) fn make_room(&self) {
        self.table().evict_any(self.now());
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Place {
    pub(super) fn limits(&self) -> &ConnectionLimits {
        &self.places.limits
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(super) fn handshake_deadline(&self) -> Instant {
        self.accepted + self.limits().handshake.min(self.limits().first_request)
    }

    /// When to look for the first time whether the connection has to end.
    pub(super) fn next_look(&self) -> Instant {
        self.accepted + self.limits().first_request.min(self.limits().stall)
    }

    /// Whether the client has left an answer for so long that it is not waited for any more. TCP does not tell: HTTP/2 lets
    /// a client take nothing of its answers and everything else.
    pub(super) fn is_stalled(&self) -> bool {
        let since = self.connection.0.untaken_since();
        since.is_some_and(|since| {
            self.places.begun + Duration::from_millis(since) + self.limits().stall <= Instant::now()
        })
    }

    /// Completes when the connection has to give way.
    pub(super) async fn evicted(&self) {
        let activity = &self.connection.0;
        while !activity.closing.load(Ordering::Acquire) {
            activity.close.notified().await;
        }
    }

    /// Waits until the connection may have to end.
    pub(super) async fn ending(&self, until: Instant) -> Ending {
        let activity = &self.connection.0;
        tokio::select! {
            () = self.evicted() => match activity.abruptly.load(Ordering::Acquire) {
                true => Ending::Abrupt,
                false => Ending::Polite,
            },
            () = tokio::time::sleep_until(until) => self.overdue(),
        }
    }

    fn overdue(&self) -> Ending {
        let (activity, now) = (&self.connection.0, Instant::now());
        if !activity.asked.load(Ordering::Acquire) {
            let end = self.accepted + self.limits().first_request;
            return if end > now { Ending::NotYet(end) } else { Ending::Abrupt };
        }
        if self.is_stalled() {
            return Ending::Abrupt;
        }
        let patience = self.limits().idle;
        if self.connection.is_in_use() {
            return Ending::NotYet(now + patience.min(self.limits().stall));
        }
        let end = self.places.begun + Duration::from_millis(activity.idle_since.load(Ordering::Acquire)) + patience;
        if end > now { Ending::NotYet(end) } else { Ending::Polite }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.table().remove(self.connection.0.id);
    }
}

impl Connection {
    /// Where the client is.
    pub fn address(&self) -> IpAddr {
        self.0.address
    }

    /// The client has shown valid credentials.
    pub fn prove(&self) {
        if !self.0.proven.load(Ordering::Acquire)
            && let Some(places) = self.0.places.upgrade()
        {
            places.table().prove(self.0.id);
        }
    }

    /// Whether all places were in use when the client came, so that it has one that is kept for urgent requests.
    pub fn is_reserved(&self) -> bool {
        self.0.reserved
    }

    /// Ends the connection when the requests on it are answered.
    pub fn close(&self) {
        self.0.close();
    }

    pub(super) fn is_in_use(&self) -> bool {
        self.0.running.load(Ordering::Acquire) > 0
    }

    pub(super) fn in_use(&self) -> RequestInUse {
        self.0.asked.store(true, Ordering::Release);
        self.0.running.fetch_add(1, Ordering::AcqRel);
        RequestInUse { activity: self.0.clone(), number: self.0.next.fetch_add(1, Ordering::Relaxed) }
    }
}

impl Activity {
    fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.close.notify_one();
    }

    /// Since when the connection does nothing but wait for its client; `None` when it does more than that.
    fn idle_since(&self, now: u64) -> Option<u64> {
        let untaken = self.untaken();
        match self.running.load(Ordering::Acquire) {
            0 => Some(self.idle_since.load(Ordering::Acquire)),
            running if running == untaken.len() => {
                untaken.values().max().copied().filter(|since| since + HESITATION <= now)
            }
            _ => None,
        }
    }

    /// Since when the client has left the answer that it has left longest.
    fn untaken_since(&self) -> Option<u64> {
        self.untaken().values().min().copied()
    }

    fn untaken(&self) -> MutexGuard<'_, HashMap<u64, u64>> {
        self.untaken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        self.places.upgrade().map_or(0, |places| places.now())
    }
}

impl RequestInUse {
    /// The client was sent something that it has not taken yet.
    pub(super) fn sent(&self) {
        self.activity.untaken().insert(self.number, self.activity.now());
    }

    /// The client has taken all that it was sent.
    pub(super) fn taken(&self) {
        self.activity.untaken().remove(&self.number);
    }
}

impl Drop for RequestInUse {
    fn drop(&mut self) {
        self.taken();
        self.activity.idle_since.store(self.activity.now(), Ordering::Release);
        self.activity.running.fetch_sub(1, Ordering::AcqRel);
    }
}
