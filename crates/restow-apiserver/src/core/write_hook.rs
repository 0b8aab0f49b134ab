//! What a kind does beside its own object when it is written, such as taking a cluster IP.

use crate::error::ApiError;
use crate::request::Request;
use async_trait::async_trait;
use restow_apimachinery::object::Object;
use restow_store::Compare;

/// Completes objects of one kind from what else is in the store.
#[async_trait]
pub(crate) trait WriteHook: Send + Sync {
    /// Completes an object that is about to be created, or to replace `old`. Returns what must hold in the store when it is written.
    async fn claim(
        &self,
        request: &Request,
        object: &mut Object,
        old: Option<&Object>,
    ) -> Result<Vec<Compare>, ApiError>;
}
