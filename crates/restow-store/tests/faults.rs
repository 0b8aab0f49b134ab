//! The conformance suite against stores with a known bug: the checks named for it must fail.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use async_trait::async_trait;
use futures::{StreamExt, stream};
use restow_store::conformance::{self, Fixture, ModelStore, Opened};
use restow_store::{
    At, Compare, CompareTarget, Content, Limits, Mutation, RangeRequest, RangeResponse, Relation, Revision, Store,
    StoreError, StoreExt, StoreStatus, Txn, TxnOutcome, Watch, WatchBatch, WatchRequest,
};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    // Reads.
    IgnoresTheRevision,
    TakesZeroForLatest,
    AnswersFromACache,
    SortsBackwards,
    NeverSaysMore,
    ReturnsValuesUnasked,
    ServesWhatIsCompacted,
    ReportsAWrongCompactRevision,
    // Transactions.
    LosesWrites,
    DoublesWrites,
    TearsTransactions,
    FindsMissingValuesDifferent,
    ReadsInAnotherOrder,
    SpendsRevisionsOnNothing,
    HasNoLimits,
    ForgetsTimeToLive,
    ShortensTimeToLive,
    // Watches.
    LosesEvents,
    RepeatsBatches,
    TearsRevisions,
    NotificationsOvertakeEvents,
    StartsLate,
    TakesZeroForNow,
    ForgetsPrevious,
    IgnoresTheRange,
    SkipsWhatIsCompacted,
    EndsWithoutAnError,
    // Compaction.
    CompactsTwice,
}

struct Faulty {
    inner: Arc<ModelStore>,
    fault: Fault,
    calls: AtomicUsize,
    cache: Mutex<HashMap<String, RangeResponse>>,
}

struct Opener(Fault);

#[async_trait]
impl Fixture for Opener {
    async fn open(&self) -> Opened {
        let limits = Limits::default();
        let kept = match self.0 {
            Fault::HasNoLimits => Limits { value_bytes: usize::MAX, ..limits },
            _ => limits,
        };
        let (inner, calls, cache) = (Arc::new(ModelStore::new(kept)), AtomicUsize::new(0), Mutex::default());
        Opened::new(Arc::new(Faulty { inner, fault: self.0, calls, cache }), limits)
    }

    async fn open_small(&self) -> Option<Opened> {
        let limits = Limits { store_bytes: Some(1 << 20), ..Limits::default() };
        let mut opened = self.open().await;
        opened.limits = limits;
        Some(opened)
    }
}

impl Faulty {
    /// Whether this call is one of those that go wrong.
    fn strikes(&self) -> bool {
        self.calls.fetch_add(1, Ordering::Relaxed) % 5 == 4
    }
}

#[async_trait]
impl Store for Faulty {
    async fn range(&self, mut request: RangeRequest) -> Result<RangeResponse, StoreError> {
        match self.fault {
            Fault::IgnoresTheRevision => request.at = At::Latest,
            Fault::TakesZeroForLatest if request.at == At::Revision(Revision::ZERO) => request.at = At::Latest,
            Fault::ReturnsValuesUnasked if request.content == Content::KeysOnly => request.content = Content::Full,
            Fault::AnswersFromACache => {
                let cached = self.cache.lock().unwrap().remove(&format!("{request:?}"));
                if let Some(cached) = cached {
                    return Ok(cached);
                }
            }
            _ => {}
        }
        let mut answer = self.inner.range(request.clone()).await;
        match (&mut answer, self.fault) {
            (Ok(response), Fault::SortsBackwards) => response.entries.reverse(),
            (Ok(response), Fault::NeverSaysMore) => response.more = false,
            (Ok(response), Fault::AnswersFromACache) => {
                self.cache.lock().unwrap().insert(format!("{request:?}"), response.clone());
            }
            (Err(StoreError::Compacted { oldest }), Fault::ServesWhatIsCompacted) => {
                return self.inner.range(request.at(*oldest)).await;
            }
            (Err(StoreError::Compacted { oldest }), Fault::ReportsAWrongCompactRevision) => *oldest = oldest.next(),
            _ => {}
        }
        answer
    }

    async fn txn(&self, mut txn: Txn) -> Result<TxnOutcome, StoreError> {
        match self.fault {
            Fault::LosesWrites if !txn.then.is_empty() && self.strikes() => {
                let revision = self.inner.status().await?.revision.next();
                return Ok(TxnOutcome::Committed { revision });
            }
            Fault::DoublesWrites if txn.when.is_empty() && self.strikes() => {
                self.inner.txn(txn.clone()).await?;
            }
            Fault::TearsTransactions if txn.then.len() > 1 => {
                let last = txn.then.pop().into_iter().collect();
                self.inner.txn(txn).await?;
                return self.inner.txn(Txn { then: last, ..Txn::new() }).await;
            }
            Fault::FindsMissingValuesDifferent => {
                let mut kept: Vec<Compare> = Vec::new();
                for compare in std::mem::take(&mut txn.when) {
                    let differs =
                        compare.relation == Relation::NotEqual && matches!(compare.target, CompareTarget::Value(_));
                    if !differs || self.inner.get(&compare.key).await?.is_some() {
                        kept.push(compare);
                    }
                }
                txn.when = kept;
            }
            Fault::ForgetsTimeToLive | Fault::ShortensTimeToLive => {
                for mutation in &mut txn.then {
                    if let Mutation::Put(put) = mutation {
                        put.time_to_live = put.time_to_live.filter(|_| self.fault == Fault::ShortensTimeToLive);
                        put.time_to_live = put.time_to_live.map(|time| time.mul_f64(0.8));
                    }
                }
            }
            _ => {}
        }
        let before = self.inner.status().await?.revision;
        let mut outcome = self.inner.txn(txn).await?;
        match &mut outcome {
            TxnOutcome::Refused { found, .. } if self.fault == Fault::ReadsInAnotherOrder => found.reverse(),
            TxnOutcome::Committed { revision }
                if self.fault == Fault::SpendsRevisionsOnNothing && *revision == before =>
            {
                *revision = revision.next();
            }
            _ => {}
        }
        Ok(outcome)
    }

    async fn watch(&self, mut request: WatchRequest) -> Result<Watch, StoreError> {
        match self.fault {
            Fault::TakesZeroForNow if request.from == Some(Revision::ZERO) => request.from = None,
            Fault::IgnoresTheRange => request.range = restow_store::KeyRange::all(),
            Fault::ForgetsPrevious => request.previous = false,
            Fault::StartsLate => {
                let inner = self.inner.clone();
                let starting = async move { inner.watch(request).await.into_iter() };
                return Ok(Watch::new(stream::once(starting).flat_map(stream::iter).flatten()));
            }
            Fault::SkipsWhatIsCompacted => {
                if let Some(Err(_)) = self.inner.watch(request.clone()).await?.now_or_nothing().await {
                    request.from = None;
                }
            }
            _ => {}
        }
        let fault = self.fault;
        let batches = self.inner.watch(request).await?.flat_map(move |item| stream::iter(spoil(fault, item)));
        Ok(match fault {
            Fault::EndsWithoutAnError => Watch::new(batches.take(2)),
            _ => Watch::new(batches),
        })
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        match self.inner.compact(revision).await {
            Err(StoreError::Compacted { .. }) if self.fault == Fault::CompactsTwice => Ok(()),
            answer => answer,
        }
    }

    async fn status(&self) -> Result<StoreStatus, StoreError> {
        self.inner.status().await
    }

    async fn ready(&self) -> Result<(), StoreError> {
        self.inner.ready().await
    }
}

/// Applies the bug to a batch.
fn spoil(fault: Fault, item: Result<WatchBatch, StoreError>) -> Vec<Result<WatchBatch, StoreError>> {
    let Ok(mut batch) = item else { return vec![item] };
    match fault {
        Fault::LosesEvents => batch.events.retain(|event| event.revision.get() % 5 != 0),
        Fault::NotificationsOvertakeEvents if batch.events.is_empty() => batch.revision = batch.revision.next(),
        Fault::RepeatsBatches => return vec![Ok(batch.clone()), Ok(batch)],
        Fault::TearsRevisions if batch.events.len() > 1 => {
            let rest = batch.events.split_off(batch.events.len() - 1);
            let revision = batch.events.last().map_or(batch.revision, |event| event.revision);
            return vec![Ok(WatchBatch { revision, ..batch.clone() }), Ok(WatchBatch { events: rest, ..batch })];
        }
        _ => {}
    }
    vec![Ok(batch)]
}

/// Looks at what a watch has ready, without waiting.
trait NowOrNothing {
    async fn now_or_nothing(self) -> Option<Result<WatchBatch, StoreError>>;
}

impl NowOrNothing for Watch {
    async fn now_or_nothing(mut self) -> Option<Result<WatchBatch, StoreError>> {
        futures::FutureExt::now_or_never(self.next()).flatten()
    }
}

/// Makes a test of each fault: every check named beside it must fail.
macro_rules! caught {
    ($($test:ident: $fault:ident by $($group:ident::$check:ident),+;)+) => {
        $(
            #[tokio::test(start_paused = true)]
            async fn $test() {
                $(
                    let checking = async { conformance::run(stringify!($group), stringify!($check), &Opener(Fault::$fault)).await };
                    let result = tokio::spawn(checking).await;
                    assert!(result.is_err(), "{}::{} passes a store that {:?}", stringify!($group), stringify!($check), Fault::$fault);
                )+
            }
        )+
    };
}

caught! {
    an_ignored_revision: IgnoresTheRevision by
        ranges::every_old_revision_is_exact, ranges::pages_at_one_revision_are_its_snapshot,
        ranges::a_future_revision_is_an_error, random_operations::responses_equal_those_of_the_model;
    zero_for_latest: TakesZeroForLatest by ranges::revision_zero_is_not_the_latest;
    a_stale_cache: AnswersFromACache by
        concurrent_histories::are_linearizable, random_operations::responses_equal_those_of_the_model;
    a_wrong_order: SortsBackwards by
        ranges::exact_prefix_and_whole_ranges_hold_their_keys_in_order, limits::keys_of_all_bytes_and_lengths_work;
    a_missing_more: NeverSaysMore by ranges::a_limit_truncates_and_sets_more, ranges::pages_at_one_revision_are_its_snapshot;
    values_unasked: ReturnsValuesUnasked by ranges::content_is_what_was_requested;
    a_read_of_the_compacted: ServesWhatIsCompacted by
        compaction::reads_before_the_compact_revision_fail_and_later_ones_are_exact,
        compaction::pages_during_compaction_are_complete_or_refused;
    a_wrong_compact_revision: ReportsAWrongCompactRevision by compaction::reads_before_the_compact_revision_fail_and_later_ones_are_exact;
    lost_writes: LosesWrites by
        revisions::each_change_takes_one_revision, concurrent_histories::are_linearizable,
        concurrent_histories::abandoned_calls_happen_once_or_not_at_all,
        watches::concurrent_writers_are_seen_in_order_by_every_watcher;
    doubled_writes: DoublesWrites by
        concurrent_histories::are_linearizable, concurrent_histories::abandoned_calls_happen_once_or_not_at_all,
        watches::concurrent_writers_are_seen_in_order_by_every_watcher;
    torn_transactions: TearsTransactions by
        transactions::mutations_share_one_revision, transactions::readers_see_all_of_a_transaction_or_nothing,
        concurrent_histories::are_linearizable;
    missing_values_that_differ: FindsMissingValuesDifferent by transactions::every_comparison_holds_when_it_should;
    reads_in_another_order: ReadsInAnotherOrder by transactions::a_refused_transaction_reads_in_order;
    revisions_for_nothing: SpendsRevisionsOnNothing by revisions::a_transaction_without_changes_takes_no_revision;
    no_limits: HasNoLimits by
        limits::a_value_beyond_the_limit_is_refused, limits::a_full_store_refuses_to_grow_but_serves;
    keys_that_never_expire: ForgetsTimeToLive by
        time_to_live::a_key_expires_after_its_time_to_live, time_to_live::writing_again_replaces_the_time_to_live;
    keys_that_expire_early: ShortensTimeToLive by
        time_to_live::a_key_expires_after_its_time_to_live, time_to_live::writing_again_replaces_the_time_to_live;
    lost_events: LosesEvents by
        watches::every_start_revision_gives_the_rest_of_history,
        watches::concurrent_writers_are_seen_in_order_by_every_watcher,
        watches::watches_started_during_writes_miss_nothing, watches::a_slow_watcher_gets_everything_or_an_error,
        watches::dropped_watches_do_not_affect_others, compaction::a_running_watch_continues;
    repeated_batches: RepeatsBatches by
        watches::every_start_revision_gives_the_rest_of_history, watches::dropped_watches_do_not_affect_others;
    torn_revisions: TearsRevisions by watches::one_revision_comes_in_one_batch;
    notifications_that_overtake_events: NotificationsOvertakeEvents by progress::notifications_come_when_nothing_changes, progress::notifications_never_overtake_events;
    a_late_start: StartsLate by watches::a_watch_from_now_starts_after_the_call, watches::only_changes_in_the_range_come;
    zero_for_now: TakesZeroForNow by watches::revision_zero_is_not_now;
    forgotten_previous_entries: ForgetsPrevious by
        watches::previous_entries_come_if_requested,
        compaction::watches_before_the_compact_revision_fail_and_later_ones_are_exact;
    an_ignored_range: IgnoresTheRange by watches::only_changes_in_the_range_come;
    skipped_compacted_events: SkipsWhatIsCompacted by compaction::watches_before_the_compact_revision_fail_and_later_ones_are_exact;
    a_watch_that_ends_without_an_error: EndsWithoutAnError by
        watches::dropped_watches_do_not_affect_others, compaction::a_running_watch_continues;
    a_second_compaction: CompactsTwice by compaction::impossible_compactions_fail;
}
