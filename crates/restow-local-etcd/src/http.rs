//! A minimal HTTP client: one GET request to a server on this machine, for its health and its metrics.

use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const TIMEOUT: Duration = Duration::from_secs(2);

/// The response body of `GET path` from this port of 127.0.0.1.
pub(crate) async fn get(port: u16, path: &str) -> io::Result<String> {
    let exchange = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        // HTTP/1.0: the response is not chunked, and ends when the connection is closed.
        stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes()).await?;
        let mut response = Vec::new();
        stream.read_to_end(&mut response).await?;
        let response = String::from_utf8_lossy(&response).into_owned();
        Ok(response.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
    };
    timeout(TIMEOUT, exchange).await.unwrap_or(Err(io::ErrorKind::TimedOut.into()))
}
