//! Finds the fewest events of a plan that still break the rule.

use crate::plan::Plan;
use crate::simulation::run;
use crate::story::Telling;
use std::time::{Duration, Instant};

/// How long it may take: a run that waits for something that never happens takes long.
const LONGEST: Duration = Duration::from_secs(60);

/// The plan with as few events as possible that still breaks the rule that it breaks. It takes away ever smaller parts, and
/// tries at most `runs` times, and for at most a minute.
pub fn shrink(plan: &Plan, runs: usize) -> Plan {
    let rule = |plan: &Plan| run(plan, Telling::Nothing).violation.map(|violation| violation.rule);
    let Some(broken) = rule(plan) else { return plan.clone() };
    let began = Instant::now();
    let (mut smallest, mut left) = (plan.clone(), runs);
    let mut part = smallest.events.len();
    while part > 0 && left > 0 && began.elapsed() < LONGEST {
        let mut from = 0;
        let mut shrunk = false;
        while from < smallest.events.len() && left > 0 && began.elapsed() < LONGEST {
            let mut numbers = smallest.numbers();
            numbers.drain(from..(from + part).min(numbers.len()));
            let tried = plan.keeping(&numbers);
            left -= 1;
            if rule(&tried) == Some(broken) {
                smallest = tried;
                shrunk = true;
            } else {
                from += part;
            }
        }
        // A part that could be taken away may make another one superfluous.
        if !shrunk || part > 1 {
            part /= 2;
        }
    }
    smallest
}
