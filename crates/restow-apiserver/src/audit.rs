//! The audit log: one line of JSON for each request, in the shape of `audit.k8s.io/v1` at the level `Metadata`.
//!
//! It says who asked for what, when, and how it ended; never what objects hold, nor any credential. A thread of its own
//! writes the lines. Requests do not wait for it: when it is too far behind, lines are dropped and counted.

mod event;
mod file;

pub(crate) use event::{Asking, PendingEvent};

use crate::metrics::Metrics;
use file::RotatedFile;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

/// How many lines may wait to be written.
const QUEUE: usize = 10_000;

/// Where the audit log is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditConfig {
    /// The file; `-` is standard output.
    pub path: PathBuf,
    /// The bytes after which a new file is begun.
    pub max_bytes: u64,
    /// How many old files are kept.
    pub max_backups: usize,
}

/// An audit log that is being written. Dropping it writes what is left.
pub struct AuditLog {
    lines: Option<SyncSender<Vec<u8>>>,
    writer: Option<JoinHandle<()>>,
    written: Counter,
    lost: Family<PluginLabels, Counter>,
    behind: AtomicBool,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct PluginLabels {
    plugin: &'static str,
}

impl AuditLog {
    /// Opens the log, so that a file that cannot be written is known before anything is served.
    pub fn open(config: AuditConfig) -> io::Result<Self> {
        let output: Box<dyn Write + Send> = match config.path.to_str() {
            Some("-") => Box::new(io::stdout()),
            _ => Box::new(RotatedFile::open(config)?),
        };
        let (lines, received) = sync_channel(QUEUE);
        let writer = std::thread::Builder::new().name("audit".into()).spawn(move || write_all(&received, output))?;
        Ok(AuditLog {
            lines: Some(lines),
            writer: Some(writer),
            written: Counter::default(),
            lost: Family::default(),
            behind: AtomicBool::new(false),
        })
    }

    /// Shows in the metrics how many lines there were.
    pub(crate) fn register(&self, metrics: &Metrics) {
        metrics.register(|registry| {
            registry.register("apiserver_audit_event", "Lines of the audit log", self.written.clone());
            registry.register("apiserver_audit_error", "Lines of the audit log that were lost", self.lost.clone());
        });
    }

    /// Adds a line, or drops it when too many wait.
    pub(crate) fn add(&self, line: Vec<u8>) {
        let Some(lines) = &self.lines else { return };
        match lines.try_send(line) {
            Ok(()) => {
                self.written.inc();
                self.behind.store(false, Ordering::Relaxed);
            }
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.lost.get_or_create(&PluginLabels { plugin: "log" }).inc();
                if !self.behind.swap(true, Ordering::Relaxed) {
                    tracing::error!("the audit log cannot be written fast enough; lines are lost");
                }
            }
        }
    }
}

impl Drop for AuditLog {
    fn drop(&mut self) {
        drop(self.lines.take());
        if let Some(writer) = self.writer.take() {
            // It only fails when the writer panicked, and then there is nothing left to wait for.
            let _ = writer.join();
        }
    }
}

/// Writes lines until nobody can send any more. Whenever nothing waits, all that came is passed on to the system.
fn write_all(lines: &Receiver<Vec<u8>>, output: Box<dyn Write + Send>) {
    let mut output = BufWriter::with_capacity(64 << 10, output);
    let mut failing = false;
    while let Ok(first) = lines.recv() {
        let mut outcome = output.write_all(&first);
        while let Ok(line) = lines.try_recv() {
            outcome = outcome.and(output.write_all(&line));
        }
        match outcome.and_then(|()| output.flush()) {
            Ok(()) => failing = false,
            Err(error) if !failing => {
                failing = true;
                tracing::error!(%error, "the audit log cannot be written");
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_in_some_file_and_old_files_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let log = AuditLog::open(AuditConfig { path, max_bytes: 100, max_backups: 1000 }).unwrap();
        for number in 0..100 {
            log.add(format!("line {number:03}\n").into_bytes());
        }
        assert_eq!(log.written.get(), 100);
        drop(log);
        let files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path()).collect();
        let text: String = files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect();
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        let expected: Vec<String> = (0..100).map(|number| format!("line {number:03}")).collect();
        assert_eq!(lines, expected);
    }
}
