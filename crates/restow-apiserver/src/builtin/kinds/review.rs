//! The reviews of authentication and authorization. They are not stored; `handlers/review.rs` evaluates them.

use crate::resource::strategy::{Plain, ReviewKind, Strategy, SubresourceAction};

struct Review(ReviewKind);

impl Strategy for Review {
    fn subresource_action(&self, subresource: &str) -> Option<SubresourceAction> {
        subresource.is_empty().then_some(SubresourceAction::Review(self.0))
    }
}

/// The rules of a kind of the groups `authentication.k8s.io` and `authorization.k8s.io`.
pub(super) fn rules(kind: &str) -> &'static dyn Strategy {
    match kind {
        "LocalSubjectAccessReview" => &Review(ReviewKind::LocalSubjectAccess),
        "SelfSubjectAccessReview" => &Review(ReviewKind::SelfSubjectAccess),
        "SelfSubjectReview" => &Review(ReviewKind::SelfSubject),
        "SelfSubjectRulesReview" => &Review(ReviewKind::SelfSubjectRules),
        "SubjectAccessReview" => &Review(ReviewKind::SubjectAccess),
        "TokenReview" => &Review(ReviewKind::Token),
        _ => &Plain,
    }
}
