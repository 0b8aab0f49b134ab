//! The task that registers this server, renews its identity lease, and registers again after the lease was lost.

use super::identity_lease::{HeldLease, Released, Renewal, Takeover};
use super::registrar::jittered;
use super::{Agreement, AgreementError, RegistrationState};
use crate::resource::Membership;
use restow_host::Moment;
use restow_rules::{LeaseWatch, Rejoin};
use restow_store::Txn;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::MissedTickBehavior;

/// The longest pause between attempts to register.
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// Registers and renews the lease until the server leaves.
pub(super) async fn run(agreement: Arc<Agreement>) {
    let mut takeover = Takeover::Always;
    let (mut watch, mut rejoin) = (LeaseWatch::default(), Rejoin::default());
    let mut pause = Duration::from_millis(20);
    loop {
        let joined = tokio::select! {
            biased;
            joined = agreement.join(&mut takeover, &mut watch) => joined,
            () = agreement.left() => return,
        };
        match joined {
            Ok(held_lease) => {
                pause = Duration::from_millis(20);
                let joined = Moment::now();
                agreement.keep_lease(&held_lease).await;
                if matches!(agreement.state(), RegistrationState::Left) {
                    return;
                }
                tracing::warn!(
                    identity = %agreement.config.identity,
                    "the identity lease expired or was deleted, or reports were lost; this server takes a new lease and reports its \
                     storage versions again before it writes"
                );
                agreement.suspend();
                let wait = jittered(rejoin.lost_after(joined.elapsed()));
                tokio::select! {
                    biased;
                    () = tokio::time::sleep(wait) => {}
                    () = agreement.left() => return,
                }
            }
            Err(error) => {
                let reason = error.chain();
                tracing::warn!(reason, "the storage versions could not be reported; trying again");
                agreement.set_state(RegistrationState::Pending { last_error: Some(reason) });
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(MAX_PAUSE);
            }
        }
    }
}

impl Agreement {
    /// Takes the lease and reports everything. Once it has had a lease, another process that has it now may be its successor.
    async fn join(&self, takeover: &mut Takeover, watch: &mut LeaseWatch) -> Result<HeldLease, AgreementError> {
        let _guard = self.report_lock.lock().await;
        let held_lease = self.take_lease(*takeover, watch).await?;
        *takeover = Takeover::Abandoned;
        // Reporting everything can take longer than the lease duration.
        tokio::select! {
            biased;
            reported = self.report_everything(&held_lease) => reported?,
            () = self.renew_until_lost(&held_lease) => return Err(AgreementError::LeaseLost(self.config.identity.clone())),
        }
        if self.registered_after.get() == 0.0 {
            self.registered_after.set(self.started.elapsed().as_secs_f64());
        }
        self.set_state(RegistrationState::Registered(held_lease.clone()));
        Ok(held_lease)
    }

    /// Renews the lease until it is lost.
    async fn renew_until_lost(&self, held_lease: &HeldLease) {
        loop {
            tokio::time::sleep(self.config.renew_interval).await;
            match self.renew_lease(held_lease).await {
                Ok(Renewal::Renewed) => {}
                Ok(Renewal::Lost) => return,
                Err(error) => {
                    tracing::warn!(reason = error.chain(), "the identity lease could not be renewed; trying again")
                }
            }
        }
    }

    async fn report_everything(&self, held_lease: &HeldLease) -> Result<(), AgreementError> {
        self.join_upstream(&held_lease.uid).await?;
        if !self.config.reports {
            // The other servers must see that before this server writes without reporting.
            self.registrar(held_lease).withdraw_everything().await?;
        }
        let locations = self.reported().keys().cloned().collect();
        self.registrar(held_lease).report_all(locations).await
    }

    /// Withdraws what this server reported when it had an identity.
    pub(super) async fn withdraw_previous_registration(&self) -> Result<(), AgreementError> {
        let key = super::keys::lease_key(self.config.identity.as_str())?;
        self.store.txn(Txn::new().delete(&key)).await?;
        self.delete_earlier_upstream_lease().await?;
        self.registrar(&HeldLease::none(key)).withdraw_everything().await
    }

    /// Renews the lease until it is lost or the server leaves.
    async fn keep_lease(&self, held_lease: &HeldLease) {
        let mut ticks = tokio::time::interval(self.config.renew_interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let held = tokio::select! {
                biased;
                () = self.left() => return,
                _ = ticks.tick() => self.renew_lease(held_lease).await.map(|renewal| renewal == Renewal::Renewed),
                // Not every fence compares the lease, so the lease is only checked.
                () = self.alarm.rung.notified() => match self.alarm.is_overdue() {
                    true => Ok(false),
                    false => self.holds_lease(held_lease).await,
                },
                () = self.upstream_lost() => Ok(false),
                () = self.reregister_requested.notified() => Ok(false),
            };
            match held {
                Ok(true) => {}
                Ok(false) => return,
                // The lease may expire meanwhile. That is safe: the fence decides, not the clock.
                Err(error) => {
                    tracing::warn!(reason = error.chain(), "the identity lease could not be renewed; trying again")
                }
            }
        }
    }

    /// Makes all writes wait until the server is registered again.
    fn suspend(&self) {
        let locations: Vec<_> = self.reported().keys().cloned().collect();
        for location in &locations {
            self.set_membership_at(location, &Membership::Pending);
        }
        self.reported().values_mut().for_each(|known| known.last_report = None);
        self.set_state(RegistrationState::Pending { last_error: None });
    }

    /// Leaves for good: nothing is written any more, and the other servers need not wait for the lease to expire.
    pub(crate) async fn leave(&self) {
        let before = self.state.send_replace(RegistrationState::Left);
        let released = match before {
            RegistrationState::Registered(held_lease) => self.release_lease(&held_lease).await,
            _ => Ok(Released::Unknown),
        };
        if let Err(error) = &released {
            tracing::warn!(reason = error.chain(), "the identity lease could not be released; it will expire");
        }
        match (&self.config.upstream, released) {
            (Some(upstream), Ok(Released::Yes)) => upstream.leave().await,
            // A write of this server may still be committed.
            (Some(upstream), _) => upstream.stop_renewing(),
            (None, _) => {}
        }
    }

    /// Completes when the server has left.
    pub(super) async fn left(&self) {
        // The sender lives as long as this, so waiting cannot fail.
        let _ = self.state.subscribe().wait_for(|state| matches!(state, RegistrationState::Left)).await;
    }

    /// Moves to another state, unless the server has left.
    fn set_state(&self, state: RegistrationState) {
        self.state.send_if_modified(|current| {
            let stays = !matches!(current, RegistrationState::Left);
            if stays {
                *current = state;
            }
            stays
        });
    }
}
