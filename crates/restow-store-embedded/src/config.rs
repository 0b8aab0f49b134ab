//! Where an embedded store lies and how much it may use.

use restow_store::Limits;
use std::path::PathBuf;
use std::time::Duration;

/// How to open an embedded store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddedConfig {
    /// The directory. It is created where it does not exist; its parent must exist.
    pub directory: PathBuf,
    /// How large values and the whole store may be.
    pub limits: Limits,
    /// How many bytes of values are kept in memory.
    pub cache_bytes: usize,
    /// How long a transaction may wait for the disk before its outcome is reported as unknown.
    pub request_timeout: Duration,
    /// How much room must stay free on the disk, beside what the engine has still to write on its own account; writes are
    /// refused below. It keeps the engine from running into the end of the disk in the middle of its own work, from which
    /// it would not recover without being opened again.
    pub disk_reserve: u64,
    /// What to do with a store that is damaged.
    pub on_damage: OnDamage,
}

/// What to do with a store of which something is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDamage {
    /// Say what is missing, and change nothing.
    #[default]
    Refuse,
    /// Go on with what is left. The damaged files are put aside, and the revision goes beyond all that was acknowledged.
    AcceptLoss,
}

impl EmbeddedConfig {
    /// The usual settings, in this directory.
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
