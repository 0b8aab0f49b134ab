//! Signals that a fence refused a write, so that the server checks its identity lease and registers again.

use prometheus_client::metrics::counter::Counter;
use restow_store::{Compare, CompareTarget, Key, Relation, Revision};
use std::sync::{Mutex, OnceLock, PoisonError};
use tokio::sync::Notify;

/// Counts and signals writes that a fence refused.
#[derive(Default)]
pub(crate) struct FenceAlarm {
    /// Notified when a fence refuses a write.
    pub(crate) rung: Notify,
    /// The number of refused writes.
    pub(crate) failures: Counter,
    /// Whether the lease at the main API server is still valid; a transaction cannot compare it.
    upstream_holds: OnceLock<Box<dyn Fn() -> bool + Send + Sync>>,
    /// The comparison that holds as long as the last renewal of the lease is in the store.
    renewal: Mutex<Option<Compare>>,
}

impl FenceAlarm {
    /// A fence refused a write.
    pub(crate) fn ring(&self) {
        self.failures.inc();
        self.rung.notify_one();
    }

    /// Allows writes only while this holds.
    pub(crate) fn write_only_while(&self, holds: impl Fn() -> bool + Send + Sync + 'static) {
        // It is set once, when the server is created.
        let _ = self.upstream_holds.set(Box::new(holds));
    }

    /// Whether the lease at the main API server was not renewed in time, so that nothing may be written.
    pub(crate) fn is_overdue(&self) -> bool {
        self.upstream_holds.get().is_some_and(|holds| !holds())
    }

    /// What every write compares in addition to the lease: its last renewal is in the store. A store that was restored from an
    /// earlier backup lacks it, even if the lease is the same.
    pub(crate) fn renewal(&self) -> Option<Compare> {
        self.renewal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records that the lease was taken or renewed at this revision.
    pub(crate) fn renewed(&self, lease: &Key, revision: Revision) {
        let before = CompareTarget::ModRevision(Revision::new(revision.get().saturating_sub(1)));
        let renewal = Compare { key: lease.clone(), relation: Relation::Greater, target: before };
        *self.renewal.lock().unwrap_or_else(PoisonError::into_inner) = Some(renewal);
    }

    /// The number of refused writes.
    pub(crate) fn count(&self) -> u64 {
        self.failures.get()
    }
}
