//! Voting on the storage version: all servers store the *selected* version, which changes only when all prefer the same.
//!
//! No two servers ever encode differently. A rolling upgrade keeps the old version until the last server votes for the new
//! one; a server that cannot handle the selected version does not write.

mod election;
mod writing;

pub use election::{Ballot, ElectionResult, collect, vote, withdraw};
pub use writing::{Codec, Refusal, Writing, writing};

#[cfg(test)]
mod tests;
