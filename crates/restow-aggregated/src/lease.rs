//! The identity lease at the main API server.

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, DeleteParams, PostParams, Preconditions};
use restow_api::{MicroTime, ServerId};
use serde_json::json;
use std::time::Duration;

/// How often taking the lease is tried when others write it at the same time.
const ATTEMPTS: usize = 10;

/// Who this server is at the main one.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) id: ServerId,
    /// What kind of server it is.
    pub(crate) component: String,
    pub(crate) hostname: String,
    /// What tells this process from an earlier one of the same instance.
    pub(crate) holder: String,
    pub(crate) duration: Duration,
}

/// A lease that was taken.
#[derive(Clone, Debug)]
pub(crate) struct Held(Box<Lease>);

impl Identity {
    fn leases(client: &kube::Client) -> Api<Lease> {
        Api::namespaced(client.clone(), "kube-system")
    }

    /// Makes the lease anew, in the place of one of an earlier life.
    pub(crate) async fn take(&self, client: &kube::Client) -> Result<Held, kube::Error> {
        let leases = Self::leases(client);
        let mut attempt = 0;
        loop {
            if let Some(found) = leases.get_opt(self.id.as_str()).await? {
                remove(&leases, &found).await?;
            }
            match leases.create(&PostParams::default(), &self.lease()?).await {
                Err(kube::Error::Api(status)) if status.code == 409 && attempt < ATTEMPTS => attempt += 1,
                made => return made.map(|lease| Held(Box::new(lease))),
            }
        }
    }

    /// Says that this server is alive; nothing when the lease is not the same any more.
    pub(crate) async fn renew(&self, client: &kube::Client, held: &Held) -> Result<Option<Held>, kube::Error> {
        let leases = Self::leases(client);
        let mut current = held.0.as_ref().clone();
        loop {
            current.spec = self.lease()?.spec;
            match leases.replace(self.id.as_str(), &PostParams::default(), &current).await {
                Ok(renewed) => return Ok(Some(Held(Box::new(renewed)))),
                Err(kube::Error::Api(status)) if status.code == 404 => return Ok(None),
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(error),
            }
            // An earlier renewal of ours may have gone through unheard of, or somebody has put a label on it.
            match leases.get_opt(self.id.as_str()).await? {
                Some(found) if found.metadata.uid == held.0.metadata.uid => current = found,
                _ => return Ok(None),
            }
        }
    }

    /// Gives the lease up.
    pub(crate) async fn release(&self, client: &kube::Client, held: &Held) -> Result<(), kube::Error> {
        let mut lease = held.0.as_ref().clone();
        // Whatever was written since: it is the same lease that is to go.
        lease.metadata.resource_version = None;
        remove(&Self::leases(client), &lease).await
    }

    fn lease(&self) -> Result<Lease, kube::Error> {
        let lease = json!({
            "metadata": {
                "name": self.id,
                "namespace": "kube-system",
                "labels": {
                    "apiserver.kubernetes.io/identity": self.component, "kubernetes.io/hostname": self.hostname,
                },
            },
            "spec": {
                "holderIdentity": self.holder,
                "leaseDurationSeconds": self.duration.as_secs().max(1),
                "renewTime": MicroTime::new(Timestamp::now()),
            },
        });
        serde_json::from_value(lease).map_err(kube::Error::SerdeError)
    }
}

/// Deletes this very lease. One that is gone or another by now is as good.
async fn remove(leases: &Api<Lease>, lease: &Lease) -> Result<(), kube::Error> {
    let metadata = &lease.metadata;
    let preconditions =
        Preconditions { uid: metadata.uid.clone(), resource_version: metadata.resource_version.clone() };
    let parameters = DeleteParams::default().preconditions(preconditions);
    match leases.delete(metadata.name.as_deref().unwrap_or_default(), &parameters).await {
        Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(()),
        done => done.map(|_| ()),
    }
}
