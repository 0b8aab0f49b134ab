//! Clients that read and write the same few keys concurrently: their results must be linearizable.

use super::*;
use crate::conformance::history::{History, Recorder, Snapshot, Summary, check, read_log};
use crate::conformance::seed::Seed;
use crate::{Compare, Entry, Key, RangeRequest, Revision, Store, StoreError, TxnOutcome};
use rand::Rng;
use rand::rngs::StdRng;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

const CLIENTS: u64 = 6;
const CALLS: usize = 60;
const KEYS: usize = 3;

pub(super) async fn are_linearizable(fixture: &dyn Fixture) {
    let summary = run_clients(fixture, 0.0).await;
    let Summary { committed, refused, reads, .. } = summary;
    assert!(committed > 20 && refused > 5 && reads > 20, "not worth checking: {summary:?}");
    assert_eq!((summary.failed, summary.unknown_happened, summary.unknown_absent), (0, 0, 0), "{summary:?}");
}

/// A transaction whose future is dropped has an unknown outcome, which must still be one of two.
pub(super) async fn abandoned_calls_happen_once_or_not_at_all(fixture: &dyn Fixture) {
    let summary = run_clients(fixture, 0.3).await;
    assert!(summary.committed > 20, "not worth checking: {summary:?}");
}

/// Runs the clients and checks their results.
async fn run_clients(fixture: &dyn Fixture, gives_up: f64) -> Summary {
    let mirror = Mirror::open(fixture).await;
    let seed = Seed::take();
    let recorder = Arc::new(Recorder::new());
    let start = Snapshot::read(&*mirror.store).await.unwrap();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let (store, recorder) = (mirror.store.clone(), recorder.clone());
            let client = Client { number, store, recorder, gives_up, random: seed.generator(number), seen: Vec::new() };
            tokio::spawn(client.run())
        })
        .collect();
    for client in clients {
        client.await.expect("a client must not fail");
    }
    // Canceled transactions that happen after this are neither in the log nor in any result.
    recorder.txn(&*mirror.store, Txn::new().put(&key("/end"), "the end")).await.unwrap();
    let until = mirror.store.status().await.unwrap().revision;
    let log = read_log(&*mirror.store, start.revision.next(), until).await.unwrap();
    let history = History { start, operations: recorder.operations(), log };
    check(&history).unwrap_or_else(|violation| panic!("not linearizable: {violation}"))
}

struct Client {
    number: u64,
    store: Arc<dyn Store>,
    recorder: Arc<Recorder>,
    /// The probability that this client cancels a transaction.
    gives_up: f64,
    random: StdRng,
    /// The latest entries that this client has seen, which it bases its comparisons on.
    seen: Vec<Entry>,
}

impl Client {
    async fn run(mut self) {
        for call in 0..CALLS {
            let value = format!("client {} call {call}", self.number);
            match self.random.random_range(0..10) {
                0..3 => self.read().await,
                3..5 => {
                    let name = self.key();
                    self.write(Txn::new().put(&name, value)).await;
                }
                5 => {
                    let name = self.key();
                    self.write(Txn::new().delete(&name)).await;
                }
                6..8 => {
                    let txn = self.compare_and_swap(value);
                    self.write(txn).await;
                }
                _ => {
                    let txn = self.swap_two(value);
                    self.write(txn).await;
                }
            }
        }
    }

    fn key(&mut self) -> Key {
        key(&format!("/register/{}", self.random.random_range(0..KEYS)))
    }

    /// Reads one key or all, mostly now, sometimes at an older revision.
    async fn read(&mut self) {
        let mut request = match self.random.random_bool(0.5) {
            true => RangeRequest::prefix("/register/"),
            false => RangeRequest::key(&self.key()),
        };
        if let Some(entry) = self.seen.last()
            && self.random.random_bool(0.2)
        {
            request = request.at(entry.mod_revision);
        }
        let old = request.at != crate::At::Latest;
        let answer = self.recorder.range(&*self.store, request).await.expect("a healthy store answers");
        if !old && !answer.entries.is_empty() {
            self.seen = answer.entries;
        }
    }

    /// Changes or deletes a key if it is still as it was seen.
    fn compare_and_swap(&mut self, value: String) -> Txn {
        let name = self.key();
        let seen = self.seen.iter().find(|entry| entry.key == name);
        let expected = seen.map_or(Revision::ZERO, |entry| entry.mod_revision);
        let txn = Txn::new().when(Compare::mod_revision(&name, expected)).otherwise_get(&name);
        if self.random.random_bool(0.3) { txn.delete(&name) } else { txn.put(&name, value) }
    }

    /// Changes two keys together if one of them is as it was seen.
    fn swap_two(&mut self, value: String) -> Txn {
        let (from, to) = (key("/register/0"), key("/register/1"));
        let seen = self.seen.iter().find(|entry| entry.key == from);
        let txn = match seen {
            Some(entry) => Txn::new().when(Compare::value(&from, entry.value.clone())).delete(&from),
            None => Txn::new().when(Compare::absent(&from)).put(&from, format!("{value}, first")),
        };
        txn.put(&to, value).otherwise_get(&to).otherwise_get(&from)
    }

    async fn write(&mut self, txn: Txn) {
        let call = self.recorder.txn(&*self.store, txn);
        let answer = if self.random.random_bool(self.gives_up) {
            let time = Duration::from_micros(self.random.random_range(0..3000));
            let Ok(answer) = timeout(time, call).await else { return };
            answer
        } else {
            call.await
        };
        match answer {
            Ok(TxnOutcome::Refused { found, .. }) => self.seen = found.into_iter().flatten().collect(),
            Ok(TxnOutcome::Committed { .. }) | Err(StoreError::OutcomeUnknown(_)) => {}
            Err(error) => panic!("a healthy store answers: {error}"),
        }
    }
}
