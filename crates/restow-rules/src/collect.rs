//! Garbage collection: what may be removed when API servers are gone, and in which order.
//!
//! There are three kinds of leftovers: expired identity leases, entries of servers without a lease, and StorageVersions
//! without entries. The order makes it safe: **the lease first, the entries after it.** Once the lease is deleted, no write
//! of that server can commit, so its entry is not needed any more.

mod lease;
mod main_lease;
mod plan;
mod storage_version;

pub use lease::IdentityLease;
pub use main_lease::{
    CONTROL_PLANE_LABEL, MainLease, OWN_LEASE_ANNOTATION, OWN_STORE_LABEL, OwnLease, OwnLeases, ended,
};
pub use plan::{CollectEffect, CollectSnapshot, plan};
pub(crate) use storage_version::collect_expecting;
pub use storage_version::{Collected, MOST_DROPPED, collect};
