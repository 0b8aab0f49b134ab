//! A model of the whole protocol, checked in every state that it can reach.
//!
//! Three API servers of two versions share a store. They crash, restart with another version or with their gate closed, pause
//! and wake; they keep their identities, and lose their leases when a user deletes them; their writes may stay in flight for
//! as long as you like; a collector removes what the dead left; a migrator rewrites objects. The resource is a built-in one,
//! or a custom one whose storage version is changed while all of that goes on.
//! Registration, collection and the start of migrations are decided by the functions of this crate, not by copies.
//!
//! With the fence, the rules hold everywhere. Without it, the checker must find the way in which they break: otherwise we
//! would not know that it can see it. The same goes for the other comparisons that the protocol relies on.
//!
//! Run with `-- --nocapture` to see the numbers and the counterexamples.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bridge;
mod collector;
mod migrator;
mod protocol;
mod rules;
mod server;
mod state;

use protocol::{Action, Budget, Comparisons, Protocol};
use state::{Gate, State, Version};
use stateright::{Checker, HasDiscoveries, Model};
use std::time::Instant;

/// Checks every reachable state, up to the symmetry of the servers, and prints how many there are.
fn prove(name: &str, budget: Budget) {
    let begin = Instant::now();
    let protocol = Protocol::new(Comparisons::ALL, budget);
    let checker = protocol.checker().symmetry_fn(State::representative).spawn_dfs().join();
    let (unique, generated) = (checker.unique_state_count(), checker.state_count());
    println!("{name}: {unique} states ({generated} generated), {:.1} s", begin.elapsed().as_secs_f64());
    checker.assert_properties();
}

/// The same for a model in which a migration to the new version may not fit into the budget.
fn prove_safe(name: &str, budget: Budget) {
    let begin = Instant::now();
    let checker =
        Protocol::new(Comparisons::ALL, budget).checker().symmetry_fn(State::representative).spawn_dfs().join();
    println!("{name}: {} states, {:.1} s", checker.unique_state_count(), begin.elapsed().as_secs_f64());
    for rule in
        [rules::REPORT_BEFORE_WRITE, rules::AGREEMENT_IS_TRUE, rules::NO_POLLUTED_MIGRATION, rules::A_PROOF_STAYS_TRUE]
    {
        checker.assert_no_discovery(rule);
    }
}

/// Finds a way to break a rule, and prints it up to the step that does.
fn refute(name: &str, rule: &'static str, comparisons: Comparisons, budget: Budget) {
    let protocol = Protocol::new(comparisons, budget);
    let checker = protocol.checker().finish_when(HasDiscoveries::AnyOf([rule].into())).spawn_bfs().join();
    let path = checker.assert_any_discovery(rule).into_vec();
    let condition = protocol.property(rule).condition;
    let steps = path.iter().take_while(|(state, _)| condition(&protocol, state)).filter_map(|(_, action)| *action);
    println!("{name}, \"{rule}\" is broken ({} states):", checker.unique_state_count());
    for (step, action) in steps.enumerate() {
        println!("  {:2}. {action}", step + 1);
    }
}

fn budget(crashes: u8, pauses: u8, writes: u8, migrations: u8) -> Budget {
    Budget { crashes, pauses, writes, migrations, flips: 0, closed_gates: 0, lost_leases: 0 }
}

/// The same for a custom resource whose storage version is changed so often, while so many leases are deleted.
fn custom(flips: u8, lost_leases: u8, others: Budget) -> Budget {
    Budget { flips, lost_leases, ..others }
}

/// The same with so many starts of servers that report nothing.
fn with_closed_gates(closed_gates: u8, others: Budget) -> Budget {
    Budget { closed_gates, ..others }
}

#[test]
fn all_rules_hold_while_every_server_restarts_with_another_version() {
    prove("three restarts, one write, one migration", budget(3, 0, 1, 1));
}

#[test]
fn all_rules_hold_while_servers_restart_and_pause() {
    prove("two restarts, one pause, one write, one migration", budget(2, 1, 1, 1));
}

#[test]
fn all_rules_hold_while_a_crd_changes_and_leases_are_lost() {
    prove("one change, one lost lease, one write, one migration", custom(1, 1, budget(0, 0, 1, 1)));
    prove_safe("two changes, one lost lease, one write", custom(2, 1, budget(0, 0, 1, 0)));
}

#[test]
fn all_rules_hold_while_servers_report_nothing() {
    let world = Budget { lost_leases: 1, ..with_closed_gates(1, budget(1, 0, 1, 1)) };
    prove_safe("one restart, one closed gate, one lost lease, one write, one migration", world);
    prove_safe(
        "one change, one restart, one closed gate, one write",
        with_closed_gates(1, custom(1, 0, budget(1, 0, 1, 0))),
    );
}

/// Minutes instead of seconds, so only on demand: `RESTOW_TEST_LONG=1`.
#[test]
fn all_rules_hold_in_larger_models() {
    if std::env::var_os("RESTOW_TEST_LONG").is_none() {
        restow_testkit::skip("set RESTOW_TEST_LONG=1 to check some 14 million states");
        return;
    }
    prove("three restarts, one write, two migrations", budget(3, 0, 1, 2));
    prove("three restarts, two writes, one migration", budget(3, 0, 2, 1));
    prove("two restarts, one pause, two writes, one migration", budget(2, 1, 2, 1));
    prove("two changes, two lost leases, one write, one migration", custom(2, 2, budget(0, 0, 1, 1)));
    prove("one change, one restart, one pause, one write, one migration", custom(1, 0, budget(1, 1, 1, 1)));
    prove_safe("two restarts, one closed gate, one pause, one write", with_closed_gates(1, budget(2, 1, 1, 1)));
}

#[test]
fn without_the_fence_every_rule_breaks() {
    let unfenced = Comparisons { fence: false, ..Comparisons::ALL };
    refute("without the fence", rules::REPORT_BEFORE_WRITE, unfenced, budget(0, 1, 1, 0));
    refute("without the fence", rules::AGREEMENT_IS_TRUE, unfenced, budget(1, 1, 1, 0));
    refute("without the fence", rules::NO_POLLUTED_MIGRATION, unfenced, budget(1, 1, 1, 1));
    refute("without the fence", rules::A_PROOF_STAYS_TRUE, unfenced, budget(1, 1, 1, 1));
}

#[test]
fn a_skipped_write_needs_the_fence_too() {
    let unfenced = Comparisons { skipped: false, ..Comparisons::ALL };
    refute("when skipped writes are not fenced", rules::NO_POLLUTED_MIGRATION, unfenced, budget(1, 1, 1, 1));
}

#[test]
fn removing_entries_must_compare_that_the_leases_are_absent() {
    let careless = Comparisons { absence: false, ..Comparisons::ALL };
    refute("without the comparison of absent leases", rules::REPORT_BEFORE_WRITE, careless, budget(0, 1, 1, 0));
}

#[test]
fn a_migration_must_compare_the_agreement_at_its_end() {
    let careless = Comparisons { agreement: false, ..Comparisons::ALL };
    refute("without the comparison of the agreement", rules::NO_POLLUTED_MIGRATION, careless, budget(1, 0, 1, 1));
}

#[test]
fn a_report_must_let_its_server_write_only_the_reported_version() {
    let careless = Comparisons { grant: false, ..Comparisons::ALL };
    let world = custom(1, 1, budget(0, 0, 1, 0));
    refute(
        "when a report lets its server write whatever it encodes by then",
        rules::REPORT_BEFORE_WRITE,
        careless,
        world,
    );
    refute(
        "when a report lets its server write whatever it encodes by then",
        rules::AGREEMENT_IS_TRUE,
        careless,
        world,
    );
}

#[test]
fn a_participant_without_a_report_must_end_the_agreement() {
    let careless = Comparisons { all_must_report: false, ..Comparisons::ALL };
    let world = with_closed_gates(1, budget(1, 0, 1, 1));
    refute("when participants without a report are ignored", rules::AGREEMENT_IS_TRUE, careless, world);
    refute("when participants without a report are ignored", rules::NO_POLLUTED_MIGRATION, careless, world);
}

#[test]
fn a_server_that_stops_reporting_must_withdraw_its_earlier_reports() {
    let careless = Comparisons { withdrawal: false, ..Comparisons::ALL };
    let world = with_closed_gates(1, budget(1, 0, 1, 1));
    refute("when an old report stays", rules::AGREEMENT_IS_TRUE, careless, world);
    refute("when an old report stays", rules::NO_POLLUTED_MIGRATION, careless, world);
}

#[test]
fn an_agreement_must_compare_that_no_server_has_joined() {
    let careless = Comparisons { joined: false, ..Comparisons::ALL };
    let world = Budget { lost_leases: 1, ..with_closed_gates(1, budget(1, 0, 0, 0)) };
    refute("when a server may join unnoticed", rules::AGREEMENT_IS_TRUE, careless, world);
}

/// A is paused with a write in flight, the others are upgraded, agree and migrate, and A resumes. Without the fence, its
/// write commits in the old version and stays unnoticed; with the fence, the store refuses it.
#[test]
fn the_fence_refuses_the_write_of_a_server_that_was_paused() {
    use Action::*;
    let upgrade =
        |server| [Crash(server), Start(server, Version::V2, Gate::Open), AcquireLease(server), Register(server)];
    let mut story = vec![Send(0, 1), Pause(0), Expire(0), PlanRemovals, Remove, Remove];
    story.extend(upgrade(1));
    story.extend(upgrade(2));
    story.extend([BeginMigration, Rewrite(0, 1), EndMigration, Wake(0), Land(0)]);

    let end_of = |comparisons: Comparisons| {
        let protocol = Protocol::new(comparisons, budget(2, 1, 1, 1));
        let begin = protocol.init_states().remove(0);
        let end = story.iter().fold(begin, |state, action| {
            protocol.next_state(&state, *action).unwrap_or_else(|| panic!("nothing happened: {action}"))
        });
        let broken: Vec<&str> = protocol
            .properties()
            .iter()
            .filter(|rule| !(rule.condition)(&protocol, &end))
            .map(|rule| rule.name)
            .collect();
        (broken, end)
    };
    let (broken, end) = end_of(Comparisons { fence: false, ..Comparisons::ALL });
    assert_eq!(end.store.objects[1].unwrap().version, Version::V1, "the write landed in the old version");
    assert_eq!(
        broken,
        [rules::REPORT_BEFORE_WRITE, rules::AGREEMENT_IS_TRUE, rules::A_PROOF_STAYS_TRUE, rules::A_MIGRATION_SUCCEEDS,]
    );

    let (broken, end) = end_of(Comparisons::ALL);
    assert_eq!(end.store.objects[1], None, "the write was refused");
    assert_eq!(broken, Vec::<&str>::new());
}
