//! Random numbers: the system's, or those of a simulated process.

use crate::simulated::Process;
use rand::RngCore;
use rand::rngs::ThreadRng;
use std::sync::Arc;
use uuid::{Builder, Uuid};

/// A source of random numbers for a few draws.
pub struct Random(Source);

enum Source {
    System(ThreadRng),
    Simulated(Arc<Process>),
}

/// The random numbers of this process.
pub fn random() -> Random {
    Random(Process::current().map_or_else(|| Source::System(rand::rng()), Source::Simulated))
}

/// A new random UUID.
pub fn uuid() -> Uuid {
    let mut bytes = [0; 16];
    random().fill_bytes(&mut bytes);
    Builder::from_random_bytes(bytes).into_uuid()
}

impl RngCore for Random {
    fn next_u32(&mut self) -> u32 {
        match &mut self.0 {
            Source::System(random) => random.next_u32(),
            Source::Simulated(process) => process.random().next_u32(),
        }
    }

    fn next_u64(&mut self) -> u64 {
        match &mut self.0 {
            Source::System(random) => random.next_u64(),
            Source::Simulated(process) => process.random().next_u64(),
        }
    }

    fn fill_bytes(&mut self, bytes: &mut [u8]) {
        match &mut self.0 {
            Source::System(random) => random.fill_bytes(bytes),
            Source::Simulated(process) => process.random().fill_bytes(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_random_and_says_so() {
        let (one, other) = (uuid(), uuid());
        assert_ne!(one, other);
        assert_eq!(one.get_version_num(), 4);
    }
}
