//! Sends one request to an API server. The error contains everything that decides about a retry.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use kube::client::Body;
use kube::{Client, core::Status};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use restow_rules::migrate::response::ErrorResponse;
use serde::de::DeserializeOwned;
use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

/// A request that failed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestError {
    /// The HTTP code; zero when no answer came at all.
    pub code: u16,
    /// The reason of the Kubernetes status.
    pub reason: String,
    /// The message of the Kubernetes status, or the error of the connection.
    pub message: String,
    /// The Retry-After of the server.
    pub retry_after: Option<Duration>,
    /// What else the Kubernetes status says.
    pub details: Option<Box<RequestErrorDetails>>,
    /// The server answered neither this request nor a liveness check: it hangs, or cannot be reached.
    pub is_unresponsive: bool,
}

/// What a Kubernetes status says beside its reason.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestErrorDetails {
    /// The name of the object that it refers to; empty when it names none.
    pub name: String,
    /// Where a list whose token has expired can continue, with gaps.
    pub continue_token: Option<String>,
}

/// Longer than the API server lets any of these requests run.
const TIMEOUT: Duration = Duration::from_secs(90);

/// After this time without an answer the server's liveness is checked, which may take as long.
const LIVENESS_INTERVAL: Duration = Duration::from_secs(10);

/// Sends a request and reads the answer. Waits as long as the server is alive: it may be busy, or wait for a webhook.
pub(crate) async fn send_request(client: &Client, request: Request<Vec<u8>>) -> Result<Bytes, RequestError> {
    let silence = async {
        loop {
            tokio::time::sleep(LIVENESS_INTERVAL).await;
            if !is_alive(client).await {
                return;
            }
        }
    };
    tokio::select! {
        biased;
        answer = send(client, request) => answer,
        () = silence => Err(RequestError {
            message: format!("no answer within {} s, and no answer to a liveness check", 2 * LIVENESS_INTERVAL.as_secs()),
            is_unresponsive: true,
            ..RequestError::default()
        }),
    }
}

/// Whether the server answers at all, with whatever status.
async fn is_alive(client: &Client) -> bool {
    let Ok(request) = Request::get("/livez").body(Body::empty()) else { return false };
    matches!(tokio::time::timeout(LIVENESS_INTERVAL, client.send(request)).await, Ok(Ok(_)))
}

async fn send(client: &Client, request: Request<Vec<u8>>) -> Result<Bytes, RequestError> {
    let answered = async {
        let response = client.send(request.map(Body::from)).await.map_err(RequestError::on_the_way)?;
        let is_success = response.status().is_success();
        let code = response.status().as_u16();
        let retry_after = retry_after(&response);
        let body = response.into_body().collect().await.map_err(RequestError::on_the_way)?.to_bytes();
        if is_success { Ok(body) } else { Err(RequestError::from_body(code, retry_after, &body)) }
    };
    match tokio::time::timeout(TIMEOUT, answered).await {
        Ok(answer) => answer,
        Err(_) => Err(RequestError {
            message: format!("no answer within {} s", TIMEOUT.as_secs()),
            ..RequestError::default()
        }),
    }
}

/// Sends a request and reads the answer as JSON.
pub(crate) async fn request_json<T: DeserializeOwned>(
    client: &Client,
    request: Request<Vec<u8>>,
) -> Result<T, RequestError> {
    let body = send_request(client, request).await?;
    serde_json::from_slice(&body).map_err(|error| RequestError {
        message: format!("the server's answer is unreadable: {error}"),
        ..RequestError::default()
    })
}

fn retry_after<T>(response: &Response<T>) -> Option<Duration> {
    let header = response.headers().get(http::header::RETRY_AFTER)?;
    header.to_str().ok()?.parse().ok().map(Duration::from_secs)
}

impl RequestError {
    /// The part of the error that is classified.
    pub fn response(&self) -> ErrorResponse<'_> {
        let RequestError { code, reason, message, retry_after, .. } = self;
        let about = self.details.as_ref().map_or("", |details| details.name.as_str());
        ErrorResponse { code: *code, reason, message, about, retry_after: *retry_after }
    }

    fn on_the_way(error: impl std::error::Error) -> Self {
        // Connection errors have the cause only in their sources.
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            if !message.contains(&cause_text) {
                message = format!("{message}: {cause_text}");
            }
            source = cause.source();
        }
        RequestError { message, ..RequestError::default() }
    }

    fn from_body(code: u16, retry_after: Option<Duration>, body: &[u8]) -> Self {
        let Ok(status) = serde_json::from_slice::<Status>(body) else {
            let message = String::from_utf8_lossy(body).trim().chars().take(500).collect();
            return RequestError { code, message, retry_after, ..RequestError::default() };
        };
        let asked = status.details.as_ref().map(|details| u64::from(details.retry_after_seconds)).filter(|s| *s > 0);
        RequestError {
            code,
            reason: status.reason,
            message: status.message,
            retry_after: retry_after.or(asked.map(Duration::from_secs)),
            details: Some(Box::new(RequestErrorDetails {
                name: status.details.map(|details| details.name).unwrap_or_default(),
                continue_token: status
                    .metadata
                    .and_then(|metadata| metadata.continue_)
                    .filter(|token| !token.is_empty()),
            })),
            is_unresponsive: false,
        }
    }
}

impl From<kube::Error> for RequestError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => RequestError {
                code: status.code,
                reason: status.reason.clone(),
                message: status.message.clone(),
                details: status.details.as_ref().map(|details| {
                    Box::new(RequestErrorDetails { name: details.name.clone(), ..RequestErrorDetails::default() })
                }),
                ..RequestError::default()
            },
            other => RequestError::on_the_way(other),
        }
    }
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.code, self.reason.is_empty()) {
            (0, _) => f.write_str(&self.message),
            (code, true) => write!(f, "{} ({code})", self.message),
            (code, false) => write!(f, "{} ({code} {})", self.message, self.reason),
        }
    }
}

impl std::error::Error for RequestError {}

/// A name as a part of a path. Most names need no change.
pub(crate) fn path_part(name: &str) -> Cow<'_, str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
    if name.bytes().all(is_plain) { Cow::Borrowed(name) } else { utf8_percent_encode(name, NON_ALPHANUMERIC).into() }
}
