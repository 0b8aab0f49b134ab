//! The write gate of one resource: it holds the encoding in force, and stops writes while it changes.
//!
//! A write takes the encoding, converts the object, and then enters the gate. To change the encoding, a component halts
//! the gate: that waits for the writes in flight and blocks others, which find the new encoding when the gate opens
//! again. Writes do not fail, unless the resource is removed.

use crate::error::ApiError;
use crate::resource::storage::{Encoding, Membership};
use restow_api::GroupResource;
use restow_store::Compare;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, watch};

/// The write gate of one resource.
pub(crate) struct WriteGate {
    encoding: watch::Sender<Arc<Encoding>>,
    open: RwLock<()>,
    /// Existing objects can be changed and removed; new ones cannot be created.
    full: AtomicBool,
    closed: AtomicBool,
    /// The leases under which writes were sent whose outcome is unknown.
    doubts: Mutex<Vec<Compare>>,
}

/// The permit of one write. The encoding cannot change until it is dropped.
pub(crate) struct WritePermit<'a>(#[allow(dead_code, reason = "it is held, not read")] RwLockReadGuard<'a, ()>);

/// Halts a write gate until it is dropped.
pub(crate) struct WriteHalt<'a>(#[allow(dead_code, reason = "it is held, not read")] RwLockWriteGuard<'a, ()>);

impl WriteGate {
    /// An open write gate.
    pub(crate) fn new(encoding: Encoding) -> Self {
        WriteGate {
            encoding: watch::Sender::new(Arc::new(encoding)),
            open: RwLock::new(()),
            full: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            doubts: Mutex::default(),
        }
    }

    /// The encoding in force now.
    pub(crate) fn encoding(&self) -> Arc<Encoding> {
        self.encoding.borrow().clone()
    }

    /// Sets another encoding for new writes.
    pub(crate) fn replace(&self, change: impl FnOnce(&Encoding) -> Encoding) {
        self.encoding.send_modify(|encoding| *encoding = Arc::new(change(encoding)));
    }

    /// Completes when the encoding is not `known` any more, or the gate is closed.
    pub(crate) async fn changed_from(&self, known: &Arc<Encoding>) {
        // `self` owns the sender, so waiting cannot fail.
        let _ = self.encoding.subscribe().wait_for(|encoding| !Arc::ptr_eq(encoding, known)).await;
    }

    /// Admits a write that was prepared in this encoding; `None` if the encoding has changed.
    pub(crate) async fn enter(&self, prepared: &Arc<Encoding>) -> Result<Option<WritePermit<'_>>, ApiError> {
        let pass = WritePermit(self.open.read().await);
        if self.is_closed() {
            return Err(ApiError::NoSuchResource);
        }
        Ok(Arc::ptr_eq(prepared, &self.encoding.borrow()).then_some(pass))
    }

    /// Waits for the writes in flight, and blocks others.
    pub(crate) async fn halt(&self) -> WriteHalt<'_> {
        WriteHalt(self.open.write().await)
    }

    /// Refuses new objects, because the resource is about to be removed.
    pub(crate) fn refuse_create(&self) {
        self.full.store(true, Ordering::Release);
    }

    /// Whether new objects can be created.
    pub(crate) fn allows_create(&self) -> bool {
        !self.full.load(Ordering::Acquire)
    }

    /// Refuses all writes, because the resource was removed.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        // Wakes the writes that wait for another encoding.
        self.replace(Encoding::clone);
    }

    /// Completes when the resource was removed.
    pub(crate) async fn closing(&self) {
        let _ = self.encoding.subscribe().wait_for(|_| self.is_closed()).await;
    }

    /// Records a write whose outcome is unknown. It compares the lease that it was sent under. If it compares no fence
    /// on the version, it can still commit while that lease exists.
    pub(crate) fn record_unknown_outcome(&self, encoding: &Encoding) {
        let Membership::Registered(lease) = &encoding.membership else { return };
        let mut doubts = self.doubts();
        if encoding.fences.is_empty() && !doubts.contains(lease) {
            doubts.push(lease.clone());
        }
    }

    /// Whether a write with an unknown outcome may still commit while this server has this lease.
    pub(crate) fn may_still_commit(&self, lease: &Compare) -> bool {
        let mut doubts = self.doubts();
        // Writes that were sent under an earlier lease are refused by their fence.
        doubts.retain(|sent_under| sent_under == lease);
        !doubts.is_empty()
    }

    fn doubts(&self) -> MutexGuard<'_, Vec<Compare>> {
        // No code panics while it holds the lock.
        self.doubts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

/// Whether writes of this resource in this namespace pass before it is reported. Leases in `kube-system` are renewed or
/// collected soon, so none stays in an old version.
pub(crate) fn passes_barrier(resource: &GroupResource, namespace: &str) -> bool {
    resource.group() == "coordination.k8s.io" && resource.resource() == "leases" && namespace == "kube-system"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::storage::Fence;
    use restow_api::GroupVersion;
    use restow_store::Key;

    fn encoding(version: &str) -> Encoding {
        Encoding {
            version: GroupVersion::new("example.com", version).unwrap(),
            fences: Vec::new(),
            membership: Membership::Unmanaged,
        }
    }

    #[tokio::test]
    async fn a_halt_waits_for_writes_in_flight_and_blocks_others() {
        let write_gate = Arc::new(WriteGate::new(encoding("v1")));
        let first = write_gate.encoding();
        let pass = write_gate.enter(&first).await.unwrap().unwrap();
        let switching = restow_host::spawn({
            let write_gate = write_gate.clone();
            async move {
                let _halt = write_gate.halt().await;
                write_gate.replace(|_| encoding("v2"));
            }
        });
        tokio::task::yield_now().await;
        assert!(!switching.is_finished(), "a write is still on its way");
        assert!(Arc::ptr_eq(&first, &write_gate.encoding()));
        drop(pass);
        write_gate.changed_from(&first).await;
        switching.await.unwrap();
        assert!(write_gate.enter(&first).await.unwrap().is_none(), "what was prepared before must be prepared again");
        assert!(write_gate.enter(&write_gate.encoding()).await.unwrap().is_some());
    }

    #[tokio::test]
    async fn a_closed_gate_refuses_all_writes() {
        let write_gate = WriteGate::new(encoding("v1"));
        let first = write_gate.encoding();
        write_gate.close();
        write_gate.closing().await;
        write_gate.changed_from(&first).await;
        assert_eq!(write_gate.enter(&write_gate.encoding()).await.err(), Some(ApiError::NoSuchResource));
    }

    #[test]
    fn a_write_with_unknown_outcome_may_commit_while_its_lease_exists() {
        let lease = |revision: u64| {
            Compare::create_revision(&Key::try_from("/lease").unwrap(), restow_store::Revision::new(revision))
        };
        let write_gate = WriteGate::new(encoding("v1"));
        write_gate.record_unknown_outcome(&encoding("v1"));
        let registered = Encoding { membership: Membership::Registered(lease(1)), ..encoding("v1") };
        write_gate.record_unknown_outcome(&Encoding { fences: vec![Fence::Selected(lease(5))], ..registered.clone() });
        assert!(
            !write_gate.may_still_commit(&lease(1)),
            "one is not bound to a lease, the other is refused once another is selected"
        );
        write_gate.record_unknown_outcome(&registered);
        write_gate.record_unknown_outcome(&registered);
        assert!(write_gate.may_still_commit(&lease(1)));
        assert!(!write_gate.may_still_commit(&lease(2)), "it was sent under another");
    }

    #[test]
    fn only_leases_in_kube_system_pass_before_registration() {
        let check = |resource: &str, namespace: &str, expected: bool| {
            assert_eq!(passes_barrier(&resource.parse().unwrap(), namespace), expected, "{resource} in {namespace:?}");
        };
        check("leases.coordination.k8s.io", "kube-system", true);
        check("leases.coordination.k8s.io", "kube-node-lease", false);
        check("leases.coordination.k8s.io", "", false);
        check("leases.example.com", "kube-system", false);
        check("configmaps", "kube-system", false);
        check("namespaces", "", false);
        check("storageversions.internal.apiserver.k8s.io", "", false);
    }
}
