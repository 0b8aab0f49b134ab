//! Authentication and authorization as Kubernetes does them.
//!
//! Everything here is pure or a small table in memory: no sockets, no store, no clock (`now` is an argument). The
//! server turns connections and headers into calls of these functions, and their errors into responses.
//!
//! | module | what it does |
//! |---|---|
//! | [`authenticate`] | authentication: client certificates, bearer tokens, anonymous requests, impersonation |
//! | [`service_account`] | service account tokens: issuing, verifying, OpenID discovery |
//! | [`authorizer`] | authorization: the interface, and the group `system:masters` |
//! | [`rbac`] | authorization by RBAC: roles and bindings, aggregation, escalation checks |
//! | [`bootstrap`] | the default roles and bindings of every cluster |
//! | [`review`] | SubjectAccessReview and the like, TokenReview |

pub mod attributes;
pub mod authenticate;
pub mod authorizer;
pub mod bootstrap;
mod posted;
pub mod rbac;
pub mod review;
pub mod service_account;
pub mod user;

pub use attributes::{Attributes, ResourceAttributes};
pub use authorizer::{Authorizer, Decision, PrivilegedGroup, UserRules};
pub use user::User;
