//! Passes a request on to the server behind an APIService, and its response back, both as streams.

use crate::aggregator::backend::{Backend, BackendError};
use crate::aggregator::connections::{RequestBody, ResponseBody};
use crate::aggregator::identity_headers;
use crate::aggregator::tunnel::Tunnel;
use bytes::Bytes;
use http::{HeaderValue, Request, Response, Uri, header};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use restow_auth::User;
use std::error::Error;
use std::net::IpAddr;

/// What is escaped in a path, as Go does.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~')
    .remove(b'$')
    .remove(b'&')
    .remove(b'+')
    .remove(b',')
    .remove(b'/')
    .remove(b':')
    .remove(b';')
    .remove(b'=')
    .remove(b'@');

/// The header by which the audit logs of both servers can be joined.
const AUDIT_ID: &str = "audit-id";

/// On whose behalf a request is passed on.
pub(crate) struct Origin<'a> {
    /// The user, authenticated and authorized.
    pub(crate) user: &'a User,
    /// The address of the client.
    pub(crate) address: IpAddr,
    /// The id of the request in the audit log.
    pub(crate) audit_id: Option<&'a str>,
}

/// The body of a response: that of the server, or nothing for a connection that is upgraded.
pub(crate) type ProxiedBody = UnsyncBoxBody<Bytes, Box<dyn Error + Send + Sync>>;

/// Whether a request asks to upgrade its connection to another protocol.
pub(crate) fn is_upgrade<B>(request: &Request<B>) -> bool {
    let named = |value: &HeaderValue| {
        let text = String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase();
        text.split(',').any(|name| name.trim() == "upgrade")
    };
    request.headers().get_all(header::CONNECTION).iter().any(named)
}

impl Backend {
    /// Passes a request on.
    pub(crate) async fn forward<B>(
        &self,
        request: Request<B>,
        origin: Origin<'_>,
    ) -> Result<Response<ProxiedBody>, BackendError>
    where
        B: hyper::body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let request = prepared(request, origin, &self.via)?;
        let response = self.send(request).await?;
        refuse_redirect(&response)?;
        let mut response = response.map(|body: ResponseBody| body.map_err(Into::into).boxed_unsync());
        identity_headers::strip_hop_by_hop(response.headers_mut());
        Ok(response)
    }

    /// Passes on a request that asks to upgrade its connection. If the server agrees, both connections become one tunnel.
    pub(crate) async fn forward_upgrade<B>(
        &self,
        mut request: Request<B>,
        origin: Origin<'_>,
    ) -> Result<(Response<ProxiedBody>, Option<Tunnel>), BackendError>
    where
        B: hyper::body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let client = hyper::upgrade::on(&mut request);
        let protocol: Vec<HeaderValue> = request.headers().get_all(header::UPGRADE).iter().cloned().collect();
        let mut request = prepared(request, origin, &self.via)?;
        request.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        for value in protocol {
            request.headers_mut().append(header::UPGRADE, value);
        }
        let mut response = self.send_upgradable(request).await?;
        refuse_redirect(&response)?;
        if response.status() != http::StatusCode::SWITCHING_PROTOCOLS {
            if response.status().as_u16() < 400 {
                let code = response.status().as_u16();
                return Err(BackendError::Exchange(format!("invalid upgrade response: status code {code}")));
            }
            identity_headers::strip_hop_by_hop(response.headers_mut());
            return Ok((response.map(|body| body.map_err(Into::into).boxed_unsync()), None));
        }
        let server = hyper::upgrade::on(&mut response);
        Ok((response.map(|body| body.map_err(Into::into).boxed_unsync()), Some(Tunnel { client, server })))
    }
}

/// The request as it is sent to the server.
fn prepared<B>(request: Request<B>, origin: Origin<'_>, via: &HeaderValue) -> Result<Request<RequestBody>, BackendError>
where
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let wrong = |error: &dyn std::fmt::Display| BackendError::Configuration(error.to_string());
    let (head, body) = request.into_parts();
    let mut headers = head.headers;
    if identity_headers::has_passed(&headers, via) {
        return Err(BackendError::Loop);
    }
    identity_headers::strip(&mut headers);
    headers.append(header::VIA, via.clone());
    identity_headers::set_user(&mut headers, origin.user).map_err(|error| wrong(&error))?;
    identity_headers::add_client(&mut headers, origin.address);
    if let Some(id) = origin.audit_id {
        headers.insert(AUDIT_ID, HeaderValue::from_str(id).map_err(|error| wrong(&error))?);
    }
    let mut prepared = Request::new(body.map_err(Into::into).boxed_unsync());
    *prepared.method_mut() = head.method;
    *prepared.uri_mut() = authorized_uri(&head.uri).map_err(|error| wrong(&error))?;
    *prepared.headers_mut() = headers;
    Ok(prepared)
}

/// The path as it was authorized: decoded once, and encoded again. A server that decodes it differently than this one must
/// not get a path that nobody has authorized.
fn authorized_uri(uri: &Uri) -> Result<Uri, http::uri::InvalidUri> {
    let path = percent_decode_str(uri.path()).decode_utf8_lossy();
    let path = utf8_percent_encode(&path, ESCAPED);
    match uri.query() {
        Some(query) => format!("{path}?{query}").parse(),
        None => path.to_string().parse(),
    }
}

/// Servers behind this one must not redirect its clients to wherever they want.
fn refuse_redirect<B>(response: &Response<B>) -> Result<(), BackendError> {
    let located = response.headers().get(header::LOCATION).is_some_and(|location| !location.is_empty());
    match response.status().is_redirection() && located {
        true => Err(BackendError::Redirect),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_is_sent_as_it_was_authorized() {
        let check = |given: &str, expected: &str| {
            assert_eq!(authorized_uri(&given.parse().unwrap()).unwrap().to_string(), expected, "{given}");
        };
        check(
            "/apis/a.example/v1/plants?watch=1&labelSelector=a%3Db",
            "/apis/a.example/v1/plants?watch=1&labelSelector=a%3Db",
        );
        check("/apis/a.example/v1/namespaces/x%2Fplants", "/apis/a.example/v1/namespaces/x/plants");
        check("/apis/a.example/v1/plants/a%3Ab", "/apis/a.example/v1/plants/a:b");
        check("/apis/a.example/v1/plants/%E4%BD%A0%3F", "/apis/a.example/v1/plants/%E4%BD%A0%3F");
    }

    #[test]
    fn an_upgrade_is_recognised_by_the_connection_header() {
        let request = |value: &str| Request::builder().header("connection", value).body(()).unwrap();
        assert!(is_upgrade(&request("keep-alive, Upgrade")));
        assert!(!is_upgrade(&request("keep-alive")));
    }

    #[test]
    fn redirects_are_refused() {
        let response =
            |code: u16, location: &str| Response::builder().status(code).header("location", location).body(()).unwrap();
        assert_eq!(refuse_redirect(&response(302, "https://elsewhere.example/")), Err(BackendError::Redirect));
        assert_eq!(refuse_redirect(&response(201, "/apis/a")), Ok(()));
        assert_eq!(refuse_redirect(&Response::builder().status(304).body(()).unwrap()), Ok(()));
    }
}
