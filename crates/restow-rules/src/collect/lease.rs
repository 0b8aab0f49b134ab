//! An identity lease, as the collection reads it.

use restow_api::{ResourceVersion, ServerId};

/// An identity lease as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityLease {
    /// The server that it belongs to.
    pub id: ServerId,
    /// The control plane that the server is part of; `None` where the lease is not the identity of an API server.
    pub control_plane: Option<String>,
    /// The lease's revision, which is the precondition of deleting it: a renewal in between keeps it.
    pub revision: ResourceVersion,
    /// Whether the lease, at this revision, was watched for its whole duration and did not change
    /// ([`LeaseWatch`](crate::LeaseWatch)).
    pub expired: bool,
}
