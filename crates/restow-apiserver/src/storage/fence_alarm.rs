//! Rings when a fence refuses a write, so that the server registers its storage versions again.

use prometheus_client::metrics::counter::Counter;
use restow_store::{Compare, Key, Relation, Revision, Target};
use std::sync::{Mutex, OnceLock, PoisonError};
use tokio::sync::Notify;

/// Rings when a fence refuses a write.
#[derive(Default)]
pub(crate) struct FenceAlarm {
    /// Notified with each ring.
    pub(crate) rung: Notify,
    /// How often it has rung.
    pub(crate) failures: Counter,
    /// Whether what was reported to another API server still counts; nothing of it can be compared in a transaction.
    upstream_holds: OnceLock<Box<dyn Fn() -> bool + Send + Sync>>,
    /// What holds as long as the store remembers that this server renewed its lease.
    renewal: Mutex<Option<Compare>>,
}

impl FenceAlarm {
    pub(crate) fn ring(&self) {
        self.failures.inc();
        self.rung.notify_one();
    }

    /// Lets writes pass only while this holds.
    pub(crate) fn write_only_while(&self, holds: impl Fn() -> bool + Send + Sync + 'static) {
        // Only a server that is made sets it, and it is made once.
        let _ = self.upstream_holds.set(Box::new(holds));
    }

    /// Whether what was reported to another API server does not count any more, so that nothing may be written.
    pub(crate) fn is_overdue(&self) -> bool {
        self.upstream_holds.get().is_some_and(|holds| !holds())
    }

    /// What every write compares beside the lease itself: that the store remembers its last renewal. One that was restored
    /// from an earlier backup does not, though the lease may be the same.
    pub(crate) fn renewal(&self) -> Option<Compare> {
        self.renewal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The lease was taken or renewed at this revision.
    pub(crate) fn renewed(&self, lease: &Key, revision: Revision) {
        let before = Target::ModRevision(Revision::new(revision.get().saturating_sub(1)));
        let renewal = Compare { key: lease.clone(), relation: Relation::Greater, target: before };
        *self.renewal.lock().unwrap_or_else(PoisonError::into_inner) = Some(renewal);
    }

    /// How often it has rung.
    pub(crate) fn count(&self) -> u64 {
        self.failures.get()
    }
}
