//! The process of a server. It does not outlive this process, receives signals, and is killed when dropped.

use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};

pub(crate) struct Process {
    child: Child,
}

impl Process {
    pub(crate) fn start(program: &Path, arguments: Vec<String>, log: File) -> io::Result<Self> {
        let program = find_program(program)?;
        // On Linux, `setpriv` makes the kernel kill the server when this process dies, for whatever reason.
        let mut command = match find_program(Path::new("setpriv")) {
            Ok(setpriv) if cfg!(target_os = "linux") => {
                let mut command = Command::new(setpriv);
                command.args(["--pdeathsig", "KILL", "--"]).arg(program);
                command
            }
            _ => Command::new(program),
        };
        // etcd also reads settings from environment variables.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ETCD_")) {
            command.env_remove(name);
        }
        command.args(arguments).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(Process { child: spawn_from_parent_thread(command)? })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The exit status, if the process has exited.
    pub(crate) fn try_wait(&mut self) -> Option<String> {
        match self.child.try_wait() {
            Ok(status) => status.map(|status| status.to_string()),
            Err(error) => Some(error.to_string()),
        }
    }

    pub(crate) fn terminate(&self) -> io::Result<()> {
        self.signal(Signal::TERM)
    }

    pub(crate) fn pause(&self) -> io::Result<()> {
        self.signal(Signal::STOP)
    }

    pub(crate) fn resume(&self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        // The child is not reaped before `self` is dropped, so its id cannot belong to another process.
        kill_process(Pid::from_child(&self.child), signal).map_err(Into::into)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn find_program(program: &Path) -> io::Result<PathBuf> {
    let candidates: Vec<PathBuf> = if program.components().count() > 1 {
        vec![program.to_owned()]
    } else {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).map(|directory| directory.join(program)).collect()
    };
    candidates.into_iter().find(|candidate| candidate.is_file()).ok_or_else(|| io::ErrorKind::NotFound.into())
}

type Job = (Command, Sender<io::Result<Child>>);

/// For the kernel, the parent of a process is a thread: when the thread ends, the child is killed. So one thread, which
/// lives as long as this process, starts all servers.
fn spawn_from_parent_thread(command: Command) -> io::Result<Child> {
    static PARENT: OnceLock<Mutex<Sender<Job>>> = OnceLock::new();
    let parent = PARENT.get_or_init(|| {
        let (jobs, incoming) = channel::<Job>();
        std::thread::spawn(move || {
            for (mut command, answer) in incoming {
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(jobs)
    });
    let ended = || io::Error::other("the thread that starts servers has ended");
    let (answer, child) = channel();
    parent.lock().unwrap_or_else(PoisonError::into_inner).send((command, answer)).map_err(|_| ended())?;
    child.recv().map_err(|_| ended())?
}
