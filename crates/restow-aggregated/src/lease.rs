//! The identity lease at the main API server.

use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, PostParams, Preconditions};
use restow_api::{MicroTime, ServerId};
use restow_rules::collect::{CONTROL_PLANE_LABEL, MainLease, OWN_LEASE_ANNOTATION, OWN_STORE_LABEL, OwnLease};
use serde_json::json;

/// How many times taking the lease is tried when others write it at the same time.
const ATTEMPTS: usize = 10;
/// The identity label of an API server. A stock kube-apiserver removes the reports of servers whose lease has another value.
const IDENTITY: (&str, &str) = ("apiserver.kubernetes.io/identity", "kube-apiserver");
/// The duration of the lease. Time alone does not end it: a server that was paused could still write to its own store.
const FOR_EVER: i32 = i32::MAX;

/// The identity of this server at the main API server.
#[derive(Clone, Debug)]
pub(crate) struct LeaseIdentity {
    pub(crate) id: ServerId,
    /// The control plane that this server belongs to, for the label of the lease.
    pub(crate) component: String,
    pub(crate) hostname: String,
    /// Distinguishes this process from earlier ones with the same identity.
    pub(crate) holder: String,
}

/// A lease that this server has taken.
#[derive(Clone, Debug)]
pub(crate) struct HeldLease(Box<Lease>);

impl HeldLease {
    /// Whether it is still this lease.
    pub(crate) async fn exists(&self, client: &kube::Client) -> Result<bool, kube::Error> {
        let found = LeaseIdentity::leases(client).get_opt(&self.0.name_any()).await?;
        Ok(found.is_some_and(|found| found.metadata.uid == self.0.metadata.uid))
    }
}

impl LeaseIdentity {
    fn leases(client: &kube::Client) -> Api<Lease> {
        Api::namespaced(client.clone(), "kube-system")
    }

    /// Creates the lease, in place of the one of an earlier process. Writes of this server compare `own_lease`.
    pub(crate) async fn take(&self, client: &kube::Client, own_lease: &OwnLease) -> Result<HeldLease, kube::Error> {
        let leases = Self::leases(client);
        let mut attempt = 0;
        loop {
            if let Some(found) = leases.get_opt(self.id.as_str()).await? {
                remove(&leases, &found).await?;
            }
            match leases.create(&PostParams::default(), &self.lease(own_lease)?).await {
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
            if let Some(spec) = &mut current.spec {
                spec.renew_time = now()?;
            }
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

    /// The leases of all servers on the store with this id.
    pub(crate) async fn all(client: &kube::Client, store: &str) -> Result<Vec<MainLease>, kube::Error> {
        let (label, value) = IDENTITY;
        let selector = format!("{label}={value},{OWN_STORE_LABEL}={store}");
        let listed = Self::leases(client).list(&ListParams::default().labels(&selector)).await?;
        let main_lease = |lease: &Lease| {
            let own_lease = lease.annotations().get(OWN_LEASE_ANNOTATION)?.clone();
            Some(MainLease { id: lease.name_any(), uid: lease.uid()?, own_lease })
        };
        Ok(listed.items.iter().filter_map(main_lease).collect())
    }

    /// Deletes one of them, if it is still the same.
    pub(crate) async fn delete(client: &kube::Client, lease: &MainLease) -> Result<(), kube::Error> {
        let mut found = Lease::default();
        (found.metadata.name, found.metadata.uid) = (Some(lease.id.clone()), Some(lease.uid.clone()));
        remove(&Self::leases(client), &found).await
    }

    fn lease(&self, own_lease: &OwnLease) -> Result<Lease, kube::Error> {
        let (label, value) = IDENTITY;
        let lease = json!({
            "metadata": {
                "name": self.id,
                "namespace": "kube-system",
                "labels": {
                    label: value,
                    CONTROL_PLANE_LABEL: self.component,
                    OWN_STORE_LABEL: own_lease.store,
                    "kubernetes.io/hostname": self.hostname,
                },
                "annotations": {OWN_LEASE_ANNOTATION: own_lease.uid},
            },
            "spec": {
                "holderIdentity": self.holder,
                "leaseDurationSeconds": FOR_EVER,
                "renewTime": MicroTime::new(restow_host::now()),
            },
        });
        serde_json::from_value(lease).map_err(kube::Error::SerdeError)
    }
}

/// The time of a renewal.
fn now() -> Result<Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime>, kube::Error> {
    serde_json::from_value(json!(MicroTime::new(restow_host::now()))).map_err(kube::Error::SerdeError)
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
