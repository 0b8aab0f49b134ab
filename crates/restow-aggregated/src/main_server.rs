//! The main API server, as an aggregated one sees it: an identity that is kept, and reports.

use crate::lease::{Held, Identity};
use crate::reports;
use async_trait::async_trait;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use restow_api::GroupResource;
use restow_apiserver::AgreementConfig;
use restow_apiserver::storage_version::Elsewhere;
use restow_clock::Moment;
use restow_rules::ServerReport;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// Why the main server cannot be reached at all.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The kubeconfig cannot be used.
    #[error("the kubeconfig of the main API server cannot be used")]
    Kubeconfig(#[from] KubeconfigError),
    /// No client can be made of it.
    #[error("no client can be made of the kubeconfig of the main API server")]
    Client(#[from] kube::Error),
}

/// The main API server.
pub struct MainServer {
    client: kube::Client,
    identity: Identity,
    renew_interval: Duration,
    /// How long a renewal is good for, by this server's own time since boot, which also counts while it is suspended. Less
    /// than the lease says, because clocks do not run equally fast.
    good_for: Duration,
    standing: watch::Sender<Standing>,
    reported: Mutex<BTreeMap<GroupResource, ServerReport>>,
    own: Weak<MainServer>,
    /// What renews the present lease. There is one at most.
    renewal: Mutex<Option<AbortHandle>>,
}

#[derive(Clone, Debug)]
enum Standing {
    Outside,
    /// The lease that is held, and when the last renewal that succeeded was begun.
    Inside {
        held: Held,
        renewed: Moment,
    },
}

impl MainServer {
    /// Prepares to report to the server of a kubeconfig. `component` says what kind of server this is; the rest is as
    /// in the own store.
    pub async fn connect(
        kubeconfig: &Path,
        component: &str,
        agreement: &AgreementConfig,
    ) -> Result<Arc<Self>, ConnectError> {
        let file = Kubeconfig::read_from(kubeconfig)?;
        let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
        Ok(Self::new(kube::Client::try_from(config)?, component, agreement))
    }

    /// The same, with a client that is there already.
    pub fn new(client: kube::Client, component: &str, agreement: &AgreementConfig) -> Arc<Self> {
        Arc::new_cyclic(|own| MainServer {
            client,
            identity: Identity {
                id: agreement.identity.clone(),
                component: component.to_string(),
                hostname: agreement.hostname.clone(),
                holder: format!("{}_{}", agreement.identity, uuid::Uuid::new_v4()),
                duration: agreement.lease_duration,
            },
            renew_interval: agreement.renew_interval,
            good_for: agreement.lease_duration.mul_f64(0.8),
            standing: watch::Sender::new(Standing::Outside),
            reported: Mutex::default(),
            own: own.clone(),
            renewal: Mutex::default(),
        })
    }

    /// Puts another task in the place of the one that renews; none ends it.
    fn set_renewal(&self, next: Option<AbortHandle>) {
        let before = std::mem::replace(&mut *self.renewal.lock().unwrap_or_else(PoisonError::into_inner), next);
        if let Some(before) = before {
            before.abort();
        }
    }

    fn reported(&self) -> MutexGuard<'_, BTreeMap<GroupResource, ServerReport>> {
        // Nothing that can panic happens while the lock is held.
        self.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give_up(&self, why: &str) {
        self.standing.send_if_modified(|standing| {
            let was_inside = matches!(standing, Standing::Inside { .. });
            if was_inside {
                tracing::warn!(identity = %self.identity.id, why, "the identity at the main API server is lost");
                *standing = Standing::Outside;
            }
            was_inside
        });
    }

    /// Renews until the lease is lost or given up, and sees to it that nobody takes the reports away meanwhile.
    async fn keep(self: Arc<Self>) {
        loop {
            tokio::time::sleep(self.renew_interval).await;
            let Standing::Inside { held, .. } = self.standing.borrow().clone() else { return };
            let begun = Moment::now();
            match self.identity.renew(&self.client, &held).await {
                Ok(Some(held)) => {
                    self.standing.send_if_modified(|standing| match standing {
                        Standing::Inside { held: known, renewed } => {
                            (*known, *renewed) = (held, begun);
                            false
                        }
                        Standing::Outside => false,
                    });
                }
                Ok(None) => return self.give_up("somebody removed or replaced the lease"),
                Err(error) => {
                    tracing::warn!(%error, "the identity lease at the main API server could not be renewed; trying again");
                }
            }
            if !self.holds() {
                return self.give_up("it could not be renewed in time");
            }
            self.look_after_reports().await;
        }
    }

    async fn look_after_reports(&self) {
        let all: Vec<(GroupResource, ServerReport)> =
            self.reported().iter().map(|(resource, report)| (resource.clone(), report.clone())).collect();
        for (resource, report) in all {
            match reports::report(&self.client, &resource, &report).await {
                Ok(reports::Outcome::Written) => tracing::warn!(
                    %resource,
                    "somebody removed or changed what this server reported to the main API server; it was reported again"
                ),
                Ok(reports::Outcome::Unchanged) => {}
                Err(error) => {
                    tracing::warn!(%resource, error, "a report at the main API server could not be looked after")
                }
            }
            // It may have been withdrawn meanwhile, and must not come back by this.
            if !self.reported().contains_key(&resource)
                && let Err(error) = reports::withdraw(&self.client, &resource, &self.identity.id).await
            {
                tracing::warn!(%resource, error, "a report at the main API server could not be withdrawn again");
            }
        }
    }
}

#[async_trait]
impl Elsewhere for MainServer {
    async fn join(&self) -> Result<(), String> {
        self.set_renewal(None);
        self.standing.send_replace(Standing::Outside);
        self.reported().clear();
        let renewed = Moment::now();
        let held = self.identity.take(&self.client).await.map_err(|error| error.to_string())?;
        self.standing.send_replace(Standing::Inside { held, renewed });
        if let Some(own) = self.own.upgrade() {
            self.set_renewal(Some(tokio::spawn(own.keep()).abort_handle()));
        }
        Ok(())
    }

    async fn report(&self, resource: &GroupResource, report: &ServerReport) -> Result<(), String> {
        reports::report(&self.client, resource, report).await?;
        self.reported().insert(resource.clone(), report.clone());
        Ok(())
    }

    async fn withdraw(&self, resource: &GroupResource) -> Result<(), String> {
        self.reported().remove(resource);
        reports::withdraw(&self.client, resource, &self.identity.id).await
    }

    async fn withdraw_everything(&self) -> Result<(), String> {
        self.reported().clear();
        reports::withdraw_all(&self.client, &self.identity.id).await
    }

    fn holds(&self) -> bool {
        matches!(&*self.standing.borrow(), Standing::Inside { renewed, .. } if renewed.elapsed() < self.good_for)
    }

    async fn lost(&self) {
        let mut standing = self.standing.subscribe();
        // The sender lives as long as this, so waiting cannot fail.
        let _ = standing.wait_for(|standing| matches!(standing, Standing::Outside)).await;
    }

    async fn leave(&self) {
        self.set_renewal(None);
        let before = self.standing.send_replace(Standing::Outside);
        if let Standing::Inside { held, .. } = before
            && let Err(error) = self.identity.release(&self.client, &held).await
        {
            tracing::warn!(%error, "the identity at the main API server could not be given up; it will expire");
        }
    }
}

impl fmt::Debug for MainServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MainServer").field("identity", &self.identity).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
