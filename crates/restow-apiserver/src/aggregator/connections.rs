//! Connections to the servers behind one APIService, kept open and shared by requests.
//!
//! With HTTP/2 a connection carries many requests. Their number is bounded, because a watch occupies a stream for long, and the
//! window of a connection holds what all of its streams may have unread, so that a client that does not read holds up nobody
//! else. A request is sent again on another connection only if nothing of it was sent.

use bytes::Bytes;
use http::{HeaderValue, Request, Response, Uri, header};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// How long establishing a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The most requests on one HTTP/2 connection. Servers allow at least 100.
const STREAMS: usize = 100;
/// How much of one response may be unread.
const STREAM_WINDOW: u32 = 256 << 10;
/// How much of all responses on a connection may be unread: more than all of its streams.
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * (STREAMS as u32 + 1);
/// The interval of keep-alive pings, and how long their response may take.
const PING: Duration = Duration::from_secs(15);
/// The most connections that idle for one address (HTTP/1.1).
const IDLE: usize = 32;

/// The body of a request to a server.
pub(crate) type RequestBody = UnsyncBoxBody<Bytes, Box<dyn Error + Send + Sync>>;

/// Why a request was not answered.
#[derive(Debug, Error)]
pub(super) enum SendError {
    /// No connection could be established. Nothing was sent.
    #[error("{reason}")]
    Connect {
        /// The cause.
        reason: String,
        /// The request.
        request: Box<Request<RequestBody>>,
    },
    /// The connection failed after something was sent.
    #[error("{0}")]
    Exchange(String),
}

/// The body of a response.
pub(crate) struct ResponseBody {
    body: Incoming,
    /// Counts the streams of an HTTP/2 connection.
    _stream: Option<Arc<()>>,
}

/// The connections to the servers behind one APIService.
pub(super) struct Connections {
    shared: Arc<ClientConfig>,
    /// For connections that are upgraded to another protocol: HTTP/1.1 only.
    upgradable: Arc<ClientConfig>,
    name: ServerName<'static>,
    hosts: Mutex<BTreeMap<String, Arc<Host>>>,
}

/// The connections to one address.
struct Host {
    address: String,
    pool: Mutex<Pool>,
    /// Whether the server speaks only HTTP/1.1.
    only_http1: AtomicBool,
    /// Held while a connection is established: requests wait for one HTTP/2 connection instead of opening many. Holds the last
    /// failure and its time, for those that waited for it.
    connecting: tokio::sync::Mutex<Option<(Instant, String)>>,
}

#[derive(Default)]
struct Pool {
    http2: Vec<Http2>,
    http1: Vec<http1::SendRequest<RequestBody>>,
}

#[derive(Clone)]
struct Http2 {
    sender: http2::SendRequest<RequestBody>,
    /// One reference here, and one for each stream.
    streams: Arc<()>,
}

/// A connection for one request.
enum Lease {
    Http2(Http2),
    Http1(http1::SendRequest<RequestBody>),
}

/// Whether a request uses a connection that was established before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    Reuse,
    New,
}

impl Connections {
    /// Connections with this TLS configuration to servers of this name.
    pub(super) fn new(config: ClientConfig, name: ServerName<'static>) -> Self {
        let (mut shared, mut upgradable) = (config.clone(), config);
        shared.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        upgradable.alpn_protocols = vec![b"http/1.1".to_vec()];
        Connections { shared: Arc::new(shared), upgradable: Arc::new(upgradable), name, hosts: Mutex::default() }
    }

    /// Sends a request to an address, on a connection that is open or on a new one.
    pub(super) async fn send(
        &self,
        address: &str,
        mut request: Request<RequestBody>,
    ) -> Result<Response<ResponseBody>, SendError> {
        let host = self.host(address);
        for attempt in [Attempt::Reuse, Attempt::Reuse, Attempt::New] {
            let lease = match host.lease().filter(|_| attempt == Attempt::Reuse) {
                Some(lease) => lease,
                None => match self.connect(&host).await {
                    Ok(lease) => lease,
                    Err(reason) => return Err(SendError::Connect { reason, request: Box::new(request) }),
                },
            };
            match lease.send(&host, request).await {
                Ok(response) => return Ok(response),
                Err((Some(unsent), _)) if attempt == Attempt::Reuse => request = unsent,
                Err((_, reason)) => return Err(SendError::Exchange(reason)),
            }
        }
        Err(SendError::Exchange("the connection was closed".into()))
    }

    /// Sends a request on a connection of its own, which can be upgraded to another protocol.
    pub(super) async fn send_upgradable(
        &self,
        address: &str,
        request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, SendError> {
        let stream = match self.dial(address, &self.upgradable).await {
            Ok(stream) => stream,
            Err(reason) => return Err(SendError::Connect { reason, request: Box::new(request) }),
        };
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|error| SendError::Exchange(cause(&error)))?;
        restow_host::spawn(connection.with_upgrades());
        let sent = sender.send_request(as_http1(request)).await;
        sent.map_err(|error| SendError::Exchange(cause(&error)))
    }

    fn host(&self, address: &str) -> Arc<Host> {
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        let host = hosts.entry(address.to_string()).or_insert_with(|| Arc::new(Host::new(address)));
        host.clone()
    }

    /// Forgets the connections to addresses that are gone. Running requests continue.
    pub(super) fn keep_only(&self, addresses: &[String]) {
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        hosts.retain(|address, _| addresses.contains(address));
    }

    async fn connect(&self, host: &Host) -> Result<Lease, String> {
        if host.only_http1.load(Ordering::Relaxed) {
            return self.establish(host).await;
        }
        let began = Instant::now();
        let mut failure = host.connecting.lock().await;
        if let Some(lease) = host.lease() {
            return Ok(lease);
        }
        if let Some((time, reason)) = failure.as_ref().filter(|(time, _)| *time >= began) {
            tracing::trace!(?time, "another request has just failed to connect");
            return Err(reason.clone());
        }
        let established = self.establish(host).await;
        *failure = established.as_ref().err().map(|reason| (Instant::now(), reason.clone()));
        established
    }

    async fn establish(&self, host: &Host) -> Result<Lease, String> {
        let stream = self.dial(&host.address, &self.shared).await?;
        if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
            host.only_http1.store(true, Ordering::Relaxed);
            let handshake = http1::handshake(TokioIo::new(stream)).await;
            let (sender, connection) = handshake.map_err(|error| cause(&error))?;
            restow_host::spawn(connection);
            return Ok(Lease::Http1(sender));
        }
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .keep_alive_interval(PING)
            .keep_alive_timeout(PING);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(|error| cause(&error))?;
        restow_host::spawn(connection);
        let http2 = Http2 { sender, streams: Arc::new(()) };
        host.pool().http2.push(http2.clone());
        Ok(Lease::Http2(http2))
    }

    async fn dial(&self, address: &str, config: &Arc<ClientConfig>) -> Result<TlsStream<TcpStream>, String> {
        let connecting = async {
            let stream = TcpStream::connect(address).await.map_err(|error| dial_error(address, &error))?;
            // Send small requests at once.
            let _ = stream.set_nodelay(true);
            let connector = TlsConnector::from(config.clone());
            connector.connect(self.name.clone(), stream).await.map_err(|error| format!("tls: {error}"))
        };
        match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
            Ok(connected) => connected,
            Err(_) => Err(format!("dial tcp {address}: i/o timeout")),
        }
    }
}

/// The text of a failed connect, as Go writes it.
fn dial_error(address: &str, error: &io::Error) -> String {
    let reason = match error.kind() {
        io::ErrorKind::ConnectionRefused => "connect: connection refused".to_string(),
        io::ErrorKind::HostUnreachable => "connect: no route to host".to_string(),
        io::ErrorKind::NetworkUnreachable => "connect: network is unreachable".to_string(),
        io::ErrorKind::TimedOut => "connect: connection timed out".to_string(),
        _ => error.to_string(),
    };
    format!("dial tcp {address}: {reason}")
}

impl Host {
    fn new(address: &str) -> Self {
        Host {
            address: address.to_string(),
            pool: Mutex::default(),
            only_http1: AtomicBool::new(false),
            connecting: tokio::sync::Mutex::new(None),
        }
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An open connection with room for a request.
    fn lease(&self) -> Option<Lease> {
        let mut pool = self.pool();
        pool.http2.retain(|connection| !connection.sender.is_closed());
        if let Some(found) = pool.http2.iter().find(|connection| connection.has_room()) {
            return Some(Lease::Http2(found.clone()));
        }
        pool.http1.retain(|sender| !sender.is_closed());
        let ready = pool.http1.iter().rposition(http1::SendRequest::is_ready)?;
        Some(Lease::Http1(pool.http1.swap_remove(ready)))
    }
}

impl Http2 {
    fn has_room(&self) -> bool {
        Arc::strong_count(&self.streams) <= STREAMS
    }
}

impl Lease {
    /// Sends a request. An error comes with the request if nothing of it was sent.
    async fn send(
        self,
        host: &Arc<Host>,
        request: Request<RequestBody>,
    ) -> Result<Response<ResponseBody>, (Option<Request<RequestBody>>, String)> {
        match self {
            Lease::Http2(Http2 { mut sender, streams }) => match sender.try_send_request(request).await {
                Ok(response) => Ok(response.map(|body| ResponseBody { body, _stream: Some(streams) })),
                Err(mut error) => Err((error.take_message(), cause(error.error()))),
            },
            Lease::Http1(mut sender) => match sender.try_send_request(as_http1(request)).await {
                Ok(response) => {
                    restow_host::spawn(give_back(host.clone(), sender));
                    Ok(response.map(|body| ResponseBody { body, _stream: None }))
                }
                Err(mut error) => Err((error.take_message(), cause(error.error()))),
            },
        }
    }
}

/// Keeps an HTTP/1.1 connection for later requests when the response has been read.
async fn give_back(host: Arc<Host>, mut sender: http1::SendRequest<RequestBody>) {
    if sender.ready().await.is_ok() {
        let mut pool = host.pool();
        if pool.http1.len() < IDLE {
            pool.http1.push(sender);
        }
    }
}

/// A request as HTTP/1.1 has it: the host in a header. A request that was converted already stays as it is.
fn as_http1(mut request: Request<RequestBody>) -> Request<RequestBody> {
    let host = request.uri().authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
    if let Some(host) = host {
        request.headers_mut().insert(header::HOST, host);
        let path = request.uri().path_and_query().cloned();
        *request.uri_mut() = path.map(Uri::from).unwrap_or_default();
    }
    request
}

/// The innermost error of the chain.
fn cause(error: &dyn Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
