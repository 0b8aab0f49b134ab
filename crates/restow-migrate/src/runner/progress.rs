//! The progress of a run, and its control.

use restow_api::migration::MigrationCounts;
use serde::Serialize;

/// Whether a run goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunControl {
    /// Run.
    #[default]
    Run,
    /// Send nothing until this changes.
    Pause,
    /// End as soon as all requests in flight are answered.
    Stop,
}

/// The progress of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// The number of the pass through all objects, from 1.
    pub pass: u64,
    /// The objects of this pass that have been processed.
    pub done_in_pass: u64,
    /// The number of objects in this pass, as far as known.
    pub total_in_pass: u64,
    /// The result of the objects so far. Rewritten, skipped, failed and remaining add up to all objects, in every pass and
    /// after every interruption.
    pub counts: MigrationCounts,
    /// How many objects may be in flight.
    pub concurrency: usize,
    /// How many 429 responses the server sent.
    pub overloads: u64,
    /// Why the run waits.
    pub waiting: Option<String>,
    /// The continue token of the page that is being processed.
    pub continue_token: Option<String>,
    /// How many rewrites there were in all passes.
    #[serde(skip)]
    rewritten: u64,
    /// How many objects of this pass were refused.
    #[serde(skip)]
    refused: u64,
    /// How many objects come before the token at which the first pass began.
    #[serde(skip)]
    before: u64,
    /// How many objects come before the last listed page, and before the page whose token is kept.
    #[serde(skip)]
    listed_before: [u64; 2],
}

/// The result of one object in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counted {
    /// It was rewritten.
    Rewritten,
    /// It was left unchanged, is deleted, or others write it.
    Skipped,
    /// It cannot be rewritten.
    Refused,
}

/// What a pass has reached with one more object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reached {
    /// Nothing worth a log line.
    Nothing,
    /// Half of the objects, as far as their number is known.
    Half,
}

impl Progress {
    /// Begins a pass: the first one at `token`, if an earlier run stopped there.
    pub(super) fn begin_pass(&mut self, pass: u64, token: Option<&str>) {
        let is_resumed = pass == 1 && token.is_some() && token == self.continue_token.as_deref();
        self.before = if is_resumed { self.listed_before[1] } else { 0 };
        self.pass = pass;
        self.done_in_pass = 0;
        self.refused = 0;
        self.listed_before = [self.before; 2];
        if pass == 1 {
            self.total_in_pass = 0;
            self.add_up();
            self.counts.remaining = None;
        }
    }

    pub(super) fn saw_page(&mut self, objects: u64, remaining: Option<u64>, listed_before: u64) {
        self.listed_before = [self.before + listed_before, self.listed_before[0]];
        self.total_in_pass = listed_before + objects + remaining.unwrap_or(0);
        self.add_up();
    }

    /// Counts one object of this pass that has been processed. Returns whether this completes the first half of the pass.
    pub(super) fn count(&mut self, counted: Counted) -> Reached {
        let was_half_done = self.is_half_done();
        self.done_in_pass += 1;
        self.rewritten += u64::from(counted == Counted::Rewritten);
        self.refused += u64::from(counted == Counted::Refused);
        self.add_up();
        if self.is_half_done() && !was_half_done { Reached::Half } else { Reached::Nothing }
    }

    fn is_half_done(&self) -> bool {
        self.done_in_pass > 0 && 2 * self.done_in_pass >= self.total_in_pass
    }

    /// The first pass processes every object; later passes only check. Failures count until a later pass has completed with
    /// fewer.
    fn add_up(&mut self) {
        let total = self.before + self.total_in_pass.max(self.done_in_pass);
        let is_over = self.done_in_pass >= self.total_in_pass;
        let dealt_with = if self.pass <= 1 { self.before + self.done_in_pass } else { total };
        let refused = if self.pass <= 1 || is_over { self.refused } else { self.refused.max(self.counts.failed) };
        let failed = refused.min(dealt_with);
        let rewritten = self.rewritten.min(dealt_with - failed);
        self.counts = MigrationCounts {
            seen: total,
            rewritten,
            skipped: dealt_with - failed - rewritten,
            failed,
            remaining: Some(total - dealt_with),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rewritten, skipped, refused, remaining; they add up to all objects.
    fn numbers(progress: &Progress) -> [u64; 4] {
        let counts = progress.counts;
        let numbers = [counts.rewritten, counts.skipped, counts.failed, counts.remaining.unwrap_or(0)];
        assert_eq!(numbers.iter().sum::<u64>(), counts.seen, "{counts:?}");
        numbers
    }

    fn work(progress: &mut Progress, counted: Counted, times: u64) {
        for _ in 0..times {
            progress.count(counted);
        }
    }

    #[test]
    fn the_numbers_add_up_in_every_pass() {
        let mut progress = Progress::default();
        progress.begin_pass(1, None);
        progress.saw_page(500, Some(1_500), 0);
        work(&mut progress, Counted::Rewritten, 300);
        work(&mut progress, Counted::Skipped, 100);
        assert_eq!(numbers(&progress), [300, 100, 0, 1_600]);
        for listed in [500, 1_000, 1_500] {
            progress.saw_page(500, Some(1_500 - listed), listed);
        }
        work(&mut progress, Counted::Refused, 10);
        work(&mut progress, Counted::Rewritten, 1_590);
        assert_eq!(numbers(&progress), [1_890, 100, 10, 0]);
        // A second pass checks all of them again.
        progress.begin_pass(2, None);
        progress.saw_page(500, Some(1_500), 0);
        work(&mut progress, Counted::Skipped, 644);
        assert_eq!(numbers(&progress), [1_890, 100, 10, 0], "what was refused counts until this pass is over");
        work(&mut progress, Counted::Skipped, 1_356);
        assert_eq!(numbers(&progress), [1_890, 110, 0, 0]);
    }

    #[test]
    fn an_interruption_keeps_what_was_done_before_it() {
        let mut progress = Progress::default();
        progress.begin_pass(1, None);
        for (listed, token) in [(0, None), (500, None), (1_000, Some("at 500"))] {
            progress.saw_page(500, Some(1_500 - listed), listed);
            progress.continue_token = token.map(str::to_owned);
        }
        work(&mut progress, Counted::Rewritten, 1_100);
        assert_eq!(numbers(&progress), [1_100, 0, 0, 900]);
        progress.begin_pass(1, Some("at 500"));
        progress.saw_page(500, Some(1_000), 0);
        work(&mut progress, Counted::Skipped, 500);
        assert_eq!(numbers(&progress), [1_000, 0, 0, 1_000], "what was rewritten is not counted as left alone");
        work(&mut progress, Counted::Rewritten, 1_000);
        assert_eq!(numbers(&progress), [2_000, 0, 0, 0]);
        // A run that starts over has processed nothing.
        progress.begin_pass(1, None);
        assert_eq!((progress.counts.seen, progress.counts.remaining), (0, None));
        progress.saw_page(500, Some(1_500), 0);
        work(&mut progress, Counted::Skipped, 500);
        assert_eq!(numbers(&progress), [500, 0, 0, 1_500]);
    }
}
