//! How clients reach servers: requests and answers take time, and can be lost. A server is reached by its own address, or
//! behind a common one as by a load balancer.

use crate::dice::Dice;
use crate::triggers::{Trigger, Triggers};
use bytes::Bytes;
use futures::channel::mpsc;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, StreamBody};
use kube::client::Body;
use rand::Rng;
use restow_apiserver::ApiServer;
use restow_auth::User;
use restow_host::simulated::Process;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// An error of the network.
pub(crate) type NetworkError = Box<dyn std::error::Error + Send + Sync>;
type Frames = mpsc::UnboundedReceiver<Result<http_body::Frame<Bytes>, NetworkError>>;
/// The body of an answer.
pub(crate) type AnswerBody = StreamBody<Frames>;

/// How long it takes to notice that nobody listens.
const REFUSAL: Duration = Duration::from_millis(100);
/// How long the connection of a copy stays open.
const COPY_LIVES: Duration = Duration::from_secs(60);
/// How long a client waits for an answer: the read timeout of the Kubernetes client.
const READ_TIMEOUT: Duration = Duration::from_secs(295);

/// The network between clients and servers.
pub(crate) struct Network {
    dice: Arc<Dice>,
    triggers: Arc<Triggers>,
    state: Mutex<NetworkState>,
}

#[derive(Default)]
struct NetworkState {
    /// The servers that listen, by their address.
    endpoints: BTreeMap<String, Endpoint>,
    /// Clients that reach no server.
    cut: BTreeSet<String>,
    /// Until then, requests of controllers and administrators arrive twice.
    doubled_until: Option<Instant>,
}

/// A server that listens.
#[derive(Clone)]
struct Endpoint {
    process: Arc<Process>,
    server: Arc<ApiServer>,
}

/// Which server is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// Any that listens.
    Any,
    /// The one at this address.
    Address(String),
}

/// A client's way to the servers.
#[derive(Clone)]
pub(crate) struct Connection {
    network: Arc<Network>,
    client: Arc<str>,
    user: User,
    destination: Destination,
}

impl Network {
    pub(crate) fn new(dice: Arc<Dice>, triggers: Arc<Triggers>) -> Arc<Self> {
        Arc::new(Network { dice, triggers, state: Mutex::default() })
    }

    /// Requests of controllers and administrators arrive twice for so long. Those of users do not: they could not tell what
    /// became of the first.
    pub(crate) fn double_requests(&self, time: Duration) {
        self.state().doubled_until = Some(Instant::now() + time);
    }

    fn doubles(&self, client: &str) -> bool {
        let is_doubling = self.state().doubled_until.is_some_and(|until| until > Instant::now());
        is_doubling && !client.starts_with("user") && self.dice.roll().random_bool(0.5)
    }

    fn state(&self) -> MutexGuard<'_, NetworkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A server begins to listen.
    pub(crate) fn listen(&self, address: &str, process: Arc<Process>, server: Arc<ApiServer>) {
        self.state().endpoints.insert(address.to_owned(), Endpoint { process, server });
    }

    /// A server does not listen any more.
    pub(crate) fn close(&self, address: &str) -> Option<Arc<ApiServer>> {
        self.state().endpoints.remove(address).map(|endpoint| endpoint.server)
    }

    /// Whether a client reaches no server.
    pub(crate) fn set_cut(&self, client: &str, cut: bool) {
        let mut state = self.state();
        match cut {
            true => state.cut.insert(client.to_owned()),
            false => state.cut.remove(client),
        };
    }

    /// The way of a client with administrator's permissions.
    pub(crate) fn connect(self: &Arc<Self>, client: &str, destination: Destination) -> Connection {
        let user = User {
            name: client.to_owned(),
            uid: String::new(),
            groups: vec!["system:masters".to_owned()],
            extra: BTreeMap::new(),
        };
        Connection { network: self.clone(), client: client.into(), user, destination }
    }

    fn find(&self, client: &str, destination: &Destination) -> Option<Endpoint> {
        let state = self.state();
        if state.cut.contains(client) {
            return None;
        }
        match destination {
            Destination::Address(address) => state.endpoints.get(address).cloned(),
            Destination::Any if state.endpoints.is_empty() => None,
            Destination::Any => {
                let choice = self.dice.roll().random_range(0..state.endpoints.len());
                state.endpoints.values().nth(choice).cloned()
            }
        }
    }
}

impl Connection {
    /// Sends a request.
    pub(crate) async fn send(self, request: Request<Body>) -> Result<Response<AnswerBody>, NetworkError> {
        let (head, body) = request.into_parts();
        let request = Request::from_parts(head, Full::new(body.collect().await?.to_bytes()));
        if self.client.starts_with("controller")
            && let Some(trigger) = Trigger::of_request(request.method(), request.uri().path())
        {
            self.network.triggers.fire(trigger);
        }
        if self.network.doubles(&self.client) {
            tokio::spawn(self.clone().deliver_copy(request.clone()));
        }
        self.network.dice.under_way().await;
        let found = self.network.find(&self.client, &self.destination).filter(|found| !found.process.has_crashed());
        let Some(Endpoint { process, server }) = found else {
            tokio::time::sleep(REFUSAL).await;
            return Err("cannot connect".into());
        };
        let (answer, answered) = oneshot::channel();
        let user = self.user.clone();
        process.spawn(serve(server, request, user, answer));
        let answer = tokio::time::timeout(READ_TIMEOUT, answered).await?.map_err(|_| "the connection was closed")?;
        self.network.dice.under_way().await;
        if self.network.state().cut.contains(&*self.client) {
            return Err("the connection was closed".into());
        }
        Ok(answer)
    }
}

impl Connection {
    /// Delivers the copy of a request, whose answer nobody waits for.
    async fn deliver_copy(self, request: Request<Full<Bytes>>) {
        self.network.dice.under_way().await;
        let found = self.network.find(&self.client, &self.destination).filter(|found| !found.process.has_crashed());
        let Some(Endpoint { process, server }) = found else { return };
        let (answer, answered) = oneshot::channel();
        process.spawn(serve(server, request, self.user.clone(), answer));
        // It is served to the end, unless it is a watch.
        let _ = tokio::time::timeout(COPY_LIVES, answered).await;
    }
}

/// Answers a request as part of the server, unless the client is gone before.
async fn serve(
    server: Arc<ApiServer>,
    request: Request<Full<Bytes>>,
    user: User,
    mut answer: oneshot::Sender<Response<AnswerBody>>,
) {
    let response = tokio::select! {
        biased;
        response = restow_apiserver::call(&server, request, user) => response,
        () = answer.closed() => return,
    };
    drop(server);
    let (head, mut body) = response.into_parts();
    let (frames, received) = mpsc::unbounded();
    if answer.send(Response::from_parts(head, StreamBody::new(received))).is_err() {
        return;
    }
    while let Some(frame) = body.frame().await {
        if frames.unbounded_send(frame).is_err() {
            return;
        }
    }
}

impl tower::Service<Request<Body>> for Connection {
    type Response = Response<AnswerBody>;
    type Error = NetworkError;
    type Future = BoxFuture<'static, Result<Response<AnswerBody>, NetworkError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), NetworkError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.clone().send(request))
    }
}
