//! Which writes pass before this server has reported in which versions it stores.
//!
//! These pass: reads; kinds that are not stored; custom resources and those of other servers, which are reported on their
//! own; and leases in `kube-system`, on which everything else rests. The server's own writes of its lease and its reports do not come
//! this way.

use crate::error::ApiError;
use crate::resource::Verb;
use restow_api::GroupResource;
use std::time::Duration;

/// Whether a verb changes nothing.
pub(super) fn reads(verb: Verb) -> bool {
    matches!(verb, Verb::Get | Verb::List | Verb::Watch)
}

/// What a client is told that has to wait.
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
    fn the_client_is_told_in_kubernetes_words() {
        let resource: GroupResource = "deployments.apps".parse().unwrap();
        let words =
            "wait for storage version registration to complete for resource: deployments.apps, last seen error: ";
        assert_eq!(refusal(&resource, None).to_string(), format!("{words}<nil>"));
        assert_eq!(refusal(&resource, Some("no etcd")).to_string(), format!("{words}no etcd"));
    }
}
