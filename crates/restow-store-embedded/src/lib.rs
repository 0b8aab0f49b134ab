//! Restow's embedded store: [`restow_store::Store`] in one process, on one directory.
//!
//! # How it works
//!
//! * **On disk** lies an ordered key-value engine (fjall) with every version of every key, by key and by revision;
//!   `layout.rs` says how. A transaction is acknowledged when its batch is fsynced.
//! * **In memory** lies an index of the keys that exist now, with the values that fit into a budget (`index.rs`).
//!   Comparisons, counts and reads of the present are answered there; reads of the past go to the engine.
//! * **One thread writes** (`writer.rs`). It takes everything that waits, applies it in order, makes one batch of it and
//!   syncs once, so that many writers share one fsync; then it publishes the result to readers and watchers.
//! * **Watchers pull** from a short log of recent changes (`recent.rs`), and from the engine where they are further behind.
//! * **A witness beside the engine** says what was acknowledged last (`witness.rs`). When the store is opened, its files
//!   are compared with their checksums (`checksums.rs`), the engine's recovery is tried on a copy (`rehearsal.rs`), everything in
//!   it is looked at (`inspection.rs`), and where anything is missing the store is refused and left as it is (`opening.rs`).
//! * **After a failed write** nothing is written until the engine was opened again, which the writer does by itself
//!   (`reopening.rs`).
//! * **Another thread compacts** (`compactor.rs`): it removes versions that nobody may read any more, in small batches.

mod account;
mod checksums;
mod compactor;
mod config;
mod directory;
mod engine;
mod index;
mod inspection;
mod journal;
mod layout;
mod opening;
mod pending;
mod recent;
mod rehearsal;
mod reopening;
mod salvage;
mod space;
mod store;
mod view;
mod watcher;
mod witness;
mod writer;

pub use config::{EmbeddedConfig, OnDamage};
pub use directory::OpenError;
pub use store::EmbeddedStore;
