//! The API server's connections: the client's address and certificate, and the connection limits.

use crate::auth::ClientCertificates;
use crate::flow_control::limits::LoadLimits;
use crate::http::body::Body;
use crate::http::dispatch;
use crate::server::{ApiServer, ClientAuthorities};
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
    /// What its certificate says, if it has sent one.
    pub(crate) certificates: ClientCertificates,
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
        let certificates = tls.map(|tls| certificates_of(tls, self.0.authorities())).unwrap_or_default();
        Client { peer: Peer { address: connection.address(), certificates }, open }
    }

    fn handshake_failed(&self) {
        self.0.metrics().requests.handshake_errors.inc();
    }

    async fn handle(self: Arc<Self>, request: Request<Incoming>, client: Arc<Client>) -> Response<Body> {
        dispatch::handle(&self.0, request, &client.peer).await
    }
}

/// What the client's certificate says. TLS has verified that it is of some authority, here it counts of which one.
fn certificates_of(tls: &rustls::ServerConnection, authorities: &ClientAuthorities) -> ClientCertificates {
    let Some(chain) = tls.peer_certificates() else { return ClientCertificates::default() };
    let front_proxy = authorities.front_proxies.as_ref().filter(|authority| authority.has_issued(chain));
    let is_user = authorities.users.as_ref().is_none_or(|authority| authority.has_issued(chain));
    let user = if is_user { ClientCertificate::read(chain) } else { Err(CertificateError::UnknownAuthority) };
    ClientCertificates { user: Some(user), front_proxy: front_proxy.and_then(|_| ClientCertificate::read(chain).ok()) }
}
