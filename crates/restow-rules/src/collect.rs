//! What may be removed when API servers go away, and in which order.
//!
//! There are three kinds of leftovers: identity leases that nobody renews, entries of servers without a lease, and
//! StorageVersions without entries. The order is what makes it safe: **the lease first, the entries after it.** Once the
//! lease is gone, no write of that server can commit, so its entry no longer protects anything.

mod lease;
mod plan;
mod storage_version;

pub use lease::IdentityLease;
pub use plan::{CollectEffect, CollectSnapshot, plan};
pub(crate) use storage_version::collect_expecting;
pub use storage_version::{Collected, MOST_DROPPED, collect};
