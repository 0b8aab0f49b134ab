//! The server behind one APIService: where it is now, what it serves, and requests to it.

use crate::aggregator::api_service::BackendSpec;
use crate::aggregator::connections::{Connections, RequestBody, ResponseBody, SendError};
use crate::aggregator::identity_headers;
use crate::aggregator::tls::{self, AggregatorTlsError, ProxyClientCertificate};
use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use rand::Rng;
use restow_api::GroupVersion;
use restow_auth::User;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio_util::sync::CancellationToken;

/// How long a request for a document of discovery may take.
pub(super) const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(5);
/// How long any other request of this server itself may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// The largest document of discovery that is read.
const LARGEST_DOCUMENT: usize = 16 << 20;

/// Why a server did not answer a request.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub(crate) enum BackendError {
    /// It is not available: the condition of its APIService says why.
    #[error("service unavailable")]
    Unavailable,
    /// The APIService cannot be used as it is configured.
    #[error("{0}")]
    Configuration(String),
    /// It could not be reached, or the connection to it was lost.
    #[error("{0}")]
    Exchange(String),
    /// It did not answer in time.
    #[error("context deadline exceeded")]
    Timeout,
    /// It redirects to another server, which could be any.
    #[error("the backend attempted to redirect this request, which is not permitted")]
    Redirect,
    /// The request has passed this server before.
    #[error("the service of the APIService leads back to this server")]
    Loop,
}

/// The server behind an APIService.
pub(crate) struct Backend {
    pub(super) version: GroupVersion,
    pub(super) spec: BackendSpec,
    connections: Result<Connections, AggregatorTlsError>,
    /// Where it may be now.
    addresses: ArcSwap<Vec<String>>,
    /// How this server names itself in requests.
    pub(super) via: HeaderValue,
    /// Cancelled when the APIService is changed or deleted.
    pub(super) replaced: CancellationToken,
}

/// A document that a server sent.
pub(super) struct Fetched {
    pub(super) code: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Backend {
    /// A server that has not been located yet.
    pub(super) fn new(
        version: GroupVersion,
        spec: BackendSpec,
        identity: Option<&ProxyClientCertificate>,
        via: HeaderValue,
    ) -> Self {
        let connections = tls::server_name(&spec)
            .and_then(|name| Ok(Connections::new(tls::config(&spec.verification, identity)?, name)));
        Backend { version, spec, connections, addresses: ArcSwap::default(), via, replaced: CancellationToken::new() }
    }

    /// Sets where the server is.
    pub(super) fn set_addresses(&self, addresses: Vec<String>) {
        if let Ok(connections) = &self.connections {
            connections.keep_only(&addresses);
        }
        self.addresses.store(Arc::new(addresses));
    }

    fn connections(&self) -> Result<&Connections, BackendError> {
        self.connections.as_ref().map_err(|error| BackendError::Configuration(error.to_string()))
    }

    /// The addresses in the order in which to try them: from a random one on.
    fn candidates(&self) -> Result<Vec<String>, BackendError> {
        let addresses = self.addresses.load();
        if addresses.is_empty() {
            return Err(BackendError::Unavailable);
        }
        let first = restow_host::random().random_range(0..addresses.len());
        let mut candidates = addresses.as_ref().clone();
        candidates.rotate_left(first);
        Ok(candidates)
    }

    /// Sends a request whose URI is a path. Another address is tried only if no connection could be established.
    pub(super) async fn send(&self, mut request: Request<RequestBody>) -> Result<Response<ResponseBody>, BackendError> {
        let connections = self.connections()?;
        let mut last = BackendError::Unavailable;
        for address in self.candidates()? {
            request = at_address(request, &address)?;
            match connections.send(&address, request).await {
                Ok(response) => return Ok(response),
                Err(SendError::Exchange(reason)) => return Err(BackendError::Exchange(reason)),
                Err(SendError::Connect { reason, request: unsent }) => {
                    last = BackendError::Exchange(reason);
                    request = *unsent;
                }
            }
        }
        Err(last)
    }

    /// The same for a request to upgrade the connection to another protocol.
    pub(super) async fn send_upgradable(
        &self,
        mut request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, BackendError> {
        let connections = self.connections()?;
        let mut last = BackendError::Unavailable;
        for address in self.candidates()? {
            request = at_address(request, &address)?;
            match connections.send_upgradable(&address, request).await {
                Ok(response) => return Ok(response),
                Err(SendError::Exchange(reason)) => return Err(BackendError::Exchange(reason)),
                Err(SendError::Connect { reason, request: unsent }) => {
                    last = BackendError::Exchange(reason);
                    request = *unsent;
                }
            }
        }
        Err(last)
    }

    /// Gets a document as this user, from any address.
    pub(super) async fn fetch(&self, path: &str, user: &User, headers: HeaderMap) -> Result<Fetched, BackendError> {
        let request = self.request(Method::GET, path, user, headers, None)?;
        within(DISCOVERY_TIMEOUT, async { read(self.send(request).await?).await }).await
    }

    /// Sends a request as this user, to any address.
    pub(super) async fn call(
        &self,
        method: Method,
        path: &str,
        user: &User,
        headers: HeaderMap,
        body: Option<&Value>,
    ) -> Result<Fetched, BackendError> {
        let request = self.request(method, path, user, headers, body)?;
        within(CALL_TIMEOUT, async { read(self.send(request).await?).await }).await
    }

    /// Whether the server at one address serves the group-version. The error is the message of its condition.
    pub(super) async fn check(&self, address: &str, user: &User) -> Result<(), String> {
        let path = format!("/apis/{}", self.version);
        let url = format!("https://{address}{path}");
        let failed = |reason: String| format!("failing or missing response from {url}: {reason}");
        let connections = self.connections().map_err(|error| error.to_string())?;
        let request = self.request(Method::GET, &path, user, HeaderMap::new(), None);
        let request = request.and_then(|request| at_address(request, address));
        let request = request.map_err(|error| error.to_string())?;
        let checking = async {
            let sent = connections.send(address, request).await;
            let response = sent.map_err(|error| BackendError::Exchange(error.to_string()))?;
            let fetched = read(response).await?;
            Ok(fetched.code)
        };
        match within(DISCOVERY_TIMEOUT, checking).await {
            Ok(code) if code.is_success() => Ok(()),
            Ok(code) => Err(failed(format!("bad status from {url}: {}", code.as_u16()))),
            Err(error) => Err(failed(format!("Get {url:?}: {error}"))),
        }
    }

    /// A request of this server itself.
    fn request(
        &self,
        method: Method,
        path: &str,
        user: &User,
        mut headers: HeaderMap,
        body: Option<&Value>,
    ) -> Result<Request<RequestBody>, BackendError> {
        let wrong = |error: &dyn std::fmt::Display| BackendError::Configuration(error.to_string());
        identity_headers::set_user(&mut headers, user).map_err(|error| wrong(&error))?;
        let json = HeaderValue::from_static("application/json");
        headers.entry(header::ACCEPT).or_insert(json.clone());
        if body.is_some() {
            headers.insert(header::CONTENT_TYPE, json);
        }
        let body = Full::from(body.map(Value::to_string).unwrap_or_default());
        let body = body.map_err(|never| match never {}).boxed_unsync();
        let request = Request::builder().method(method).uri(path).body(body);
        let mut request = request.map_err(|error| wrong(&error))?;
        headers.append(header::VIA, self.via.clone());
        *request.headers_mut() = headers;
        Ok(request)
    }

    /// Whether the server is as an APIService says.
    pub(super) fn is_of(&self, version: &GroupVersion, spec: &BackendSpec) -> bool {
        self.version == *version && self.spec == *spec
    }
}

async fn within<T>(time: Duration, work: impl Future<Output = Result<T, BackendError>>) -> Result<T, BackendError> {
    tokio::time::timeout(time, work).await.unwrap_or(Err(BackendError::Timeout))
}

async fn read(response: Response<ResponseBody>) -> Result<Fetched, BackendError> {
    let (head, body) = response.into_parts();
    let body = Limited::new(body, LARGEST_DOCUMENT).collect().await;
    let body = body.map_err(|error| BackendError::Exchange(error.to_string()))?;
    Ok(Fetched { code: head.status, headers: head.headers, body: body.to_bytes() })
}

/// The request with the address in its URI. A request that was meant for another address before has its path only.
fn at_address(mut request: Request<RequestBody>, address: &str) -> Result<Request<RequestBody>, BackendError> {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let uri: Result<Uri, _> = format!("https://{address}{path}").parse();
    *request.uri_mut() = uri.map_err(|error| BackendError::Configuration(error.to_string()))?;
    Ok(request)
}
