//! ServiceAccounts: the `token` subresource, which `handlers/review.rs` handles.

use crate::resource::strategy::{Strategy, SubresourceAction};

pub(super) struct ServiceAccount;

impl Strategy for ServiceAccount {
    fn subresource_action(&self, subresource: &str) -> Option<SubresourceAction> {
        (subresource == "token").then_some(SubresourceAction::IssueToken)
    }
}
