//! Clients that write at the same time, and what their writes add up to.

use super::Model;
use super::mirror::key;
use super::seed::Seed;
use crate::{Revision, Store, Txn, TxnOutcome};
use rand::Rng;
use rand::rngs::StdRng;
use std::sync::Arc;
use tokio::task::JoinHandle;

/// A transaction that was committed, and where.
#[derive(Clone, Debug)]
pub(super) struct Write {
    pub(super) revision: Revision,
    pub(super) txn: Txn,
}

/// Several clients, each writing one transaction after another to the keys of [`name`].
pub(super) struct Writers {
    tasks: Vec<JoinHandle<Vec<Write>>>,
}

/// The keys that the writers share: ten in each of four folders.
pub(super) fn name(folder: usize, number: usize) -> String {
    format!("/folder-{folder}/key-{number}")
}

/// How many folders the writers' keys are in.
pub(super) const FOLDERS: usize = 4;

impl Writers {
    /// Lets `clients` clients write `each` transactions each.
    pub(super) fn start(store: &Arc<dyn Store>, seed: &Seed, clients: usize, each: usize) -> Self {
        let task = |client: usize| {
            let store = store.clone();
            let mut random = seed.generator(client as u64);
            tokio::spawn(async move {
                let mut writes = Vec::with_capacity(each);
                for number in 0..each {
                    let txn = transaction(&mut random, &format!("client {client} write {number}"));
                    let outcome = store.txn(txn.clone()).await.expect("a healthy store takes writes");
                    let TxnOutcome::Committed { revision } = outcome else {
                        panic!("refused without a comparison: {outcome:?}")
                    };
                    writes.push(Write { revision, txn });
                }
                writes
            })
        };
        Writers { tasks: (0..clients).map(task).collect() }
    }

    /// Whether all are done.
    pub(super) fn are_done(&self) -> bool {
        self.tasks.iter().all(JoinHandle::is_finished)
    }

    /// Waits for all and adds up what they wrote, in the order that their revisions tell.
    pub(super) async fn finish(self, mut model: Model) -> Model {
        let mut writes = Vec::new();
        for task in self.tasks {
            writes.extend(task.await.expect("a writer must not fail"));
        }
        writes.sort_by_key(|write| write.revision);
        for write in &writes {
            let expected = TxnOutcome::Committed { revision: write.revision };
            assert_eq!(model.txn(&write.txn).as_ref(), Ok(&expected), "each write takes the next revision: {write:?}");
        }
        model
    }
}

/// One put at least, so that it always changes something.
fn transaction(random: &mut StdRng, value: &str) -> Txn {
    let first = random.random_range(0..10);
    let mut txn = Txn::new().put(&key(&name(random.random_range(0..FOLDERS), first)), value.to_owned());
    if random.random_bool(0.3) {
        let second = key(&name(random.random_range(0..FOLDERS), (first + 1) % 10));
        txn = txn.put(&second, value.to_owned());
    }
    if random.random_bool(0.4) {
        txn = txn.delete(&key(&name(random.random_range(0..FOLDERS), (first + 2) % 10)));
    }
    txn
}
