//! The write barrier: which requests pass before this server has reported its storage versions.
//!
//! These pass: reads; kinds that are not stored; custom resources and resources of aggregated servers, which are reported
//! separately; and leases in `kube-system`, which registration needs. The server's own writes of its lease and its reports do
//! not pass through here.

use crate::error::ApiError;
use crate::resource::Verb;
use restow_api::GroupResource;
use std::time::Duration;

/// Whether a verb changes nothing.
pub(super) fn is_read(verb: Verb) -> bool {
    matches!(verb, Verb::Get | Verb::List | Verb::Watch)
}

/// The error for a client that has to wait.
pub(super) fn refusal(resource: &GroupResource, last_error: Option<&str>) -> ApiError {
    let last_error = last_error.unwrap_or("<nil>");
    let message = format!(
        "wait for storage version registration to complete for resource: {resource}, last seen error: {last_error}"
    );
    ApiError::Unavailable { message, retry_after: Duration::from_secs(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_is_that_of_kubernetes() {
        let resource: GroupResource = "deployments.apps".parse().unwrap();
        let words =
            "wait for storage version registration to complete for resource: deployments.apps, last seen error: ";
        assert_eq!(refusal(&resource, None).to_string(), format!("{words}<nil>"));
        assert_eq!(refusal(&resource, Some("no etcd")).to_string(), format!("{words}no etcd"));
    }
}
