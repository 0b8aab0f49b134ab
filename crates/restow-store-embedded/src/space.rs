//! Whether there is room for more: on the disk, and within the store's own limit.

use crate::config::EmbeddedConfig;
use crate::engine::Engine;
use crate::writer::size_of;
use restow_store::{Mutation, StoreError, Txn};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How often the disk is asked.
const INTERVAL: Duration = Duration::from_millis(200);
/// After how many bytes written it is asked in any case; sooner in a store with a small limit.
const BYTES: u64 = 8 << 20;
/// What a change takes beside its value.
const CHANGE_BYTES: u64 = 256;
/// Below how many free bytes nothing is written any more, not even that something is deleted.
const FLOOR: u64 = 16 << 20;
/// How often the engine tidies up while room is scarce: often at first, because it is still at work.
const TIDY: Duration = Duration::from_millis(250);
const TIDY_OFTEN: u32 = 60;
const TIDY_SELDOM: Duration = Duration::from_secs(10);
/// What tidying up may write itself.
const TIDY_BYTES: u64 = 1 << 20;

/// Watches the room that is left.
pub(crate) struct Space {
    directory: PathBuf,
    reserve: u64,
    limit: Option<u64>,
    asked: Option<Instant>,
    written: u64,
    room: Room,
    tidied: Tidied,
}

/// How often the engine was asked to tidy up since room became scarce, and when last.
#[derive(Clone, Copy, Debug, Default)]
struct Tidied {
    count: u32,
    last: Option<Instant>,
}

/// What fits in.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Room {
    /// By how many bytes the store may grow.
    growth: Result<u64, StoreError>,
    /// Whether it may be written to at all. What shrinks it takes room at first, too.
    writes: Result<(), StoreError>,
    /// Whether the disk is so full that every file counts.
    scarce: bool,
}

impl Space {
    pub(crate) fn new(config: &EmbeddedConfig) -> Self {
        Space {
            directory: config.directory.clone(),
            reserve: config.disk_reserve,
            limit: config.limits.store_bytes,
            asked: None,
            written: 0,
            room: Room { growth: Ok(0), writes: Ok(()), scarce: false },
            tidied: Tidied::default(),
        }
    }

    /// Looks again how much room there is, if it is time to.
    pub(crate) fn refresh(&mut self, engine: Option<&Engine>) {
        let due = self.asked.is_none_or(|asked| asked.elapsed() > INTERVAL)
            || self.written > self.limit.map_or(BYTES, |limit| BYTES.min(limit / 16));
        if due {
            self.asked = Some(Instant::now());
            self.written = 0;
            let (used, unsettled) = engine.map_or((0, 0), |engine| (engine.data_bytes(), engine.unsettled_bytes()));
            self.room = self.judge(used, self.free(), unsettled);
        }
    }

    /// Says whether anything may be written.
    pub(crate) fn may_write(&self) -> Result<(), StoreError> {
        self.room.writes.clone()
    }

    /// Says whether the store may grow.
    pub(crate) fn may_grow(&self) -> Result<(), StoreError> {
        self.may_write()?;
        self.room.growth.clone().map(drop)
    }

    /// Takes the room that a transaction needs, or says why there is none.
    pub(crate) fn admit(&mut self, txn: &Txn) -> Result<(), StoreError> {
        if txn.then.is_empty() {
            return Ok(());
        }
        self.may_write()?;
        if !txn.then.iter().any(|mutation| matches!(mutation, Mutation::Put(_))) {
            return Ok(());
        }
        let left = self.room.growth.as_mut().map_err(|full| full.clone())?;
        let needed = size_of(txn) as u64 + CHANGE_BYTES * txn.then.len() as u64;
        let Some(rest) = left.checked_sub(needed) else {
            return Err(StoreError::Full(format!("it takes {needed} bytes, and there is room for {left}")));
        };
        *left = rest;
        self.written += needed;
        Ok(())
    }

    /// Whether room is so scarce that the engine should tidy up now.
    pub(crate) fn asks_for_tidying(&mut self) -> bool {
        if !self.room.scarce {
            self.tidied = Tidied::default();
            return false;
        }
        let interval = if self.tidied.count < TIDY_OFTEN { TIDY } else { TIDY_SELDOM };
        let due = self.tidied.last.is_none_or(|last| last.elapsed() >= interval);
        if due {
            self.tidied = Tidied { count: self.tidied.count.saturating_add(1), last: Some(Instant::now()) };
        }
        due
    }

    /// How long the room that is left need not be looked at.
    pub(crate) fn patience(&self) -> Duration {
        if self.room.scarce { TIDY } else { Duration::MAX }
    }

    /// Whether room is so scarce that everything should be rewritten without what was removed, and enough to do so.
    pub(crate) fn asks_for_reclaiming(&self, engine: &Engine) -> bool {
        let (used, free) = (engine.data_bytes(), self.free());
        let scarce = self.limit.is_some_and(|limit| used > limit / 4 * 3) || free < self.reserve.saturating_mul(2);
        scarce && free > self.reserve.saturating_add(used)
    }

    /// The bytes that are free on the disk. One that cannot be asked is not taken for full; writing will tell.
    fn free(&self) -> u64 {
        let disk = rustix::fs::statvfs(&self.directory);
        disk.map_or(u64::MAX, |disk| disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    /// `unsettled` is what the engine will write on its own account.
    fn judge(&self, used: u64, free: u64, unsettled: u64) -> Room {
        let kept = self.reserve.saturating_add(unsettled);
        let scarce = || {
            StoreError::Full(format!(
                "only {free} bytes are free on the disk of {}, {kept} are kept in reserve; make room and write again",
                self.directory.display(),
            ))
        };
        let writes = if free < FLOOR.min(self.reserve / 4) { Err(scarce()) } else { Ok(()) };
        let within_limit = match self.limit {
            Some(limit) if used >= limit => Err(StoreError::Full(format!(
                "it takes {used} bytes of the {limit} that it may; delete something and compact, or raise the limit"
            ))),
            Some(limit) => Ok(limit - used),
            None => Ok(u64::MAX),
        };
        // What is written goes to the journal first, then to a table, and with that to a larger one.
        let on_disk = if free < kept { Err(scarce()) } else { Ok((free - kept) / 3) };
        Room {
            growth: within_limit.and_then(|within_limit| Ok(within_limit.min(on_disk?))),
            writes,
            scarce: free < kept.saturating_mul(2) && free >= TIDY_BYTES,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use restow_store::Key;

    const MEGABYTE: u64 = 1 << 20;

    fn space(store_bytes: Option<u64>, disk_reserve: u64) -> Space {
        let limits = restow_store::Limits { store_bytes, ..Default::default() };
        Space::new(&EmbeddedConfig { limits, disk_reserve, ..EmbeddedConfig::new("/store") })
    }

    #[test]
    fn the_reserve_comes_on_top_of_what_the_engine_has_still_to_write() {
        let space = space(None, 100 * MEGABYTE);
        let room = |free, unsettled| space.judge(0, free * MEGABYTE, unsettled * MEGABYTE);
        assert_eq!(room(160, 0).growth, Ok(20 * MEGABYTE));
        assert_eq!(room(160, 45).growth, Ok(5 * MEGABYTE));
        assert!(matches!(room(140, 50).growth, Err(StoreError::Full(reason)) if reason.contains("make room")));
        assert_eq!(room(16, 50).writes, Ok(()), "deleting is possible below the reserve");
        assert!(room(15, 50).writes.is_err(), "but not to the last byte");
    }

    #[test]
    fn a_transaction_that_does_not_fit_is_refused_and_a_smaller_one_is_not() {
        let mut space = space(Some(10 * MEGABYTE), 0);
        space.room = space.judge(8 * MEGABYTE, 100 * MEGABYTE, 0);
        let key = Key::try_from("a").unwrap();
        let put = |size: u64| Txn::new().put(&key, vec![0; size as usize]);
        assert!(matches!(space.admit(&put(2 * MEGABYTE)), Err(StoreError::Full(_))));
        assert_eq!(space.admit(&put(MEGABYTE)), Ok(()));
        assert!(space.admit(&put(MEGABYTE)).is_err(), "the room is taken");
        assert_eq!(space.admit(&Txn::new().delete(&key)), Ok(()));
        space.room = space.judge(10 * MEGABYTE, 100 * MEGABYTE, 0);
        assert!(matches!(space.admit(&put(0)), Err(StoreError::Full(reason)) if reason.contains("compact")));
        assert_eq!(space.admit(&Txn::new().delete(&key)), Ok(()));
        assert_eq!(space.admit(&Txn::new()), Ok(()));
    }
}
