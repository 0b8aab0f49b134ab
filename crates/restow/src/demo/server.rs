//! `restow demo-server`: one server of the demo in a process of its own. Not for people.

use super::actor::{Actor, Role};
use super::machine::Machine;
use crate::etcd_args::{EtcdArgs, connect_patiently};
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

/// What the demo tells a server. The end of its input tells it to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Hold up what is written.
    Hold,
    /// Let everything pass.
    Release,
}

/// What a server tells the demo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// It can be written to at this address.
    Ready(SocketAddr),
    /// Everything that is written from now on is held up.
    Holding,
    /// A write that is about this key is held up.
    Held(String),
    /// So many writes have been refused by the fence.
    FenceFailures(u64),
}

/// How often the server looks whether the fence has refused anything.
const LOOK: Duration = Duration::from_millis(50);

pub(crate) async fn run(args: DemoServerArgs) -> anyhow::Result<()> {
    let config = args.etcd.config(&args.etcd_endpoints)?;
    let store = connect_patiently(config).await?;
    let role = Role { name: args.name, release: args.release, address: args.listen, pki: args.pki };
    let mut orders = orders();
    let mut actor = Actor::start(role, Arc::new(store)).await?;
    println!("{}", Report::Ready(actor.address()));
    let (mut held, mut told, mut refused) = (actor.held(), 0, 0);
    loop {
        tokio::select! {
            order = orders.recv() => match order {
                Some(Order::Hold) => {
                    actor.hold_writes().await?;
                    println!("{}", Report::Holding);
                }
                Some(Order::Release) => actor.wake().await?,
                None => return actor.stop().await,
            },
            changed = held.changed() => {
                changed?;
                let keys = held.borrow_and_update().clone();
                keys[told..].iter().for_each(|key| println!("{}", Report::Held(key.clone())));
                told = keys.len();
            }
            () = tokio::time::sleep(LOOK) => {
                if actor.fence_failures() != refused {
                    refused = actor.fence_failures();
                    println!("{}", Report::FenceFailures(refused));
                }
            }
        }
    }
}

/// The orders from standard input, until it ends.
fn orders() -> mpsc::UnboundedReceiver<Order> {
    let (give, orders) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        let lines = std::io::stdin().lock().lines().map_while(Result::ok);
        for order in lines.filter_map(|line| line.parse().ok()) {
            if give.send(order).is_err() {
                return;
            }
        }
    });
    orders
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Order::Hold => "hold",
            Order::Release => "release",
        })
    }
}

impl FromStr for Order {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        [Order::Hold, Order::Release].into_iter().find(|order| order.to_string() == line).ok_or(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Report::Ready(address) => write!(f, "ready {address}"),
            Report::Holding => f.write_str("holding"),
            Report::Held(key) => write!(f, "held {key}"),
            Report::FenceFailures(count) => write!(f, "fence-failures {count}"),
        }
    }
}

impl FromStr for Report {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        match line.split_once(' ').unwrap_or((line, "")) {
            ("holding", "") => Ok(Report::Holding),
            ("ready", address) => address.parse().map(Report::Ready).map_err(|_| ()),
            ("held", key) => Ok(Report::Held(key.to_owned())),
            ("fence-failures", count) => count.parse().map(Report::FenceFailures).map_err(|_| ()),
            _ => Err(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_understood() {
        for order in [Order::Hold, Order::Release] {
            assert_eq!(order.to_string().parse(), Ok(order));
        }
        let address: SocketAddr = "127.0.0.1:6443".parse().unwrap();
        for report in [Report::Ready(address), Report::Holding, Report::Held("/a b".into()), Report::FenceFailures(3)] {
            assert_eq!(report.to_string().parse(), Ok(report));
        }
        assert!("nonsense".parse::<Report>().is_err() && "stop".parse::<Order>().is_err());
    }
}
