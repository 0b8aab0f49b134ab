//! A server of the demo that can be suspended in the middle of a write, and resumed.
//!
//! This is all that differs between a server in this process and a server in its own process.

use async_trait::async_trait;
use std::net::SocketAddr;
use std::time::Duration;

/// How long identity leases last: short, so that the demo does not wait long, but not so short that the lease of a server on a
/// busy machine expires.
pub(super) const LEASE_DURATION: Duration = Duration::from_secs(6);
/// How often a server renews its lease.
pub(super) const RENEW_INTERVAL: Duration = Duration::from_secs(1);

/// A server that can be suspended.
#[async_trait]
pub(super) trait Suspendable: Send + Sync {
    /// Where the server listens.
    fn address(&self) -> SocketAddr;

    /// Holds the server's writes from now on, so that it can be suspended with a write under way.
    async fn hold_writes(&mut self) -> anyhow::Result<()>;

    /// Waits until a write of this object is held, and suspends the server with that write under way.
    async fn suspend_with(&mut self, name: &str) -> anyhow::Result<()>;

    /// Resumes the server, which does not notice that time has passed.
    async fn resume(&mut self) -> anyhow::Result<()>;

    /// How many of its writes the fence has refused, as far as it has reported.
    fn fence_failures(&self) -> u64;

    /// Stops the server cleanly, also while it is suspended.
    async fn stop(&mut self) -> anyhow::Result<()>;
}
