//! A TCP proxy that fails like a network: connections that are closed, and connections that deliver nothing.

use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The state of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    /// Data is forwarded.
    Up,
    /// New connections are accepted and closed, old ones are closed.
    Reset,
    /// Connections stay open or are accepted, and no data is forwarded. They stay silent afterwards.
    Silent,
}

/// A running proxy; it ends when dropped.
pub(crate) struct Proxy {
    address: SocketAddr,
    network: watch::Sender<Network>,
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (network, seen) = watch::channel(Network::Up);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                connections.spawn(forward(client, port, seen.clone()));
            }
        });
        Proxy { address, network, task }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn set(&self, network: Network) {
        self.network.send_replace(network);
    }

    /// Closes all connections; new ones work.
    pub(crate) async fn reset_once(&self) {
        self.set(Network::Reset);
        tokio::task::yield_now().await;
        // Each connection must see the change before the next one.
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        self.set(Network::Up);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn forward(mut client: TcpStream, port: u16, mut network: watch::Receiver<Network>) {
    let state_at_start = *network.borrow_and_update();
    if state_at_start == Network::Reset {
        return;
    }
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)).await else { return };
    let (mut up, mut down) = (vec![0; 65536], vec![0; 65536]);
    let mut silent = state_at_start == Network::Silent;
    loop {
        tokio::select! {
            changed = network.changed() => {
                if changed.is_err() || *network.borrow_and_update() == Network::Reset {
                    return;
                }
                silent = silent || *network.borrow() == Network::Silent;
            }
            read = client.read(&mut up), if !silent => match read {
                Ok(length) if length > 0 => server.write_all(&up[..length]).await.unwrap_or_default(),
                _ => return,
            },
            read = server.read(&mut down), if !silent => match read {
                Ok(length) if length > 0 => client.write_all(&down[..length]).await.unwrap_or_default(),
                _ => return,
            },
        }
    }
}
