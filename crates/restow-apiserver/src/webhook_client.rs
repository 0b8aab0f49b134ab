//! The HTTPS client for webhooks: to a URL or a service of the cluster, verified by a CA bundle, within a timeout. Admission
//! and conversion build the requests and interpret the responses.

pub(crate) mod services;

use crate::apiextensions::custom_resource_definition::ClientConfig;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Method, Request, Uri, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use restow_host::simulated::Process;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde::Serialize;
use serde_json::Value;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;
use thiserror::Error;
use tokio::sync::Semaphore;

/// The base of the size limit of a response.
const RESPONSE_BASE_BYTES: usize = 16 << 20;
/// The limit grows by this factor with the size of the request: converted objects have about the same size.
const RESPONSE_GROWTH: usize = 4;

/// The maximum number of concurrent calls of one webhook. It bounds recursion: a webhook can send requests that call it
/// again, and each call waits for the next.
const MAX_CALLS: usize = 100;
/// How long a call waits when the maximum is reached.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(5);

/// The CAs of the operating system, loaded on first use.
pub(crate) static SYSTEM_ROOTS: LazyLock<Arc<rustls::RootCertStore>> = LazyLock::new(|| {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = rustls::RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        tracing::warn!(errors = ?found.errors, "the operating system has no CA certificates; webhooks need a caBundle");
    }
    Arc::new(roots)
});

/// The address of a webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// A URL.
    Url(String),
    /// A service of the cluster, and a path.
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

/// Resolves a service to `host:port`.
#[async_trait::async_trait]
pub(crate) trait ServiceResolver: Send + Sync {
    /// The address of a service's port.
    async fn resolve(&self, namespace: &str, name: &str, port: u16) -> Result<String, String>;
}

/// Why a call of a webhook failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub(crate) enum WebhookError {
    /// The configuration is invalid.
    #[error("{0}")]
    Configuration(String),
    /// The webhook could not be reached, or its certificate is not trusted.
    #[error("Post {url:?}: {reason}")]
    Call {
        /// The URL.
        url: String,
        /// The cause.
        reason: String,
    },
    /// Too many calls are running.
    #[error(
        "Post {0:?}: {MAX_CALLS} calls are running and none has ended for {seconds} s; does the webhook send requests that \
         call it again?",
        seconds = QUEUE_TIMEOUT.as_secs()
    )]
    Busy(String),
    /// The call timed out.
    #[error("Post {0:?}: context deadline exceeded (Client.Timeout exceeded while awaiting headers)")]
    Timeout(String),
    /// The webhook responded with an error code.
    #[error("the server returned {code}: {body}")]
    Refused {
        /// The HTTP code.
        code: u16,
        /// The beginning of the response.
        body: String,
    },
    /// The response is not JSON.
    #[error("the response is not JSON: {0}")]
    Response(String),
}

type HttpsClient = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// The client of one webhook. Connections are kept alive.
pub(crate) struct WebhookClient {
    endpoint: Endpoint,
    roots: Arc<rustls::RootCertStore>,
    resolver: Arc<dyn ServiceResolver>,
    /// The HTTP client for the last address.
    client: Mutex<Option<(String, HttpsClient)>>,
    /// Limits concurrent calls.
    calls: Semaphore,
}

impl WebhookClient {
    /// A client for a webhook; `ca_bundle` is PEM in base64, as in webhook configurations. Without one, the CAs of
    /// the operating system are used.
    pub(crate) fn new(
        endpoint: Endpoint,
        ca_bundle: Option<&str>,
        resolver: Arc<dyn ServiceResolver>,
    ) -> Result<Self, WebhookError> {
        let wrong = |text: String| WebhookError::Configuration(text);
        let with = |roots| {
            let (client, calls) = (Mutex::default(), Semaphore::new(MAX_CALLS));
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

    /// Posts JSON and returns the JSON response.
    pub(crate) async fn post(&self, body: &impl Serialize, time: Duration) -> Result<Value, WebhookError> {
        let body = serde_json::to_vec(body).map_err(|error| WebhookError::Configuration(error.to_string()))?;
        match tokio::time::timeout(time, self.exchange(body, time)).await {
            Ok(response) => response,
            Err(_) => Err(WebhookError::Timeout(self.endpoint.shown(time))),
        }
    }

    async fn exchange(&self, body: Vec<u8>, time: Duration) -> Result<Value, WebhookError> {
        let Ok(Ok(_permit)) = tokio::time::timeout(QUEUE_TIMEOUT, self.calls.acquire()).await else {
            return Err(WebhookError::Busy(self.endpoint.shown(time)));
        };
        let simulated = Process::current().and_then(|process| process.outbound().cloned());
        let (code, body) = match simulated {
            Some(network) => {
                let url = self.endpoint.shown(time);
                let (code, body) = network.post(&url, body).await.map_err(|reason| self.failed(time, reason))?;
                (code, body.into())
            }
            None => self.send(body, time).await?,
        };
        if !(200..300).contains(&code) {
            let text: String = String::from_utf8_lossy(&body).chars().take(512).collect();
            return Err(WebhookError::Refused { code, body: text });
        }
        serde_json::from_slice(&body).map_err(|error| WebhookError::Response(error.to_string()))
    }

    fn failed(&self, time: Duration, reason: String) -> WebhookError {
        WebhookError::Call { url: self.endpoint.shown(time), reason }
    }

    /// Sends a request over HTTPS, and reads the response.
    async fn send(&self, body: Vec<u8>, time: Duration) -> Result<(u16, Bytes), WebhookError> {
        let (address, uri, server_name) = self.target(time).await?;
        let client = self.client_for(&address, server_name)?;
        let most = body.len() * RESPONSE_GROWTH + RESPONSE_BASE_BYTES;
        let request = Request::builder()
            .method(Method::POST)
            .uri(uri)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| WebhookError::Configuration(error.to_string()))?;
        let response = client.request(request).await.map_err(|error| self.failed(time, root_cause(&error)))?;
        let code = response.status().as_u16();
        let body = Limited::new(response.into_body(), most).collect().await;
        let body = body.map_err(|error| match error.is::<LengthLimitError>() {
            true => self.failed(time, format!("the response is longer than {most} bytes")),
            false => self.failed(time, root_cause(error.as_ref())),
        })?;
        Ok((code, body.to_bytes()))
    }

    /// The address to connect to, the request URI, and the server name for TLS.
    async fn target(&self, time: Duration) -> Result<(String, Uri, Option<ServerName<'static>>), WebhookError> {
        let wrong = |error: &dyn std::fmt::Display| WebhookError::Configuration(error.to_string());
        let (address, url, server_name) = match &self.endpoint {
            Endpoint::Url(url) => (url.clone(), url.clone(), None),
            Endpoint::Service { namespace, name, port, path } => {
                let found = self.resolver.resolve(namespace, name, *port).await;
                let address = found.map_err(|reason| self.failed(time, reason))?;
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
    /// The endpoint that a configuration names.
    pub(crate) fn of(config: &ClientConfig) -> Result<Endpoint, WebhookError> {
        match (&config.url, &config.service) {
            (Some(url), _) => Ok(Endpoint::Url(url.clone())),
            (None, Some(service)) => Ok(Endpoint::Service {
                namespace: service.namespace.clone(),
                name: service.name.clone(),
                port: service.port.and_then(|port| u16::try_from(port).ok()).unwrap_or(443),
                path: format!("/{}", service.path.as_deref().unwrap_or_default().trim_start_matches('/')),
            }),
            (None, None) => Err(WebhookError::Configuration("no webhook is configured".into())),
        }
    }

    /// The endpoint as error messages show it.
    fn shown(&self, time: Duration) -> String {
        match self {
            Endpoint::Url(url) => timed(url, time),
            Endpoint::Service { namespace, name, port, path } => {
                timed(&format!("https://{name}.{namespace}.svc:{port}{path}"), time)
            }
        }
    }
}

/// A URL with the parameter `timeout`, as Kubernetes sends it.
fn timed(url: &str, time: Duration) -> String {
    let joint = if url.contains('?') { '&' } else { '?' };
    format!("{url}{joint}timeout={}s", time.as_secs())
}

/// The innermost error of the chain.
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
    async fn a_webhook_that_does_not_respond_times_out() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}/convert", silent.local_addr().unwrap());
        let client = client(Endpoint::Url(url.clone()), None).unwrap();
        let start = Instant::now();
        let failure = client.post(&Value::Null, Duration::from_millis(50)).await.unwrap_err();
        assert_eq!(failure, WebhookError::Timeout(format!("{url}?timeout=0s")));
        assert!(start.elapsed() >= Duration::from_millis(50));
    }

    #[tokio::test]
    async fn configuration_errors_are_reported() {
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
