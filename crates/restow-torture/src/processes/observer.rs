//! Reads the whole history of etcd while it is made, by a watch from the first revision on, and compares the answers that the writers
//! got with it. At the end it compares what is stored with what the history says.

use super::history::History;
use super::report::ProcessError;
use crate::checks::Rule;
use restow_store::{KeyRange, RangeRequest, Revision, Store, StoreError, WatchRequest};
use restow_store_etcd::{EtcdConfig, EtcdStore};
use serde_json::Value;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::{AbortHandle, JoinHandle};

/// A watch that delivers nothing for so long is begun again at another member. This one may be cut off from the others.
const PATIENCE: Duration = Duration::from_secs(3);
/// How often the answers are compared with the history.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Reads the history. It ends when this is dropped.
pub(crate) struct Observer {
    urls: Vec<String>,
    history: Arc<History>,
    watching: JoinHandle<ProcessError>,
    checking: AbortHandle,
}

impl Observer {
    /// Begins to read.
    pub(crate) fn start(urls: Vec<String>, history: Arc<History>) -> Self {
        let watching = tokio::spawn(watch(urls.clone(), history.clone()));
        let checking = tokio::spawn(check_answers(urls.clone(), history.clone())).abort_handle();
        Observer { urls, history, watching, checking }
    }

    /// Fails if the history cannot be read any more.
    pub(crate) async fn still_reads(&mut self) -> Result<(), ProcessError> {
        match self.watching.is_finished() {
            false => Ok(()),
            true => Err((&mut self.watching).await.unwrap_or_else(|error| ProcessError::History(error.to_string()))),
        }
    }

    /// Waits until everything that is there now was read and all answers until now were checked. Returns whether it was in time.
    pub(crate) async fn catch_up(&self, within: Duration) -> bool {
        let began = Instant::now();
        while began.elapsed() < within {
            if check_once(&self.urls, &self.history).await {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        false
    }

    /// Compares what each member has stored with what the history says.
    pub(crate) async fn compare(&self) -> Result<(), ProcessError> {
        for url in &self.urls {
            let store = connect(url).await.map_err(|error| ProcessError::History(error.to_string()))?;
            let stored = store.range(RangeRequest::new(KeyRange::all())).await;
            let stored = stored.map_err(|error| ProcessError::History(error.to_string()))?;
            if !self.wait_for(stored.revision).await {
                return Err(ProcessError::History(format!("revision {} was never delivered", stored.revision)));
            }
            let mut differing: Vec<String> = Vec::new();
            let read_up_to = self.history.next();
            let keys: Vec<_> = stored.entries.iter().map(|entry| self.history.parse(entry.key.as_bytes())).collect();
            self.history.contents(|contents| {
                let mut count = 0;
                for (entry, key) in stored.entries.iter().zip(&keys) {
                    let Some(key) = key else { continue };
                    count += 1;
                    let value = serde_json::from_slice::<Value>(&entry.value).unwrap_or_default();
                    match contents.object(key) {
                        // It was changed after the member was asked.
                        Some(read) if read.revision != entry.mod_revision && read.revision > stored.revision => {}
                        Some(read) if read.revision == entry.mod_revision && read.value == value => {}
                        None if read_up_to > stored.revision.next() => {}
                        read => differing.push(format!("{key} is {value}, and the history says {read:?}")),
                    }
                }
                if read_up_to == stored.revision.next() && count != contents.object_count() {
                    differing.push(format!("it has {count} objects, and the history {}", contents.object_count()));
                }
            });
            for what in differing {
                self.history.violated(Rule::AcknowledgedWritesAreThere, format!("{url}: {what}"));
            }
        }
        Ok(())
    }

    async fn wait_for(&self, revision: Revision) -> bool {
        let began = Instant::now();
        while self.history.next() <= revision {
            if began.elapsed() > Duration::from_secs(30) {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        true
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.watching.abort();
        self.checking.abort();
    }
}

async fn connect(url: &str) -> Result<EtcdStore, restow_store_etcd::ConnectError> {
    let config = EtcdConfig { prefix: "/registry".to_owned(), ..EtcdConfig::new([url]) };
    EtcdStore::connect(config).await
}

/// Compacts everything that was read.
pub(crate) async fn compact(urls: Vec<String>, history: Arc<History>) {
    let config = EtcdConfig { prefix: "/registry".to_owned(), ..EtcdConfig::new(urls) };
    let Ok(store) = EtcdStore::connect(config).await else { return };
    // A watch from the revision after the last one that was read still works.
    let read = Revision::new(history.next().get().saturating_sub(1));
    let compacted = store.compact(read).await;
    history.note(format!("compacted to {read}: {compacted:?}"));
    history.count(|counts| counts.compactions += u64::from(compacted.is_ok()));
}

/// Reads until the history is lost.
async fn watch(urls: Vec<String>, history: Arc<History>) -> ProcessError {
    for turn in 0_usize.. {
        if let Err(StoreError::Compacted { .. }) = watch_at(&urls[turn % urls.len()], &history).await {
            return ProcessError::History("it was compacted before it was read".to_owned());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    ProcessError::History("it was tried too often".to_owned())
}

/// Reads at one member for as long as it delivers.
async fn watch_at(url: &str, history: &History) -> Result<(), StoreError> {
    let Ok(Ok(store)) = tokio::time::timeout(PATIENCE, connect(url)).await else { return Ok(()) };
    let request = WatchRequest::from(KeyRange::all(), history.next());
    let Ok(watch) = tokio::time::timeout(PATIENCE, store.watch(request)).await else { return Ok(()) };
    let mut watch = watch?;
    while let Ok(Some(batch)) = tokio::time::timeout(PATIENCE, watch.next()).await {
        let batch = batch?;
        history.look_at(&batch.events, batch.revision);
    }
    Ok(())
}

async fn check_answers(urls: Vec<String>, history: Arc<History>) {
    loop {
        check_once(&urls, &history).await;
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

/// Checks all answers that came before now, if all revisions that exist now are read soon. Returns whether it could.
async fn check_once(urls: &[String], history: &History) -> bool {
    let mark = history.mark();
    let config = EtcdConfig { prefix: "/registry".to_owned(), ..EtcdConfig::new(urls.to_vec()) };
    let Ok(store) = EtcdStore::connect(config).await else { return false };
    let Ok(status) = store.status().await else { return false };
    let began = Instant::now();
    while history.next() <= status.revision {
        if began.elapsed() > Duration::from_secs(10) {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    history.check_answers(mark);
    true
}
