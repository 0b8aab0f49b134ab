//! A process that is started, killed, suspended and started again. It ends with the run.

use super::report::ProcessError;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How long a process that is stopped may take to end.
const STOPS_WITHIN: Duration = Duration::from_secs(15);
/// The delay before a process that has ended by itself is started again.
const RESTART_DELAY: Duration = Duration::from_secs(1);

/// One process after another under one name.
pub(crate) struct ManagedProcess {
    name: String,
    log: PathBuf,
    child: Option<Child>,
    /// When a suspended process is resumed.
    resumes: Option<Instant>,
    /// When a process that was asked to stop is killed.
    killed_at: Option<Instant>,
    /// When a process that has ended is started again.
    starts: Instant,
}

/// What there is to do about a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Todo {
    /// Nothing.
    Nothing,
    /// It has ended by itself.
    HasEnded,
    /// It is to be started.
    Start,
}

impl ManagedProcess {
    pub(crate) fn new(name: impl Into<String>, log: PathBuf) -> Self {
        ManagedProcess { name: name.into(), log, child: None, resumes: None, killed_at: None, starts: Instant::now() }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn log(&self) -> &PathBuf {
        &self.log
    }

    /// Starts it. Its output goes to its log.
    pub(crate) fn start(&mut self, command: &mut Command) -> Result<(), ProcessError> {
        let failed = || format!("start {}", self.name);
        let log = File::options().create(true).append(true).open(&self.log).map_err(ProcessError::io(failed()))?;
        let other = log.try_clone().map_err(ProcessError::io(failed()))?;
        // Ctrl-C goes to this process alone, which then ends all others.
        command.stdin(Stdio::null()).stdout(log).stderr(other).process_group(0);
        self.child = Some(command.spawn().map_err(ProcessError::io(failed()))?);
        self.resumes = None;
        self.killed_at = None;
        Ok(())
    }

    pub(crate) fn runs(&self) -> bool {
        self.child.is_some()
    }

    /// Whether it runs and nobody has suspended it or asked it to stop.
    pub(crate) fn is_undisturbed(&self) -> bool {
        self.child.is_some() && self.resumes.is_none() && self.killed_at.is_none()
    }

    fn signal(&self, signal: Signal) {
        if let Some(child) = &self.child {
            // The child is not reaped yet, so its id cannot belong to another process. It may have ended already.
            let _ = kill_process(Pid::from_child(child), signal);
        }
    }

    /// Kills it (SIGKILL), and starts it again after a while.
    pub(crate) fn kill_for(&mut self, pause: Duration) {
        if let Some(mut child) = self.child.take() {
            // A process that has ended already cannot be killed.
            let _ = child.kill();
            let _ = child.wait();
        }
        self.resumes = None;
        self.killed_at = None;
        self.starts = Instant::now() + pause;
    }

    /// Suspends it (SIGSTOP) for a while.
    pub(crate) fn pause_for(&mut self, pause: Duration) {
        self.signal(Signal::STOP);
        self.resumes = Some(Instant::now() + pause);
    }

    /// Resumes it if it is suspended (SIGCONT).
    pub(crate) fn resume(&mut self) {
        self.signal(Signal::CONT);
        self.resumes = None;
    }

    /// Asks it to stop (SIGTERM). It is started again as soon as it has ended.
    pub(crate) fn stop(&mut self) {
        self.resume();
        self.signal(Signal::TERM);
        self.killed_at = Some(Instant::now() + STOPS_WITHIN);
    }

    /// Whether it has ended; `None` if there is none.
    pub(crate) fn has_ended(&mut self) -> Option<bool> {
        let child = self.child.as_mut()?;
        Some(!matches!(child.try_wait(), Ok(None)))
    }

    /// Starts it again without delay.
    pub(crate) fn start_now(&mut self) {
        self.starts = Instant::now();
    }

    /// Resumes and kills it when it is time, and says what there is to do.
    pub(crate) fn tick(&mut self) -> Todo {
        let now = Instant::now();
        if self.resumes.is_some_and(|resumes| resumes <= now) {
            self.resume();
        }
        if self.killed_at.is_some_and(|killed| killed <= now) {
            self.kill_for(Duration::ZERO);
        }
        match self.has_ended() {
            Some(false) => Todo::Nothing,
            Some(true) if self.killed_at.is_some() => {
                self.kill_for(Duration::ZERO);
                Todo::Start
            }
            Some(true) => {
                self.kill_for(RESTART_DELAY);
                Todo::HasEnded
            }
            None if self.starts <= now => Todo::Start,
            None => Todo::Nothing,
        }
    }
}

impl Drop for ManagedProcess {
    fn drop(&mut self) {
        self.kill_for(Duration::ZERO);
    }
}

/// Runs a command to its end, which must be a success. Returns its standard output.
pub(crate) fn run(command: &mut Command) -> Result<String, ProcessError> {
    let output = try_run(command)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(ProcessError::Command { command: format!("{command:?}"), output: text })
}

/// Runs a command to its end.
pub(crate) fn try_run(command: &mut Command) -> Result<Output, ProcessError> {
    let words = format!("run {command:?}");
    command.stdin(Stdio::null()).output().map_err(ProcessError::io(words))
}
