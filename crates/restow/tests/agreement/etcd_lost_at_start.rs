//! `restow serve` loses etcd again right after it has reached it: it keeps trying.

use crate::fleet::Fleet;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};

/// How long etcd is away.
const AWAY: Duration = Duration::from_secs(3);
/// How many bytes the server sends to etcd before that: from its first request on through all that it does while it starts.
const BYTES: [usize; 8] = [300, 600, 900, 1_200, 1_600, 2_400, 4_000, 8_000];

/// Forwards connections to etcd. After so many bytes of the client it closes all of them, and refuses others for a while.
async fn forward(listener: TcpListener, etcd: u16, bytes: usize) {
    let address = listener.local_addr().unwrap();
    let (mut client, _) = listener.accept().await.unwrap();
    let mut server = TcpStream::connect(("127.0.0.1", etcd)).await.unwrap();
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let forward = async {
        let (mut left, mut buffer) = (bytes, [0; 64]);
        while left > 0 {
            let count = from_client.read(&mut buffer[..left.min(64)]).await.unwrap_or_default();
            if count == 0 || to_server.write_all(&buffer[..count]).await.is_err() {
                return;
            }
            left -= count;
        }
    };
    tokio::select! {
        () = forward => {}
        _ = copy(&mut from_server, &mut to_client) => {}
    }
    drop((client, server, listener));
    tokio::time::sleep(AWAY).await;
    let listener = TcpListener::bind(address).await.unwrap();
    while let Ok((mut client, _)) = listener.accept().await {
        tokio::spawn(async move {
            let mut server = TcpStream::connect(("127.0.0.1", etcd)).await.unwrap();
            let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
        });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_loses_etcd_while_it_starts_keeps_trying() {
    let mut fleet = Fleet::of(BYTES.len()).await;
    let mut endpoints = Vec::new();
    for bytes in BYTES {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        endpoints.push(format!("http://{}", listener.local_addr().unwrap()));
        tokio::spawn(forward(listener, fleet.etcd().port(), bytes));
    }
    fleet.start_together_at(&endpoints, "1.31");
}
