//! What happened in a run: a story for people, and how much it was.

use std::ops::AddAssign;
use std::time::Duration;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoryLine {
    /// When, since the beginning.
    pub at: Duration,
    /// What.
    pub words: String,
}

/// Whether a run tells what happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Telling {
    /// It only tells what it found.
    Nothing,
    /// It tells everything.
    Story,
}

/// How much happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Revisions of the store that were checked.
    pub revisions: u64,
    /// Writes that users asked for.
    pub operations: u64,
    /// Reads of users that were checked.
    pub reads: u64,
    /// Events of plans: crashes, pauses, faults, changes.
    pub events: u64,
    /// Crashes of servers and controllers.
    pub crashes: u64,
    /// Times that a server or a controller was suspended.
    pub suspensions: u64,
    /// Migrations that succeeded.
    pub migrations: u64,
    /// Simulated time.
    pub simulated: Duration,
}

impl AddAssign<&Statistics> for Statistics {
    fn add_assign(&mut self, other: &Statistics) {
        self.revisions += other.revisions;
        self.operations += other.operations;
        self.reads += other.reads;
        self.events += other.events;
        self.crashes += other.crashes;
        self.suspensions += other.suspensions;
        self.migrations += other.migrations;
        self.simulated += other.simulated;
    }
}
