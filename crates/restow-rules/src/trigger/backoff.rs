//! The backoff of failed migrations.

use jiff::SignedDuration;

/// Delays that double with each failure up to a maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The wait after the first failure.
    pub first: SignedDuration,
    /// The longest wait.
    pub cap: SignedDuration,
}

impl Backoff {
    /// The delay after the failure of this attempt, the first being number 1.
    pub fn after(&self, attempt: u32) -> SignedDuration {
        let doublings = attempt.saturating_sub(1).min(30);
        self.first.checked_mul(1 << doublings).unwrap_or(self.cap).min(self.cap)
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Backoff { first: SignedDuration::from_secs(10), cap: SignedDuration::from_mins(30) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_cap() {
        let backoff = Backoff { first: SignedDuration::from_secs(10), cap: SignedDuration::from_secs(60) };
        let waits: Vec<i64> = [0, 1, 2, 3, 4, 5, u32::MAX].map(|attempt| backoff.after(attempt).as_secs()).into();
        assert_eq!(waits, [10, 10, 20, 40, 60, 60, 60]);
        let huge = Backoff { first: SignedDuration::MAX, cap: SignedDuration::from_secs(60) };
        assert_eq!(huge.after(9).as_secs(), 60);
    }
}
