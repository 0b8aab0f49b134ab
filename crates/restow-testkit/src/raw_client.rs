//! A client that sends any bytes, each time on a new TLS connection.

use crate::credentials::Credentials;
use crate::server::Server;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Far longer than any response takes on a busy machine.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(120);

/// A client of one server.
pub struct RawClient {
    address: String,
    tls: TlsConnector,
}

/// The bytes that a server sent until it closed the connection.
#[derive(Debug)]
pub struct RawResponse {
    /// The status code.
    pub code: u16,
    /// The head and the body.
    pub text: String,
}

impl RawClient {
    /// Connects to an address with these credentials.
    pub fn new(address: &str, credentials: &Credentials) -> Self {
        RawClient { address: address.to_string(), tls: TlsConnector::from(credentials.tls()) }
    }

    /// The administrator of a server.
    pub fn admin(server: &Server) -> Self {
        Self::new(&server.address, &Credentials::of(&server.kubeconfig))
    }

    /// A client of a server without credentials.
    pub fn anonymous(server: &Server) -> Self {
        Self::new(&server.address, &Credentials::of(&server.kubeconfig).without_certificate())
    }

    /// A new connection.
    pub async fn connect(&self) -> io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(&self.address).await?;
        let name = rustls::pki_types::ServerName::try_from("127.0.0.1").unwrap();
        self.tls.connect(name, stream).await
    }

    /// Sends bytes on a new connection, and reads until the server closes it.
    pub async fn try_send(&self, bytes: &[u8]) -> io::Result<RawResponse> {
        let exchange = async {
            let mut stream = self.connect().await?;
            stream.write_all(bytes).await?;
            let mut read = Vec::new();
            // A server that closes the connection without a TLS alert may still have sent a response.
            let _ = stream.read_to_end(&mut read).await;
            let text = String::from_utf8_lossy(&read).into_owned();
            let code = text.split(' ').nth(1).and_then(|code| code.parse().ok());
            Ok(RawResponse { code: code.ok_or_else(|| io::Error::other(format!("no response: {text:?}")))?, text })
        };
        let outcome = tokio::time::timeout(RESPONSE_TIMEOUT, exchange).await;
        outcome.unwrap_or_else(|_| Err(io::Error::other("no response in time")))
    }

    /// Sends bytes and requires a response.
    pub async fn send(&self, bytes: &[u8]) -> RawResponse {
        self.try_send(bytes).await.unwrap_or_else(|error| panic!("{}: {error}", String::from_utf8_lossy(bytes)))
    }

    /// Sends a request with a body.
    pub async fn request(&self, method: &str, path: &str, headers: &str, body: &str) -> RawResponse {
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {length}\r\n");
        self.send(format!("{head}{headers}\r\n{body}").as_bytes()).await
    }

    /// Sends a GET request.
    pub async fn get(&self, path: &str) -> RawResponse {
        self.request("GET", path, "", "").await
    }
}
