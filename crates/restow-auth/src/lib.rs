//! Who asks, and may they: authentication and authorization as Kubernetes does them.
//!
//! Everything here is pure or a small table in memory: no sockets, no store, no clock (`now` is an argument). The
//! server turns connections and headers into calls of these functions, and their errors into answers.
//!
//! | module | question |
//! |---|---|
//! | [`authenticate`] | who asks? certificates, bearer tokens, anonymous, impersonation |
//! | [`service_account`] | tokens for programs: issuing, verifying, OpenID discovery |
//! | [`authorizer`] | may they? the interface, and the group that may do everything |
//! | [`rbac`] | may they? roles and bindings, aggregation, escalation checks |
//! | [`bootstrap`] | the roles and bindings that every cluster has |
//! | [`review`] | the API kinds that ask these questions |

pub mod attributes;
pub mod authenticate;
pub mod authorizer;
pub mod bootstrap;
pub mod rbac;
pub mod review;
pub mod service_account;
pub mod user;

pub use attributes::{Attributes, ResourceAttributes};
pub use authorizer::{Authorizer, Decision, PrivilegedGroup, UserRules};
pub use user::User;
