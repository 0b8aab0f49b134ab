//! Runs many seeds on several threads.

use crate::checks::{Rule, Violation};
use crate::plan::Plan;
use crate::simulation::{repeats_exactly, run};
use crate::story::{Statistics, Telling};
use crate::world::Report;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// One seed of so many is run twice, and both runs must be equal.
const REPEATED: u64 = 50;

/// Which seeds to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Campaign {
    /// The first seed.
    pub first: u64,
    /// How many.
    pub seeds: u64,
    /// On how many threads.
    pub threads: usize,
}

/// What the seeds found.
#[derive(Clone, Debug, Default)]
pub struct CampaignReport {
    /// How many were run.
    pub seeds: u64,
    /// How much happened in all of them.
    pub statistics: Statistics,
    /// The seed with the lowest number of those that broke a rule, and how.
    pub violation: Option<(u64, Violation)>,
}

impl Campaign {
    /// Runs the seeds until one breaks a rule. `ran` is called after each.
    pub fn run(self, ran: impl Fn(&Report) + Sync) -> CampaignReport {
        let (next, stopped) = (AtomicU64::new(self.first), AtomicBool::new(false));
        let found = Mutex::new(CampaignReport::default());
        std::thread::scope(|scope| {
            for _ in 0..self.threads.max(1) {
                scope.spawn(|| {
                    while !stopped.load(Ordering::Relaxed) {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= self.first + self.seeds {
                            return;
                        }
                        let report = run_checked(seed);
                        stopped.fetch_or(report.violation.is_some(), Ordering::Relaxed);
                        ran(&report);
                        found.lock().unwrap_or_else(PoisonError::into_inner).add(seed, report);
                    }
                });
            }
        });
        found.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CampaignReport {
    fn add(&mut self, seed: u64, report: Report) {
        self.seeds += 1;
        self.statistics += &report.statistics;
        if let Some(violation) = report.violation
            && self.violation.as_ref().is_none_or(|(known, _)| seed < *known)
        {
            self.violation = Some((seed, violation));
        }
    }
}

/// Runs a seed; some of them twice, to see that they repeat.
fn run_checked(seed: u64) -> Report {
    let plan = Plan::new(seed);
    let mut report = run(&plan, Telling::Nothing);
    if repeats_exactly() && seed.is_multiple_of(REPEATED) && report.violation.is_none() {
        let again = run(&plan, Telling::Nothing);
        if again.digest != report.digest {
            let what = format!("two runs of seed {seed} differ: {:?}, {:?}", report.statistics, again.statistics);
            report.violation =
                Some(Violation { rule: Rule::Repeatable, what, at: report.statistics.simulated, revision: 0 });
        }
    }
    report
}
