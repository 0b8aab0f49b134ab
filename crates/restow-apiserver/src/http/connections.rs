//! Connections: accepting them, TLS, and ending them gracefully.

use crate::auth::User;
use crate::auth::authenticate::user_of_certificate;
use crate::http::dispatch;
use crate::server::ApiServer;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// How long a client may take for its TLS handshake or for the head of its request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long requests that run may go on after the server was asked to stop.
const DRAIN: Duration = Duration::from_secs(5);

/// Serves until `stop` completes, then lets running requests finish.
pub(crate) async fn serve(
    server: Arc<ApiServer>,
    listener: TcpListener,
    tls: Arc<rustls::ServerConfig>,
    stop: impl Future<Output = ()>,
) {
    let acceptor = TlsAcceptor::from(tls);
    let graceful = Arc::new(GracefulShutdown::new());
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut stop => break,
        };
        match accepted {
            Ok((stream, _)) => {
                tokio::spawn(connection(server.clone(), stream, acceptor.clone(), graceful.clone()));
            }
            Err(error) => {
                // Out of file descriptors, usually; going on at once would only spin.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    if let Some(graceful) = Arc::into_inner(graceful) {
        let _ = tokio::time::timeout(DRAIN, graceful.shutdown()).await;
    }
}

async fn connection(server: Arc<ApiServer>, stream: TcpStream, acceptor: TlsAcceptor, graceful: Arc<GracefulShutdown>) {
    // Small answers must not wait for company.
    let _ = stream.set_nodelay(true);
    let Ok(Ok(stream)) = tokio::time::timeout(HEAD_TIMEOUT, acceptor.accept(stream)).await else { return };
    let certificate = Arc::new(user_of(&stream));
    let service = service_fn(move |request| {
        let (server, certificate) = (server.clone(), certificate.clone());
        async move { Ok::<_, Infallible>(dispatch::answer(&server, request, certificate.as_ref().as_ref()).await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    builder.http2().timer(TokioTimer::new()).max_concurrent_streams(1000).keep_alive_interval(Duration::from_secs(30));
    let connection = builder.serve_connection(TokioIo::new(stream), service).into_owned();
    let connection = graceful.watch(connection);
    drop(graceful);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// Who the client's certificate says it is; TLS has checked that it is genuine.
fn user_of(stream: &TlsStream<TcpStream>) -> Option<User> {
    let certificate = stream.get_ref().1.peer_certificates()?.first()?;
    match user_of_certificate(certificate) {
        Ok(user) => user,
        Err(error) => {
            tracing::debug!(%error, "a client's certificate says nothing about who it is");
            None
        }
    }
}
