//! The store under Restow's API server: a small trait with etcd's semantics, and the words it is spoken in.
//!
//! This crate names no back end. `restow-store-embedded` and `restow-store-etcd` implement [`Store`]; anything else
//! can, and proves it by passing the suite in [`conformance`] (feature `conformance`).
//!
//! # Semantics that every back end keeps
//!
//! * **One revision.** The whole store has one revision, a number that grows by one with each transaction that changes
//!   something. A transaction that changes nothing (its comparisons fail, or it deletes keys that are not there) leaves
//!   it alone. An empty store is at some revision of at least 1, so that 0 can mean "never".
//! * **Every read is a snapshot.** A range is answered at exactly one revision: the latest when the request was
//!   received or later, or the older one that was asked for. Reads and transactions are linearizable.
//! * **History until compaction.** Older revisions stay readable and watchable until [`Store::compact`] gives them up;
//!   after that they fail with [`StoreError::Compacted`], never with a partial answer.
//! * **Watches miss nothing.** A watch delivers every change in its range from its start revision on, once, in order
//!   of revision, all changes of one revision together; or it ends with an error that says why.
//! * **Unknown is not failed.** A transaction that returns [`StoreError::OutcomeUnknown`] may or may not have been
//!   applied. Every other error means that it was not applied and never will be.

#[cfg(feature = "conformance")]
pub mod conformance;
mod entry;
mod error;
mod key;
mod limits;
mod range;
mod revision;
mod store;
mod txn;
mod watch;

pub use entry::Entry;
pub use error::StoreError;
pub use key::{InvalidKey, Key, KeyRange};
pub use limits::Limits;
pub use range::{At, Content, RangeRequest, RangeResponse};
pub use revision::Revision;
pub use store::{Status, Store, StoreExt};
pub use txn::{Compare, Mutation, Put, Relation, Target, Txn, TxnOutcome};
pub use watch::{Change, Event, Watch, WatchBatch, WatchRequest};
