//! Leader election for controllers: the leader holds a key that expires.
//!
//! The work must be safe when two servers do it at once, because a paused server learns late that it lost the key.

use restow_store::{Compare, Key, Store, StoreError, Txn, TxnOutcome};
use std::sync::Arc;
use std::time::Duration;

/// The time to live of the key.
const LOCK_TTL: Duration = Duration::from_secs(15);
/// How often the key is renewed, or the server tries to take it.
pub(crate) const RENEW_INTERVAL: Duration = Duration::from_secs(4);

/// The leader lock of one controller.
pub(crate) struct LeaderLock {
    store: Arc<dyn Store>,
    key: Key,
    name: String,
}

impl LeaderLock {
    /// The lock of the controller of this name.
    pub(crate) fn new(task: &str, store: Arc<dyn Store>) -> Result<Self, StoreError> {
        let key = Key::try_from(format!("/restow/leaders/{task}"));
        let key = key.map_err(|error| StoreError::Invalid(error.to_string()))?;
        Ok(LeaderLock { store, key, name: restow_host::uuid().to_string() })
    }

    /// Takes or renews the key; returns whether this server holds it now.
    pub(crate) async fn renew(&self) -> Result<bool, StoreError> {
        for condition in [Compare::value(&self.key, self.name.clone()), Compare::absent(&self.key)] {
            let txn = Txn::new().when(condition).put_for(&self.key, self.name.clone(), LOCK_TTL);
            if let TxnOutcome::Committed { .. } = self.store.txn(txn).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Deletes the key, so that another server need not wait for it to expire.
    pub(crate) async fn release(&self) {
        let txn = Txn::new().when(Compare::value(&self.key, self.name.clone())).delete(&self.key);
        // If this fails, the key expires.
        let _ = self.store.txn(txn).await;
    }
}
