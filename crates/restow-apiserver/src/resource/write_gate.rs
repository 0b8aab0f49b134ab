//! The way that all writes of one resource go: the encoding in force, and holding writes up while it is changed.
//!
//! A write takes the encoding, converts the object, and then asks to pass. Whoever changes the encoding first halts the
//! write_gate, which waits for the writes that are on their way and lets others wait; they find the new encoding when the
//! write_gate is free again. Nothing fails on the way, unless the resource is gone.

use crate::error::ApiError;
use crate::resource::storage::{Encoding, Membership};
use restow_api::GroupResource;
use restow_store::Compare;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, watch};

/// The write_gate of one resource's writes.
pub(crate) struct WriteGate {
    encoding: watch::Sender<Arc<Encoding>>,
    open: RwLock<()>,
    /// Objects that exist can be changed and removed; new ones cannot be created.
    full: AtomicBool,
    closed: AtomicBool,
    /// The leases under which writes were sent of which nobody knows what became.
    doubts: Mutex<Vec<Compare>>,
}

/// A write that may go ahead; others can change the encoding when this is dropped.
pub(crate) struct WritePermit<'a>(#[allow(dead_code, reason = "it is held, not read")] RwLockReadGuard<'a, ()>);

/// A write_gate that nothing goes through until this is dropped.
pub(crate) struct WriteHalt<'a>(#[allow(dead_code, reason = "it is held, not read")] RwLockWriteGuard<'a, ()>);

impl WriteGate {
    /// An open write_gate.
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

    /// Puts another encoding in force for the writes that begin from now on.
    pub(crate) fn replace(&self, change: impl FnOnce(&Encoding) -> Encoding) {
        self.encoding.send_modify(|encoding| *encoding = Arc::new(change(encoding)));
    }

    /// Completes when another encoding than `known` is in force, or the write_gate is closed.
    pub(crate) async fn changed_from(&self, known: &Arc<Encoding>) {
        // The sender lives as long as this, so waiting cannot fail.
        let _ = self.encoding.subscribe().wait_for(|encoding| !Arc::ptr_eq(encoding, known)).await;
    }

    /// Lets a write pass that was prepared in this encoding; `None` when another is in force by now.
    pub(crate) async fn enter(&self, prepared: &Arc<Encoding>) -> Result<Option<WritePermit<'_>>, ApiError> {
        let pass = WritePermit(self.open.read().await);
        if self.is_closed() {
            return Err(ApiError::NoSuchResource);
        }
        Ok(Arc::ptr_eq(prepared, &self.encoding.borrow()).then_some(pass))
    }

    /// Waits until the writes that are on their way are done, and lets no other pass.
    pub(crate) async fn halt(&self) -> WriteHalt<'_> {
        WriteHalt(self.open.write().await)
    }

    /// Lets no new objects pass any more: the resource is about to go.
    pub(crate) fn refuse_new(&self) {
        self.full.store(true, Ordering::Release);
    }

    /// Whether new objects can be created.
    pub(crate) fn takes_new(&self) -> bool {
        !self.full.load(Ordering::Acquire)
    }

    /// Lets nothing pass any more: the resource is gone.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        // Whoever waits for another encoding has nothing to wait for.
        self.replace(Encoding::clone);
    }

    /// Completes when the resource is gone.
    pub(crate) async fn closing(&self) {
        let _ = self.encoding.subscribe().wait_for(|_| self.is_closed()).await;
    }

    /// Nobody knows whether a write in this encoding was, or will be, carried out. It compares the lease that it was sent
    /// under; where it compares nothing that is about the version, it can land as long as that lease exists.
    pub(crate) fn doubt(&self, encoding: &Encoding) {
        let Membership::Registered(lease) = &encoding.membership else { return };
        let mut doubts = self.doubts();
        if encoding.fences.is_empty() && !doubts.contains(lease) {
            doubts.push(lease.clone());
        }
    }

    /// Whether a write of which nobody knows may still land, as long as this server has this lease.
    pub(crate) fn is_doubted(&self, lease: &Compare) -> bool {
        let mut doubts = self.doubts();
        // What was sent under an earlier lease is refused.
        doubts.retain(|sent_under| sent_under == lease);
        !doubts.is_empty()
    }

    fn doubts(&self) -> MutexGuard<'_, Vec<Compare>> {
        // Nothing that can panic happens while the lock is held.
        self.doubts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

/// Whether writes to this resource in this namespace pass though it is not reported yet. Leases of the system are renewed or
/// collected soon, so none of them stays behind in an old version.
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
    async fn a_change_waits_for_writes_on_their_way_and_holds_up_the_rest() {
        let write_gate = Arc::new(WriteGate::new(encoding("v1")));
        let first = write_gate.encoding();
        let pass = write_gate.enter(&first).await.unwrap().unwrap();
        let switching = tokio::spawn({
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
    async fn nothing_passes_once_it_is_closed() {
        let write_gate = WriteGate::new(encoding("v1"));
        let first = write_gate.encoding();
        write_gate.close();
        write_gate.closing().await;
        write_gate.changed_from(&first).await;
        assert_eq!(write_gate.enter(&write_gate.encoding()).await.err(), Some(ApiError::NoSuchResource));
    }

    #[test]
    fn what_is_in_doubt_may_land_as_long_as_its_lease_exists_and_nothing_else_refuses_it() {
        let lease = |revision: u64| {
            Compare::create_revision(&Key::try_from("/lease").unwrap(), restow_store::Revision::new(revision))
        };
        let write_gate = WriteGate::new(encoding("v1"));
        write_gate.doubt(&encoding("v1"));
        let registered = Encoding { membership: Membership::Registered(lease(1)), ..encoding("v1") };
        write_gate.doubt(&Encoding { fences: vec![Fence::Selected(lease(5))], ..registered.clone() });
        assert!(
            !write_gate.is_doubted(&lease(1)),
            "one is not bound to a lease, the other is refused once another is selected"
        );
        write_gate.doubt(&registered);
        write_gate.doubt(&registered);
        assert!(write_gate.is_doubted(&lease(1)));
        assert!(!write_gate.is_doubted(&lease(2)), "it was sent under another");
    }

    #[test]
    fn only_leases_of_the_system_pass_early() {
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
