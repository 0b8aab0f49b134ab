//! The identity lease at the main API server.

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, DeleteParams, PostParams, Preconditions};
use restow_api::{MicroTime, ServerId};
use serde_json::json;
use std::time::Duration;

/// How many times taking the lease is tried when others write it at the same time.
const ATTEMPTS: usize = 10;

/// The identity of this server at the main API server.
#[derive(Clone, Debug)]
pub(crate) struct LeaseIdentity {
    pub(crate) id: ServerId,
    /// The control plane that this server belongs to, for the label of the lease.
    pub(crate) component: String,
    pub(crate) hostname: String,
    /// Distinguishes this process from earlier ones with the same identity.
    pub(crate) holder: String,
    pub(crate) duration: Duration,
}

/// A lease that this server has taken.
#[derive(Clone, Debug)]
pub(crate) struct HeldLease(Box<Lease>);

impl LeaseIdentity {
    fn leases(client: &kube::Client) -> Api<Lease> {
        Api::namespaced(client.clone(), "kube-system")
    }

    /// Creates the lease, in place of the one of an earlier process.
    pub(crate) async fn take(&self, client: &kube::Client) -> Result<HeldLease, kube::Error> {
        let leases = Self::leases(client);
        let mut attempt = 0;
        loop {
            if let Some(found) = leases.get_opt(self.id.as_str()).await? {
                remove(&leases, &found).await?;
            }
            match leases.create(&PostParams::default(), &self.lease()?).await {
                Err(kube::Error::Api(status)) if status.code == 409 && attempt < ATTEMPTS => attempt += 1,
                created => return created.map(|lease| HeldLease(Box::new(lease))),
            }
        }
    }

    /// Renews the lease; `None` when it was deleted or replaced.
    pub(crate) async fn renew(
        &self,
        client: &kube::Client,
        held: &HeldLease,
    ) -> Result<Option<HeldLease>, kube::Error> {
        let leases = Self::leases(client);
        let mut current = held.0.as_ref().clone();
        loop {
            current.spec = self.lease()?.spec;
            match leases.replace(self.id.as_str(), &PostParams::default(), &current).await {
                Ok(renewed) => return Ok(Some(HeldLease(Box::new(renewed)))),
                Err(kube::Error::Api(status)) if status.code == 404 => return Ok(None),
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(error),
            }
            // An earlier renewal may have succeeded without a response, or another client changed a label.
            match leases.get_opt(self.id.as_str()).await? {
                Some(found) if found.metadata.uid == held.0.metadata.uid => current = found,
                _ => return Ok(None),
            }
        }
    }

    /// Deletes the lease.
    pub(crate) async fn release(&self, client: &kube::Client, held: &HeldLease) -> Result<(), kube::Error> {
        let mut lease = held.0.as_ref().clone();
        // The lease may have been written since; the uid identifies it.
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
                "renewTime": MicroTime::new(restow_host::now()),
            },
        });
        serde_json::from_value(lease).map_err(kube::Error::SerdeError)
    }
}

/// Deletes this lease, identified by uid. One that is deleted or replaced already is fine.
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
