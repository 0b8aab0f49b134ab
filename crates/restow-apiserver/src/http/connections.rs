//! The API server's connections: the client's address and certificate, and the connection limits.

use crate::flow_control::limits::LoadLimits;
use crate::http::body::Body;
use crate::http::dispatch;
use crate::server::ApiServer;
use crate::serving::{self, Connection, ConnectionLimits, Handler, Transport};
use hyper::body::Incoming;
use hyper::{Request, Response};
use prometheus_client::metrics::gauge::Gauge;
use restow_auth::authenticate::{CertificateError, ClientCertificate};
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::net::TcpListener;

/// The client of a connection.
pub(crate) struct Peer {
    /// Its address.
    pub(crate) address: IpAddr,
    /// Its certificate, if it has sent one.
    pub(crate) certificate: Option<Result<ClientCertificate, CertificateError>>,
}

/// Serves a server's API on a listener until `stop` completes, then lets running requests finish.
pub async fn serve(
    server: Arc<ApiServer>,
    listener: TcpListener,
    tls: Arc<rustls::ServerConfig>,
    stop: impl Future<Output = ()>,
) {
    let transport = Transport::Tls(Arc::new(move || tls.clone()));
    let limits = connection_limits(server.limits());
    let handler = Arc::new(RequestHandler(server.clone()));
    serving::serve(listener, transport, limits, handler, stop, || server.core.stop()).await;
}

fn connection_limits(limits: &LoadLimits) -> ConnectionLimits {
    ConnectionLimits {
        max_connections: limits.connections,
        unauthenticated_per_address: (limits.connections / 8).clamp(16, 1000),
        handshake_timeout: limits.handshake_timeout,
        first_request_timeout: limits.head_timeout,
        idle_timeout: limits.idle_timeout,
        stall_timeout: limits.stall_timeout,
        drain_timeout: limits.drain,
    }
}

/// Passes requests to the API server.
struct RequestHandler(Arc<ApiServer>);

/// A client, counted in the gauge of open connections.
struct Client {
    peer: Peer,
    open: Gauge,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.open.dec();
    }
}

impl Handler for RequestHandler {
    type Peer = Client;
    type Body = Body;

    fn connected(&self, connection: &Connection, tls: Option<&rustls::ServerConnection>) -> Client {
        let open = self.0.metrics().requests.connections.clone();
        open.inc();
        Client { peer: Peer { address: connection.address(), certificate: tls.and_then(certificate_of) }, open }
    }

    fn handshake_failed(&self) {
        self.0.metrics().requests.handshake_errors.inc();
    }

    async fn handle(self: Arc<Self>, request: Request<Incoming>, client: Arc<Client>) -> Response<Body> {
        dispatch::handle(&self.0, request, &client.peer).await
    }
}

/// The client's certificate; TLS has verified it.
fn certificate_of(tls: &rustls::ServerConnection) -> Option<Result<ClientCertificate, CertificateError>> {
    tls.peer_certificates().map(ClientCertificate::read)
}
