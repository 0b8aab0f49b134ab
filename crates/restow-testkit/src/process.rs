//! Waiting for processes, with an end: one that hangs fails its test by name and does not hang the whole run.

use std::fmt::Debug;
use std::io::{self, BufRead, Read};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// How long a process may take for one thing. Much more than any needs, on a loaded machine too.
pub const PATIENCE: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(5);

/// Runs a command to its end and returns what it printed, as [`Command::output`] does.
pub fn output(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    let stdout = in_background(child.stdout.take().unwrap(), read_all);
    let stderr = in_background(child.stderr.take().unwrap(), read_all);
    let status = end_of(&mut child, command, PATIENCE);
    Output { status, stdout: take(&stdout, command), stderr: take(&stderr, command) }
}

/// Waits until a process has ended. One that does not is killed, and the test fails.
pub fn wait(child: &mut Child) -> ExitStatus {
    let id = child.id();
    end_of(child, &format_args!("process {id}"), PATIENCE)
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

/// Reads and forgets whatever else a process prints, so that printing never blocks it.
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
        // Where nobody waits for it any more, nobody needs it.
        let _ = sender.send(read(reader));
    });
    receiver
}

fn take<T>(receiver: &Receiver<T>, from: &dyn Debug) -> T {
    receiver.recv_timeout(PATIENCE).unwrap_or_else(|error| panic!("nothing after {PATIENCE:?} from {from:?}: {error}"))
}

fn end_of(child: &mut Child, what: &dyn Debug, patience: Duration) -> ExitStatus {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if begun.elapsed() > patience {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("still running after {patience:?}: {what:?}");
        }
        thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufReader, Cursor};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn a_process_that_ends_is_told_of() {
        let said = output(Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"]));
        assert_eq!((said.status.code(), &said.stdout[..], &said.stderr[..]), (Some(3), &b"out\n"[..], &b"err\n"[..]));
    }

    #[test]
    fn a_process_that_does_not_end_is_killed_and_named() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let waiting = catch_unwind(AssertUnwindSafe(|| end_of(&mut child, &"the sleeper", Duration::ZERO)));
        let message = waiting.unwrap_err();
        assert!(message.downcast_ref::<String>().unwrap().contains("the sleeper"));
        assert!(child.try_wait().unwrap().is_some(), "it was killed");
    }

    #[test]
    fn lines_come_one_by_one() {
        let (first, reader) = next_line(BufReader::new(Cursor::new("a\nb")));
        let (second, reader) = next_line(reader);
        assert_eq!((first, second, next_line(reader).0), ("a\n".into(), "b".into(), String::new()));
    }
}
