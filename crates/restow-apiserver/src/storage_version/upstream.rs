//! The upstream: the main API server, to which an aggregated server reports its storage versions as well.
//!
//! The aggregated server's own store has its own leases, reports and fence. A transaction in that store cannot compare the
//! lease at the main API server. So that lease is enforced by time: the aggregated server writes only while it has renewed it
//! recently enough.

use super::Agreement;
use async_trait::async_trait;
use restow_api::GroupResource;
use restow_rules::ServerReport;
use std::fmt;

/// The main API server of an aggregated server, which reports there as well as in its own store.
#[async_trait]
pub trait Upstream: Send + Sync + fmt::Debug {
    /// Takes a new identity lease there, in place of an earlier one. The error is a message for people.
    async fn join(&self) -> Result<(), String>;

    /// Reports there. Returns when the report is stored.
    async fn report(&self, resource: &GroupResource, report: &ServerReport) -> Result<(), String>;

    /// Withdraws a report.
    async fn withdraw(&self, resource: &GroupResource) -> Result<(), String>;

    /// Withdraws everything that this server or an earlier process of it has reported there.
    async fn withdraw_everything(&self) -> Result<(), String>;

    /// Whether the identity lease is still valid, by this server's own clock.
    fn holds(&self) -> bool;

    /// Completes when the identity lease is lost, or was not renewed in time.
    async fn lost(&self);

    /// Releases the identity lease.
    async fn leave(&self);
}

impl Agreement {
    /// Completes when the lease at the main API server is lost; never where there is no such server.
    pub(super) async fn upstream_lost(&self) {
        match &self.config.upstream {
            Some(upstream) => upstream.lost().await,
            None => std::future::pending().await,
        }
    }
}
