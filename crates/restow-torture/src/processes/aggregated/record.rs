//! What the aggregated server records, one line each. A line is written at once, so that nothing is lost when the process is killed.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

/// A line of the record. Times are since boot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Line {
    /// A process has started; the one before has ended.
    Started { at: Duration },
    /// A transaction that writes plants has arrived at the store.
    Arrived { transaction: u64, writes: Vec<RecordedWrite> },
    /// The store begins with it.
    Began { transaction: u64, at: Duration },
    /// The store has ended it.
    Ended { transaction: u64, at: Duration, outcome: Ending },
    /// Everything up to this revision.
    Changed { revision: u64, changes: Vec<StoreChange> },
    /// This revision existed at that time.
    Exists { revision: u64, at: Duration },
}

/// An object in a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RecordedWrite {
    pub(crate) token: String,
    pub(crate) version: String,
}

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ending {
    Committed,
    Refused,
    Unknown,
}

/// A change of a key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StoreChange {
    pub(crate) revision: u64,
    pub(crate) key: String,
    /// `None` if it was deleted.
    pub(crate) value: Option<Value>,
}

/// The file.
pub(crate) struct Record(File);

impl Record {
    /// Continues the record in this file.
    pub(crate) fn open(path: &Path) -> std::io::Result<Self> {
        let mut file = File::options().create(true).append(true).open(path)?;
        // The process before may have been killed in the middle of a line.
        file.write_all(b"\n")?;
        Ok(Record(file))
    }

    pub(crate) fn write(&self, line: &Line) {
        let Ok(mut text) = serde_json::to_vec(line) else { return };
        text.push(b'\n');
        // One call for each line, so that lines of several threads are not mixed.
        let _ = (&self.0).write_all(&text);
    }
}
