//! What a server of the story runs on: something that can be suspended in the middle of a write, and woken.
//!
//! This is all that differs between servers in this process and servers in processes of their own.

use async_trait::async_trait;
use std::net::SocketAddr;
use std::time::Duration;

/// How long the others wait for a server that gives no sign of life: short, so that nobody has to wait long in a demo, but not
/// so short that a busy machine is taken for one that sleeps.
pub(super) const LEASE: Duration = Duration::from_secs(6);
/// How often a server gives a sign of life.
pub(super) const RENEWAL: Duration = Duration::from_secs(1);

/// A machine with one server on it.
#[async_trait]
pub(super) trait Machine: Send + Sync {
    /// Where the server listens.
    fn address(&self) -> SocketAddr;

    /// Holds up what the server writes from now on, so that it can be suspended with a write on its way.
    async fn hold_writes(&mut self) -> anyhow::Result<()>;

    /// Waits until a write of this object is held up, and suspends the server with it in its hands.
    async fn suspend_with(&mut self, name: &str) -> anyhow::Result<()>;

    /// Lets it go on as if no time had passed.
    async fn wake(&mut self) -> anyhow::Result<()>;

    /// How many of its writes the fence has refused, as far as has been heard.
    fn fence_failures(&self) -> u64;

    /// Stops the server in order, wherever it is in the story.
    async fn stop(&mut self) -> anyhow::Result<()>;
}
