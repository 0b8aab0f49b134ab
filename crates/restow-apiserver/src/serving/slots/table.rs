//! Who has a place, and which connection gives way to a new one.

use super::{Activity, AddressRange, ConnectionLimits};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What there is for a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Place,
    /// All places are in use: one that is kept for urgent requests.
    Reserve,
    None,
}

/// The connections that have a place.
#[derive(Default)]
pub(super) struct Table {
    next: u64,
    connections: BTreeMap<u64, Arc<Activity>>,
    /// How many of them are unproven, by address. No address is kept that has none.
    unproven: HashMap<AddressRange, usize>,
    all_unproven: usize,
}

impl Table {
    /// Makes a place for a connection of this address, at the cost of others where that has to be.
    pub(super) fn make_place(&mut self, range: AddressRange, limits: &ConnectionLimits, now: u64) -> Outcome {
        let of_range = self.unproven.get(&range).copied().unwrap_or_default();
        if of_range >= limits.unproven_per_address.max(1)
            && !self.evict(now, |other| other.range == range && !is_proven(other))
        {
            return Outcome::None;
        }
        let crowded =
            self.all_unproven >= (limits.connections / 2).max(1) && !self.evict(now, |other| !is_proven(other));
        // Those in the reserve are more than there are places: one of them that goes leaves none.
        while !crowded && self.connections.len() >= limits.connections && self.evict_any(now) {}
        if !crowded && self.connections.len() < limits.connections {
            return Outcome::Place;
        }
        match self.connections.len() < limits.connections + limits.reserve() {
            true => Outcome::Reserve,
            false => Outcome::None,
        }
    }

    pub(super) fn next_id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn insert(&mut self, activity: Arc<Activity>) {
        *self.unproven.entry(activity.range).or_default() += 1;
        self.all_unproven += 1;
        self.connections.insert(activity.id, activity);
    }

    pub(super) fn remove(&mut self, id: u64) {
        if let Some(activity) = self.connections.remove(&id)
            && !is_proven(&activity)
        {
            self.one_unproven_fewer(activity.range);
        }
    }

    /// The client of this connection has shown credentials.
    pub(super) fn prove(&mut self, id: u64) {
        if let Some(activity) = self.connections.get(&id)
            && !activity.proven.swap(true, Ordering::AcqRel)
        {
            self.one_unproven_fewer(activity.range);
        }
    }

    /// Ends a connection that is not in use, one that is unproven if possible.
    pub(super) fn evict_any(&mut self, now: u64) -> bool {
        self.evict(now, |other| !is_proven(other)) || self.evict(now, |_| true)
    }

    /// Ends the connection that has idled longest of those that may give way; says whether there was one.
    fn evict(&mut self, now: u64, may_give_way: impl Fn(&Activity) -> bool) -> bool {
        let idle = self
            .connections
            .values()
            .filter(|other| may_give_way(other))
            .filter_map(|other| Some((other.idle_since(now)?, other)))
            .min_by_key(|(since, other)| (*since, other.id));
        let Some(oldest) = idle.map(|(_, oldest)| oldest.clone()) else { return false };
        // Whoever takes no answer does not take notice either.
        let deaf = oldest.running.load(Ordering::Acquire) > 0;
        oldest.abruptly.store(deaf || !is_proven(&oldest), Ordering::Release);
        oldest.close();
        self.remove(oldest.id);
        true
    }

    fn one_unproven_fewer(&mut self, range: AddressRange) {
        self.all_unproven = self.all_unproven.saturating_sub(1);
        if let Some(count) = self.unproven.get_mut(&range) {
            *count -= 1;
            if *count == 0 {
                self.unproven.remove(&range);
            }
        }
    }
}

fn is_proven(activity: &Activity) -> bool {
    activity.proven.load(Ordering::Acquire)
}
