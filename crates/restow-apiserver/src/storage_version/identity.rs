//! The own identity lease: taking it, renewing it, releasing it.
//!
//! What counts is the revision at which the lease's key was *created*: everything that this server writes compares it. So
//! taking always makes the key anew, which shuts out whatever an earlier life of this instance still has under way.

use super::lease_watch::{ADDRESS_ANNOTATION, COMPONENT, IDENTITY_LABEL, watch_one};
use super::{Agreement, AgreementError, keys};
use jiff::Timestamp;
use restow_api::{MicroTime, Time};
use restow_rules::LeaseWatch;
use restow_rules::migrate::api_servers::FENCED_WRITES_LABEL;
use restow_store::{Compare, Key, StoreExt, Txn, TxnOutcome};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// How often taking the lease is tried when others write it at the same time.
const ATTEMPTS: usize = 10;

/// The time during which this server holds one and the same lease.
#[derive(Clone, Debug)]
pub(super) struct Tenure {
    /// Where the lease lies.
    pub(super) key: Key,
    /// What every write of this server compares: that the lease is still this one.
    pub(super) fence: Compare,
    uid: String,
    since: Timestamp,
}

/// Whose lease may be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takeover {
    /// Anybody's: a server that starts replaces its earlier life, which may not have ended yet.
    Always,
    /// One that nobody was seen to renew, or the own: a server that lost its lease may be the earlier life itself.
    Abandoned,
}

/// What came of renewing the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Renewal {
    /// It lasts on.
    Renewed,
    /// It is gone, or not the same any more.
    Lost,
}

impl Agreement {
    /// Makes the lease's key anew. The watch is about that key, and lasts from one attempt to the next.
    pub(super) async fn take_lease(
        &self,
        takeover: Takeover,
        watch: &mut LeaseWatch,
    ) -> Result<Tenure, AgreementError> {
        let key = keys::lease_key(self.config.identity.as_str())?;
        for _ in 0..ATTEMPTS {
            if let Some(found) = watch_one(self.store.as_ref(), self.config.identity.as_str(), watch).await? {
                let abandoned = found.expired || found.lease.is_held_by(&self.holder);
                if takeover == Takeover::Abandoned && !abandoned {
                    return Err(AgreementError::IdentityTaken(self.config.identity.clone()));
                }
                let removal = Txn::new().when(Compare::mod_revision(&key, found.entry.mod_revision)).delete(&key);
                self.store.txn(removal).await?;
            }
            let (uid, since) = (uuid::Uuid::new_v4().to_string(), Timestamp::now());
            let value = keys::written(self.lease(&uid, since))?;
            let joined = keys::key(keys::JOINED.to_string())?;
            let creation =
                Txn::new().when(Compare::absent(&key)).put(&key, value).put(&joined, self.config.identity.to_string());
            if let TxnOutcome::Committed { revision } = self.store.txn(creation).await? {
                self.alarm.renewed(&key, revision);
                return Ok(Tenure { fence: Compare::create_revision(&key, revision), key, uid, since });
            }
        }
        Err(AgreementError::IdentityTaken(self.config.identity.clone()))
    }

    /// Says that this server is alive.
    pub(super) async fn renew_lease(&self, tenure: &Tenure) -> Result<Renewal, AgreementError> {
        let value = keys::written(self.lease(&tenure.uid, tenure.since))?;
        let mut renewal = Txn::new().when(tenure.fence.clone()).put(&tenure.key, value);
        renewal.when.extend(self.alarm.renewal());
        match self.store.txn(renewal).await? {
            TxnOutcome::Committed { revision } => {
                self.alarm.renewed(&tenure.key, revision);
                Ok(Renewal::Renewed)
            }
            TxnOutcome::Refused { .. } => Ok(Renewal::Lost),
        }
    }

    /// Whether the lease is still this one, and the store remembers that it was renewed.
    pub(super) async fn holds_lease(&self, tenure: &Tenure) -> Result<bool, AgreementError> {
        let found = self.store.get(&tenure.key).await?;
        let holds = |compare: &Compare| compare.holds(found.as_ref());
        Ok(holds(&tenure.fence) && self.alarm.renewal().is_none_or(|renewal| holds(&renewal)))
    }

    /// Gives the lease up, so that nobody has to wait for this server.
    pub(super) async fn release_lease(&self, tenure: &Tenure) -> Result<(), AgreementError> {
        self.store.txn(Txn::new().when(tenure.fence.clone()).delete(&tenure.key)).await?;
        Ok(())
    }

    fn lease(&self, uid: &str, since: Timestamp) -> Value {
        let annotations: BTreeMap<&str, SocketAddr> =
            self.config.advertised.iter().map(|address| (ADDRESS_ANNOTATION, *address)).collect();
        json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": self.config.identity,
                "namespace": "kube-system",
                "uid": uid,
                "creationTimestamp": Time::new(since),
                "annotations": annotations,
                "labels": {
                    IDENTITY_LABEL: COMPONENT,
                    "kubernetes.io/hostname": self.config.hostname,
                    // Every write of this server compares this lease, so that whoever migrates may take its reports for true.
                    FENCED_WRITES_LABEL: "true",
                },
            },
            "spec": {
                "holderIdentity": self.holder,
                "leaseDurationSeconds": self.config.lease_duration.as_secs().max(1),
                "renewTime": MicroTime::new(Timestamp::now()),
            },
        })
    }
}

impl Tenure {
    /// Having no lease at all.
    pub(super) fn none(key: Key) -> Self {
        Tenure { fence: Compare::absent(&key), key, uid: String::new(), since: Timestamp::UNIX_EPOCH }
    }
}
