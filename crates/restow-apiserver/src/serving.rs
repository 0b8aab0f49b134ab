//! The connections of every listener: accept, TLS, limits, close.
//!
//! The API server, the guard and the controller's metrics listen with the same code, so that none of them can be kept busy by
//! clients that send nothing: a connection must bring a request in time, is closed when it idles, and counts against a
//! limit for its address until its client has shown credentials (`slots`). Requests are not interpreted here.

pub(crate) mod authority;
mod body;
mod host;
pub mod pki;
mod slots;
mod stall_timeout;

pub(crate) use body::ResponseGuard;
use body::TrackedBody;
use http_body_util::Either;
use hyper::body::{Body, Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use slots::{CloseDecision, ConnectionSlot, ConnectionSlots};
pub use slots::{Connection, ConnectionLimits};
use stall_timeout::StallTimeout;
use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;

/// The largest request head. A client that impersonates a user with many groups sends one header for each.
const MAX_HEAD_BYTES: usize = 256 << 10;
/// The most headers of a request; the size of the head limits them earlier unless they are tiny.
const MAX_HEADERS: usize = 8192;
/// How many requests may run on one connection at once. Go's server has the same number, so clients are used to it.
const MAX_STREAMS: u32 = 250;
/// The interval of HTTP/2 keep-alive pings.
const PING: Duration = Duration::from_secs(30);
/// How long to wait after accepting a connection failed, so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The shortest time between two warnings that no connection can be accepted.
const WARN_INTERVAL: Duration = Duration::from_secs(60);
/// How often a connection that closes gracefully is checked for requests that are still running.
const GRACEFUL_CLOSE_CHECK: Duration = Duration::from_secs(1);

/// Handles the requests of a listener.
pub trait Handler: Send + Sync + 'static {
    /// What is known of a client from its connection.
    type Peer: Send + Sync + 'static;
    /// The bodies of the responses.
    type Body: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + Unpin + 'static;

    /// A client has connected; `tls` is the result of the handshake.
    fn connected(&self, connection: &Connection, tls: Option<&rustls::ServerConnection>) -> Self::Peer;

    /// A client did not get through the TLS handshake.
    fn handshake_failed(&self) {}

    /// Handles a request. Its extensions contain the [`Connection`].
    fn handle(
        self: Arc<Self>,
        request: Request<Incoming>,
        peer: Arc<Self::Peer>,
    ) -> impl Future<Output = Response<Self::Body>> + Send;
}

/// The transport of a listener.
#[derive(Clone)]
pub enum Transport {
    /// Plain TCP.
    Plain,
    /// TLS, with the configuration that this returns for each new connection.
    Tls(Arc<dyn Fn() -> Arc<rustls::ServerConfig> + Send + Sync>),
}

/// Serves until `stop` completes. Then nothing more is accepted, `stopping` is called, and running requests may finish.
pub async fn serve<H: Handler>(
    listener: TcpListener,
    transport: Transport,
    limits: ConnectionLimits,
    handler: Arc<H>,
    stop: impl Future<Output = ()>,
    stopping: impl FnOnce(),
) {
    let drain = limits.drain_timeout;
    let slots = Arc::new(ConnectionSlots::new(limits));
    let stopped = watch::Sender::new(false);
    tokio::select! {
        () = accept_all(&listener, &transport, &slots, &handler, &stopped) => {}
        () = stop => {}
    }
    drop(listener);
    stopping();
    stopped.send_replace(true);
    if tokio::time::timeout(drain, stopped.closed()).await.is_err() {
        tracing::warn!("some requests were still running when the server stopped");
    }
}

/// Accepts connections, also after errors.
async fn accept_all<H: Handler>(
    listener: &TcpListener,
    transport: &Transport,
    slots: &Arc<ConnectionSlots>,
    handler: &Arc<H>,
    stopped: &watch::Sender<bool>,
) {
    let mut warned: Option<Instant> = None;
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                // Without a free slot the connection is closed at once. A queue would only grow.
                let Some(slot) = slots.acquire(address.ip()) else { continue };
                let (transport, handler, stopped) = (transport.clone(), handler.clone(), stopped.subscribe());
                restow_host::spawn(connection(stream, transport, handler, slot, stopped));
            }
            Err(error) => {
                if warned.is_none_or(|warned| warned.elapsed() > WARN_INTERVAL) {
                    warned = Some(Instant::now());
                    tracing::warn!(%error, "cannot accept connections; closing idle ones");
                }
                // Usually out of file descriptors. Closing an idle connection frees one.
                slots.close_idle_connection();
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection<H: Handler>(
    stream: TcpStream,
    transport: Transport,
    handler: Arc<H>,
    slot: ConnectionSlot,
    stopped: watch::Receiver<bool>,
) {
    // Send small responses at once.
    let _ = stream.set_nodelay(true);
    let stream = StallTimeout::new(stream, slot.limits().stall_timeout);
    let Transport::Tls(config) = transport else {
        let peer = handler.connected(slot.connection(), None);
        return serve_connection(stream, handler, peer, slot, stopped).await;
    };
    let secured = tokio::select! {
        secured = TlsAcceptor::from(config()).accept(stream) => secured.ok(),
        () = tokio::time::sleep_until(slot.handshake_deadline()) => None,
        () = slot.evicted() => None,
    };
    let Some(stream) = secured else { return handler.handshake_failed() };
    let peer = handler.connected(slot.connection(), Some(stream.get_ref().1));
    serve_connection(stream, handler, peer, slot, stopped).await;
}

/// Serves the requests of one connection until it is closed.
async fn serve_connection<H: Handler>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    handler: Arc<H>,
    peer: H::Peer,
    slot: ConnectionSlot,
    mut stopped: watch::Receiver<bool>,
) {
    let (peer, connection) = (Arc::new(peer), slot.connection().clone());
    let service = service_fn(move |mut request: Request<Incoming>| {
        let (handler, peer, connection) = (handler.clone(), peer.clone(), connection.clone());
        async move {
            let active = connection.begin_request();
            if let Some(problem) = host::problem(&request) {
                connection.close();
                return Ok::<_, Infallible>(host::refusal(problem).map(Either::Right));
            }
            request.extensions_mut().insert(connection);
            let version = request.version();
            let mut response = handler.handle(request, peer).await;
            let guard = response.extensions_mut().remove::<ResponseGuard>();
            Ok(response.map(|body| Either::Left(TrackedBody::new(body, version, active, guard))))
        }
    });
    let builder = builder(slot.limits());
    let mut http_connection = std::pin::pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), service));
    let mut stopping = *stopped.borrow();
    if stopping {
        http_connection.as_mut().graceful_shutdown();
    }
    let mut until = slot.first_check();
    let decision = loop {
        tokio::select! {
            outcome = http_connection.as_mut() => {
                if let Err(error) = outcome {
                    tracing::debug!(error, address = %slot.connection().address(), "connection ended with an error");
                }
                return slot.upgrades_ended().await;
            }
            decision = slot.close_decision(until) => match decision {
                CloseDecision::KeepUntil(later) => until = later,
                decision => break decision,
            },
            _ = stopped.changed(), if !stopping => {
                stopping = true;
                http_connection.as_mut().graceful_shutdown();
            }
        }
    };
    if let CloseDecision::Graceful = decision {
        // Requests that were sent already are handled; for new ones the client needs another connection.
        http_connection.as_mut().graceful_shutdown();
        while tokio::time::timeout(GRACEFUL_CLOSE_CHECK, http_connection.as_mut()).await.is_err()
            && slot.connection().is_in_use()
            && !slot.is_stalled()
        {}
    }
}

fn builder(limits: &ConnectionLimits) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    let http1 = &mut builder.http1();
    http1
        .timer(TokioTimer::new())
        .header_read_timeout(limits.idle_timeout)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS);
    let http2 = &mut builder.http2();
    http2.timer(TokioTimer::new()).max_concurrent_streams(MAX_STREAMS).keep_alive_interval(PING);
    http2.max_header_list_size(MAX_HEAD_BYTES as u32);
    builder
}

#[cfg(test)]
mod tests;
