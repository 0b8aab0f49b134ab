//! The random numbers of the world itself: delays on the way.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A source of random numbers that all parts of a world share.
pub(crate) struct Dice(Mutex<StdRng>);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Dice(Mutex::new(StdRng::seed_from_u64(seed)))
    }

    pub(crate) fn roll(&self) -> MutexGuard<'_, StdRng> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Waits as long as a message is under way.
    pub(crate) async fn under_way(&self) {
        let delay = self.delay();
        if delay.is_zero() {
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(delay).await;
        }
    }
}
