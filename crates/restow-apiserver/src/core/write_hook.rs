//! Hooks of a kind that run when its objects are written and that need other keys of the store, such as the allocation
//! of a cluster IP.

use crate::error::ApiError;
use crate::request::Request;
use async_trait::async_trait;
use restow_apimachinery::object::Object;
use restow_store::Compare;

/// A hook that completes objects of one kind from other keys of the store.
#[async_trait]
pub(crate) trait WriteHook: Send + Sync {
    /// Completes an object before it is created or replaces `old`. Returns conditions for its transaction.
    async fn claim(
        &self,
        request: &Request,
        object: &mut Object,
        old: Option<&Object>,
    ) -> Result<Vec<Compare>, ApiError>;

    /// Decides whether an object may be deleted.
    async fn check_deletion(&self, _object: &Object) -> Result<(), ApiError> {
        Ok(())
    }
}
