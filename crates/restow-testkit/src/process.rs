//! Processes that end with their test, and waiting for them with a time limit: a process that hangs fails its test by
//! name and does not block the whole run.

use rustix::process::{Pid, kill_process};
use std::fmt::Debug;
use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

pub use rustix::process::Signal;

/// How long a test waits for a process or a condition. Much longer than needed, also on a loaded machine.
pub const TIMEOUT: Duration = Duration::from_secs(300);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A process that is killed when this is dropped.
pub struct Process(Child);

impl Process {
    /// Starts a process.
    pub fn spawn(command: &mut Command) -> Self {
        Process(command.spawn().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}")))
    }

    /// Starts a process and returns it with the first line that it prints, which means that it is ready. Later output
    /// is discarded.
    pub fn spawn_and_read_line(command: &mut Command) -> (Self, String) {
        let mut process = Self::spawn(command.stdout(Stdio::piped()));
        let line = process.read_line();
        (process, line)
    }

    /// The first line that it prints; its standard output must be piped. Later output is discarded.
    pub fn read_line(&mut self) -> String {
        let (line, rest) = next_line(BufReader::new(self.take_stdout()));
        assert!(!line.is_empty(), "process {} printed nothing", self.0.id());
        drain(rest);
        line
    }

    /// Its standard output, which must be piped, for a test that reads more than one line.
    pub fn take_stdout(&mut self) -> ChildStdout {
        self.0.stdout.take().unwrap()
    }

    /// Its process id.
    pub fn id(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.id(), signal).unwrap();
    }

    /// Suspends it (SIGSTOP): no thread of it runs until it is resumed.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Resumes a suspended process.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Stops it (SIGTERM), and waits until it has ended.
    pub fn stop(mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait()
    }

    /// Kills it (SIGKILL), and waits until it has ended.
    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Waits until it has ended.
    pub fn wait(&mut self) -> ExitStatus {
        wait(&mut self.0)
    }

    /// A number of bytes from its `/proc/<pid>/status`, such as `VmRSS` or `VmHWM`, the peak.
    pub fn memory(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A process that has ended already cannot be killed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a command and returns its output, like [`Command::output`].
pub fn output(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    let stdout = in_background(child.stdout.take().unwrap(), read_all);
    let stderr = in_background(child.stderr.take().unwrap(), read_all);
    let status = wait_for_exit(&mut child, command, TIMEOUT);
    Output { status, stdout: take(&stdout, command), stderr: take(&stderr, command) }
}

/// Waits until a process has ended. One that does not is killed, and the test fails.
pub fn wait(child: &mut Child) -> ExitStatus {
    let id = child.id();
    wait_for_exit(child, &format_args!("process {id}"), TIMEOUT)
}

/// The next line that a process prints, with its line break, and the reader for what follows. The line is empty when the
/// process has closed its output.
pub fn next_line<R: BufRead + Send + 'static>(reader: R) -> (String, R) {
    let read = |mut reader: R| {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        (line, reader)
    };
    take(&in_background(reader, read), &"a process that should print a line")
}

/// Reads and discards the rest of a process's output, so that it never blocks.
pub fn drain(reader: impl Read + Send + 'static) {
    in_background(reader, |mut reader| io::copy(&mut reader, &mut io::sink()));
}

fn read_all(mut reader: impl Read) -> Vec<u8> {
    let mut all = Vec::new();
    reader.read_to_end(&mut all).unwrap();
    all
}

fn in_background<R, T>(reader: R, read: impl FnOnce(R) -> T + Send + 'static) -> Receiver<T>
where
    R: Send + 'static,
    T: Send + 'static,
{
    let (sender, receiver) = channel();
    thread::spawn(move || {
        // The receiver is gone when the test has failed already.
        let _ = sender.send(read(reader));
    });
    receiver
}

fn take<T>(receiver: &Receiver<T>, from: &dyn Debug) -> T {
    receiver.recv_timeout(TIMEOUT).unwrap_or_else(|error| panic!("nothing after {TIMEOUT:?} from {from:?}: {error}"))
}

fn wait_for_exit(child: &mut Child, what: &dyn Debug, timeout: Duration) -> ExitStatus {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if begun.elapsed() > timeout {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("still running after {timeout:?}: {what:?}");
        }
        thread::sleep(POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn the_output_and_exit_code_of_a_process_are_returned() {
        let output = output(Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"]));
        assert_eq!(
            (output.status.code(), &output.stdout[..], &output.stderr[..]),
            (Some(3), &b"out\n"[..], &b"err\n"[..])
        );
    }

    #[test]
    fn a_process_that_does_not_end_is_killed_and_named() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let outcome = catch_unwind(AssertUnwindSafe(|| wait_for_exit(&mut child, &"the sleeper", Duration::ZERO)));
        let message = outcome.unwrap_err();
        assert!(message.downcast_ref::<String>().unwrap().contains("the sleeper"));
        assert!(child.try_wait().unwrap().is_some(), "it was killed");
    }

    #[test]
    fn lines_of_a_process_are_read_one_by_one() {
        let (first, reader) = next_line(BufReader::new(Cursor::new("a\nb")));
        let (second, reader) = next_line(reader);
        assert_eq!((first, second, next_line(reader).0), ("a\n".into(), "b".into(), String::new()));
    }
}
