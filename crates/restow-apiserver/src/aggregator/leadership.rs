//! Which server writes the conditions of APIServices. Servers can disagree about whether a server is available, and would
//! otherwise take turns in writing what they find.

use crate::core::leader_election::{LeaderLock, RENEW_INTERVAL};
use std::time::Duration;
use tokio::sync::watch;

/// How long to wait after a failure of the store.
const PAUSE: Duration = Duration::from_millis(500);

/// Whether this server is the leader. It takes part only while there is something to write about.
pub(super) struct Leadership {
    pub(super) leads: watch::Sender<bool>,
    /// Whether there are APIServices of other servers.
    pub(super) needed: watch::Sender<bool>,
}

impl Default for Leadership {
    fn default() -> Self {
        Leadership { leads: watch::Sender::new(false), needed: watch::Sender::new(false) }
    }
}

impl Leadership {
    /// Whether this server writes conditions.
    pub(super) fn leads(&self) -> bool {
        *self.leads.borrow()
    }

    /// Takes and renews the lock while it is needed, until the server stops.
    pub(super) async fn run(&self, lock: LeaderLock, stopping: impl Future<Output = ()>) {
        tokio::select! {
            biased;
            () = stopping => {}
            () = self.hold(&lock) => {}
        }
        self.leads.send_replace(false);
        // Another server takes over at once, and need not wait until the lock expires.
        lock.release().await;
    }

    async fn hold(&self, lock: &LeaderLock) {
        let mut needed = self.needed.subscribe();
        loop {
            if !*needed.borrow_and_update() {
                if self.leads.send_replace(false) {
                    lock.release().await;
                }
                // The sender lives as long as this.
                let _ = needed.changed().await;
                continue;
            }
            let (leads, pause) = match lock.renew().await {
                Ok(leads) => (leads, RENEW_INTERVAL),
                Err(_) => (false, PAUSE),
            };
            self.leads.send_if_modified(|before| std::mem::replace(before, leads) != leads);
            let _ = tokio::time::timeout(pause, needed.changed()).await;
        }
    }
}
