//! Randomness that can be repeated: a seed that is printed when its check fails.

use rand::SeedableRng;
use rand::rngs::StdRng;

/// The environment variable that sets the seed.
const VARIABLE: &str = "RESTOW_SEED";

/// A seed. Keep it until the check has ended: when it is dropped in a panic, it prints how to repeat the check.
pub(super) struct Seed(u64);

impl Seed {
    /// The seed of the environment, or a new one.
    pub(super) fn take() -> Self {
        match std::env::var(VARIABLE) {
            Ok(text) => Seed(text.parse().unwrap_or_else(|_| panic!("{VARIABLE} must be a number, it is {text:?}"))),
            Err(_) => Seed(rand::random()),
        }
    }

    /// A generator of its own for each of several tasks.
    pub(super) fn generator(&self, task: u64) -> StdRng {
        StdRng::seed_from_u64(self.0.wrapping_add(task))
    }
}

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("to repeat this check with the same choices: {VARIABLE}={}", self.0);
        }
    }
}
