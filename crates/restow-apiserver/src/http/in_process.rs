//! Requests of clients in the same process, without a connection: a server inside a test or a simulation.

use crate::auth::ClientCertificates;
use crate::http::connections::Peer;
use crate::http::dispatch;
use crate::server::ApiServer;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use restow_auth::User;
use restow_auth::authenticate::ClientCertificate;
use std::error::Error;
use std::net::{IpAddr, Ipv4Addr};

/// The body of a response in the same process.
pub type InProcessBody = UnsyncBoxBody<Bytes, Box<dyn Error + Send + Sync>>;

/// Responds to a request of this user, as if the user had sent a client certificate. The server must be able to read the
/// request's body at once.
pub async fn call<B>(server: &ApiServer, request: Request<B>, user: User) -> Response<InProcessBody>
where
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let certificates = ClientCertificates { user: Some(Ok(ClientCertificate::of(user))), front_proxy: None };
    let peer = Peer { address: IpAddr::V4(Ipv4Addr::LOCALHOST), certificates };
    let response = dispatch::handle(server, request, &peer).await;
    response.map(|body| body.map_err(|interrupted| interrupted.into()).boxed_unsync())
}
