//! Restow's embedded store: [`restow_store::Store`] in one process, on one directory.
//!
//! # How it works
//!
//! * **On disk** there is an ordered key-value engine (fjall, an LSM tree) with every version of every key, by key and by
//!   revision (`layout.rs`). A transaction is acknowledged when its batch is synced to the engine's write-ahead log.
//! * **In memory** there is an index of all existing keys, with a cache of values (`index.rs`). It serves comparisons, counts
//!   and reads of the latest revision. Reads of earlier revisions use a snapshot of the engine (`snapshot.rs`).
//! * **One thread writes** (`writer.rs`): group commit. It takes all queued transactions, applies them in order, writes one
//!   batch and syncs once; then it publishes the result to readers and watches.
//! * **Watches pull** from the recent changes in memory (`recent_changes.rs`), and from the engine if they are further behind.
//! * **A witness file beside the engine** records what was acknowledged last (`witness.rs`). When the store is opened, its
//!   files are compared with their checksums (`checksums.rs`), the engine's recovery runs on a copy (`recovery_copy.rs`), and
//!   its result is verified (`verification.rs`). If anything is missing, the store is refused and no file is changed
//!   (`open.rs`), unless the user asks for a repair with data loss (`repair.rs`).
//! * **After a failed write** the store is read-only until the writer has reopened the engine (`reopen.rs`).
//! * **Another thread compacts** (`compactor.rs`): it removes versions that can no longer be read, in small batches.

mod checksums;
mod compactor;
mod config;
mod directory;
mod disk_space;
mod engine;
mod fingerprint;
mod index;
mod journal;
mod layout;
mod open;
mod pending;
mod recent_changes;
mod recovery_copy;
mod reopen;
mod repair;
mod shared;
mod snapshot;
mod store;
mod verification;
mod watcher;
mod witness;
mod writer;

pub use config::{EmbeddedConfig, OnDamage};
pub use directory::OpenError;
pub use store::EmbeddedStore;
