//! Simulated worlds: a few thousand seeds in every run of the tests. `restow torture` runs more.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use restow_torture::{Campaign, Plan, Telling, run};

/// How many seeds are run.
fn seeds() -> u64 {
    if std::env::var_os("RESTOW_TEST_LONG").is_some() { 20_000 } else { 2_000 }
}

#[test]
fn thousands_of_seeds_break_no_rule() {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let report = Campaign { first: 0, seeds: seeds(), threads }.run(|_| ());
    if let Some((seed, violation)) = report.violation {
        panic!("{violation}\nto repeat it: cargo run --release -- torture --seed {seed}");
    }
    println!("{} seeds: {:?}", report.seeds, report.statistics);
    assert!(report.statistics.migrations > report.seeds, "hardly anything was migrated: {:?}", report.statistics);
    assert!(report.statistics.crashes > 0 && report.statistics.suspensions > 0, "{:?}", report.statistics);
}

#[test]
fn a_plan_without_some_of_its_events_is_repeated_exactly() {
    let plan = Plan::new(3);
    let kept = plan.keeping(&[0, 2]);
    assert_eq!(kept.numbers(), [0, 2]);
    let (first, second) = (run(&kept, Telling::Nothing), run(&kept, Telling::Story));
    assert!(first.violation.is_none() && first.story.is_empty() && !second.story.is_empty());
    if restow_torture::repeats_exactly() {
        assert_eq!(first.digest, second.digest, "telling the story changes nothing");
    }
    assert_ne!(first.digest, run(&plan, Telling::Nothing).digest);
}
