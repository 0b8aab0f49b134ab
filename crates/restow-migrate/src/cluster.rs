//! How to reach the API servers of a cluster: all through one address, or each by its own.

use crate::RequestError;
use crate::settling_time::AgreementTracker;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use restow_rules::collect::{CONTROL_PLANE_LABEL, OWN_LEASE_ANNOTATION, OWN_STORE_LABEL};
use restow_rules::migrate::aggregation::AggregatedServer;
use restow_rules::migrate::api_servers::{ApiServers, FENCED_WRITES_LABEL, RequiredServers};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Selects the identity leases of the API servers themselves. Those of aggregated servers name another control plane.
pub(crate) const API_SERVER_LEASES: &str = "apiserver.kubernetes.io/identity=kube-apiserver,!restow.dev/control-plane";
/// The label of identity leases. Its value names the control plane of the server, unless [`CONTROL_PLANE_LABEL`] does.
const IDENTITY_LABEL: &str = "apiserver.kubernetes.io/identity";
/// The control plane of the API servers themselves.
const API_SERVERS: &str = "kube-apiserver";

/// The API servers of a cluster.
#[derive(Clone)]
pub struct Cluster {
    connector: Connector,
    client: Client,
    reach: Reach,
    agreements: AgreementTracker,
}

/// How a single API server is reached by its own address.
#[derive(Clone)]
enum Connector {
    /// With this configuration and that address.
    Config(Box<Config>),
    /// As the given function says.
    Function(Arc<dyn Fn(&str) -> Client + Send + Sync>),
    /// All requests use the common client.
    Common,
}

/// One API server of several.
#[derive(Clone)]
pub struct Instance {
    /// Its address, for display.
    pub name: String,
    /// How it is reached.
    pub client: Client,
}

/// How the API servers of a cluster are reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// Each by its own address, so that each can be queried.
    #[default]
    EachServer,
    /// All through one address. It is unknown which of them answers, so nothing can be proven.
    OneEndpoint,
}

/// The number of separate connections if all servers are behind one address. A load balancer spreads them.
const FRESH_CONNECTIONS: usize = 4;

/// Why a cluster cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// There is no usable configuration.
    #[error("cannot find out how to reach the cluster; give --kubeconfig, or set KUBECONFIG")]
    Configuration(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The configuration has no such context, or none that can be used.
    #[error("cannot use the context {0:?}; `kubectl config get-contexts` lists those that there are")]
    Context(String, #[source] Box<dyn std::error::Error + Send + Sync>),
    /// The configuration cannot be used.
    #[error("cannot use the configuration of the cluster")]
    Client(#[source] Box<kube::Error>),
}

/// The name that the certificate of every API server carries, whatever its address.
const SERVER_NAME: &str = "kubernetes.default.svc";

impl Cluster {
    /// Connects with a kubeconfig; without one, with that of the environment, or from within the cluster.
    pub async fn connect(kubeconfig: Option<&Path>) -> Result<Self, ConnectError> {
        Cluster::connect_in_context(kubeconfig, None).await
    }

    /// The same with another context than the current one of the kubeconfig.
    pub async fn connect_in_context(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Self, ConnectError> {
        let unusable = |error: kube::config::KubeconfigError| match context {
            Some(context) => ConnectError::Context(context.to_owned(), Box::new(error)),
            None => ConnectError::Configuration(Box::new(error)),
        };
        let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
        let config = match (kubeconfig, context) {
            (Some(path), _) => {
                let file = Kubeconfig::read_from(path).map_err(|error| ConnectError::Configuration(Box::new(error)))?;
                Config::from_custom_kubeconfig(file, &options).await.map_err(unusable)?
            }
            // Only a kubeconfig has contexts, an in-cluster configuration has none.
            (None, Some(_)) => Config::from_kubeconfig(&options).await.map_err(unusable)?,
            (None, None) => Config::infer().await.map_err(|error| ConnectError::Configuration(Box::new(error)))?,
        };
        Cluster::from_config(config)
    }

    /// The cluster of a configuration.
    pub fn from_config(mut config: Config) -> Result<Self, ConnectError> {
        // The pacer has to see each 429, so the client must not retry on its own.
        config.default_retry = false;
        config.connect_timeout = Some(Duration::from_secs(10));
        let client = Client::try_from(config.clone()).map_err(|error| ConnectError::Client(Box::new(error)))?;
        Ok(Cluster { connector: Connector::Config(Box::new(config)), ..Cluster::from_client(client) })
    }

    /// The cluster of this client, whose single API servers are reached by the clients that `connect` makes for their
    /// addresses.
    pub fn from_clients(client: Client, connect: impl Fn(&str) -> Client + Send + Sync + 'static) -> Self {
        Cluster { connector: Connector::Function(Arc::new(connect)), ..Cluster::from_client(client) }
    }

    /// The cluster of this client. All of its API servers are reached through it.
    pub fn from_client(client: Client) -> Self {
        Cluster {
            connector: Connector::Common,
            client,
            reach: Reach::default(),
            agreements: AgreementTracker::default(),
        }
    }

    /// Sets how its API servers are reached.
    pub fn reached_by(self, reach: Reach) -> Self {
        Cluster { reach, ..self }
    }

    /// How its API servers are reached.
    pub fn reach(&self) -> Reach {
        self.reach
    }

    /// Since when its API servers agree, by resource.
    pub fn agreements(&self) -> &AgreementTracker {
        &self.agreements
    }

    /// The client of the common address.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Which API servers exist. If reading is forbidden, the result says so; only a server that cannot be reached is an
    /// error.
    pub(crate) async fn api_servers(&self) -> Result<ApiServers, RequestError> {
        let slices: Api<EndpointSlice> = Api::namespaced(self.client.clone(), "default");
        let of_service = ListParams::default().labels("kubernetes.io/service-name=kubernetes");
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), "kube-system");
        let of_servers = ListParams::default().labels(IDENTITY_LABEL);
        let (slices, leases) = tokio::join!(slices.list(&of_service), leases.list(&of_servers));
        let (slices, leases) = (readable(slices.map(|list| list.items))?, readable(leases.map(|list| list.items))?);
        let aggregated = leases.iter().flatten().filter_map(aggregated_server).collect();
        // A lease of another control plane is that of an aggregated API server, which is not queried, and whose restart is
        // nothing to the resources of the others.
        let leases = leases.map(|leases| leases.into_iter().filter(is_of_api_server).collect::<Vec<Lease>>());
        let generations = slices.iter().flatten().map(|slice| mark("EndpointSlice", slice, generation(slice)));
        let uids = leases.iter().flatten().map(|lease| mark("Lease", lease, lease.uid().unwrap_or_default()));
        let marks = generations.chain(uids);
        let fenced = leases.iter().flatten().filter(|lease| is_fenced(lease)).map(ResourceExt::name_any);
        Ok(ApiServers {
            fenced: fenced.collect(),
            aggregated,
            marks: marks.collect(),
            addresses: slices.map(|slices| slices.iter().flat_map(addresses_of).collect()),
            identities: leases.map(|leases| leases.into_iter().filter_map(identity_of).collect()),
            required: RequiredServers::All,
        })
    }

    /// How to reach each of these servers. If there is only one, or no address is known, this is the common address.
    pub(crate) fn instances(&self, servers: &ApiServers) -> Result<Vec<Instance>, RequestError> {
        match (self.reach, &servers.addresses) {
            (Reach::OneEndpoint, _) => (1..=FRESH_CONNECTIONS).map(|number| self.fresh(number)).collect(),
            (Reach::EachServer, Ok(addresses)) if addresses.len() > 1 => {
                addresses.iter().map(|address| self.instance(address.clone())).collect()
            }
            (Reach::EachServer, _) => Ok(vec![self.common()]),
        }
    }

    /// The common address, with a new connection.
    fn fresh(&self, number: usize) -> Result<Instance, RequestError> {
        let Instance { name, client } = self.common();
        let client = match &self.connector {
            Connector::Config(config) => Client::try_from(config.as_ref().clone())
                .map_err(|error| RequestError { message: format!("{name}: {error}"), ..RequestError::default() })?,
            Connector::Function(_) | Connector::Common => client,
        };
        Ok(Instance { name: format!("{name} (connection {number})"), client })
    }

    pub(crate) fn common(&self) -> Instance {
        let name = match &self.connector {
            Connector::Config(config) => config.cluster_url.to_string(),
            Connector::Function(_) | Connector::Common => "the API server".to_owned(),
        };
        Instance { name, client: self.client.clone() }
    }

    fn instance(&self, address: String) -> Result<Instance, RequestError> {
        let config = match &self.connector {
            Connector::Config(config) => config.as_ref(),
            Connector::Function(connect) => return Ok(Instance { client: connect(&address), name: address }),
            Connector::Common => return Ok(Instance { name: address, client: self.client.clone() }),
        };
        let url = format!("https://{address}/");
        let unusable = |why: String| RequestError { message: format!("{url}: {why}"), ..RequestError::default() };
        let mut config = config.clone();
        config.cluster_url = url.parse().map_err(|error: http::uri::InvalidUri| unusable(error.to_string()))?;
        config.tls_server_name.get_or_insert_with(|| SERVER_NAME.to_owned());
        config.connect_timeout = Some(Duration::from_secs(5));
        let client = Client::try_from(config).map_err(|error| unusable(error.to_string()))?;
        Ok(Instance { name: address, client })
    }
}

/// What was read, or why it may not be read. A server that does not answer is an error.
pub(crate) fn readable<T>(read: Result<T, kube::Error>) -> Result<Result<T, String>, RequestError> {
    match read.map_err(RequestError::from) {
        Ok(found) => Ok(Ok(found)),
        Err(failure) if failure.code == 0 => Err(failure),
        Err(failure) => Ok(Err(failure.to_string())),
    }
}

/// What changes on an object when a server joins or leaves, by the name of the object.
fn mark(kind: &str, object: &impl ResourceExt, mark: String) -> (String, String) {
    (format!("{kind} {}", object.name_any()), mark)
}

/// The generation of a slice, which changes with its endpoints.
pub(crate) fn generation(slice: &EndpointSlice) -> String {
    slice.metadata.generation.unwrap_or_default().to_string()
}

/// The control plane of the server of an identity lease.
fn control_plane(lease: &Lease) -> &str {
    let labels = lease.labels();
    labels.get(CONTROL_PLANE_LABEL).or_else(|| labels.get(IDENTITY_LABEL)).map_or(API_SERVERS, String::as_str)
}

/// Whether an identity lease is that of an API server of the cluster itself.
fn is_of_api_server(lease: &Lease) -> bool {
    control_plane(lease) == API_SERVERS
}

/// The name of an identity lease, and its server, if that is an aggregated API server.
fn aggregated_server(lease: &Lease) -> Option<(String, AggregatedServer)> {
    let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
    let server = AggregatedServer {
        control_plane: control_plane(lease).to_owned(),
        is_fenced: lease.annotations().contains_key(OWN_LEASE_ANNOTATION),
        store: lease.labels().get(OWN_STORE_LABEL).cloned(),
        process: format!("{} {holder}", lease.uid().unwrap_or_default()),
    };
    (!is_of_api_server(lease)).then(|| (lease.name_any(), server))
}

/// Whether the server of an identity lease writes under a fence.
fn is_fenced(lease: &Lease) -> bool {
    lease.labels().get(FENCED_WRITES_LABEL).is_some_and(|value| value == "true")
}

/// The name of an identity lease, and who holds it.
fn identity_of(lease: Lease) -> Option<(String, String)> {
    let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
    Some((lease.metadata.name?, holder))
}

/// The addresses of a slice, as in a URL. An endpoint that is not ready counts too: it may still write.
fn addresses_of(slice: &EndpointSlice) -> Vec<String> {
    let ports = slice.ports.as_deref().unwrap_or_default();
    let port = ports.iter().find(|port| port.name.as_deref() == Some("https")).or(ports.first());
    let port = port.and_then(|port| port.port).unwrap_or(443);
    let hosts = slice.endpoints.iter().flatten().flat_map(|endpoint| &endpoint.addresses);
    hosts.map(|host| if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_endpoint_is_an_address_with_the_https_port() {
        let slice: EndpointSlice = serde_json::from_value(json!({
            "addressType": "IPv4",
            "metadata": {"name": "kubernetes"},
            "ports": [{"name": "other", "port": 1}, {"name": "https", "port": 6443}],
            "endpoints": [
                {"addresses": ["10.0.0.1"], "conditions": {"ready": true}},
                {"addresses": ["fd00::2"], "conditions": {"ready": false}},
            ],
        }))
        .unwrap();
        assert_eq!(addresses_of(&slice), ["10.0.0.1:6443", "[fd00::2]:6443"]);
    }

    #[test]
    fn the_lease_of_an_aggregated_server_is_not_that_of_an_api_server() {
        let lease = |labels: serde_json::Value, annotations: serde_json::Value| -> Lease {
            let metadata = json!({"name": "a", "uid": "7", "labels": labels, "annotations": annotations});
            serde_json::from_value(json!({"metadata": metadata, "spec": {"holderIdentity": "a_1"}})).unwrap()
        };
        let identity = "apiserver.kubernetes.io/identity";
        for api_server in [json!({identity: "kube-apiserver"}), json!({})] {
            let lease = lease(api_server, json!({}));
            assert!(is_of_api_server(&lease) && aggregated_server(&lease).is_none());
        }
        let own_lease = json!({"restow.dev/own-lease-uid": "1"});
        let named = json!({
            identity: "kube-apiserver", "restow.dev/control-plane": "garden", "restow.dev/own-store": "s",
        });
        for (labels, annotations, is_fenced, store) in
            [(named, own_lease, true, Some("s".to_owned())), (json!({identity: "garden"}), json!({}), false, None)]
        {
            let lease = lease(labels, annotations);
            assert!(!is_of_api_server(&lease));
            let (control_plane, process) = ("garden".into(), "7 a_1".into());
            let expected = AggregatedServer { control_plane, is_fenced, store, process };
            assert_eq!(aggregated_server(&lease), Some(("a".into(), expected)));
        }
    }
}
