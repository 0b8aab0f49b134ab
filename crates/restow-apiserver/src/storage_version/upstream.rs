//! Reporting elsewhere: an aggregated server reports to the main API server too, which others ask who stores what.
//!
//! The own store keeps its own leases and reports, and its own fence. What lies elsewhere cannot be compared in a transaction of
//! the own store, so it is held by time: a server writes only while its identity there has been renewed lately enough.

use super::Agreement;
use async_trait::async_trait;
use restow_api::GroupResource;
use restow_rules::ServerReport;
use std::fmt;

/// Somewhere else to report, beside the own store.
#[async_trait]
pub trait Elsewhere: Send + Sync + fmt::Debug {
    /// Takes an identity there anew, in the place of an earlier one. The reason why it failed is for people.
    async fn join(&self) -> Result<(), String>;

    /// Reports there. Returns when the report is stored.
    async fn report(&self, resource: &GroupResource, report: &ServerReport) -> Result<(), String>;

    /// Takes a report back.
    async fn withdraw(&self, resource: &GroupResource) -> Result<(), String>;

    /// Takes back whatever this server or an earlier life of it has reported there.
    async fn withdraw_everything(&self) -> Result<(), String>;

    /// Whether the identity is still good, by this server's own clock.
    fn holds(&self) -> bool;

    /// Completes when the identity is lost, or was not renewed in time.
    async fn lost(&self);

    /// Gives the identity up.
    async fn leave(&self);
}

impl Agreement {
    /// Completes when what was reported elsewhere does not count any more; never where nothing is.
    pub(super) async fn lost_elsewhere(&self) {
        match &self.config.elsewhere {
            Some(elsewhere) => elsewhere.lost().await,
            None => std::future::pending().await,
        }
    }
}
