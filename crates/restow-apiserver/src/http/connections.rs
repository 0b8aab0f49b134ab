//! The API server's connections: who is at their other end, and how many there may be.

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

/// Who is at the other end of a connection.
pub(crate) struct Peer {
    /// Where the client is.
    pub(crate) address: IpAddr,
    /// What its certificate says, where it has shown one.
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
    let handler = Arc::new(Requests(server.clone()));
    serving::serve(listener, transport, limits, handler, stop, || server.core.stop()).await;
}

fn connection_limits(limits: &LoadLimits) -> ConnectionLimits {
    ConnectionLimits {
        connections: limits.connections,
        unproven_per_address: (limits.connections / 8).clamp(16, 1000),
        handshake: limits.handshake_timeout,
        first_request: limits.head_timeout,
        idle: limits.idle_timeout,
        stall: limits.stall_timeout,
        drain: limits.drain,
    }
}

/// The requests to the API server.
struct Requests(Arc<ApiServer>);

/// A client, and the count of open connections that it is part of.
struct Client {
    peer: Peer,
    open: Gauge,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.open.dec();
    }
}

impl Handler for Requests {
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

    async fn answer(self: Arc<Self>, request: Request<Incoming>, client: Arc<Client>) -> Response<Body> {
        dispatch::answer(&self.0, request, &client.peer).await
    }
}

/// What the client has shown; TLS has checked that it is genuine.
fn certificate_of(tls: &rustls::ServerConnection) -> Option<Result<ClientCertificate, CertificateError>> {
    tls.peer_certificates().map(ClientCertificate::read)
}
