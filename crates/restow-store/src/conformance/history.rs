//! A linearizability checker: records the calls of concurrent clients, and checks that their results are linearizable.
//!
//! In general that is hard; here it is easy, because the store has an order: its revisions. A [`Recorder`] records each call
//! with its times and its result, [`read_log`] reads every change from the store afterwards, and [`check`], a pure function,
//! compares them:
//!
//! * The log is one unbroken history: no revision is missing, and each change follows from the state before it.
//! * Every committed transaction is in the log exactly once, at the revision that it returned. Nothing else is, except
//!   transactions whose outcome is unknown: each of those happened once or not at all.
//! * Every read and every refusal matches the state of the log at its revision.
//! * Real time is kept: a call that began after another ended has a revision at least as high, and a higher one if it
//!   changed something.
//!
//! The log may be read after a crash and from another store object: then `check` detects whether anything acknowledged was
//! lost. The history must be complete, so only the recorder's clients may write, without a time to live. Values should
//! be unique, else a write that happened twice can hide behind an equal one.
//!
//! ```
//! # use restow_store::conformance::{ModelStore, history::*};
//! # use restow_store::{Key, Store, Txn};
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let store = ModelStore::default();
//! let start = Snapshot::read(&store).await?;
//! let recorder = Recorder::new();
//! // Clients on many tasks do this; then the store may crash and be opened again.
//! recorder.txn(&store, Txn::new().put(&Key::try_from("/a")?, "unique")).await?;
//! let until = store.status().await?.revision;
//! let log = read_log(&store, start.revision.next(), until).await?;
//! let summary = check(&History { start, operations: recorder.operations(), log })?;
//! assert_eq!(summary.committed, 1);
//! # Ok(())
//! # }
//! ```

mod checker;
mod recorder;
#[cfg(test)]
mod tests;

pub use checker::{Summary, Violation, check};
pub use recorder::{Recorder, Snapshot, read_log};

use crate::{Event, RangeRequest, RangeResponse, StoreError, Txn, TxnOutcome};
use std::time::Duration;

/// One call of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// When the call was made, since the recorder began.
    pub started: Duration,
    /// When the response came, since the recorder began; `None` if the caller was canceled before.
    pub ended: Option<Duration>,
    /// The request and the response.
    pub call: Call,
}

/// A request, and its response if one came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// A transaction. Without a response, or with [`StoreError::OutcomeUnknown`], it may have happened; with another
    /// error it may not.
    Txn(Txn, Option<Result<TxnOutcome, StoreError>>),
    /// A read. Without a response, or with an error, it says nothing.
    Range(RangeRequest, Option<Result<RangeResponse, StoreError>>),
}

/// Everything that [`check`] needs to know.
#[derive(Clone, Debug)]
pub struct History {
    /// The store before the first operation.
    pub start: Snapshot,
    /// What the clients did.
    pub operations: Vec<Operation>,
    /// Every change to the store since `start`, in order.
    pub log: Vec<Event>,
}
