//! The table of connections: which of them is closed for a new one.

use super::{Activity, AddressRange, ConnectionLimits};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The kind of slot that a new connection gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotKind {
    Regular,
    /// All regular slots are in use: one that is reserved for urgent requests.
    Reserved,
}

/// The connections that have a slot.
#[derive(Default)]
pub(super) struct Table {
    next: u64,
    connections: BTreeMap<u64, Arc<Activity>>,
    /// The number of unauthenticated ones by address; addresses without any are removed.
    unauthenticated: HashMap<AddressRange, usize>,
    total_unauthenticated: usize,
}

impl Table {
    /// Frees a slot for a connection of this address, by closing idle connections if necessary. `None` if there is none.
    pub(super) fn free_slot(&mut self, range: AddressRange, limits: &ConnectionLimits, now: u64) -> Option<SlotKind> {
        let of_range = self.unauthenticated.get(&range).copied().unwrap_or_default();
        if of_range >= limits.unauthenticated_per_address.max(1)
            && !self.evict(now, |other| other.range == range && !is_authenticated(other))
        {
            return None;
        }
        let crowded = self.total_unauthenticated >= (limits.max_connections / 2).max(1)
            && !self.evict(now, |other| !is_authenticated(other));
        // Closing a connection of the reserve frees no regular slot.
        while !crowded && self.connections.len() >= limits.max_connections && self.evict_any(now) {}
        if !crowded && self.connections.len() < limits.max_connections {
            return Some(SlotKind::Regular);
        }
        let has_reserve = self.connections.len() < limits.max_connections + limits.reserve();
        has_reserve.then_some(SlotKind::Reserved)
    }

    pub(super) fn next_id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn insert(&mut self, activity: Arc<Activity>) {
        *self.unauthenticated.entry(activity.range).or_default() += 1;
        self.total_unauthenticated += 1;
        self.connections.insert(activity.id, activity);
    }

    pub(super) fn remove(&mut self, id: u64) {
        if let Some(activity) = self.connections.remove(&id)
            && !is_authenticated(&activity)
        {
            self.decrement_unauthenticated(activity.range);
        }
    }

    /// The client of this connection has shown credentials.
    pub(super) fn set_authenticated(&mut self, id: u64) {
        if let Some(activity) = self.connections.get(&id)
            && !activity.authenticated.swap(true, Ordering::AcqRel)
        {
            self.decrement_unauthenticated(activity.range);
        }
    }

    /// Closes a connection that is not in use, preferably an unauthenticated one.
    pub(super) fn evict_any(&mut self, now: u64) -> bool {
        self.evict(now, |other| !is_authenticated(other)) || self.evict(now, |_| true)
    }

    /// Closes the connection that has idled longest among the candidates. Returns whether there was one.
    fn evict(&mut self, now: u64, is_candidate: impl Fn(&Activity) -> bool) -> bool {
        let idle = self
            .connections
            .values()
            .filter(|other| is_candidate(other))
            .filter_map(|other| Some((other.idle_since(now)?, other)))
            .min_by_key(|(since, other)| (*since, other.id));
        let Some(oldest) = idle.map(|(_, oldest)| oldest.clone()) else { return false };
        // A client that does not read would not see a graceful shutdown either.
        let stalled = oldest.running.load(Ordering::Acquire) > 0;
        oldest.without_notice.store(stalled || !is_authenticated(&oldest), Ordering::Release);
        oldest.close();
        self.remove(oldest.id);
        true
    }

    fn decrement_unauthenticated(&mut self, range: AddressRange) {
        self.total_unauthenticated = self.total_unauthenticated.saturating_sub(1);
        if let Some(count) = self.unauthenticated.get_mut(&range) {
            *count -= 1;
            if *count == 0 {
                self.unauthenticated.remove(&range);
            }
        }
    }
}

fn is_authenticated(activity: &Activity) -> bool {
    activity.authenticated.load(Ordering::Acquire)
}
