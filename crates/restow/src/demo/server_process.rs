//! A server in its own process, seen from the demo.
//!
//! The process is this program with the hidden command `demo-server`. It reads commands from its standard input, one in a line,
//! and prints events to its standard output. It ends when its input ends, so that it never outlives the demo.

use super::in_process_server::ServerSpec;
use super::server_command::{ServerCommand, ServerEvent};
use super::suspendable::Suspendable;
use anyhow::{Context, ensure};
use async_trait::async_trait;
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use tokio::sync::watch;

/// A server in its own process.
pub(super) struct ServerProcess {
    child: Child,
    commands: Option<ChildStdin>,
    state: watch::Receiver<ServerState>,
    address: SocketAddr,
}

/// What a server has reported.
#[derive(Clone, Debug, Default)]
struct ServerState {
    address: Option<SocketAddr>,
    is_holding: bool,
    held: Vec<String>,
    fence_failures: u64,
    is_over: bool,
}

impl ServerProcess {
    /// Starts a server and waits until it can be written to. `store` are the flags that say where the store is.
    pub(super) async fn start(spec: &ServerSpec, store: &[OsString]) -> anyhow::Result<Self> {
        let program =
            std::env::current_exe().context("cannot find the path of this program, to start it as a server")?;
        let mut child = Command::new(program)
            .arg("demo-server")
            .args(["--name", &spec.name, "--release", &spec.release.to_string()])
            .args(["--listen", &spec.address.to_string()])
            .arg("--pki")
            .arg(&spec.pki)
            .args(store)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C goes to the demo alone, which then stops its servers cleanly.
            .process_group(0)
            .spawn()
            .context("cannot start a server")?;
        let commands = child.stdin.take();
        let (reported, mut state) = watch::channel(ServerState::default());
        if let Some(output) = child.stdout.take() {
            std::thread::spawn(move || read_events(output, &reported));
        }
        let first = state.wait_for(|state| state.address.is_some() || state.is_over).await?.clone();
        let mut process = ServerProcess { child, commands, state, address: spec.address };
        match first.address {
            Some(address) => process.address = address,
            None => {
                let status = process.child.wait()?;
                anyhow::bail!("server {} ended before it was ready: {status}", spec.name);
            }
        }
        Ok(process)
    }

    fn send(&mut self, command: ServerCommand) -> anyhow::Result<()> {
        let commands = self.commands.as_mut().context("the server has been stopped")?;
        writeln!(commands, "{command}")?;
        Ok(commands.flush()?)
    }

    /// Waits until it has reported this.
    async fn wait_for(&mut self, what: impl Fn(&ServerState) -> bool) -> anyhow::Result<()> {
        let state = self.state.wait_for(|state| state.is_over || what(state)).await?;
        ensure!(!state.is_over, "the server has ended");
        Ok(())
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }
}

/// Reads the server's events until its output ends.
fn read_events(output: ChildStdout, state: &watch::Sender<ServerState>) {
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        let event = line.parse::<ServerEvent>();
        state.send_modify(|state| match event {
            Ok(ServerEvent::Ready(address)) => state.address = Some(address),
            Ok(ServerEvent::Holding) => state.is_holding = true,
            Ok(ServerEvent::Held(key)) => state.held.push(key),
            Ok(ServerEvent::FenceFailures(count)) => state.fence_failures = count,
            Err(_) => {}
        });
    }
    state.send_modify(|state| state.is_over = true);
}

#[async_trait]
impl Suspendable for ServerProcess {
    fn address(&self) -> SocketAddr {
        self.address
    }

    async fn hold_writes(&mut self) -> anyhow::Result<()> {
        self.send(ServerCommand::Hold)?;
        self.wait_for(|state| state.is_holding).await
    }

    async fn suspend_with(&mut self, name: &str) -> anyhow::Result<()> {
        self.wait_for(|state| state.held.iter().any(|key| key.ends_with(name))).await?;
        self.signal(Signal::STOP)
    }

    async fn resume(&mut self) -> anyhow::Result<()> {
        self.send(ServerCommand::Release)?;
        self.signal(Signal::CONT)
    }

    fn fence_failures(&self) -> u64 {
        self.state.borrow().fence_failures
    }

    async fn stop(&mut self) -> anyhow::Result<()> {
        // The end of its input tells it to stop. A suspended process has to be resumed to notice.
        self.commands = None;
        self.signal(Signal::CONT)?;
        self.state.wait_for(|state| state.is_over).await?;
        let status = self.child.wait()?;
        ensure!(status.success(), "a server did not stop cleanly: {status}");
        Ok(())
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // A process that has ended already cannot be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
