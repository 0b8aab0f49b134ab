//! When a revision of etcd was made, within bounds: its revision is asked for all the time, by reads that are linearizable.

use restow_store::{Key, RangeRequest, Store};
use restow_store_etcd::{EtcdConfig, EtcdStore};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;

/// The pause between two questions.
const PAUSE: Duration = Duration::from_millis(60);
/// How long a member may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// The answers, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Answers(Vec<RevisionAnswer>);

/// The latest revision, and when it was asked for. Times are since boot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RevisionAnswer {
    pub(crate) asked: Duration,
    pub(crate) answered: Duration,
    pub(crate) revision: u64,
}

impl Answers {
    /// Adds an answer. One that is older than another one says nothing new.
    pub(crate) fn add(&mut self, answer: RevisionAnswer) {
        match self.0.last_mut() {
            Some(last) if last.revision > answer.revision => {}
            // Nothing was made from the first question to the last answer.
            Some(last) if last.revision == answer.revision => last.asked = last.asked.max(answer.asked),
            _ => self.0.push(answer),
        }
    }

    /// A revision was made at this time or later.
    pub(crate) fn not_before(&self, revision: u64) -> Duration {
        let later = self.0.partition_point(|answer| answer.revision < revision);
        later.checked_sub(1).map_or(Duration::ZERO, |last| self.0[last].asked)
    }

    /// A revision was made at this time or earlier.
    pub(crate) fn not_after(&self, revision: u64) -> Duration {
        let first = self.0.partition_point(|answer| answer.revision < revision);
        self.0.get(first).map_or(Duration::MAX, |answer| answer.answered)
    }
}

/// Asks all the time. It ends when this is dropped.
pub(crate) struct RevisionTimes {
    answers: Arc<Mutex<Answers>>,
    asking: JoinHandle<()>,
}

impl RevisionTimes {
    /// Begins to ask these members.
    pub(crate) fn start(urls: Vec<String>) -> Self {
        let answers = Arc::new(Mutex::new(Answers::default()));
        let asking = tokio::spawn(ask(urls, answers.clone()));
        RevisionTimes { answers, asking }
    }

    pub(crate) fn answers(&self) -> MutexGuard<'_, Answers> {
        lock(&self.answers)
    }
}

impl Drop for RevisionTimes {
    fn drop(&mut self) {
        self.asking.abort();
    }
}

fn lock(answers: &Mutex<Answers>) -> MutexGuard<'_, Answers> {
    answers.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks one member for as long as it answers, then the next.
async fn ask(urls: Vec<String>, answers: Arc<Mutex<Answers>>) {
    for turn in 0_usize.. {
        let config = EtcdConfig { prefix: "/registry".to_owned(), ..EtcdConfig::new([&urls[turn % urls.len()]]) };
        if let Ok(Ok(store)) = tokio::time::timeout(PATIENCE, EtcdStore::connect(config)).await {
            while let Some(answer) = ask_once(&store).await {
                lock(&answers).add(answer);
                tokio::time::sleep(PAUSE).await;
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn ask_once(store: &EtcdStore) -> Option<RevisionAnswer> {
    // Any key will do: the answer has the latest revision.
    let request = RangeRequest::key(&Key::try_from("/restow/torture").ok()?);
    let asked = restow_host::since_boot();
    let response = tokio::time::timeout(PATIENCE, store.range(request)).await.ok()?.ok()?;
    Some(RevisionAnswer { asked, answered: restow_host::since_boot(), revision: response.revision.get() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(all: &[(u64, u64, u64)]) -> Answers {
        let mut answers = Answers::default();
        for (asked, answered, revision) in all {
            let (asked, answered) = (Duration::from_secs(*asked), Duration::from_secs(*answered));
            answers.add(RevisionAnswer { asked, answered, revision: *revision });
        }
        answers
    }

    #[test]
    fn a_revision_was_made_between_a_question_that_did_not_find_it_and_an_answer_that_did() {
        let answers = answers(&[(10, 11, 5), (20, 21, 5), (30, 31, 8)]);
        let bounds = |revision| (answers.not_before(revision).as_secs(), answers.not_after(revision).as_secs());
        assert_eq!(bounds(5), (0, 11));
        assert_eq!(bounds(6), (20, 31));
        assert_eq!(bounds(8), (20, 31));
        assert_eq!(answers.not_before(9), Duration::from_secs(30));
        assert_eq!(answers.not_after(9), Duration::MAX);
    }

    #[test]
    fn an_answer_that_is_older_than_another_one_says_nothing() {
        let answers = answers(&[(10, 11, 5), (20, 21, 4), (30, 31, 5)]);
        assert_eq!(answers.not_before(6), Duration::from_secs(30));
        assert_eq!(answers.not_after(4), Duration::from_secs(11));
    }
}
