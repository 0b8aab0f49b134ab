//! Tokens for programs: signed by the server, tied to a service account and to an object that must still exist, and
//! expiring.
//!
//! [`Tokens`] issues them (`TokenRequest`), verifies them, and publishes the keys with which others can verify them
//! (OpenID discovery). It looks nothing up itself: [`ServiceAccounts`] is the server's view of what exists.

mod claims;
mod discovery;
mod issue_token;
mod jwt;
mod keys;
mod tokens;
mod verify_token;

#[cfg(test)]
mod tests;

pub use discovery::{CONFIGURATION_PATH, KEYS_PATH};
pub use issue_token::{IssueError, Issued};
pub use keys::{KeyError, SigningKey, VerifyingKey};
pub use tokens::{TokenOptions, Tokens};
pub use verify_token::VerifyError;

/// What exists, as far as tokens depend on it.
pub trait ServiceAccounts {
    /// The uid of the service account, if it exists and was not deleted.
    fn uid_of(&self, namespace: &str, name: &str) -> Option<String>;

    /// The object that a token is bound to, if it exists and was not deleted. Nodes have no namespace.
    fn bound_object(&self, kind: BoundKind, namespace: &str, name: &str) -> Option<BoundObject>;
}

/// The kinds of objects that a token can be bound to: it is valid only as long as they exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundKind {
    /// A pod of the service account.
    Pod,
    /// A secret in the service account's namespace.
    Secret,
    /// A node.
    Node,
}

/// An object that a token is bound to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BoundObject {
    /// Its uid.
    pub uid: String,
    /// For a pod: the service account it runs as.
    pub service_account_name: String,
    /// For a pod: the node it runs on; empty when it has none yet.
    pub node_name: String,
}

/// A service account for which a token is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its uid.
    pub uid: &'a str,
}

impl BoundKind {
    /// The kind's name in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            BoundKind::Pod => "Pod",
            BoundKind::Secret => "Secret",
            BoundKind::Node => "Node",
        }
    }

    /// The resource that objects of the kind are.
    pub fn resource(self) -> &'static str {
        match self {
            BoundKind::Pod => "pods",
            BoundKind::Secret => "secrets",
            BoundKind::Node => "nodes",
        }
    }
}
