//! A server in a process of its own, as the demo sees it.
//!
//! The process is this program with the hidden command `demo-server`. It is told what to do in lines on its standard input,
//! and tells what happens in lines on its standard output; it ends when its input does, so that none outlives the demo.

use super::actor::Role;
use super::machine::Machine;
use super::server::{Order, Report};
use anyhow::{Context, ensure};
use async_trait::async_trait;
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use tokio::sync::watch;

/// A server in a process of its own.
pub(super) struct Process {
    child: Child,
    orders: Option<ChildStdin>,
    news: watch::Receiver<News>,
    address: SocketAddr,
}

/// What has been heard of a server.
#[derive(Clone, Debug, Default)]
struct News {
    address: Option<SocketAddr>,
    is_holding: bool,
    held: Vec<String>,
    fence_failures: u64,
    is_over: bool,
}

impl Process {
    /// Starts a server and waits until it can be written to. `store` are the flags that say where the store is.
    pub(super) async fn start(role: &Role, store: &[OsString]) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find this program, which has to be started again")?;
        let mut child = Command::new(program)
            .arg("demo-server")
            .args(["--name", &role.name, "--release", &role.release.to_string()])
            .args(["--listen", &role.address.to_string()])
            .arg("--pki")
            .arg(&role.pki)
            .args(store)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C is for the demo, which then stops its servers in order.
            .process_group(0)
            .spawn()
            .context("cannot start a server")?;
        let orders = child.stdin.take();
        let (tell, mut news) = watch::channel(News::default());
        if let Some(output) = child.stdout.take() {
            std::thread::spawn(move || listen(output, &tell));
        }
        let first = news.wait_for(|news| news.address.is_some() || news.is_over).await?.clone();
        let mut process = Process { child, orders, news, address: role.address };
        match first.address {
            Some(address) => process.address = address,
            None => {
                let status = process.child.wait()?;
                anyhow::bail!("server {} ended before it was ready: {status}", role.name);
            }
        }
        Ok(process)
    }

    fn tell(&mut self, order: Order) -> anyhow::Result<()> {
        let orders = self.orders.as_mut().context("the server has been stopped")?;
        writeln!(orders, "{order}")?;
        Ok(orders.flush()?)
    }

    /// Waits until this has been heard of it.
    async fn hear(&mut self, what: impl Fn(&News) -> bool) -> anyhow::Result<()> {
        let heard = self.news.wait_for(|news| news.is_over || what(news)).await?;
        ensure!(!heard.is_over, "the server has ended");
        Ok(())
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }
}

/// Takes note of what the server says, until it says nothing more.
fn listen(output: ChildStdout, news: &watch::Sender<News>) {
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        let report = line.parse::<Report>();
        news.send_modify(|news| match report {
            Ok(Report::Ready(address)) => news.address = Some(address),
            Ok(Report::Holding) => news.is_holding = true,
            Ok(Report::Held(key)) => news.held.push(key),
            Ok(Report::FenceFailures(count)) => news.fence_failures = count,
            Err(_) => {}
        });
    }
    news.send_modify(|news| news.is_over = true);
}

#[async_trait]
impl Machine for Process {
    fn address(&self) -> SocketAddr {
        self.address
    }

    async fn hold_writes(&mut self) -> anyhow::Result<()> {
        self.tell(Order::Hold)?;
        self.hear(|news| news.is_holding).await
    }

    async fn suspend_with(&mut self, name: &str) -> anyhow::Result<()> {
        self.hear(|news| news.held.iter().any(|key| key.ends_with(name))).await?;
        self.signal(Signal::STOP)
    }

    async fn wake(&mut self) -> anyhow::Result<()> {
        self.tell(Order::Release)?;
        self.signal(Signal::CONT)
    }

    fn fence_failures(&self) -> u64 {
        self.news.borrow().fence_failures
    }

    async fn stop(&mut self) -> anyhow::Result<()> {
        // The end of its input is the order to stop. One that sleeps has to hear it first.
        self.orders = None;
        self.signal(Signal::CONT)?;
        self.news.wait_for(|news| news.is_over).await?;
        let status = self.child.wait()?;
        ensure!(status.success(), "a server did not stop in order: {status}");
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Where it has ended already, there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
