//! The work queue of the garbage collector: in order of arrival, with backoff for items that failed. Pure.
//!
//! Each item waits longer after each failure, and items that failed take no more than a share of each batch. So objects that
//! cannot be processed (their owners are of kinds that are not served) do not delay the others, however many there are.

use crate::controllers::garbage_collector::graph::Work;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Duration;
use tokio::time::Instant;

/// How long an item waits after its first failure; twice as long after each further one.
pub(super) const RETRY: Duration = Duration::from_secs(5);
/// How often that doubles: to 320 seconds.
const DOUBLINGS: u32 = 6;
/// One of so many items of a batch is a retry, where there is other work.
const RETRY_SHARE: usize = 4;

/// The work items.
#[derive(Debug, Default)]
pub(super) struct Queue {
    fresh: VecDeque<Work>,
    queued: HashSet<Work>,
    failures: HashMap<Work, Failure>,
    retries: BTreeSet<(Instant, Work)>,
}

#[derive(Clone, Copy, Debug)]
struct Failure {
    times: u32,
    due: Instant,
}

impl Queue {
    /// Adds what is not queued yet.
    pub(super) fn extend(&mut self, items: impl IntoIterator<Item = Work>) {
        for item in items {
            if self.queued.insert(item.clone()) {
                self.fresh.push_back(item);
            }
        }
    }

    /// Takes at most so many items, oldest first.
    pub(super) fn take(&mut self, most: usize, now: Instant) -> Vec<Work> {
        let mut taken = Vec::new();
        self.take_retries(most / RETRY_SHARE, now, &mut taken);
        while taken.len() < most
            && let Some(item) = self.fresh.pop_front()
        {
            self.queued.remove(&item);
            if let Some(failure) = self.failures.get(&item) {
                // Its retry is not needed, unless it fails again.
                self.retries.remove(&(failure.due, item.clone()));
            }
            taken.push(item);
        }
        self.take_retries(most.saturating_sub(taken.len()), now, &mut taken);
        taken
    }

    fn take_retries(&mut self, most: usize, now: Instant, taken: &mut Vec<Work>) {
        for _ in 0..most {
            match self.retries.first() {
                Some((due, _)) if *due <= now => {}
                _ => return,
            }
            taken.extend(self.retries.pop_first().map(|(_, item)| item));
        }
    }

    /// An item could not be done.
    pub(super) fn failed(&mut self, item: Work, now: Instant) {
        let times = self.failures.get(&item).map_or(0, |failure| failure.times);
        let due = now + RETRY * 2u32.pow(times.min(DOUBLINGS));
        self.failures.insert(item.clone(), Failure { times: times.saturating_add(1), due });
        self.retries.insert((due, item));
    }

    /// An item was done.
    pub(super) fn done(&mut self, item: &Work) {
        if let Some(failure) = self.failures.remove(item) {
            self.retries.remove(&(failure.due, item.clone()));
        }
    }

    /// Whether there is nothing to do now.
    pub(super) fn is_idle(&self, now: Instant) -> bool {
        self.fresh.is_empty() && self.retries.first().is_none_or(|(due, _)| *due > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use restow_store::Key;

    fn item(number: usize) -> Work {
        Work::Dependent(Key::try_from(format!("/core/pods/n/{number}")).unwrap())
    }

    #[test]
    fn the_work_queue_is_in_order_and_without_duplicates() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.extend([3, 1, 2, 3].map(item));
        assert_eq!(queue.take(2, now), [3, 1].map(item));
        queue.extend([1, 2].map(item));
        assert_eq!(queue.take(9, now), [2, 1].map(item));
        assert!(queue.is_idle(now));
    }

    #[test]
    fn each_failure_makes_an_item_wait_twice_as_long() {
        let (mut queue, mut now) = (Queue::default(), Instant::now());
        for seconds in [5, 10, 20, 40, 80, 160, 320, 320] {
            queue.failed(item(1), now);
            assert!(queue.take(9, now + Duration::from_secs(seconds - 1)).is_empty());
            now += Duration::from_secs(seconds);
            assert_eq!(queue.take(9, now), [item(1)]);
        }
        queue.done(&item(1));
        queue.failed(item(1), now);
        assert_eq!(queue.take(9, now + RETRY), [item(1)]);
        // A new event is processed at once, and replaces the retry.
        queue.failed(item(1), now);
        queue.extend([item(1)]);
        assert_eq!(queue.take(9, now), [item(1)]);
        queue.done(&item(1));
        assert!(queue.take(9, now + RETRY * 99).is_empty());
    }

    #[test]
    fn an_item_that_keeps_failing_delays_no_other_item() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        (0..100_000).for_each(|number| queue.failed(item(number), now));
        queue.extend((200_000..200_100).map(item));
        let later = now + RETRY;
        let taken = queue.take(100, later);
        assert_eq!(taken.iter().filter(|one| (200_000..200_100).any(|number| item(number) == **one)).count(), 75);
        assert_eq!(queue.take(100, later).len(), 100);
        assert!(!queue.is_idle(later));
    }
}
