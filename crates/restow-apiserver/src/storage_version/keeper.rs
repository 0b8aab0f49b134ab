//! The task that lets this server join, keeps it in, and lets it join again when it was shut out.

use super::identity::{Renewal, Takeover, Tenure};
use super::registrar::jittered;
use super::{Agreement, AgreementError, Standing};
use crate::resource::Membership;
use restow_clock::Moment;
use restow_rules::{LeaseWatch, Rejoin};
use restow_store::Txn;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::MissedTickBehavior;

/// How long the server waits after it could not join, at most.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Joins, stays, and joins again, until the server leaves.
pub(crate) async fn keep(agreement: Arc<Agreement>) {
    let mut takeover = Takeover::Always;
    let (mut watch, mut rejoin) = (LeaseWatch::default(), Rejoin::default());
    let mut pause = Duration::from_millis(20);
    loop {
        let joined = tokio::select! {
            joined = agreement.join(takeover, &mut watch) => joined,
            () = agreement.left() => return,
        };
        match joined {
            Ok(tenure) => {
                takeover = Takeover::Abandoned;
                pause = Duration::from_millis(20);
                let joined = Moment::now();
                agreement.stay(&tenure).await;
                if matches!(agreement.standing(), Standing::Left) {
                    return;
                }
                tracing::warn!(
                    identity = %agreement.config.identity,
                    "this server was taken for gone, or what it reported is lost; it takes a new identity lease and reports its \
                     storage versions again before it writes"
                );
                agreement.suspend();
                let wait = jittered(rejoin.lost_after(joined.elapsed()));
                tokio::select! {
                    () = tokio::time::sleep(wait) => {}
                    () = agreement.left() => return,
                }
            }
            Err(error) => {
                let reason = error.chain();
                tracing::warn!(reason, "the storage versions could not be reported; trying again");
                agreement.set_standing(Standing::Outside { last_error: Some(reason) });
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

impl Agreement {
    /// Takes the lease and reports everything.
    async fn join(&self, takeover: Takeover, watch: &mut LeaseWatch) -> Result<Tenure, AgreementError> {
        let _turn = self.turn.lock().await;
        let tenure = self.take_lease(takeover, watch).await?;
        // To report everything can take longer than the lease lasts.
        tokio::select! {
            reported = self.report_everything(&tenure) => reported?,
            () = self.renew_until_lost(&tenure) => return Err(AgreementError::LeaseLost(self.config.identity.clone())),
        }
        if self.registered_after.get() == 0.0 {
            self.registered_after.set(self.started.elapsed().as_secs_f64());
        }
        self.set_standing(Standing::Member(tenure.clone()));
        Ok(tenure)
    }

    /// Renews the lease until it is lost.
    async fn renew_until_lost(&self, tenure: &Tenure) {
        loop {
            tokio::time::sleep(self.config.renew_interval).await;
            match self.renew_lease(tenure).await {
                Ok(Renewal::Renewed) => {}
                Ok(Renewal::Lost) => return,
                Err(error) => {
                    tracing::warn!(reason = error.chain(), "the identity lease could not be renewed; trying again")
                }
            }
        }
    }

    async fn report_everything(&self, tenure: &Tenure) -> Result<(), AgreementError> {
        if let Some(elsewhere) = &self.config.elsewhere {
            elsewhere.join().await.map_err(AgreementError::Elsewhere)?;
        }
        if !self.config.reports {
            // The others must know of it before anything is written of which they cannot know.
            self.registrar(tenure).withdraw_everything().await?;
        }
        let locations = self.reported().keys().cloned().collect();
        self.registrar(tenure).enter_all(locations).await
    }

    /// Takes back what this server reported while it had an identity, which it has no more.
    pub(super) async fn retire(&self) -> Result<(), AgreementError> {
        let key = super::keys::lease_key(self.config.identity.as_str())?;
        self.store.txn(Txn::new().delete(&key)).await?;
        self.registrar(&Tenure::none(key)).withdraw_everything().await
    }

    /// Renews the lease until it is lost or the server leaves.
    async fn stay(&self, tenure: &Tenure) {
        let mut ticks = tokio::time::interval(self.config.renew_interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let held = tokio::select! {
                () = self.left() => return,
                _ = ticks.tick() => self.renew_lease(tenure).await.map(|renewal| renewal == Renewal::Renewed),
                // Not every fence is about the lease, so this is a reason to look and no more.
                () = self.alarm.rung.notified() => match self.alarm.is_overdue() {
                    true => Ok(false),
                    false => self.holds_lease(tenure).await,
                },
                () = self.lost_elsewhere() => Ok(false),
                () = self.unsettled.notified() => Ok(false),
            };
            match held {
                Ok(true) => {}
                Ok(false) => return,
                // The lease may expire meanwhile. That is no harm: the fence decides, not the clock.
                Err(error) => {
                    tracing::warn!(reason = error.chain(), "the identity lease could not be renewed; trying again")
                }
            }
        }
    }

    /// Lets all writes wait for the next joining.
    fn suspend(&self) {
        let locations: Vec<_> = self.reported().keys().cloned().collect();
        for location in &locations {
            self.set_membership_at(location, &Membership::Pending);
        }
        self.reported().values_mut().for_each(|known| known.said = None);
        self.set_standing(Standing::Outside { last_error: None });
    }

    /// Leaves for good: nothing is written any more, and the others need not wait for the lease to expire.
    pub(crate) async fn leave(&self) {
        let before = self.standing.send_replace(Standing::Left);
        if let Standing::Member(tenure) = before
            && let Err(error) = self.release_lease(&tenure).await
        {
            tracing::warn!(reason = error.chain(), "the identity lease could not be released; it will expire");
        }
        if let Some(elsewhere) = &self.config.elsewhere {
            elsewhere.leave().await;
        }
    }

    /// Completes when the server has left.
    async fn left(&self) {
        // The sender lives as long as this, so waiting cannot fail.
        let _ = self.standing.subscribe().wait_for(|standing| matches!(standing, Standing::Left)).await;
    }

    /// Moves to another standing, unless the server has left.
    fn set_standing(&self, standing: Standing) {
        self.standing.send_if_modified(|current| {
            let stays = !matches!(current, Standing::Left);
            if stays {
                *current = standing;
            }
            stays
        });
    }
}
