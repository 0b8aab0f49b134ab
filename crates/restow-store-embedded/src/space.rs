//! Whether there is room for more: on the disk, and within the store's own limit.

use crate::config::EmbeddedConfig;
use crate::engine::Engine;
use restow_store::StoreError;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How often the disk is asked.
const INTERVAL: Duration = Duration::from_millis(200);
/// After how many bytes written it is asked in any case; sooner in a store with a small limit.
const BYTES: u64 = 8 << 20;

/// Watches the room that is left.
pub(crate) struct Space {
    directory: PathBuf,
    reserve: u64,
    limit: Option<u64>,
    asked: Option<Instant>,
    written: u64,
    verdict: Result<(), StoreError>,
}

impl Space {
    pub(crate) fn new(config: &EmbeddedConfig) -> Self {
        Space {
            directory: config.directory.clone(),
            reserve: config.disk_reserve,
            limit: config.limits.store_bytes,
            asked: None,
            written: 0,
            verdict: Ok(()),
        }
    }

    /// Says whether the store may grow.
    pub(crate) fn check(&mut self, engine: &Engine) -> Result<(), StoreError> {
        let due = self.asked.is_none_or(|asked| asked.elapsed() > INTERVAL)
            || self.written > self.limit.map_or(BYTES, |limit| BYTES.min(limit / 16));
        if due {
            self.asked = Some(Instant::now());
            self.written = 0;
            self.verdict = self.ask(engine);
        }
        self.verdict.clone()
    }

    /// Notes that bytes were written.
    pub(crate) fn note(&mut self, bytes: usize) {
        self.written += bytes as u64;
    }

    fn ask(&self, engine: &Engine) -> Result<(), StoreError> {
        if let Some(limit) = self.limit {
            let used = engine.data_bytes();
            if used >= limit {
                return Err(StoreError::Full(format!(
                    "it takes {used} bytes of the {limit} that it may; delete something and compact, or raise the limit"
                )));
            }
        }
        // A disk that cannot be asked is not taken for full; writing will tell.
        let Ok(disk) = rustix::fs::statvfs(&self.directory) else { return Ok(()) };
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        if free < self.reserve {
            return Err(StoreError::Full(format!(
                "only {free} bytes are free on the disk of {}, {} are kept in reserve; make room and write again",
                self.directory.display(),
                self.reserve
            )));
        }
        Ok(())
    }
}
