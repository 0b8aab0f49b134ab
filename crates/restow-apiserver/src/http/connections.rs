//! Connections: accepting them, TLS, and ending them gracefully.

use crate::auth::User;
use crate::auth::authenticate::user_of_certificate;
use crate::http::dispatch;
use crate::http::stall::StallGuard;
use crate::server::ApiServer;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use std::convert::Infallible;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// The most that the head of a request may take.
const MAX_HEAD: usize = 64 << 10;
/// How many requests may run on one connection at once.
const MAX_STREAMS: u32 = 1000;
/// How often a silent client is asked whether it is still there.
const PING: Duration = Duration::from_secs(30);

/// Who is at the other end of a connection.
pub(crate) struct Peer {
    /// Where the client is.
    pub(crate) address: IpAddr,
    /// Who its certificate says it is.
    pub(crate) certificate: Option<User>,
}

/// Serves until `stop` completes, then lets running requests finish.
pub(crate) async fn serve(
    server: Arc<ApiServer>,
    listener: TcpListener,
    tls: Arc<rustls::ServerConfig>,
    stop: impl Future<Output = ()>,
) {
    let acceptor = TlsAcceptor::from(tls);
    let graceful = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(server.limits().connections.min(Semaphore::MAX_PERMITS)));
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut stop => break,
        };
        match accepted {
            Ok((stream, address)) => {
                // A server with all places taken says so by closing; whoever waits would only pile up.
                let Ok(place) = places.clone().try_acquire_owned() else { continue };
                let arrival = Arrival { stream, address, place, watcher: graceful.watcher() };
                tokio::spawn(connection(server.clone(), acceptor.clone(), arrival));
            }
            Err(error) => {
                // Out of file descriptors, usually; going on at once would only spin.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    server.stop();
    if tokio::time::timeout(server.limits().drain, graceful.shutdown()).await.is_err() {
        tracing::warn!("some requests were still running when the server stopped");
    }
}

/// A connection that was accepted.
struct Arrival {
    stream: TcpStream,
    address: SocketAddr,
    place: OwnedSemaphorePermit,
    watcher: Watcher,
}

async fn connection(server: Arc<ApiServer>, acceptor: TlsAcceptor, arrival: Arrival) {
    let Arrival { stream, address, place: _place, watcher } = arrival;
    let limits = server.limits().clone();
    // Small answers must not wait for company.
    let _ = stream.set_nodelay(true);
    let stream = StallGuard::new(stream, limits.stall_timeout);
    let Ok(Ok(stream)) = tokio::time::timeout(limits.handshake_timeout, acceptor.accept(stream)).await else {
        server.metrics().requests.handshake_errors.inc();
        return;
    };
    let open = server.metrics().requests.connections.clone();
    open.inc();
    let peer = Arc::new(Peer { address: address.ip(), certificate: user_of(&stream) });
    let service = service_fn(move |request| {
        let (server, peer) = (server.clone(), peer.clone());
        async move { Ok::<_, Infallible>(dispatch::answer(&server, request, &peer).await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(limits.head_timeout).max_buf_size(MAX_HEAD);
    let http2 = &mut builder.http2();
    http2.timer(TokioTimer::new()).max_concurrent_streams(MAX_STREAMS).keep_alive_interval(PING);
    http2.max_header_list_size(MAX_HEAD as u32);
    let connection = builder.serve_connection(TokioIo::new(stream), service).into_owned();
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(%error, %address, "a connection ended early");
    }
    open.dec();
}

/// Who the client's certificate says it is; TLS has checked that it is genuine.
fn user_of<T>(stream: &TlsStream<T>) -> Option<User> {
    let certificate = stream.get_ref().1.peer_certificates()?.first()?;
    match user_of_certificate(certificate) {
        Ok(user) => user,
        Err(error) => {
            tracing::debug!(%error, "a client's certificate says nothing about who it is");
            None
        }
    }
}
