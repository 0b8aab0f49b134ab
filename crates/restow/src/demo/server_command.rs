//! `restow demo-server`: one server of the demo in its own process. The demo starts it; it is hidden in the help.

use super::in_process_server::{InProcessServer, ServerSpec};
use super::suspendable::Suspendable;
use crate::etcd_args::{EtcdArgs, connect_with_retries};
use clap::Args;
use restow_apiserver::release::Release;
use std::fmt;
use std::io::BufRead;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Be one server of `restow demo`.
#[derive(Debug, Args)]
pub(crate) struct DemoServerArgs {
    #[arg(long)]
    name: String,
    #[arg(long)]
    release: Release,
    #[arg(long)]
    listen: SocketAddr,
    #[arg(long)]
    pki: PathBuf,
    #[arg(long, value_delimiter = ',', required = true)]
    etcd_endpoints: Vec<String>,
    #[command(flatten)]
    etcd: EtcdArgs,
}

/// What the demo sends to a server. The end of its input tells it to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerCommand {
    /// Hold all writes.
    Hold,
    /// Let all writes pass.
    Release,
}

/// What a server reports to the demo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ServerEvent {
    /// It is ready at this address.
    Ready(SocketAddr),
    /// All writes are held from now on.
    Holding,
    /// A write of this key is held.
    Held(String),
    /// The fence has refused so many writes.
    FenceFailures(u64),
}

/// How often the server checks whether the fence has refused a write.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

pub(crate) async fn run(args: DemoServerArgs) -> anyhow::Result<()> {
    let config = args.etcd.config(&args.etcd_endpoints)?;
    let store = connect_with_retries(config).await?;
    let spec = ServerSpec { name: args.name, release: args.release, address: args.listen, pki: args.pki };
    let mut commands = commands();
    let mut server = InProcessServer::start(spec, Arc::new(store)).await?;
    println!("{}", ServerEvent::Ready(server.address()));
    let (mut held, mut reported, mut refused) = (server.held(), 0, 0);
    loop {
        tokio::select! {
            command = commands.recv() => match command {
                Some(ServerCommand::Hold) => {
                    server.hold_writes().await?;
                    println!("{}", ServerEvent::Holding);
                }
                Some(ServerCommand::Release) => server.resume().await?,
                None => return server.stop().await,
            },
            changed = held.changed() => {
                changed?;
                let keys = held.borrow_and_update().clone();
                keys[reported..].iter().for_each(|key| println!("{}", ServerEvent::Held(key.clone())));
                reported = keys.len();
            }
            () = tokio::time::sleep(POLL_INTERVAL) => {
                if server.fence_failures() != refused {
                    refused = server.fence_failures();
                    println!("{}", ServerEvent::FenceFailures(refused));
                }
            }
        }
    }
}

/// The commands from standard input, until it ends.
fn commands() -> mpsc::UnboundedReceiver<ServerCommand> {
    let (sender, commands) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        let lines = std::io::stdin().lock().lines().map_while(Result::ok);
        for command in lines.filter_map(|line| line.parse().ok()) {
            if sender.send(command).is_err() {
                return;
            }
        }
    });
    commands
}

impl fmt::Display for ServerCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ServerCommand::Hold => "hold",
            ServerCommand::Release => "release",
        })
    }
}

impl FromStr for ServerCommand {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        [ServerCommand::Hold, ServerCommand::Release].into_iter().find(|command| command.to_string() == line).ok_or(())
    }
}

impl fmt::Display for ServerEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerEvent::Ready(address) => write!(f, "ready {address}"),
            ServerEvent::Holding => f.write_str("holding"),
            ServerEvent::Held(key) => write!(f, "held {key}"),
            ServerEvent::FenceFailures(count) => write!(f, "fence-failures {count}"),
        }
    }
}

impl FromStr for ServerEvent {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        match line.split_once(' ').unwrap_or((line, "")) {
            ("holding", "") => Ok(ServerEvent::Holding),
            ("ready", address) => address.parse().map(ServerEvent::Ready).map_err(|_| ()),
            ("held", key) => Ok(ServerEvent::Held(key.to_owned())),
            ("fence-failures", count) => count.parse().map(ServerEvent::FenceFailures).map_err(|_| ()),
            _ => Err(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_events_are_parsed_as_they_are_printed() {
        for command in [ServerCommand::Hold, ServerCommand::Release] {
            assert_eq!(command.to_string().parse(), Ok(command));
        }
        let address: SocketAddr = "127.0.0.1:6443".parse().unwrap();
        for event in [
            ServerEvent::Ready(address),
            ServerEvent::Holding,
            ServerEvent::Held("/a b".into()),
            ServerEvent::FenceFailures(3),
        ] {
            assert_eq!(event.to_string().parse(), Ok(event));
        }
        assert!("nonsense".parse::<ServerEvent>().is_err() && "stop".parse::<ServerCommand>().is_err());
    }
}
