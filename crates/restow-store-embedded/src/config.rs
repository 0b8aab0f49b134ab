//! The settings of an embedded store.

use restow_store::Limits;
use std::path::PathBuf;
use std::time::Duration;

/// How to open an embedded store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddedConfig {
    /// The data directory. It is created if it does not exist; its parent must exist.
    pub directory: PathBuf,
    /// The largest value, and the quota of the store.
    pub limits: Limits,
    /// How many bytes of values are cached in memory.
    pub cache_bytes: usize,
    /// The timeout of a request. The outcome of a transaction that exceeds it is unknown.
    pub request_timeout: Duration,
    /// How many bytes of the disk must stay free, in addition to what the engine will write in the background. Below that,
    /// writes are refused. A flush or compaction that runs out of disk space fails the engine until it is reopened.
    pub disk_reserve: u64,
    /// What to do with a damaged store.
    pub on_damage: OnDamage,
}

/// What to do with a store of which data is missing or corrupt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDamage {
    /// Fail with what is missing, and change nothing.
    #[default]
    Refuse,
    /// Repair the store with the readable data. The damaged files are kept in `engine.damaged-N`, and the new revision is
    /// greater than every acknowledged one.
    AcceptLoss,
}

impl EmbeddedConfig {
    /// The default settings, in this directory.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        EmbeddedConfig {
            directory: directory.into(),
            limits: Limits::default(),
            cache_bytes: 64 << 20,
            request_timeout: Duration::from_secs(10),
            disk_reserve: 96 << 20,
            on_damage: OnDamage::Refuse,
        }
    }
}
