//! The identity lease at the main API server.

use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, PostParams, Preconditions};
use restow_api::{MicroTime, ServerId};
use restow_rules::collect::{CONTROL_PLANE_LABEL, MainLease, OWN_LEASE_ANNOTATION, OWN_STORE_LABEL, OwnLease};
use serde_json::json;
use thiserror::Error;

/// How many times taking the lease is tried when others write it at the same time.
const ATTEMPTS: usize = 10;
/// The identity label of an API server. A stock kube-apiserver removes the reports of servers whose lease has another value.
const IDENTITY: (&str, &str) = ("apiserver.kubernetes.io/identity", "kube-apiserver");
/// The duration of the lease. Time alone does not end it: a server that was paused could still write to its own store.
const FOR_EVER: i32 = i32::MAX;
/// The finalizer that keeps a lease which somebody deletes, until the lease in the own store is gone.
const FINALIZER: &str = "restow.dev/own-lease";

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

/// Under which condition a server may write a report: it was not replaced by another process with its identity.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Standing<'a> {
    /// It has this lease.
    Holds(&'a HeldLease),
    /// It has no identity, and nobody has a lease with this name.
    Anonymous(&'a ServerId),
}

impl Standing<'_> {
    /// Whether that is so.
    pub(crate) async fn is_true(self, client: &kube::Client) -> Result<bool, kube::Error> {
        let leases = LeaseIdentity::leases(client);
        match self {
            Standing::Holds(HeldLease(held)) => {
                let found = leases.get_opt(&held.name_any()).await?;
                Ok(found.is_some_and(|found| found.metadata.uid == held.metadata.uid))
            }
            Standing::Anonymous(id) => Ok(leases.get_opt(id.as_str()).await?.is_none()),
        }
    }
}

/// Why a lease was not taken.
#[derive(Debug, Error)]
pub(crate) enum TakeError {
    #[error("another process has the identity lease {0} at the main API server, and can still write to the own store")]
    Held(ServerId),
    #[error(transparent)]
    Request(#[from] kube::Error),
}

impl LeaseIdentity {
    fn leases(client: &kube::Client) -> Api<Lease> {
        Api::namespaced(client.clone(), "kube-system")
    }

    /// Creates the lease. Writes of this server compare `own_lease`. A lease of an earlier process on the same store is in the
    /// way, because that process could still write: it is deleted once the lease in the own store is gone, and not here. One
    /// of another store is replaced.
    pub(crate) async fn take(&self, client: &kube::Client, own_lease: &OwnLease) -> Result<HeldLease, TakeError> {
        let leases = Self::leases(client);
        let wanted = self.lease(own_lease)?;
        let mut attempt = 0;
        loop {
            match leases.create(&PostParams::default(), &wanted).await {
                Err(kube::Error::Api(status)) if status.code == 409 && attempt < ATTEMPTS => attempt += 1,
                created => return Ok(HeldLease(Box::new(created?))),
            }
            let Some(found) = leases.get_opt(self.id.as_str()).await? else { continue };
            let own_store = |lease: &Lease| lease.labels().get(OWN_STORE_LABEL).cloned();
            let names_own = found.annotations().contains_key(OWN_LEASE_ANNOTATION);
            if names_own && own_store(&found) == own_store(&wanted) {
                // A request to create it may have succeeded without a response.
                let is_own = found.annotations() == wanted.annotations() && holder(&found) == holder(&wanted);
                return if is_own { Ok(HeldLease(Box::new(found))) } else { Err(TakeError::Held(self.id.clone())) };
            }
            remove(&leases, self.id.as_str(), found.metadata.uid.as_deref()).await?;
        }
    }

    /// Renews the lease; `None` when it was deleted or replaced. One that is being deleted is lost, too: it stays only for writes
    /// that are under way.
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
                Ok(renewed) if renewed.metadata.deletion_timestamp.is_some() => return Ok(None),
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
        remove(&Self::leases(client), self.id.as_str(), held.0.metadata.uid.as_deref()).await
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
        remove(&Self::leases(client), &lease.id, Some(&lease.uid)).await
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
                "finalizers": [FINALIZER],
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

fn holder(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref()
}

/// Deletes the lease with this uid, and its finalizer first. One that is deleted or replaced already is fine.
async fn remove(leases: &Api<Lease>, name: &str, uid: Option<&str>) -> Result<(), kube::Error> {
    let mut attempt = 0;
    loop {
        let Some(mut found) = leases.get_opt(name).await?.filter(|found| found.metadata.uid.as_deref() == uid) else {
            return Ok(());
        };
        if !found.finalizers().iter().any(|finalizer| finalizer == FINALIZER) {
            break;
        }
        found.finalizers_mut().retain(|finalizer| finalizer != FINALIZER);
        match leases.replace(name, &PostParams::default(), &found).await {
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
            Err(kube::Error::Api(status)) if status.code == 409 && attempt < ATTEMPTS => attempt += 1,
            done => break drop(done?),
        }
    }
    let preconditions = Preconditions { uid: uid.map(str::to_owned), resource_version: None };
    match leases.delete(name, &DeleteParams::default().preconditions(preconditions)).await {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        done => done.map(|_| ()),
    }
}
