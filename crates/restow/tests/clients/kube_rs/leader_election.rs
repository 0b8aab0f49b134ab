//! Leader election on a Lease, as controllers do it: the holder leads, and every step is a write that fails on a conflict.

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::core::ObjectMeta;
use kube::{Api, Client, Error};
use restow_testkit::eventually_some;
use restow_testkit::{Cluster, On};
use std::time::{Duration, Instant};

/// A candidate for leadership.
pub(super) struct Candidate {
    leases: Api<Lease>,
    lease: String,
    name: String,
    /// How long a lease that is not renewed stays with its holder.
    patience: Duration,
    /// The state of the lease that was seen last, and since when: clocks of different machines are never compared.
    seen: Option<(Option<String>, Instant)>,
}

impl Candidate {
    pub(super) fn new(client: Client, lease: &str, name: &str, patience: Duration) -> Self {
        let leases = Api::namespaced(client, "default");
        Candidate { leases, lease: lease.into(), name: name.into(), patience, seen: None }
    }

    /// Takes or renews the lease; whether this candidate leads now.
    pub(super) async fn campaign(&mut self) -> Result<bool, Error> {
        let Some(current) = self.leases.get_opt(&self.lease).await? else {
            let metadata = ObjectMeta { name: Some(self.lease.clone()), ..ObjectMeta::default() };
            let lease = Lease { metadata, spec: Some(self.term(0)) };
            return won(self.leases.create(&PostParams::default(), &lease).await);
        };
        let spec = current.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.unwrap_or_default();
        let version = current.metadata.resource_version.clone();
        if self.seen.as_ref().is_none_or(|(seen, _)| *seen != version) {
            self.seen = Some((version, Instant::now()));
        }
        let silent = self.seen.as_ref().is_some_and(|(_, since)| since.elapsed() > self.patience);
        if holder != self.name && !holder.is_empty() && !silent {
            return Ok(false);
        }
        let changes = spec.lease_transitions.unwrap_or_default() + i32::from(holder != self.name);
        let lease = Lease { spec: Some(self.term(changes)), ..current };
        won(self.leases.replace(&self.lease, &PostParams::default(), &lease).await)
    }

    /// Steps down, so that others need not wait.
    pub(super) async fn resign(&mut self) -> Result<(), Error> {
        let mut lease = self.leases.get(&self.lease).await?;
        lease.spec.get_or_insert_default().holder_identity = None;
        self.leases.replace(&self.lease, &PostParams::default(), &lease).await.map(|_| ())
    }

    fn term(&self, changes: i32) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(self.name.clone()),
            lease_duration_seconds: i32::try_from(self.patience.as_secs().max(1)).ok(),
            lease_transitions: Some(changes),
            renew_time: Some(MicroTime(Timestamp::now())),
            ..LeaseSpec::default()
        }
    }
}

/// A conflict means that another candidate was faster; other errors are errors.
fn won(written: Result<Lease, Error>) -> Result<bool, Error> {
    match written {
        Ok(_) => Ok(true),
        Err(Error::Api(status)) if status.code == 409 => Ok(false),
        Err(other) => Err(other),
    }
}

#[tokio::test]
async fn one_leads_at_a_time_on_the_embedded_store() {
    one_leads_at_a_time(On::Embedded).await;
}

#[tokio::test]
async fn one_leads_at_a_time_on_etcd() {
    one_leads_at_a_time(On::Etcd).await;
}

async fn one_leads_at_a_time(on: On) {
    let cluster = Cluster::one(on).await;
    let client = cluster.servers[0].client().await;
    let candidate = |name: &str, patience| Candidate::new(client.clone(), "throne", name, patience);
    let (mut first, mut second) =
        (candidate("a", Duration::from_secs(3600)), candidate("b", Duration::from_secs(3600)));
    let races = tokio::join!(first.campaign(), second.campaign());
    let (one, other) = (races.0.unwrap(), races.1.unwrap());
    assert!(one != other, "exactly one wins a race for a lease without a holder");
    let (leader, waiting) = if one { (&mut first, &mut second) } else { (&mut second, &mut first) };
    assert!(leader.campaign().await.unwrap(), "who leads can renew");
    assert!(!waiting.campaign().await.unwrap(), "who waits cannot take what is held");
    leader.resign().await.unwrap();
    assert!(waiting.campaign().await.unwrap(), "who waits takes what is free");

    // The holder stops renewing. A candidate with little patience takes over, and the old holder notices.
    let mut impatient = candidate("c", Duration::from_millis(100));
    eventually_some("the lease changes hands", async || impatient.campaign().await.unwrap().then_some(())).await;
    assert!(!waiting.campaign().await.unwrap(), "who was silent for too long leads no longer");
    let lease: Lease = Api::namespaced(client.clone(), "default").get("throne").await.unwrap();
    assert_eq!(lease.spec.unwrap().lease_transitions, Some(2));
}
