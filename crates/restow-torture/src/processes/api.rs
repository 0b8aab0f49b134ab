//! HTTP clients for the API servers: one request, one answer, one time limit, and never a second try that nobody asked for.

use super::report::ProcessError;
use http::Request;
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// How long a client waits for an answer.
const TIMEOUT: Duration = Duration::from_secs(8);

/// An answer of a server.
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) body: Value,
}

/// How to connect to any of the servers.
#[derive(Clone)]
pub(crate) struct Access(kube::Config);

impl Access {
    /// The access of an administrator, from a kubeconfig.
    pub(crate) async fn read(kubeconfig: &Path) -> Result<Self, ProcessError> {
        let failed = |error: &dyn std::fmt::Display| {
            ProcessError::Io(format!("use {}", kubeconfig.display()), std::io::Error::other(error.to_string()))
        };
        let file = Kubeconfig::read_from(kubeconfig).map_err(|error| failed(&error))?;
        let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
        let mut config = config.map_err(|error| failed(&error))?;
        config.default_retry = false;
        config.connect_timeout = Some(Duration::from_secs(3));
        Ok(Access(config))
    }

    /// A client of the server at this address.
    pub(crate) fn client(&self, address: &str) -> Result<Client, ProcessError> {
        let failed = |error: String| ProcessError::Io(format!("connect to {address}"), std::io::Error::other(error));
        let url = format!("https://{address}").parse().map_err(|error| failed(format!("{error}")))?;
        let mut config = self.0.clone();
        config.cluster_url = url;
        Client::try_from(config).map_err(|error| failed(error.to_string()))
    }
}

/// Sends a request and reads the whole answer. An error means that nobody knows what became of it.
pub(crate) async fn request(
    client: &Client,
    (method, path, content_type): (&str, &str, &str),
    body: Option<&Value>,
) -> Result<Answer, String> {
    let bytes = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
    let request = Request::builder().method(method).uri(path).header("content-type", content_type);
    let request = request.header("accept", "application/json").body(Body::from(bytes));
    let request = request.map_err(|error| error.to_string())?;
    let answered = async {
        let response = client.send(request).await.map_err(|error| error.to_string())?;
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
        Ok(Answer { code, body: serde_json::from_slice(&bytes).unwrap_or_default() })
    };
    tokio::time::timeout(TIMEOUT, answered).await.unwrap_or_else(|_| Err("no answer in time".to_owned()))
}
