//! The random numbers of the world itself: delays on the way.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// A source of random numbers that all parts of a world share.
#[derive(Debug)]
pub(crate) struct Dice {
    random: Mutex<StdRng>,
    /// How many messages were sent.
    messages: AtomicU64,
    /// Notified when more were sent than in any world that makes progress.
    pub(crate) too_many: Notify,
}

/// So many messages are enough for everything that happens in a world.
const MOST_MESSAGES: u64 = 400_000;

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        let random = Mutex::new(StdRng::seed_from_u64(seed));
        Dice { random, messages: AtomicU64::new(0), too_many: Notify::new() }
    }

    pub(crate) fn roll(&self) -> MutexGuard<'_, StdRng> {
        self.random.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long a message is under way: mostly short, sometimes long.
    pub(crate) fn delay(&self) -> Duration {
        let mut random = self.roll();
        let millis = match random.random_range(0..1000) {
            0..900 => random.random_range(0..3),
            900..990 => random.random_range(3..30),
            990..998 => random.random_range(30..300),
            _ => random.random_range(300..3000),
        };
        Duration::from_millis(millis)
    }

    /// Waits as long as a message is under way on a slow link, besides what it takes anyway.
    pub(crate) async fn slowly_under_way(&self) {
        let millis = self.roll().random_range(20..1_000);
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }

    /// Waits as long as a message is under way.
    pub(crate) async fn under_way(&self) {
        if self.messages.fetch_add(1, Ordering::Relaxed) > MOST_MESSAGES {
            self.too_many.notify_one();
            // The world ends now.
            std::future::pending::<()>().await;
        }
        let delay = self.delay();
        if delay.is_zero() {
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(delay).await;
        }
    }
}
