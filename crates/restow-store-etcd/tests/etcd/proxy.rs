//! A TCP proxy that can fail like a network: connections that are cut, and connections that fall silent.

use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What the network does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weather {
    /// Everything passes.
    Fair,
    /// New connections are accepted and closed, old ones are closed.
    Cut,
    /// Connections stay open or are accepted, and nothing passes. What is begun in it never recovers.
    Silent,
}

/// A running proxy; it ends when dropped.
pub(crate) struct Proxy {
    address: SocketAddr,
    weather: watch::Sender<Weather>,
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (weather, seen) = watch::channel(Weather::Fair);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                connections.spawn(forward(client, port, seen.clone()));
            }
        });
        Proxy { address, weather, task }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn set(&self, weather: Weather) {
        self.weather.send_replace(weather);
    }

    /// Closes all connections; new ones work.
    pub(crate) async fn cut_once(&self) {
        self.set(Weather::Cut);
        tokio::task::yield_now().await;
        // Connections look at the weather when it changes; they must have seen the storm before it clears.
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        self.set(Weather::Fair);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn forward(mut client: TcpStream, port: u16, mut weather: watch::Receiver<Weather>) {
    let begun_in = *weather.borrow_and_update();
    if begun_in == Weather::Cut {
        return;
    }
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)).await else { return };
    let (mut up, mut down) = (vec![0; 65536], vec![0; 65536]);
    let mut silent = begun_in == Weather::Silent;
    loop {
        tokio::select! {
            changed = weather.changed() => {
                if changed.is_err() || *weather.borrow_and_update() == Weather::Cut {
                    return;
                }
                silent = silent || *weather.borrow() == Weather::Silent;
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
