//! The conformance suite that every back end must pass, and its parts.
//!
//! A back end plugs in with a [`Fixture`], which opens a fresh, empty store for each check, and one line:
//!
//! ```
//! //! tests/conformance.rs of the back end. Its Cargo.toml has, under [dev-dependencies]: restow-store with the feature
//! //! "conformance", async-trait, and tokio with "macros" and "rt-multi-thread".
//! # fn main() {}
//! # use restow_store::conformance::ModelStore as MyStore;
//! use restow_store::Limits;
//! use restow_store::conformance::{Fixture, Opened};
//! use std::sync::Arc;
//!
//! struct Fresh;
//!
//! #[async_trait::async_trait]
//! impl Fixture for Fresh {
//!     async fn open(&self) -> Opened {
//!         // A directory or a server of its own, which lives as long as the check.
//!         let directory = Arc::new("a TempDir, a child process");
//!         let store = MyStore::new(Limits::default());
//!         Opened::new(Arc::new(store), Limits::default()).keep(directory)
//!     }
//! }
//!
//! restow_store::conformance_tests!(Fresh);
//! ```
//!
//! That creates one named test per check: `cargo test ranges::` runs those for ranges. A failed check that used randomness
//! prints its seed; `RESTOW_SEED=<seed>` repeats it. Checks that are skipped because a back end lacks something (a small
//! quota, prompt progress notifications) are reported on standard error.
//!
//! The parts are useful elsewhere, too: [`Model`] is the semantics as plain code, [`ModelStore`] an in-memory [`Store`],
//! [`WatchReader`] reads a watch and verifies its guarantees, and [`history`] records the calls of concurrent clients and
//! checks that they were linearizable, also across crashes.
//!
//! Nothing here is for production: these modules panic when a store violates its semantics.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod checks;
pub mod history;
mod mirror;
mod model;
mod model_store;
mod seed;
mod watch_reader;
mod writers;

pub use model::Model;
pub use model_store::ModelStore;
pub use watch_reader::WatchReader;

use crate::{Limits, Store};
use async_trait::async_trait;
use std::any::Any;
use std::fmt::Debug;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

/// How long the suite waits for an event before a check fails. Only failing checks wait so long.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Opens the stores of a back end for the suite. It panics if it cannot open one.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// Opens a new, empty store for one check.
    async fn open(&self) -> Opened;

    /// Opens a new, empty store with a quota of a few MiB, set in [`Limits::store_bytes`]; `None` if the back end has no
    /// quotas.
    async fn open_small(&self) -> Option<Opened> {
        None
    }
}

/// A store for one check.
pub struct Opened {
    /// The store. It is dropped before the guards.
    pub store: Arc<dyn Store>,
    /// The limits that the store was opened with.
    pub limits: Limits,
    guards: Vec<Box<dyn Any + Send + Sync>>,
}

impl Opened {
    /// A store and the limits that it was opened with.
    pub fn new(store: Arc<dyn Store>, limits: Limits) -> Self {
        Opened { store, limits, guards: Vec::new() }
    }

    /// Keeps a guard until the check has ended: a temporary directory, a server process.
    pub fn keep(mut self, guard: impl Any + Send + Sync) -> Self {
        self.guards.push(Box::new(guard));
        self
    }
}

/// Runs one check by its names in the list of [`conformance_tests`](crate::conformance_tests).
pub async fn run(group: &str, check: &str, fixture: &dyn Fixture) {
    checks::run(group, check, fixture).await;
}

/// Creates one `#[tokio::test]` for every check, in a module per concern; the argument is an expression of a type that
/// implements [`Fixture`](crate::conformance::Fixture). See [`conformance`](crate::conformance).
#[macro_export]
macro_rules! conformance_tests {
    // The only list of checks: the compiler warns of dead code if a function is missing here.
    (@list $use:ident $context:tt) => {
        $crate::conformance_tests! { @$use $context
            revisions {
                an_empty_store_is_at_a_revision_of_at_least_one
                each_change_takes_one_revision
                a_transaction_without_changes_takes_no_revision
                a_recreated_key_starts_over
                status_reports_backend_revision_and_size
            }
            ranges {
                exact_prefix_and_whole_ranges_hold_their_keys_in_order
                a_limit_truncates_and_sets_more
                pages_at_one_revision_are_its_snapshot
                content_is_what_was_requested
                every_old_revision_is_exact
                a_future_revision_is_an_error
                revision_zero_is_not_the_latest
                many_keys_are_listed_and_counted
                more_than_four_mebibytes_are_read_and_watched
            }
            transactions {
                every_comparison_holds_when_it_should
                all_comparisons_must_hold
                a_refused_transaction_reads_in_order
                mutations_share_one_revision
                a_refused_transaction_changes_nothing
                invalid_transactions_are_refused
                the_largest_transaction_works
                readers_see_all_of_a_transaction_or_nothing
                conflicts_carry_the_current_entry
            }
            watches {
                every_start_revision_gives_the_rest_of_history
                a_watch_from_now_starts_after_the_call
                a_watch_from_a_future_revision_waits_for_it
                revision_zero_is_not_now
                previous_entries_come_if_requested
                only_changes_in_the_range_come
                one_revision_comes_in_one_batch
                concurrent_writers_are_seen_in_order_by_every_watcher
                watches_started_during_writes_miss_nothing
                a_slow_watcher_gets_everything_or_an_error
                dropped_watches_do_not_affect_others
            }
            progress {
                notifications_come_when_nothing_changes
                notifications_never_overtake_events
            }
            time_to_live {
                a_key_expires_after_its_time_to_live
                writing_again_replaces_the_time_to_live
            }
            compaction {
                reads_before_the_compact_revision_fail_and_later_ones_are_exact
                impossible_compactions_fail
                watches_before_the_compact_revision_fail_and_later_ones_are_exact
                a_watch_from_the_compact_revision_misses_nothing
                a_running_watch_continues
                pages_during_compaction_are_complete_or_refused
            }
            limits {
                a_value_of_exactly_the_limit_works
                a_value_beyond_the_limit_is_refused
                keys_of_all_bytes_and_lengths_work
                empty_values_are_values
                a_full_store_refuses_to_grow_but_serves
            }
            random_operations {
                responses_equal_those_of_the_model
            }
            concurrent_histories {
                are_linearizable
                abandoned_calls_happen_once_or_not_at_all
            }
        }
    };
    (@tests ($fixture:expr) $($group:ident { $($check:ident)+ })+) => {
        $(
            mod $group {
                #[allow(unused_imports, reason = "the fixture may need names of the enclosing module")]
                use super::*;
                $(
                    #[::tokio::test(flavor = "multi_thread")]
                    async fn $check() {
                        $crate::conformance::run(stringify!($group), stringify!($check), &$fixture).await;
                    }
                )+
            }
        )+
    };
    (@dispatch ($wanted_group:ident, $wanted_check:ident, $fixture:ident) $($group:ident { $($check:ident)+ })+) => {
        $($(
            if $wanted_group == stringify!($group) && $wanted_check == stringify!($check) {
                return ::std::boxed::Box::pin($group::$check($fixture)).await;
            }
        )+)+
    };
    ($fixture:expr) => {
        $crate::conformance_tests! { @list tests ($fixture) }
    };
}

/// The debug output for a failure message, truncated because values can have megabytes.
fn short(thing: &dyn Debug) -> String {
    const MOST: usize = 4000;
    let mut text = format!("{thing:?}");
    if let Some((cut, _)) = text.char_indices().nth(MOST) {
        text.truncate(cut);
        text.push_str(" and so on");
    }
    text
}

/// Reports on standard error that something was not checked. Test harnesses capture the output of macros, not this.
fn report_not_checked(backend: &str, what: &str) {
    let _ = writeln!(std::io::stderr(), "\n*** NOT CHECKED for {backend}: {what} ***\n");
}
