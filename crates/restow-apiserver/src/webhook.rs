//! Calling webhooks: HTTPS to a URL or to a service of the cluster, trusted by a CA bundle, within a time.
//!
//! What is sent and what the answer means is the caller's affair.

pub(crate) mod services;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Method, Request, Uri, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde::Serialize;
use serde_json::Value;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;
use thiserror::Error;
use tokio::sync::Semaphore;

/// How much longer than what was sent an answer may be, whatever was sent.
const ANSWER_ROOM: usize = 16 << 20;
/// How many times as long as what was sent an answer may be beyond that: converted objects are about as long as before.
const ANSWER_GROWTH: usize = 4;

/// The most calls of one webhook at once. One that makes requests which it is asked about itself would else be called
/// without end, each call waiting for the next.
const MOST_CALLS: usize = 100;
/// How long a call waits for one of those to end.
const PATIENCE: Duration = Duration::from_secs(5);

/// The authorities that this machine trusts, read when they are needed first.
static SYSTEM_ROOTS: LazyLock<Arc<rustls::RootCertStore>> = LazyLock::new(|| {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = rustls::RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        tracing::warn!(errors = ?found.errors, "this machine trusts no authority; webhooks need a caBundle");
    }
    Arc::new(roots)
});

/// Where a webhook is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// At this URL.
    Url(String),
    /// At this service, under this path.
    Service {
        /// The service's namespace.
        namespace: String,
        /// The service's name.
        name: String,
        /// The service's port.
        port: u16,
        /// The path, with its leading slash.
        path: String,
    },
}

/// Finds out where a service can be reached: `host:port`.
#[async_trait::async_trait]
pub(crate) trait ServiceResolver: Send + Sync {
    /// The address of a service's port.
    async fn resolve(&self, namespace: &str, name: &str, port: u16) -> Result<String, String>;
}

/// Why a webhook gave no answer.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub(crate) enum WebhookError {
    /// It cannot be called as it is configured.
    #[error("{0}")]
    Configuration(String),
    /// It could not be reached, or its certificate is not trusted.
    #[error("Post {url:?}: {reason}")]
    Call {
        /// Where it was called.
        url: String,
        /// What went wrong.
        reason: String,
    },
    /// It was called too often at once.
    #[error(
        "Post {0:?}: {MOST_CALLS} calls are under way and none has ended for {seconds} s; does the webhook make requests that it \
         is asked about itself?",
        seconds = PATIENCE.as_secs()
    )]
    Busy(String),
    /// It took too long.
    #[error("Post {0:?}: context deadline exceeded (Client.Timeout exceeded while awaiting headers)")]
    Timeout(String),
    /// It answered with another code than success.
    #[error("the server returned {code}: {body}")]
    Refused {
        /// The HTTP code.
        code: u16,
        /// The beginning of the answer.
        body: String,
    },
    /// It answered something else than JSON.
    #[error("the answer is not JSON: {0}")]
    Answer(String),
}

type HttpsClient = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// Calls one webhook. Connections are kept and used again.
pub(crate) struct WebhookClient {
    endpoint: Endpoint,
    roots: Arc<rustls::RootCertStore>,
    resolver: Arc<dyn ServiceResolver>,
    /// The client for the address that was used last.
    client: Mutex<Option<(String, HttpsClient)>>,
    /// The calls that may be made at once.
    calls: Semaphore,
}

impl WebhookClient {
    /// A client for a webhook; `ca_bundle` is PEM in base64, as configurations have it. Without one, whoever this machine
    /// trusts is trusted.
    pub(crate) fn new(
        endpoint: Endpoint,
        ca_bundle: Option<&str>,
        resolver: Arc<dyn ServiceResolver>,
    ) -> Result<Self, WebhookError> {
        let wrong = |text: String| WebhookError::Configuration(text);
        let with = |roots| {
            let (client, calls) = (Mutex::default(), Semaphore::new(MOST_CALLS));
            WebhookClient { endpoint, roots, resolver, client, calls }
        };
        let Some(bundle) = ca_bundle.filter(|bundle| !bundle.is_empty()) else {
            return Ok(with(SYSTEM_ROOTS.clone()));
        };
        let mut roots = rustls::RootCertStore::empty();
        let pem = STANDARD.decode(bundle).map_err(|error| wrong(format!("the CA bundle is not base64: {error}")))?;
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            let certificate = certificate.map_err(|error| wrong(format!("the CA bundle is unreadable: {error}")))?;
            roots.add(certificate).map_err(|error| wrong(format!("the CA bundle is unusable: {error}")))?;
        }
        Ok(with(Arc::new(roots)))
    }

    /// Sends JSON and returns the JSON that comes back.
    pub(crate) async fn post(&self, body: &impl Serialize, time: Duration) -> Result<Value, WebhookError> {
        let body = serde_json::to_vec(body).map_err(|error| WebhookError::Configuration(error.to_string()))?;
        match tokio::time::timeout(time, self.exchange(body, time)).await {
            Ok(answer) => answer,
            Err(_) => Err(WebhookError::Timeout(self.endpoint.shown(time))),
        }
    }

    async fn exchange(&self, body: Vec<u8>, time: Duration) -> Result<Value, WebhookError> {
        let Ok(Ok(_place)) = tokio::time::timeout(PATIENCE, self.calls.acquire()).await else {
            return Err(WebhookError::Busy(self.endpoint.shown(time)));
        };
        let (address, uri, server_name) = self.target(time).await?;
        let client = self.client_for(&address, server_name)?;
        let failed = |reason: String| WebhookError::Call { url: self.endpoint.shown(time), reason };
        let most = body.len() * ANSWER_GROWTH + ANSWER_ROOM;
        let request = Request::builder()
            .method(Method::POST)
            .uri(uri)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| WebhookError::Configuration(error.to_string()))?;
        let answer = client.request(request).await.map_err(|error| failed(root_cause(&error)))?;
        let code = answer.status();
        let body = Limited::new(answer.into_body(), most).collect().await;
        let body = body.map_err(|error| match error.is::<LengthLimitError>() {
            true => failed(format!("the answer is longer than {most} bytes")),
            false => failed(root_cause(error.as_ref())),
        })?;
        let body = body.to_bytes();
        if !code.is_success() {
            let text: String = String::from_utf8_lossy(&body).chars().take(512).collect();
            return Err(WebhookError::Refused { code: code.as_u16(), body: text });
        }
        serde_json::from_slice(&body).map_err(|error| WebhookError::Answer(error.to_string()))
    }

    /// The address to connect to, the URI to ask for, and the name that the certificate must have.
    async fn target(&self, time: Duration) -> Result<(String, Uri, Option<ServerName<'static>>), WebhookError> {
        let wrong = |error: &dyn std::fmt::Display| WebhookError::Configuration(error.to_string());
        let (address, url, server_name) = match &self.endpoint {
            Endpoint::Url(url) => (url.clone(), url.clone(), None),
            Endpoint::Service { namespace, name, port, path } => {
                let found = self.resolver.resolve(namespace, name, *port).await;
                let failed = |reason| WebhookError::Call { url: self.endpoint.shown(time), reason };
                let address = found.map_err(failed)?;
                let server_name = ServerName::try_from(format!("{name}.{namespace}.svc"));
                let url = format!("https://{address}{path}");
                (address, url, Some(server_name.map_err(|error| wrong(&error))?))
            }
        };
        let uri: Uri = timed(&url, time).parse().map_err(|error: http::uri::InvalidUri| wrong(&error))?;
        Ok((address, uri, server_name))
    }

    fn client_for(&self, address: &str, name: Option<ServerName<'static>>) -> Result<HttpsClient, WebhookError> {
        // Only a clone and an assignment happen under the lock.
        let mut slot = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, client)) = slot.as_ref()
            && known == address
        {
            return Ok(client.clone());
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| WebhookError::Configuration(error.to_string()))?
            .with_root_certificates(self.roots.clone())
            .with_no_client_auth();
        let builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_only();
        let builder = match name {
            Some(name) => builder.with_server_name_resolver(FixedServerNameResolver::new(name)),
            None => builder,
        };
        let client = Client::builder(TokioExecutor::new()).build(builder.enable_all_versions().build());
        *slot = Some((address.to_string(), client.clone()));
        Ok(client)
    }
}

impl Endpoint {
    /// The endpoint as messages show it.
    fn shown(&self, time: Duration) -> String {
        match self {
            Endpoint::Url(url) => timed(url, time),
            Endpoint::Service { namespace, name, port, path } => {
                timed(&format!("https://{name}.{namespace}.svc:{port}{path}"), time)
            }
        }
    }
}

/// A URL that also says how long the caller waits, as Kubernetes tells webhooks.
fn timed(url: &str, time: Duration) -> String {
    let joint = if url.contains('?') { '&' } else { '?' };
    format!("{url}{joint}timeout={}s", time.as_secs())
}

/// The innermost reason, which is the one that says something.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    struct NoServices;

    #[async_trait::async_trait]
    impl ServiceResolver for NoServices {
        async fn resolve(&self, _: &str, name: &str, _: u16) -> Result<String, String> {
            Err(format!("service {name:?} not found"))
        }
    }

    fn client(endpoint: Endpoint, ca_bundle: Option<&str>) -> Result<WebhookClient, WebhookError> {
        WebhookClient::new(endpoint, ca_bundle, Arc::new(NoServices))
    }

    #[tokio::test]
    async fn who_never_answers_is_not_waited_for() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}/convert", silent.local_addr().unwrap());
        let client = client(Endpoint::Url(url.clone()), None).unwrap();
        let start = Instant::now();
        let failure = client.post(&Value::Null, Duration::from_millis(50)).await.unwrap_err();
        assert_eq!(failure, WebhookError::Timeout(format!("{url}?timeout=0s")));
        assert!(start.elapsed() >= Duration::from_millis(50));
    }

    #[tokio::test]
    async fn what_is_configured_wrongly_is_told() {
        let service = |path: &str| Endpoint::Service {
            namespace: "n".into(),
            name: "s".into(),
            port: 443,
            path: path.to_string(),
        };
        let missing = client(service("/a?b=c"), None).unwrap().post(&Value::Null, Duration::from_secs(1)).await;
        let missing = missing.unwrap_err().to_string();
        assert_eq!(missing, "Post \"https://s.n.svc:443/a?b=c&timeout=1s\": service \"s\" not found");
        let url = || Endpoint::Url("https://localhost/".into());
        assert!(client(url(), Some("!")).err().unwrap().to_string().contains("not base64"));
    }
}
