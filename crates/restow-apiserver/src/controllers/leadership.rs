//! Which server does what one server does for all: whoever holds a key that expires.
//!
//! What is done must be safe when two do it at once, because a server that is paused learns late that it lost the key.

use restow_store::{Compare, Key, Store, StoreError, Txn, TxnOutcome};
use std::sync::Arc;
use std::time::Duration;

/// For how long the key is held without being renewed.
const TERM: Duration = Duration::from_secs(15);
/// How often it is renewed, or tried for.
pub(super) const RENEWAL: Duration = Duration::from_secs(4);

/// One server's claim to a task.
pub(super) struct Claim {
    store: Arc<dyn Store>,
    key: Key,
    name: String,
}

impl Claim {
    /// A claim to the task of this name.
    pub(super) fn to(task: &str, store: Arc<dyn Store>) -> Result<Self, StoreError> {
        let key = Key::try_from(format!("/restow/leaders/{task}"));
        let key = key.map_err(|error| StoreError::Invalid(error.to_string()))?;
        Ok(Claim { store, key, name: uuid::Uuid::new_v4().to_string() })
    }

    /// Takes or renews the key; tells whether this server holds it now.
    pub(super) async fn renew(&self) -> Result<bool, StoreError> {
        for condition in [Compare::value(&self.key, self.name.clone()), Compare::absent(&self.key)] {
            let txn = Txn::new().when(condition).put_for(&self.key, self.name.clone(), TERM);
            if let TxnOutcome::Committed { .. } = self.store.txn(txn).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Gives the key back, so that another need not wait for it to expire.
    pub(super) async fn release(&self) {
        let txn = Txn::new().when(Compare::value(&self.key, self.name.clone())).delete(&self.key);
        // Without it the key expires by itself.
        let _ = self.store.txn(txn).await;
    }
}
