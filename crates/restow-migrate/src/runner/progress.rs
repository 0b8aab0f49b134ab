//! How far a run is, and what it is told meanwhile.

use restow_api::migration::MigrationCounts;
use serde::Serialize;

/// What a run is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Go on.
    #[default]
    Run,
    /// Send nothing until told otherwise.
    Pause,
    /// End as soon as what is in flight has been answered.
    Stop,
}

/// How far a run is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Which pass through all objects this is, from 1.
    pub pass: u64,
    /// The objects of this pass that have been dealt with.
    pub done_in_pass: u64,
    /// How many objects this pass has, as far as is known.
    pub total_in_pass: u64,
    /// The numbers over all passes: objects seen first, and what became of them.
    pub counts: MigrationCounts,
    /// How many objects may be in flight.
    pub concurrency: usize,
    /// How often the server said that it has too much to do.
    pub overloads: u64,
    /// Why nothing happens at the moment.
    pub waiting: Option<String>,
    /// Where the page begins that is worked on.
    pub continue_token: Option<String>,
}

impl Progress {
    pub(super) fn begin_pass(&mut self, pass: u64) {
        self.pass = pass;
        self.done_in_pass = 0;
        self.counts.failed = 0;
        self.counts.remaining = None;
    }

    pub(super) fn saw_page(&mut self, objects: u64, remaining: Option<u64>, listed_before: u64) {
        if self.pass == 1 {
            self.counts.seen += objects;
        }
        self.total_in_pass = listed_before + objects + remaining.unwrap_or(0);
    }

    /// One object of this pass has been dealt with.
    pub(super) fn done(&mut self) {
        self.done_in_pass += 1;
        self.counts.remaining = Some(self.total_in_pass.saturating_sub(self.done_in_pass));
    }
}
