//! A server's process: started so that it does not outlive us, signalled, and killed when dropped.

use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};

pub(super) struct Process {
    child: Child,
}

impl Process {
    pub(super) fn start(program: &Path, arguments: Vec<String>, log: File) -> io::Result<Self> {
        let program = find_program(program)?;
        // On Linux `setpriv` lets the kernel kill the server when we die, however we die.
        let mut command = match find_program(Path::new("setpriv")) {
            Ok(setpriv) if cfg!(target_os = "linux") => {
                let mut command = Command::new(setpriv);
                command.args(["--pdeathsig", "KILL", "--"]).arg(program);
                command
            }
            _ => Command::new(program),
        };
        // etcd takes settings from its environment, too.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ETCD_")) {
            command.env_remove(name);
        }
        command.args(arguments).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(Process { child: spawn_from_lasting_thread(command)? })
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// How the process ended, if it has.
    pub(super) fn try_wait(&mut self) -> Option<String> {
        match self.child.try_wait() {
            Ok(status) => status.map(|status| status.to_string()),
            Err(error) => Some(error.to_string()),
        }
    }

    pub(super) fn terminate(&self) -> io::Result<()> {
        self.signal(Signal::TERM)
    }

    pub(super) fn pause(&self) -> io::Result<()> {
        self.signal(Signal::STOP)
    }

    pub(super) fn resume(&self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        // The child is not waited for before `self` is gone, so its identifier cannot have passed to another process.
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

/// To the kernel the parent of a process is a thread: when that ends, the process is killed. So all servers are started
/// from one thread that lasts as long as we do.
fn spawn_from_lasting_thread(command: Command) -> io::Result<Child> {
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
    let gone = || io::Error::other("the thread that starts servers is gone");
    let (answer, child) = channel();
    parent.lock().unwrap_or_else(PoisonError::into_inner).send((command, answer)).map_err(|_| gone())?;
    child.recv().map_err(|_| gone())?
}
