//! A client that sends whatever bytes it is given.

use crate::cluster::Server;
use base64::Engine;
use rustls::client::WantsClientCert;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ConfigBuilder};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Far longer than any answer takes on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// Who a client says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Stranger,
    Admin,
}

/// How to connect to a server.
pub(crate) struct Raw {
    address: String,
    tls: TlsConnector,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    /// The head and the body, as they came.
    pub(crate) text: String,
}

impl Raw {
    pub(crate) fn new(server: &Server, who: Who) -> Self {
        let kubeconfig = std::fs::read_to_string(&server.kubeconfig).unwrap();
        let kubeconfig: Value = serde_saphyr::from_str(&kubeconfig).unwrap();
        let authority = decoded(&kubeconfig["clusters"][0]["cluster"]["certificate-authority-data"]);
        let builder = trusting(&authority);
        let config = match who {
            Who::Stranger => builder.with_no_client_auth(),
            Who::Admin => {
                let user = &kubeconfig["users"][0]["user"];
                let chain = decoded(&user["client-certificate-data"]);
                let chain = CertificateDer::pem_slice_iter(&chain).collect::<Result<Vec<_>, _>>().unwrap();
                let key = decoded(&user["client-key-data"]);
                builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(&key).unwrap()).unwrap()
            }
        };
        Raw { address: server.address.clone(), tls: TlsConnector::from(Arc::new(config)) }
    }

    /// A stranger at another address, whose authority is given in base64.
    pub(crate) fn to(address: &str, authority: &str) -> Self {
        let config = trusting(&decoded(&authority.into())).with_no_client_auth();
        Raw { address: address.to_string(), tls: TlsConnector::from(Arc::new(config)) }
    }

    /// A connection with nothing sent on it yet.
    pub(crate) async fn connect(&self) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(&self.address).await?;
        let name = ServerName::try_from("127.0.0.1").unwrap();
        self.tls.connect(name, stream).await
    }

    /// Sends bytes on a connection of their own, and reads until the server closes it.
    pub(crate) async fn try_send(&self, bytes: &[u8]) -> std::io::Result<Answer> {
        let exchange = async {
            let mut stream = self.connect().await?;
            stream.write_all(bytes).await?;
            let mut read = Vec::new();
            // A server that closes without saying so has said what it had to say.
            let _ = stream.read_to_end(&mut read).await;
            let text = String::from_utf8_lossy(&read).into_owned();
            let code = text.split(' ').nth(1).and_then(|code| code.parse().ok());
            Ok(Answer { code: code.ok_or_else(|| std::io::Error::other(format!("no answer: {text:?}")))?, text })
        };
        let outcome = tokio::time::timeout(LONG, exchange).await;
        outcome.unwrap_or_else(|_| Err(std::io::Error::other("no answer in time")))
    }

    pub(crate) async fn send(&self, bytes: &[u8]) -> Answer {
        self.try_send(bytes).await.unwrap_or_else(|error| panic!("{}: {error}", String::from_utf8_lossy(bytes)))
    }

    /// A request with a body.
    pub(crate) async fn request(&self, method: &str, path: &str, headers: &str, body: &str) -> Answer {
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {length}\r\n");
        self.send(format!("{head}{headers}\r\n{body}").as_bytes()).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.request("GET", path, "", "").await
    }
}

fn trusting(authority: &[u8]) -> ConfigBuilder<ClientConfig, WantsClientCert> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    builder.with_root_certificates(roots)
}

fn decoded(text: &Value) -> Vec<u8> {
    base64::engine::general_purpose::STANDARD.decode(text.as_str().unwrap()).unwrap()
}
