//! A webhook for servers to call: HTTPS with its own CA; each test sets its behaviour.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinHandle;

/// The response of a webhook to a review.
pub(crate) enum Reply {
    /// This JSON.
    Json(Value),
    /// This code and these bytes.
    Bytes(u16, Vec<u8>),
    /// The webhook closes the connection.
    HangUp,
    /// No response.
    Silence,
    /// A response after a future has completed.
    Later(BoxFuture<'static, Reply>),
}

type Behaviour = Arc<dyn Fn(&Value) -> Reply + Send + Sync>;

/// A running webhook.
pub(crate) struct Webhook {
    pub(crate) address: SocketAddr,
    /// The CA of its certificate, in the form of `caBundle`.
    pub(crate) ca_bundle: String,
    tls: Arc<rustls::ServerConfig>,
    behaviour: Arc<Mutex<Behaviour>>,
    asked: Arc<Mutex<Vec<Value>>>,
    listening: Option<JoinHandle<()>>,
}

impl Webhook {
    /// Starts a webhook. Its certificate is for this machine and for the service `hook` in the namespace `default`.
    pub(crate) async fn start(behaviour: impl Fn(&Value) -> Reply + Send + Sync + 'static) -> Self {
        let (ca_bundle, tls) = certificates();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let behaviour: Behaviour = Arc::new(behaviour);
        let (behaviour, asked) = (Arc::new(Mutex::new(behaviour)), Arc::default());
        let mut webhook = Webhook { address, ca_bundle, tls, behaviour, asked, listening: None };
        webhook.listen(listener);
        webhook
    }

    /// Sets the behaviour from now on.
    pub(crate) fn behave(&self, behaviour: impl Fn(&Value) -> Reply + Send + Sync + 'static) {
        *self.behaviour.lock().unwrap() = Arc::new(behaviour);
    }

    /// Its URL with this path.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.address)
    }

    /// All reviews since the last call.
    pub(crate) fn asked(&self) -> Vec<Value> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }

    /// Stops listening, and drops all connections.
    pub(crate) fn stop(&mut self) {
        self.listening.take().unwrap().abort();
    }

    /// Listens again at the same address.
    pub(crate) fn resume(&mut self) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(self.address).unwrap();
        self.listen(socket.listen(64).unwrap());
    }

    fn listen(&mut self, listener: TcpListener) {
        let acceptor = tokio_rustls::TlsAcceptor::from(self.tls.clone());
        let (behaviour, asked) = (self.behaviour.clone(), self.asked.clone());
        self.listening = Some(tokio::spawn(async move {
            // They end when the listener's task does.
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, behaviour, asked) = (acceptor.clone(), behaviour.clone(), asked.clone());
                connections.spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service = service_fn(move |request| answer(request, behaviour.clone(), asked.clone()));
                    let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                    // Some tests cut connections.
                    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        }));
    }
}

impl Drop for Webhook {
    fn drop(&mut self) {
        if let Some(listening) = self.listening.take() {
            listening.abort();
        }
    }
}

async fn answer(
    request: Request<hyper::body::Incoming>,
    behaviour: Arc<Mutex<Behaviour>>,
    asked: Arc<Mutex<Vec<Value>>>,
) -> Result<Response<Full<Bytes>>, std::io::Error> {
    let body = request.into_body().collect().await.map_err(std::io::Error::other)?.to_bytes();
    let review: Value = serde_json::from_slice(&body)?;
    asked.lock().unwrap().push(review.clone());
    let behave = behaviour.lock().unwrap().clone();
    let mut reply = behave(&review);
    while let Reply::Later(later) = reply {
        reply = later.await;
    }
    match reply {
        Reply::Json(value) => Ok(Response::new(Full::new(value.to_string().into()))),
        Reply::Bytes(code, bytes) => Ok(Response::builder().status(code).body(Full::new(bytes.into())).unwrap()),
        Reply::HangUp => Err(std::io::Error::other("hung up")),
        Reply::Silence | Reply::Later(_) => std::future::pending().await,
    }
}

/// The response to an admission review.
pub(crate) fn admission(review: &Value, mut response: Value) -> Reply {
    response["uid"] = review["request"]["uid"].clone();
    Reply::Json(json!({"kind": review["kind"], "apiVersion": review["apiVersion"], "response": response}))
}

/// The response to an admission review, with a patch.
pub(crate) fn admission_patch(review: &Value, patch: &Value) -> Reply {
    let patch = STANDARD.encode(patch.to_string());
    admission(review, json!({"allowed": true, "patchType": "JSONPatch", "patch": patch}))
}

fn certificates() -> (String, Arc<rustls::ServerConfig>) {
    let mut authority = CertificateParams::default();
    authority.distinguished_name.push(DnType::CommonName, "webhook-ca");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_key = KeyPair::generate().unwrap();
    let ca_bundle = STANDARD.encode(authority.self_signed(&authority_key).unwrap().pem());
    let issuer = Issuer::new(authority, authority_key);
    let names = ["127.0.0.1", "localhost", "hook.default.svc"].map(String::from);
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::Pkcs8(key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    (ca_bundle, Arc::new(tls))
}
