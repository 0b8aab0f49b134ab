//! Service account tokens. The server signs them; each expires, and is bound to a service account and optionally to an
//! object. A token is invalid when one of them is deleted.
//!
//! [`Tokens`] issues tokens (`TokenRequest`), verifies them, and publishes the keys with which others can verify them
//! (OpenID discovery). It does not read objects itself: the server implements [`ServiceAccounts`].

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

/// Reads the objects that tokens depend on.
pub trait ServiceAccounts {
    /// The uid of the service account, if it exists and is not being deleted.
    fn uid_of(&self, namespace: &str, name: &str) -> Option<String>;

    /// The object that a token is bound to, if it exists and is not being deleted. Nodes have no namespace.
    fn bound_object(&self, kind: BoundKind, namespace: &str, name: &str) -> Option<BoundObject>;
}

/// The kinds of objects that a token can be bound to. The token is invalid when the object is deleted.
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
    /// For a pod: the name of its service account.
    pub service_account_name: String,
    /// For a pod: the name of its node; empty before it is scheduled.
    pub node_name: String,
}

/// The service account of a token request.
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

    /// The plural resource name of the kind.
    pub fn resource(self) -> &'static str {
        match self {
            BoundKind::Pod => "pods",
            BoundKind::Secret => "secrets",
            BoundKind::Node => "nodes",
        }
    }
}
