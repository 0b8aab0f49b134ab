//! Connection slots: which connections are accepted, and which idle ones are closed for new ones.
//!
//! A connection is *unauthenticated* until a request on it has shown valid credentials. Unauthenticated connections are
//! limited per address and in total. Past a limit, the connection that has idled longest is closed for the new one, so
//! that a client that sends requests is served however many others only connect. When all slots are taken, the connection
//! that has idled longest is closed; when all are in use, a reserve is left for health checks and administrators. A
//! connection whose client does not read its responses counts as idle.

mod address;
mod table;

use address::AddressRange;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use table::{SlotKind, Table};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// After how many milliseconds a connection whose client reads none of its responses counts as idle.
pub(super) const UNREAD_IDLE_MILLIS: u64 = 1000;

/// The number of connections, and their timeouts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// The most connections at once, without the reserve. Half of them may be unauthenticated.
    pub max_connections: usize,
    /// The most unauthenticated connections of one address; for IPv6, of one /64.
    pub unauthenticated_per_address: usize,
    /// How long a client may take for its TLS handshake.
    pub handshake_timeout: Duration,
    /// How long a client may take from the beginning of its connection to its first request.
    pub first_request_timeout: Duration,
    /// How long a connection may idle between requests.
    pub idle_timeout: Duration,
    /// How long a client may leave sent data unread.
    pub stall_timeout: Duration,
    /// How long running requests may continue after shutdown began.
    pub drain_timeout: Duration,
}

impl ConnectionLimits {
    /// For a small listener beside the API server.
    pub fn small() -> Self {
        ConnectionLimits {
            max_connections: 128,
            unauthenticated_per_address: 16,
            handshake_timeout: Duration::from_secs(5),
            first_request_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(90),
            stall_timeout: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(1),
        }
    }

    /// How many more connections are accepted when all slots are in use.
    fn reserve(&self) -> usize {
        (self.max_connections / 8).clamp(4, 64)
    }
}

/// All connections of a listener.
pub(super) struct ConnectionSlots {
    limits: ConnectionLimits,
    table: Mutex<Table>,
    begun: Instant,
}

/// The slot of one connection. Dropping it frees the slot.
pub(super) struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    accepted: Instant,
    connection: Connection,
}

/// Whether to close a connection.
pub(super) enum CloseDecision {
    /// Not before this time; check again then.
    KeepUntil(Instant),
    /// At once, without notice.
    Immediate,
    /// After telling the client (graceful shutdown).
    Graceful,
}

/// One connection, as its requests see it.
#[derive(Clone)]
pub struct Connection(Arc<Activity>);

/// The state of a connection.
struct Activity {
    id: u64,
    address: IpAddr,
    range: AddressRange,
    reserved: bool,
    /// The number of running requests.
    running: AtomicUsize,
    /// Whether a request has arrived.
    had_request: AtomicBool,
    /// Whether a request showed valid credentials.
    authenticated: AtomicBool,
    /// Since when no request is running, in milliseconds since the listener started.
    idle_since: AtomicU64,
    /// The number of the next request.
    next: AtomicU64,
    /// Requests whose client has not read what was last sent, and since when, in milliseconds since the listener started.
    unread: Mutex<HashMap<u64, u64>>,
    closing: AtomicBool,
    /// Whether to close without telling the client.
    without_notice: AtomicBool,
    close: Notify,
    /// Who uses the connection after it was upgraded to another protocol.
    held: watch::Sender<usize>,
    slots: std::sync::Weak<ConnectionSlots>,
}

/// Keeps the slot of a connection that was upgraded to another protocol.
pub(crate) struct ConnectionHold(Arc<Activity>);

/// A running request. Dropping it ends the request.
pub(super) struct ActiveRequest {
    activity: Arc<Activity>,
    number: u64,
}

impl ConnectionSlots {
    pub(super) fn new(limits: ConnectionLimits) -> Self {
        ConnectionSlots { limits, table: Mutex::default(), begun: Instant::now() }
    }

    /// A slot for a connection of this address; `None` refuses it. May close idle connections.
    pub(super) fn acquire(self: &Arc<Self>, address: IpAddr) -> Option<ConnectionSlot> {
        let range = AddressRange::of(address);
        let mut table = self.table();
        let reserved = match table.free_slot(range, &self.limits, self.now())? {
            SlotKind::Regular => false,
            SlotKind::Reserved => true,
        };
        let connection = Connection(Arc::new(Activity {
            id: table.next_id(),
            address,
            range,
            reserved,
            running: AtomicUsize::new(0),
            had_request: AtomicBool::new(false),
            authenticated: AtomicBool::new(false),
            idle_since: AtomicU64::new(self.now()),
            next: AtomicU64::new(0),
            unread: Mutex::default(),
            closing: AtomicBool::new(false),
            without_notice: AtomicBool::new(false),
            close: Notify::new(),
            held: watch::Sender::new(0),
            slots: Arc::downgrade(self),
        }));
        table.insert(connection.0.clone());
        Some(ConnectionSlot { slots: self.clone(), accepted: Instant::now(), connection })
    }

    /// Closes a connection that is not in use, if there is one.
    pub(super) fn close_idle_connection(&self) {
        self.table().evict_any(self.now());
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl ConnectionSlot {
    pub(super) fn limits(&self) -> &ConnectionLimits {
        &self.slots.limits
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(super) fn handshake_deadline(&self) -> Instant {
        self.accepted + self.limits().handshake_timeout.min(self.limits().first_request_timeout)
    }

    /// When to check for the first time whether to close the connection.
    pub(super) fn first_check(&self) -> Instant {
        self.accepted + self.limits().first_request_timeout.min(self.limits().stall_timeout)
    }

    /// Whether the client has left a response unread for longer than the stall timeout. TCP does not show this: with HTTP/2
    /// flow control a client can stop reading responses while the connection is alive.
    pub(super) fn is_stalled(&self) -> bool {
        let since = self.connection.0.unread_since();
        since.is_some_and(|since| {
            self.slots.begun + Duration::from_millis(since) + self.limits().stall_timeout <= Instant::now()
        })
    }

    /// Completes when the connection is to be closed for another one.
    pub(super) async fn evicted(&self) {
        let activity = &self.connection.0;
        while !activity.closing.load(Ordering::Acquire) {
            activity.close.notified().await;
        }
    }

    /// Completes when nobody uses the connection any more after an upgrade to another protocol.
    pub(super) async fn upgrades_ended(&self) {
        // The sender lives as long as this.
        let _ = self.connection.0.held.subscribe().wait_for(|held| *held == 0).await;
    }

    /// Waits until the connection may have to be closed.
    pub(super) async fn close_decision(&self, until: Instant) -> CloseDecision {
        let activity = &self.connection.0;
        tokio::select! {
            () = self.evicted() => match activity.without_notice.load(Ordering::Acquire) {
                true => CloseDecision::Immediate,
                false => CloseDecision::Graceful,
            },
            () = tokio::time::sleep_until(until) => self.check_timeouts(),
        }
    }

    fn check_timeouts(&self) -> CloseDecision {
        let (activity, now) = (&self.connection.0, Instant::now());
        if !activity.had_request.load(Ordering::Acquire) {
            let end = self.accepted + self.limits().first_request_timeout;
            return if end > now { CloseDecision::KeepUntil(end) } else { CloseDecision::Immediate };
        }
        if self.is_stalled() {
            return CloseDecision::Immediate;
        }
        let timeout = self.limits().idle_timeout;
        if self.connection.is_in_use() {
            return CloseDecision::KeepUntil(now + timeout.min(self.limits().stall_timeout));
        }
        let end = self.slots.begun + Duration::from_millis(activity.idle_since.load(Ordering::Acquire)) + timeout;
        if end > now { CloseDecision::KeepUntil(end) } else { CloseDecision::Graceful }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.slots.table().remove(self.connection.0.id);
    }
}

impl Connection {
    /// The address of the client.
    pub fn address(&self) -> IpAddr {
        self.0.address
    }

    /// The client has shown valid credentials.
    pub fn set_authenticated(&self) {
        if !self.0.authenticated.load(Ordering::Acquire)
            && let Some(slots) = self.0.slots.upgrade()
        {
            slots.table().set_authenticated(self.0.id);
        }
    }

    /// Whether the connection has a slot of the reserve, because all others were in use.
    pub fn is_reserved(&self) -> bool {
        self.0.reserved
    }

    /// Closes the connection after the responses to its requests.
    pub fn close(&self) {
        self.0.close();
    }

    /// Keeps the slot of this connection after its requests: it is going to be upgraded to another protocol.
    pub(crate) fn hold(&self) -> ConnectionHold {
        self.0.held.send_modify(|held| *held += 1);
        ConnectionHold(self.0.clone())
    }

    pub(super) fn is_in_use(&self) -> bool {
        self.0.running.load(Ordering::Acquire) > 0
    }

    pub(super) fn begin_request(&self) -> ActiveRequest {
        self.0.had_request.store(true, Ordering::Release);
        self.0.running.fetch_add(1, Ordering::AcqRel);
        ActiveRequest { activity: self.0.clone(), number: self.0.next.fetch_add(1, Ordering::Relaxed) }
    }
}

impl Drop for ConnectionHold {
    fn drop(&mut self) {
        self.0.held.send_modify(|held| *held -= 1);
    }
}

impl Activity {
    fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.close.notify_one();
    }

    /// Since when the connection only waits for its client; `None` while it does anything else.
    fn idle_since(&self, now: u64) -> Option<u64> {
        let unread = self.unread();
        match self.running.load(Ordering::Acquire) {
            0 => Some(self.idle_since.load(Ordering::Acquire)),
            running if running == unread.len() => {
                unread.values().max().copied().filter(|since| since + UNREAD_IDLE_MILLIS <= now)
            }
            _ => None,
        }
    }

    /// Since when the response that has waited longest is unread.
    fn unread_since(&self) -> Option<u64> {
        self.unread().values().min().copied()
    }

    fn unread(&self) -> MutexGuard<'_, HashMap<u64, u64>> {
        self.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        self.slots.upgrade().map_or(0, |slots| slots.now())
    }
}

impl ActiveRequest {
    /// The client was sent data that it has not read yet.
    pub(super) fn sent(&self) {
        self.activity.unread().insert(self.number, self.activity.now());
    }

    /// The client has read all that it was sent.
    pub(super) fn all_read(&self) {
        self.activity.unread().remove(&self.number);
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.all_read();
        self.activity.idle_since.store(self.activity.now(), Ordering::Release);
        self.activity.running.fetch_sub(1, Ordering::AcqRel);
    }
}
