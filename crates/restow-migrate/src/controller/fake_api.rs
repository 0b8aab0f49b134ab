//! A fake API server for the tests of the controller and of others that send requests. It answers as a test says, and keeps what was requested.

use super::events::Events;
use super::in_tree::InTree;
use super::leader_election::LeaseTerm;
use super::{Context, ControllerConfig, Metrics};
use crate::cluster::Cluster;
use http::{Request, Response};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

/// One request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ApiRequest {
    pub(crate) method: String,
    /// The path with its query.
    pub(crate) path: String,
    /// The body; null if there is none.
    pub(crate) body: Value,
}

/// The server.
pub(crate) struct FakeApi {
    pub(crate) client: Client,
    requests: Arc<Mutex<Vec<ApiRequest>>>,
}

impl FakeApi {
    /// A server with these answers: a code, and an object or the message of an error.
    pub(crate) fn new(answer: impl Fn(&ApiRequest) -> (u16, Value) + Send + Sync + 'static) -> Self {
        let requests: Arc<Mutex<Vec<ApiRequest>>> = Arc::default();
        let (answer, seen) = (Arc::new(answer), Arc::clone(&requests));
        let service = tower::service_fn(move |request: Request<Body>| {
            let (answer, seen) = (Arc::clone(&answer), Arc::clone(&seen));
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let request = ApiRequest {
                    method: parts.method.to_string(),
                    path: parts.uri.to_string(),
                    body: serde_json::from_slice(&body).unwrap_or_default(),
                };
                let (code, answer) = answer(&request);
                seen.lock().unwrap().push(request);
                let answer = if code < 400 { answer } else { failure(code, &answer) };
                let response = Response::builder().status(code);
                Ok::<_, Infallible>(response.body(Body::from(answer.to_string().into_bytes())).unwrap())
            }
        });
        FakeApi { client: Client::new(service, "default"), requests }
    }

    /// A controller of this server, with leader election and default settings.
    pub(crate) fn context(&self) -> Context {
        let config = ControllerConfig::default();
        Context {
            cluster: Cluster::from_client(self.client.clone()),
            metrics: Metrics::default(),
            events: Events::new(self.client.clone(), &config.identity),
            in_tree: InTree::default(),
            term: LeaseTerm::default(),
            config,
        }
    }

    /// What was requested so far.
    pub(crate) fn requests(&self) -> Vec<ApiRequest> {
        self.requests.lock().unwrap().clone()
    }

    /// The methods and paths of the requests so far.
    pub(crate) fn calls(&self) -> Vec<String> {
        self.requests().iter().map(|request| format!("{} {}", request.method, request.path)).collect()
    }
}

fn failure(code: u16, message: &Value) -> Value {
    let reason = if code == 404 { "NotFound" } else { "" };
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code, "reason": reason,
        "message": message})
}
