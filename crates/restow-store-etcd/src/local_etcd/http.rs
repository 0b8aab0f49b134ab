//! Just enough HTTP to ask a server on this machine how it is.

use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(2);

/// The body of a page of the server at this port of 127.0.0.1.
pub(super) async fn get(port: u16, path: &str) -> io::Result<String> {
    let exchange = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        // Version 1.0: the answer is not chunked, and ends with the connection.
        stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        Ok(answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
    };
    timeout(PATIENCE, exchange).await.unwrap_or(Err(io::ErrorKind::TimedOut.into()))
}
