//! Objects in the store: reads and writes, the watch cache, compaction, deletion, and the format mark.

pub mod census;
pub(crate) mod compaction;
pub(crate) mod deletion;
pub(crate) mod fence_alarm;
pub(crate) mod format_mark;
pub(crate) mod key_pages;
pub(crate) mod object_store;
pub(crate) mod watch_cache;
