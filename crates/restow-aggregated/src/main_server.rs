//! The main API server as the upstream of an aggregated server: an identity lease that is renewed, and reports.

use crate::lease::{HeldLease, LeaseIdentity, Standing};
use crate::reports::{self, Earlier};
use async_trait::async_trait;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use restow_api::GroupResource;
use restow_apiserver::AgreementConfig;
use restow_apiserver::storage_version::Upstream;
use restow_host::Moment;
use restow_rules::ServerReport;
use restow_rules::collect::{MainLease, OwnLease};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// Why no client for the main API server could be created.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The kubeconfig cannot be used.
    #[error("the kubeconfig of the main API server cannot be used")]
    Kubeconfig(#[from] KubeconfigError),
    /// No client could be created from it.
    #[error("no client could be created from the kubeconfig of the main API server")]
    Client(#[from] kube::Error),
}

/// The main API server.
pub struct MainServer {
    client: kube::Client,
    identity: LeaseIdentity,
    renew_interval: Duration,
    /// How long a renewal is valid, by this server's own time since boot, which also counts while it is suspended. Shorter than
    /// the lease duration, because clocks drift.
    valid_for: Duration,
    state: watch::Sender<LeaseState>,
    reported: Mutex<BTreeMap<GroupResource, ServerReport>>,
    /// Held while a report is written, withdrawn or repaired, so that a repair never writes one that was replaced meanwhile.
    writing: tokio::sync::Mutex<()>,
    own: Weak<MainServer>,
    /// The task that renews the present lease. There is at most one.
    renewal: Mutex<Option<AbortHandle>>,
}

#[derive(Clone, Debug)]
enum LeaseState {
    NotHeld,
    /// The lease, and when its last successful renewal was started.
    Held {
        held: HeldLease,
        renewed: Moment,
    },
}

impl MainServer {
    /// Prepares to report to the server of a kubeconfig. `component` is the value of the identity label; the other settings are
    /// the same as in the server's own store.
    pub async fn connect(
        kubeconfig: &Path,
        component: &str,
        agreement: &AgreementConfig,
    ) -> Result<Arc<Self>, ConnectError> {
        let file = Kubeconfig::read_from(kubeconfig)?;
        let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
        Ok(Self::new(kube::Client::try_from(config)?, component, agreement))
    }

    /// The same, with an existing client.
    pub fn new(client: kube::Client, component: &str, agreement: &AgreementConfig) -> Arc<Self> {
        Arc::new_cyclic(|own| MainServer {
            client,
            identity: LeaseIdentity {
                id: agreement.identity.clone(),
                component: component.to_string(),
                hostname: agreement.hostname.clone(),
                holder: format!("{}_{}", agreement.identity, restow_host::uuid()),
            },
            renew_interval: agreement.renew_interval,
            valid_for: agreement.lease_duration.mul_f64(0.8),
            state: watch::Sender::new(LeaseState::NotHeld),
            reported: Mutex::default(),
            writing: tokio::sync::Mutex::default(),
            own: own.clone(),
            renewal: Mutex::default(),
        })
    }

    /// Replaces the renewal task, or ends it.
    fn set_renewal(&self, next: Option<AbortHandle>) {
        let before = std::mem::replace(&mut *self.renewal.lock().unwrap_or_else(PoisonError::into_inner), next);
        if let Some(before) = before {
            before.abort();
        }
    }

    fn reported(&self) -> MutexGuard<'_, BTreeMap<GroupResource, ServerReport>> {
        // No code panics while it holds the lock.
        self.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self) -> Result<HeldLease, String> {
        match &*self.state.borrow() {
            LeaseState::Held { held, .. } => Ok(held.clone()),
            LeaseState::NotHeld => Err("the identity lease at the main API server is lost".to_owned()),
        }
    }

    fn set_lost(&self, why: &str) {
        self.state.send_if_modified(|state| {
            let was_held = matches!(state, LeaseState::Held { .. });
            if was_held {
                tracing::warn!(identity = %self.identity.id, why, "the identity lease at the main API server is lost");
                *state = LeaseState::NotHeld;
            }
            was_held
        });
    }

    /// Renews the lease until it is lost or released, and repairs reports that others removed.
    async fn renew_until_lost(self: Arc<Self>) {
        loop {
            tokio::time::sleep(self.renew_interval).await;
            let LeaseState::Held { held, .. } = self.state.borrow().clone() else { return };
            let begun = Moment::now();
            match self.identity.renew(&self.client, &held).await {
                Ok(Some(held)) => {
                    self.state.send_if_modified(|state| match state {
                        LeaseState::Held { held: known, renewed } => {
                            (*known, *renewed) = (held, begun);
                            false
                        }
                        LeaseState::NotHeld => false,
                    });
                }
                Ok(None) => return self.set_lost("the lease was deleted or replaced"),
                Err(error) => {
                    tracing::warn!(%error, "the identity lease at the main API server could not be renewed; trying again");
                }
            }
            if !self.holds() {
                return self.set_lost("the lease could not be renewed in time");
            }
            self.repair_reports(&held).await;
        }
    }

    async fn repair_reports(&self, held: &HeldLease) {
        let all: Vec<GroupResource> = self.reported().keys().cloned().collect();
        for resource in all {
            // Where somebody writes a report, the next round repairs: renewals must not wait for it.
            let Ok(_writing) = self.writing.try_lock() else { return };
            // It may have been withdrawn, or replaced by another one, meanwhile.
            let Some(report) = self.reported().get(&resource).cloned() else { continue };
            match reports::report(&self.client, held, &resource, &report, Earlier::Reported).await {
                Ok(reports::ReportOutcome::Written) => tracing::warn!(
                    %resource,
                    "a report at the main API server was removed or changed by another client; it was reported again"
                ),
                Ok(reports::ReportOutcome::Unchanged) => {}
                Err(error) => {
                    tracing::warn!(%resource, error, "a report at the main API server could not be checked")
                }
            }
        }
    }
}

#[async_trait]
impl Upstream for MainServer {
    async fn join(&self, own_lease: &OwnLease) -> Result<(), String> {
        self.set_renewal(None);
        self.state.send_replace(LeaseState::NotHeld);
        self.reported().clear();
        let renewed = Moment::now();
        let held = self.identity.take(&self.client, own_lease).await.map_err(|error| error.to_string())?;
        self.state.send_replace(LeaseState::Held { held, renewed });
        if let Some(own) = self.own.upgrade() {
            self.set_renewal(Some(restow_host::spawn(own.renew_until_lost()).abort_handle()));
        }
        Ok(())
    }

    async fn report(&self, resource: &GroupResource, report: &ServerReport) -> Result<(), String> {
        let _writing = self.writing.lock().await;
        let held = self.held()?;
        let earlier = if self.reported().contains_key(resource) { Earlier::Reported } else { Earlier::None };
        reports::report(&self.client, &held, resource, report, earlier).await?;
        self.reported().insert(resource.clone(), report.clone());
        Ok(())
    }

    async fn withdraw(&self, resource: &GroupResource) -> Result<(), String> {
        let _writing = self.writing.lock().await;
        self.reported().remove(resource);
        reports::withdraw(&self.client, Standing::Holds(&self.held()?), resource, &self.identity.id).await
    }

    async fn withdraw_everything(&self) -> Result<(), String> {
        let _writing = self.writing.lock().await;
        self.reported().clear();
        let id = &self.identity.id;
        match self.held().ok() {
            Some(held) => reports::withdraw_all(&self.client, Standing::Holds(&held), id).await,
            None => reports::withdraw_all(&self.client, Standing::Anonymous(id), id).await,
        }
    }

    fn holds(&self) -> bool {
        matches!(&*self.state.borrow(), LeaseState::Held { renewed, .. } if renewed.elapsed() < self.valid_for)
    }

    async fn lost(&self) {
        let mut state = self.state.subscribe();
        // `self` owns the sender, so waiting cannot fail.
        let _ = state.wait_for(|state| matches!(state, LeaseState::NotHeld)).await;
    }

    async fn leave(&self) {
        self.set_renewal(None);
        let before = self.state.send_replace(LeaseState::NotHeld);
        if let LeaseState::Held { held, .. } = before
            && let Err(error) = self.identity.release(&self.client, &held).await
        {
            tracing::warn!(
                %error,
                "the identity lease at the main API server could not be released; the next server on this store deletes it"
            );
        }
    }

    fn stop_renewing(&self) {
        self.set_renewal(None);
        self.state.send_replace(LeaseState::NotHeld);
    }

    async fn leases(&self, store: &str) -> Result<Vec<MainLease>, String> {
        LeaseIdentity::all(&self.client, store).await.map_err(|error| error.to_string())
    }

    async fn delete_lease(&self, lease: &MainLease) -> Result<(), String> {
        LeaseIdentity::delete(&self.client, lease).await.map_err(|error| error.to_string())
    }
}

impl fmt::Debug for MainServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MainServer").field("identity", &self.identity).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
