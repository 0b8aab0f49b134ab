//! The connections of every listener: accepting them, securing them, and ending them.
//!
//! The API server, the guard and the controller's metrics listen with the same code, so that none of them can be kept busy by
//! clients that send nothing: a connection has to bring a request in time, is closed when it idles, and counts against a
//! limit for its address until its client has shown credentials (`places`). What a request is about is not known here.

mod body;
mod host;
pub mod pki;
mod slots;
mod stall;

pub(crate) use body::Held;
use body::InUse;
use http_body_util::Either;
use hyper::body::{Body, Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use slots::{Admission, Ending, Place, Places};
pub use slots::{Connection, ConnectionLimits};
use stall::StallGuard;
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

/// The most that the head of a request may take. A client that acts for a user in many groups sends a header for each.
const MAX_HEAD: usize = 256 << 10;
/// The most headers of a request; the size of the head limits them earlier unless they are tiny.
const MAX_HEADERS: usize = 8192;
/// How many requests may run on one connection at once. Go's server has the same number, so clients are used to it.
const MAX_STREAMS: u32 = 250;
/// How often a silent client is asked whether it is still there.
const PING: Duration = Duration::from_secs(30);
/// How long to wait when no connection can be accepted: going on at once would only spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How often it is told that no connection can be accepted.
const TOLD_AGAIN: Duration = Duration::from_secs(60);
/// How long a client has to take notice that its connection ends, where the place is needed.
const PARTING: Duration = Duration::from_secs(1);

/// Answers the requests of a listener.
pub trait Handler: Send + Sync + 'static {
    /// What is known of a client from its connection.
    type Peer: Send + Sync + 'static;
    /// The bodies of the answers.
    type Body: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + Unpin + 'static;

    /// A client has connected; `tls` is what the handshake told.
    fn connected(&self, connection: &Connection, tls: Option<&rustls::ServerConnection>) -> Self::Peer;

    /// A client did not get through the TLS handshake.
    fn handshake_failed(&self) {}

    /// Answers a request. Its extensions hold the [`Connection`].
    fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        peer: Arc<Self::Peer>,
    ) -> impl Future<Output = Response<Self::Body>> + Send;
}

/// How the bytes of a connection are protected.
#[derive(Clone)]
pub enum Transport {
    /// Not at all.
    Plain,
    /// By TLS, with what this gives for each new connection.
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
    let drain = limits.drain;
    let places = Arc::new(Places::new(limits));
    let stopped = watch::Sender::new(false);
    tokio::select! {
        () = accept_all(&listener, &transport, &places, &handler, &stopped) => {}
        () = stop => {}
    }
    drop(listener);
    stopping();
    stopped.send_replace(true);
    if tokio::time::timeout(drain, stopped.closed()).await.is_err() {
        tracing::warn!("some requests were still running when the server stopped");
    }
}

/// Accepts connections for as long as it runs, whatever happens.
async fn accept_all<H: Handler>(
    listener: &TcpListener,
    transport: &Transport,
    places: &Arc<Places>,
    handler: &Arc<H>,
    stopped: &watch::Sender<bool>,
) {
    let mut told: Option<Instant> = None;
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                // A client that finds no place is closed at once; whoever waited would only pile up.
                let Admission::Admitted(place) = places.admit(address.ip()) else { continue };
                let (transport, handler, stopped) = (transport.clone(), handler.clone(), stopped.subscribe());
                tokio::spawn(connection(stream, transport, handler, place, stopped));
            }
            Err(error) => {
                if told.is_none_or(|told| told.elapsed() > TOLD_AGAIN) {
                    told = Some(Instant::now());
                    tracing::warn!(%error, "connections cannot be accepted; idle ones are closed to make room");
                }
                // Out of file descriptors, usually. Whoever uses none of what it holds gives way.
                places.make_room();
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection<H: Handler>(
    stream: TcpStream,
    transport: Transport,
    handler: Arc<H>,
    place: Place,
    stopped: watch::Receiver<bool>,
) {
    // Small answers must not wait for company.
    let _ = stream.set_nodelay(true);
    let stream = StallGuard::new(stream, place.limits().stall);
    let Transport::Tls(config) = transport else {
        let peer = handler.connected(place.connection(), None);
        return converse(stream, handler, peer, place, stopped).await;
    };
    let secured = tokio::select! {
        secured = TlsAcceptor::from(config()).accept(stream) => secured.ok(),
        () = tokio::time::sleep_until(place.handshake_deadline()) => None,
        () = place.evicted() => None,
    };
    let Some(stream) = secured else { return handler.handshake_failed() };
    let peer = handler.connected(place.connection(), Some(stream.get_ref().1));
    converse(stream, handler, peer, place, stopped).await;
}

/// Serves the requests of one connection, until either side has had enough.
async fn converse<H: Handler>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    handler: Arc<H>,
    peer: H::Peer,
    place: Place,
    mut stopped: watch::Receiver<bool>,
) {
    let (peer, connection) = (Arc::new(peer), place.connection().clone());
    let service = service_fn(move |mut request: Request<Incoming>| {
        let (handler, peer, connection) = (handler.clone(), peer.clone(), connection.clone());
        async move {
            let in_use = connection.in_use();
            if let Some(problem) = host::problem(&request) {
                connection.close();
                return Ok::<_, Infallible>(host::refusal(problem).map(Either::Right));
            }
            request.extensions_mut().insert(connection);
            let version = request.version();
            let mut answer = handler.answer(request, peer).await;
            let held = answer.extensions_mut().remove::<Held>();
            Ok(answer.map(|body| Either::Left(InUse::new(body, version, in_use, held))))
        }
    });
    let builder = builder(place.limits());
    let mut conversation = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    let mut stopping = *stopped.borrow();
    if stopping {
        conversation.as_mut().graceful_shutdown();
    }
    let mut until = place.next_look();
    let ending = loop {
        tokio::select! {
            outcome = conversation.as_mut() => {
                if let Err(error) = outcome {
                    tracing::debug!(error, address = %place.connection().address(), "a connection ended early");
                }
                return;
            }
            ending = place.ending(until) => match ending {
                Ending::NotYet(later) => until = later,
                ending => break ending,
            },
            _ = stopped.changed(), if !stopping => {
                stopping = true;
                conversation.as_mut().graceful_shutdown();
            }
        }
    };
    if let Ending::Polite = ending {
        // Requests that the client had sent already are answered; new ones find out that they need another connection.
        conversation.as_mut().graceful_shutdown();
        while tokio::time::timeout(PARTING, conversation.as_mut()).await.is_err()
            && place.connection().is_in_use()
            && !place.is_stalled()
        {}
    }
}

fn builder(limits: &ConnectionLimits) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    let http1 = &mut builder.http1();
    http1.timer(TokioTimer::new()).header_read_timeout(limits.idle).max_buf_size(MAX_HEAD).max_headers(MAX_HEADERS);
    let http2 = &mut builder.http2();
    http2.timer(TokioTimer::new()).max_concurrent_streams(MAX_STREAMS).keep_alive_interval(PING);
    http2.max_header_list_size(MAX_HEAD as u32);
    builder
}

#[cfg(test)]
mod tests;
