//! The store under Restow's API server: a small trait with etcd's semantics, and its types.
//!
//! This crate depends on no back end. `restow-store-embedded` and `restow-store-etcd` implement [`Store`]. Every
//! implementation must pass the suite in [`conformance`] (feature `conformance`).
//!
//! # Semantics of every back end
//!
//! * **One revision.** The whole store has one revision, a number that grows by one with each transaction that changes
//!   something. A transaction without changes (its comparisons fail, or it deletes keys that do not exist) does not change
//!   it. The revision of an empty store is at least 1, so that 0 can mean "never".
//! * **Every read is a snapshot.** A range is read at exactly one revision: the latest when the request was
//!   received, or a later one, or the requested one. Reads and transactions are linearizable.
//! * **History until compaction.** Older revisions can be read and watched until [`Store::compact`] removes them; after that
//!   such requests fail with [`StoreError::Compacted`], and never return a partial result.
//! * **Watches miss nothing.** A watch delivers every change in its range from its start revision on, once, in order
//!   of revision, all changes of one revision together; or it ends with an error.
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
pub use store::{Store, StoreExt, StoreStatus};
pub use txn::{Compare, CompareTarget, Mutation, Put, Relation, Txn, TxnOutcome};
pub use watch::{Change, Event, Watch, WatchBatch, WatchRequest};
