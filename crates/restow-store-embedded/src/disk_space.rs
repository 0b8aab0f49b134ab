//! Disk space and quota: how much the store may still write. A full store refuses writes that let it grow
//! ([`StoreError::Full`], etcd's NOSPACE) and still allows deletes, as long as the disk has space for them.

use crate::config::EmbeddedConfig;
use crate::engine::Engine;
use crate::pending::value_bytes;
use restow_store::{Mutation, StoreError, Txn};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How often the free space is read.
const REFRESH_INTERVAL: Duration = Duration::from_millis(200);
/// After how many written bytes the free space is read again at the latest; less in a store with a small quota.
const REFRESH_BYTES: u64 = 8 << 20;
/// The overhead of one change.
const CHANGE_BYTES: u64 = 256;
/// Below this many free bytes deletes are refused, too.
const MIN_FREE_BYTES: u64 = 16 << 20;
/// How often obsolete files are deleted while space is low: often at first, because compactions still replace files.
const CLEANUP_INTERVAL: Duration = Duration::from_millis(250);
const FREQUENT_CLEANUPS: u32 = 60;
const INFREQUENT_CLEANUP_INTERVAL: Duration = Duration::from_secs(10);
/// What deleting obsolete files may itself write.
const CLEANUP_BYTES: u64 = 1 << 20;

/// Tracks the space that is left.
pub(crate) struct DiskSpace {
    directory: PathBuf,
    reserve: u64,
    limit: Option<u64>,
    refreshed: Option<Instant>,
    written: u64,
    available: Available,
    cleanups: Cleanups,
}

/// How often obsolete files were deleted since space became low, and when last.
#[derive(Clone, Copy, Debug, Default)]
struct Cleanups {
    count: u32,
    last: Option<Instant>,
}

/// The space that is available.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Available {
    /// How many bytes the store may grow by.
    growth: Result<u64, StoreError>,
    /// Whether anything may be written. A delete needs space before it frees any.
    writes: Result<(), StoreError>,
    /// Whether free space is so low that obsolete files should be deleted.
    low: bool,
}

impl DiskSpace {
    pub(crate) fn new(config: &EmbeddedConfig) -> Self {
        DiskSpace {
            directory: config.directory.clone(),
            reserve: config.disk_reserve,
            limit: config.limits.store_bytes,
            refreshed: None,
            written: 0,
            available: Available { growth: Ok(0), writes: Ok(()), low: false },
            cleanups: Cleanups::default(),
        }
    }

    /// Reads the free space again, if it is time to.
    pub(crate) fn refresh(&mut self, engine: Option<&Engine>) {
        let due = self.refreshed.is_none_or(|refreshed| refreshed.elapsed() > REFRESH_INTERVAL)
            || self.written > self.limit.map_or(REFRESH_BYTES, |limit| REFRESH_BYTES.min(limit / 16));
        if due {
            self.refreshed = Some(Instant::now());
            self.written = 0;
            let (used, pending_writes) =
                engine.map_or((0, 0), |engine| (engine.data_bytes(), engine.pending_write_bytes()));
            self.available = self.assess(used, self.free(), pending_writes);
        }
    }

    /// Fails if nothing may be written.
    pub(crate) fn may_write(&self) -> Result<(), StoreError> {
        self.available.writes.clone()
    }

    /// Fails if the store may not grow.
    pub(crate) fn may_grow(&self) -> Result<(), StoreError> {
        self.may_write()?;
        self.available.growth.clone().map(drop)
    }

    /// Takes the space that a transaction needs, or fails if there is too little.
    pub(crate) fn admit(&mut self, txn: &Txn) -> Result<(), StoreError> {
        if txn.then.is_empty() {
            return Ok(());
        }
        self.may_write()?;
        if !txn.then.iter().any(|mutation| matches!(mutation, Mutation::Put(_))) {
            return Ok(());
        }
        let left = self.available.growth.as_mut().map_err(|full| full.clone())?;
        let needed = value_bytes(txn) as u64 + CHANGE_BYTES * txn.then.len() as u64;
        let Some(rest) = left.checked_sub(needed) else {
            return Err(StoreError::Full(format!("the transaction needs {needed} bytes, and {left} are left")));
        };
        *left = rest;
        self.written += needed;
        Ok(())
    }

    /// Whether space is low, and it is time to delete obsolete files again.
    pub(crate) fn should_delete_obsolete_files(&mut self) -> bool {
        if !self.available.low {
            self.cleanups = Cleanups::default();
            return false;
        }
        let interval =
            if self.cleanups.count < FREQUENT_CLEANUPS { CLEANUP_INTERVAL } else { INFREQUENT_CLEANUP_INTERVAL };
        let due = self.cleanups.last.is_none_or(|last| last.elapsed() >= interval);
        if due {
            self.cleanups = Cleanups { count: self.cleanups.count.saturating_add(1), last: Some(Instant::now()) };
        }
        due
    }

    /// How long the free space need not be read again.
    pub(crate) fn refresh_interval(&self) -> Duration {
        if self.available.low { CLEANUP_INTERVAL } else { Duration::MAX }
    }

    /// Whether space is so low that all tables should be compacted, and sufficient to do so.
    pub(crate) fn should_reclaim(&self, engine: &Engine) -> bool {
        let (used, free) = (engine.data_bytes(), self.free());
        let low = self.limit.is_some_and(|limit| used > limit / 4 * 3) || free < self.reserve.saturating_mul(2);
        low && free > self.reserve.saturating_add(used)
    }

    /// The free bytes of the disk. If they cannot be read, the disk counts as empty; a write will fail if it is not.
    fn free(&self) -> u64 {
        let disk = rustix::fs::statvfs(&self.directory);
        disk.map_or(u64::MAX, |disk| disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    /// `pending_writes` is what the engine will write in the background.
    fn assess(&self, used: u64, free: u64, pending_writes: u64) -> Available {
        let kept = self.reserve.saturating_add(pending_writes);
        let disk_full = || {
            StoreError::Full(format!(
                "only {free} bytes are free on the disk of {}, {kept} are kept in reserve; free disk space and write again",
                self.directory.display(),
            ))
        };
        let writes = if free < MIN_FREE_BYTES.min(self.reserve / 4) { Err(disk_full()) } else { Ok(()) };
        let within_limit = match self.limit {
            Some(limit) if used >= limit => Err(StoreError::Full(format!(
                "{used} of at most {limit} bytes are used; delete keys and compact, or raise the limit"
            ))),
            Some(limit) => Ok(limit - used),
            None => Ok(u64::MAX),
        };
        // Write amplification: a value is written to the journal, to a table, and to a larger table by a compaction.
        let on_disk = if free < kept { Err(disk_full()) } else { Ok((free - kept) / 3) };
        Available {
            growth: within_limit.and_then(|within_limit| Ok(within_limit.min(on_disk?))),
            writes,
            low: free < kept.saturating_mul(2) && free >= CLEANUP_BYTES,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use restow_store::Key;

    const MEGABYTE: u64 = 1 << 20;

    fn space(store_bytes: Option<u64>, disk_reserve: u64) -> DiskSpace {
        let limits = restow_store::Limits { store_bytes, ..Default::default() };
        DiskSpace::new(&EmbeddedConfig { limits, disk_reserve, ..EmbeddedConfig::new("/store") })
    }

    #[test]
    fn the_reserve_is_added_to_what_the_engine_will_write_in_the_background() {
        let space = space(None, 100 * MEGABYTE);
        let available = |free, pending_writes| space.assess(0, free * MEGABYTE, pending_writes * MEGABYTE);
        assert_eq!(available(160, 0).growth, Ok(20 * MEGABYTE));
        assert_eq!(available(160, 45).growth, Ok(5 * MEGABYTE));
        assert!(
            matches!(available(140, 50).growth, Err(StoreError::Full(reason)) if reason.contains("free disk space"))
        );
        assert_eq!(available(16, 50).writes, Ok(()), "deleting is possible below the reserve");
        assert!(available(15, 50).writes.is_err(), "but not to the last byte");
    }

    #[test]
    fn a_transaction_that_does_not_fit_is_refused_and_a_smaller_one_is_not() {
        let mut space = space(Some(10 * MEGABYTE), 0);
        space.available = space.assess(8 * MEGABYTE, 100 * MEGABYTE, 0);
        let key = Key::try_from("a").unwrap();
        let put = |size: u64| Txn::new().put(&key, vec![0; size as usize]);
        assert!(matches!(space.admit(&put(2 * MEGABYTE)), Err(StoreError::Full(_))));
        assert_eq!(space.admit(&put(MEGABYTE)), Ok(()));
        assert!(space.admit(&put(MEGABYTE)).is_err(), "the space is taken");
        assert_eq!(space.admit(&Txn::new().delete(&key)), Ok(()));
        space.available = space.assess(10 * MEGABYTE, 100 * MEGABYTE, 0);
        assert!(matches!(space.admit(&put(0)), Err(StoreError::Full(reason)) if reason.contains("compact")));
        assert_eq!(space.admit(&Txn::new().delete(&key)), Ok(()));
        assert_eq!(space.admit(&Txn::new()), Ok(()));
    }
}
