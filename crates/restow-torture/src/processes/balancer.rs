//! A load balancer for TCP in front of the API servers, as a highly available control plane has one. It knows nothing about the
//! servers' health: it takes the next one that accepts a connection.

use super::report::ProcessError;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

/// How long a server may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// So many connections are open at most.
const MOST_CONNECTIONS: usize = 200;

/// A load balancer. It ends when this is dropped.
pub(crate) struct Balancer(AbortHandle);

impl Balancer {
    /// Listens at an address, and forwards to these servers in turn.
    pub(crate) async fn start(address: &str, servers: Vec<String>) -> Result<Self, ProcessError> {
        let listener = TcpListener::bind(address).await;
        let listener = listener.map_err(ProcessError::io(format!("listen on {address}")))?;
        let servers = Arc::new(servers);
        let turn = Arc::new(AtomicUsize::new(0));
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let Ok((client, _)) = listener.accept().await else { continue };
                while connections.try_join_next().is_some() {}
                if connections.len() < MOST_CONNECTIONS {
                    connections.spawn(forward(client, servers.clone(), turn.clone()));
                }
            }
        });
        Ok(Balancer(task.abort_handle()))
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn forward(mut client: TcpStream, servers: Arc<Vec<String>>, turn: Arc<AtomicUsize>) {
    for _ in 0..servers.len() {
        let number = turn.fetch_add(1, Ordering::Relaxed) % servers.len();
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(&servers[number])).await;
        if let Ok(Ok(mut server)) = connected {
            // A connection that breaks on one side is closed on the other.
            let _ = copy_bidirectional(&mut client, &mut server).await;
            return;
        }
    }
}
