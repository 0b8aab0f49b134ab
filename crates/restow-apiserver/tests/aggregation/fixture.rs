//! A main API server, called in this process, and servers behind it on real sockets: one made with the library, and one that
//! answers as a test says.

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use restow_apiserver::builtin::{self, RuntimeConfig};
use restow_apiserver::release::Release;
use restow_apiserver::resource::Resource;
use restow_apiserver::resource::registry::Registry;
use restow_apiserver::serving::pki::{CertificateAndKey, tls_config};
use restow_apiserver::{
    AgreementConfig, ApiServer, AuthorizationMode, InProcessBody, ProxyClientCertificate, RequestHeaderConfig,
    ServerConfig, call,
};
use restow_auth::User;
use restow_auth::authenticate::RequestHeaders;
use restow_store::Store;
use restow_store::conformance::ModelStore;
pub(crate) use restow_testkit::eventually_some as eventually;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_util::sync::CancellationToken;

pub(crate) const NAMESPACE: &str = "garden";
pub(crate) const SERVICE: &str = "api";
pub(crate) const PLANTS: &str = "/apis/garden.example/v1/namespaces/garden/plants";

/// A CA.
pub(crate) struct Authority {
    pub(crate) pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { pem, issuer: Issuer::new(params, key) }
    }

    /// A certificate of this subject, with these DNS names.
    pub(crate) fn issue(&self, subject: &str, names: &[&str]) -> CertificateAndKey {
        self.issue_in(subject, &[], names)
    }

    /// The same, with these organizations.
    pub(crate) fn issue_in(&self, subject: &str, groups: &[&str], names: &[&str]) -> CertificateAndKey {
        let mut params = CertificateParams::new(names.iter().map(|name| name.to_string()).collect::<Vec<_>>()).unwrap();
        params.distinguished_name.push(DnType::CommonName, subject);
        for group in groups {
            params.distinguished_name.push(DnType::OrganizationName, *group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        CertificateAndKey { certificate: params.signed_by(&key, &self.issuer).unwrap().pem(), key: key.serialize_pem() }
    }
}

/// The CAs of a test: one for servers, one for front proxies.
pub(crate) struct Authorities {
    pub(crate) servers: Authority,
    pub(crate) proxies: Authority,
}

impl Authorities {
    pub(crate) fn new() -> Self {
        Authorities { servers: Authority::new("servers"), proxies: Authority::new("proxies") }
    }

    /// Makes a server trust the front proxies of this test.
    fn trust(&self, config: &mut ServerConfig) {
        config.aggregator.client_ca = Some(self.servers.pem.clone());
        let headers = RequestHeaders { allowed_names: vec!["front-proxy-client".into()], ..RequestHeaders::default() };
        config.aggregator.request_header = Some(RequestHeaderConfig { ca: self.proxies.pem.clone(), headers });
    }

    /// TLS of a server, for users and front proxies.
    pub(crate) fn tls(&self) -> Arc<rustls::ServerConfig> {
        tls_config(&self.server(), &format!("{}{}", self.servers.pem, self.proxies.pem)).unwrap()
    }

    fn server(&self) -> CertificateAndKey {
        self.servers.issue("backend", &[&format!("{SERVICE}.{NAMESPACE}.svc")])
    }
}

pub(crate) fn store() -> Arc<dyn Store> {
    Arc::new(ModelStore::default())
}

/// The configuration of a main API server of the built-in resources.
pub(crate) fn main_config(store: &Arc<dyn Store>, authorities: &Authorities) -> ServerConfig {
    let resources = builtin::resources(Release::NEWEST, &RuntimeConfig::default());
    let address: SocketAddr = "127.0.0.1:6443".parse().unwrap();
    let mut config = ServerConfig::new(store.clone(), Registry::new(resources), address);
    config.agreement.identity = AgreementConfig::identity_of(&["main"]);
    let identity = authorities.proxies.issue("front-proxy-client", &[]);
    config.aggregator.proxy_client_certificate =
        Some(ProxyClientCertificate { certificate: identity.certificate, key: identity.key });
    authorities.trust(&mut config);
    config
}

/// A main API server of the built-in resources.
pub(crate) struct Main {
    pub(crate) server: Arc<ApiServer>,
}

impl Main {
    pub(crate) async fn start(store: &Arc<dyn Store>, authorities: &Authorities) -> Self {
        Self::start_as(store, authorities, "main").await
    }

    pub(crate) async fn start_as(store: &Arc<dyn Store>, authorities: &Authorities, id: &str) -> Self {
        let mut config = main_config(store, authorities);
        config.agreement.identity = AgreementConfig::identity_of(&[id]);
        Self::of(config).await
    }

    pub(crate) async fn of(config: ServerConfig) -> Self {
        let server = ApiServer::new(config).await.unwrap();
        server.ready().await.unwrap();
        Main { server }
    }

    pub(crate) async fn send(&self, request: Request<Full<Bytes>>, user: User) -> Response<InProcessBody> {
        call(&self.server, request, user).await
    }

    /// Sends a request of an administrator, and returns its code and body.
    pub(crate) async fn ask(&self, method: Method, path: &str, body: &Value) -> (u16, Value) {
        let kind = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = Request::builder().method(method).uri(path).header("content-type", kind);
        let response = self.send(request.body(Full::from(body)).unwrap(), admin()).await;
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let text = || Value::from(String::from_utf8_lossy(&bytes).to_string());
        (code, serde_json::from_slice(&bytes).unwrap_or_else(|_| text()))
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, Value) {
        self.ask(Method::GET, path, &Value::Null).await
    }

    pub(crate) async fn create(&self, path: &str, body: Value) -> Value {
        let (code, created) = self.ask(Method::POST, path, &body).await;
        assert_eq!(code, 201, "{created}");
        created
    }

    /// Aggregated discovery.
    pub(crate) async fn discovery(&self) -> Value {
        let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let request = Request::get("/apis").header("accept", accept).body(Full::default()).unwrap();
        let body = self.send(request, admin()).await.into_body().collect().await.unwrap().to_bytes();
        serde_json::from_slice(&body).unwrap()
    }

    /// A group-version in aggregated discovery.
    pub(crate) async fn discovered(&self, group: &str, version: &str) -> Value {
        let document = self.discovery().await;
        let items = document["items"].as_array().unwrap();
        let group = items.iter().find(|item| item["metadata"]["name"] == group).cloned().unwrap_or_default();
        let versions = group["versions"].as_array().cloned().unwrap_or_default();
        versions.into_iter().find(|found| found["version"] == version).unwrap_or_default()
    }

    pub(crate) async fn create_namespace(&self, name: &str) {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        self.create("/api/v1/namespaces", namespace).await;
    }

    /// The namespace, the service and its EndpointSlice.
    pub(crate) async fn create_service(&self, addresses: &[SocketAddr]) {
        self.create_namespace(NAMESPACE).await;
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": SERVICE},
            "spec": {"ports": [{"name": "https", "port": 443, "targetPort": 8443}]},
        });
        self.create("/api/v1/namespaces/garden/services", service).await;
        for address in addresses {
            let slice = json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {"name": format!("api-{}", address.port()), "labels": {"kubernetes.io/service-name": SERVICE}},
                "addressType": "IPv4",
                "endpoints": [{"addresses": [address.ip().to_string()], "conditions": {"ready": true}}],
                "ports": [{"name": "https", "port": address.port(), "protocol": "TCP"}],
            });
            self.create("/apis/discovery.k8s.io/v1/namespaces/garden/endpointslices", slice).await;
        }
    }

    pub(crate) async fn create_api_service(&self, group: &str, version: &str, ca: &str) {
        use base64::Engine;
        let bundle = base64::engine::general_purpose::STANDARD.encode(ca);
        let service = json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": format!("{version}.{group}")},
            "spec": {
                "group": group, "version": version, "groupPriorityMinimum": 2000, "versionPriority": 15,
                "caBundle": bundle, "service": {"name": SERVICE, "namespace": NAMESPACE, "port": 443},
            },
        });
        self.create("/apis/apiregistration.k8s.io/v1/apiservices", service).await;
    }

    /// The condition of an APIService: its status and reason.
    pub(crate) async fn condition(&self, name: &str) -> (String, String) {
        let (_, service) = self.get(&format!("/apis/apiregistration.k8s.io/v1/apiservices/{name}")).await;
        let condition = &service["status"]["conditions"][0];
        let text = |field: &str| condition[field].as_str().unwrap_or_default().to_string();
        (text("status"), text("reason"))
    }

    pub(crate) async fn wait_for_condition(&self, name: &str, status: &str, reason: &str) {
        eventually(&format!("{name} is {status} because of {reason}"), async || {
            let found = self.condition(name).await;
            (found == (status.to_string(), reason.to_string())).then_some(())
        })
        .await;
    }
}

pub(crate) fn admin() -> User {
    User::named("admin").with_group("system:masters")
}

/// A server behind the main one. It stops when this is dropped.
pub(crate) struct Backend {
    pub(crate) address: SocketAddr,
    stop: CancellationToken,
    task: Option<tokio::task::JoinHandle<()>>,
}

impl Backend {
    /// A server made with the library, of plants in two versions.
    pub(crate) async fn garden(store: &Arc<dyn Store>, authorities: &Authorities, port: u16) -> Self {
        let plants = Resource::builder("garden.example", "plants", "Plant");
        let plants = plants.served(["v2", "v1"]).stored("v2").short_names(["pl"]).with_status().build().unwrap();
        let listener = listen(port).await;
        let address = listener.local_addr().unwrap();
        let mut config = ServerConfig::new(store.clone(), Registry::new([plants]), address);
        config.agreement.identity = AgreementConfig::identity_of(&["garden", &restow_host::uuid().to_string()]);
        // The main server authorizes users, and only it can name them.
        config.access.authorization = AuthorizationMode::AllowAll;
        authorities.trust(&mut config);
        let server = ApiServer::new(config).await.unwrap();
        server.ready().await.unwrap();
        let tls = authorities.tls();
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        let task = tokio::spawn(async move {
            restow_apiserver::serve(server.clone(), listener, tls, stopped).await;
            server.leave().await;
        });
        Backend { address, stop, task: Some(task) }
    }

    /// A server that answers with this function, and shows its certificate to clients with one of a front proxy.
    pub(crate) async fn answering<F, A, B>(authorities: &Authorities, answer: F) -> Self
    where
        F: Fn(Request<Incoming>) -> A + Clone + Send + Sync + 'static,
        A: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes, Error = Infallible> + Send + 'static,
    {
        let listener = listen(0).await;
        let address = listener.local_addr().unwrap();
        let acceptor = TlsAcceptor::from(tls_config(&authorities.server(), &authorities.proxies.pem).unwrap());
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            while let Some(Ok((stream, _))) = stopped.run_until_cancelled(listener.accept()).await {
                let (acceptor, answer, stopped) = (acceptor.clone(), answer.clone(), stopped.clone());
                tokio::spawn(stopped.run_until_cancelled_owned(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service = service_fn(move |request| {
                        let answer = answer.clone();
                        async move { Ok::<_, Infallible>(answer(request).await) }
                    });
                    let builder = auto::Builder::new(TokioExecutor::new());
                    let _ = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await;
                }));
            }
        });
        Backend { address, stop, task: Some(task) }
    }

    pub(crate) async fn stop(mut self) {
        self.stop.cancel();
        if let Some(task) = self.task.take() {
            tokio::time::timeout(Duration::from_secs(30), task).await.expect("the server stops").unwrap();
        }
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Listens on this port, which an earlier server may have had.
async fn listen(port: u16) -> TcpListener {
    eventually("the port is free", async || TcpListener::bind(("127.0.0.1", port)).await.ok()).await
}

/// A TLS connection to a server, with this certificate of the client.
pub(crate) async fn connect(
    authorities: &Authorities,
    own: &CertificateAndKey,
    address: SocketAddr,
) -> TlsStream<TcpStream> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authorities.servers.pem.as_bytes()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let chain = CertificateDer::pem_slice_iter(own.certificate.as_bytes()).map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).unwrap();
    let config = builder.with_root_certificates(roots).with_client_auth_cert(chain, key).unwrap();
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from(format!("{SERVICE}.{NAMESPACE}.svc")).unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
}

/// Reads the head of a response.
pub(crate) async fn read_head(stream: &mut TlsStream<TcpStream>) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        let read = tokio::time::timeout(Duration::from_secs(20), stream.read_exact(&mut byte)).await;
        read.expect("the head of the response arrives").unwrap();
        head.extend(byte);
    }
    String::from_utf8(head).unwrap().to_lowercase()
}

/// The main server on a socket, until this is dropped.
pub(crate) struct Listening {
    pub(crate) address: SocketAddr,
    pub(crate) stop: CancellationToken,
    pub(crate) task: tokio::task::JoinHandle<()>,
}

impl Listening {
    pub(crate) async fn start(main: &Main, authorities: &Authorities) -> Self {
        let listener = listen(0).await;
        let address = listener.local_addr().unwrap();
        let (stop, server, tls) = (CancellationToken::new(), main.server.clone(), authorities.tls());
        let stopped = stop.clone().cancelled_owned();
        let task = tokio::spawn(async move { restow_apiserver::serve(server, listener, tls, stopped).await });
        Listening { address, stop, task }
    }
}

/// A response with JSON.
pub(crate) fn json_response(code: u16, body: &Value) -> Response<Full<Bytes>> {
    let response = Response::builder().status(code).header("content-type", "application/json");
    response.body(Full::from(body.to_string())).unwrap()
}
