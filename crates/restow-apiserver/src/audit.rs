//! The audit log: one line of JSON for each request, in the shape of `audit.k8s.io/v1` at the level `Metadata`.
//!
//! It says who requested what, when, and the response code; never the content of objects, nor any credential. A separate
//! thread writes the lines. Requests do not wait for it: when it is too far behind, lines are dropped and counted.

mod event;
mod file;

pub(crate) use event::{PendingEvent, RequestOrigin};

use crate::metrics::Metrics;
use file::RotatedFile;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

/// The most lines in the queue.
const QUEUE_LINES: usize = 10_000;
/// The most bytes in the queue. A line has hundreds of bytes, and can have many thousands.
const QUEUE_BYTES: usize = 32 << 20;

/// Where the audit log is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditConfig {
    /// The file; `-` is standard output.
    pub path: PathBuf,
    /// The size at which the file is rotated.
    pub max_bytes: u64,
    /// How many rotated files are kept.
    pub max_backups: usize,
}

/// The open audit log. Dropping it writes what is left.
pub struct AuditLog {
    lines: Option<SyncSender<Vec<u8>>>,
    /// How many bytes wait to be written.
    waiting: Arc<AtomicUsize>,
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
        Self::to(output)
    }

    fn to(output: Box<dyn Write + Send>) -> io::Result<Self> {
        let (lines, received) = sync_channel(QUEUE_LINES);
        let waiting = Arc::new(AtomicUsize::new(0));
        let written = waiting.clone();
        let writer = std::thread::Builder::new().name("audit".into());
        let writer = writer.spawn(move || write_all(&received, &written, output))?;
        Ok(AuditLog {
            lines: Some(lines),
            waiting,
            writer: Some(writer),
            written: Counter::default(),
            lost: Family::default(),
            behind: AtomicBool::new(false),
        })
    }

    /// Registers the counters of lines with the metrics.
    pub(crate) fn register(&self, metrics: &Metrics) {
        metrics.register(|registry| {
            registry.register("apiserver_audit_event", "Lines of the audit log", self.written.clone());
            registry.register("apiserver_audit_error", "Lines of the audit log that were lost", self.lost.clone());
        });
    }

    /// Adds a line, or drops it if the queue is full.
    pub(crate) fn add(&self, line: Vec<u8>) {
        let Some(lines) = &self.lines else { return };
        let bytes = line.len();
        let fits = self.waiting.fetch_add(bytes, Ordering::Relaxed) + bytes <= QUEUE_BYTES;
        match if fits { lines.try_send(line) } else { Err(TrySendError::Full(line)) } {
            Ok(()) => {
                self.written.inc();
                self.behind.store(false, Ordering::Relaxed);
            }
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.waiting.fetch_sub(bytes, Ordering::Relaxed);
                self.lost.get_or_create(&PluginLabels { plugin: "log" }).inc();
                if !self.behind.swap(true, Ordering::Relaxed) {
                    tracing::error!("the audit log is not written fast enough; dropping lines");
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

/// Writes lines until all senders are gone. Flushes whenever the queue is empty.
fn write_all(lines: &Receiver<Vec<u8>>, waiting: &AtomicUsize, output: Box<dyn Write + Send>) {
    let mut output = BufWriter::with_capacity(64 << 10, output);
    let mut failing = false;
    let write = |line: Vec<u8>, output: &mut BufWriter<_>| {
        waiting.fetch_sub(line.len(), Ordering::Relaxed);
        output.write_all(&line)
    };
    while let Ok(first) = lines.recv() {
        let mut outcome = write(first, &mut output);
        while let Ok(line) = lines.try_recv() {
            outcome = outcome.and(write(line, &mut output));
        }
        match outcome.and_then(|()| output.flush()) {
            Ok(()) => failing = false,
            Err(error) if !failing => {
                failing = true;
                tracing::error!(%error, "cannot write the audit log");
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// An output that blocks until it is opened.
    struct Closed(mpsc::Receiver<()>);

    impl Write for Closed {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // Whoever would open it is gone when the test is over.
            let _ = self.0.recv();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn waiting_audit_lines_are_bounded_by_bytes() {
        let (open, closed) = mpsc::channel();
        let log = AuditLog::to(Box::new(Closed(closed))).unwrap();
        // The output is opened before the log is closed, also where the test fails: closing waits for it.
        let open = open;
        let line = vec![b'x'; 1 << 20];
        for _ in 0..64 {
            log.add(line.clone());
        }
        let lost = log.lost.get_or_create(&PluginLabels { plugin: "log" }).get();
        assert!((31..=32).contains(&lost), "{lost} lines of 64 are lost");
        assert!(log.waiting.load(Ordering::Relaxed) <= QUEUE_BYTES);
        drop(open);
    }

    #[test]
    fn every_audit_line_is_in_a_file_and_old_files_are_removed() {
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
