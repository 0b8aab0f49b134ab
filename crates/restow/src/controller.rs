//! `restow controller` and `restow install`: automatic migrations on any cluster.

use crate::cluster_args::ClusterArgs;
use crate::pace_args::PaceArgs;
use crate::serving;
use anyhow::Context;
use clap::Args;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use restow_apiserver::serving::{self as connections, Connection, ConnectionLimits, Handler, Transport};
use restow_migrate::controller::{self, ControllerConfig, Metrics, ResourceFilter};
use restow_migrate::install::{InstallOptions, install, manifests};
use restow_migrate::migration::{ManagedFieldsPolicy, MigrationOptions};
use restow_migrate::runner::RunOptions;
use restow_rules::migrate::maintenance_window::MaintenanceWindow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// Migrate stored objects automatically when a storage version changes.
///
/// Any number of controllers can run; the leader acts. Needs what `restow install` installs.
#[derive(Debug, Args)]
pub(crate) struct ControllerArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// The identity for leader election; host name and process id by default.
    #[arg(long, value_name = "NAME")]
    identity: Option<String>,
    /// The lease duration for leader election, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = clap::value_parser!(u64).range(2..))]
    lease_duration: u64,
    /// The namespace of the lease.
    #[arg(long, value_name = "NAME", default_value = "restow-system")]
    namespace: String,
    /// The resync period: how often all resources are reconciled without an event, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    poll_interval: u64,
    #[command(flatten)]
    pace: PaceArgs,
    /// How many resources are migrated at the same time.
    #[arg(long, value_name = "N", default_value_t = 4)]
    at_once: usize,
    /// A maintenance window in UTC in which objects may be rewritten, such as 22:00-06:00; can be repeated.
    #[arg(long = "window", value_name = "FROM-UNTIL")]
    windows: Vec<MaintenanceWindow>,
    /// Manage custom resources only.
    #[arg(long)]
    crds_only: bool,
    /// Keep all managedFields entries, including those of versions that are going to be removed.
    #[arg(long)]
    keep_managed_fields: bool,
    /// Where to serve metrics, at /metrics. Port 0 takes any free port. There is no authentication, so listen on 127.0.0.1
    /// unless everyone who can reach the address may know which resources exist.
    #[arg(long, value_name = "ADDR:PORT")]
    metrics_listen: Option<SocketAddr>,
}

pub(crate) async fn run(args: ControllerArgs) -> anyhow::Result<()> {
    let cluster = args.cluster.connect().await?;
    let metrics = Metrics::default();
    if let Some(address) = args.metrics_listen {
        let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
        println!("metrics are at http://{}/metrics", listener.local_addr()?);
        let (limits, handler) = (ConnectionLimits::small(), Arc::new(MetricsHandler(metrics.clone())));
        let stop = std::future::pending();
        tokio::spawn(connections::serve(listener, Transport::Plain, limits, handler, stop, || {}));
    }
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(async move {
        serving::stop_signal().await;
        stop.send_replace(true);
        // A dropped sender would stop the controller too.
        std::future::pending::<()>().await;
    });
    controller::run(cluster, args.config(), metrics, stopped).await;
    Ok(())
}

impl ControllerArgs {
    fn config(&self) -> ControllerConfig {
        let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "restow".to_owned());
        ControllerConfig {
            identity: self.identity.clone().unwrap_or_else(|| format!("{host}_{}", std::process::id())),
            lease_duration: Duration::from_secs(self.lease_duration),
            namespace: self.namespace.clone(),
            poll_interval: Duration::from_secs(self.poll_interval),
            migration: MigrationOptions {
                run: RunOptions { pacer: self.pace.limits(), ..RunOptions::default() },
                owners: if self.keep_managed_fields { ManagedFieldsPolicy::Leave } else { ManagedFieldsPolicy::Move },
                settling_time: self.pace.settling_time(),
                ..MigrationOptions::default()
            },
            at_once: self.at_once,
            windows: self.windows.clone(),
            resources: if self.crds_only { ResourceFilter::Custom } else { ResourceFilter::All },
            ..ControllerConfig::default()
        }
    }
}

/// Serves the metrics.
struct MetricsHandler(Metrics);

impl Handler for MetricsHandler {
    type Peer = ();
    type Body = Full<bytes::Bytes>;

    fn connected(&self, _: &Connection, _: Option<&rustls::ServerConnection>) {}

    async fn handle(self: Arc<Self>, request: Request<Incoming>, _: Arc<()>) -> Response<Full<bytes::Bytes>> {
        let code = match (request.method(), request.uri().path()) {
            (&Method::GET | &Method::HEAD, "/metrics") => StatusCode::OK,
            (_, "/metrics") => StatusCode::METHOD_NOT_ALLOWED,
            _ => StatusCode::NOT_FOUND,
        };
        let text = if code == StatusCode::OK { self.0.text() } else { String::new() };
        let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        let mut response = Response::new(Full::from(text));
        *response.status_mut() = code;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        response
    }
}

/// Install what `restow controller` needs: CRDs, permissions, the guard, and the controller.
///
/// Can be run again at any time; it changes only what differs, and prints what was done.
#[derive(Debug, Args)]
pub(crate) struct InstallArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// The image of the controller. Without it no Deployment is created, for a controller that runs elsewhere.
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// Allow the controller to read and rewrite custom resources only, and run it with --crds-only.
    #[arg(long)]
    crds_only: bool,
    /// A group whose resources the controller may rewrite although the cluster does not have them yet; can be repeated.
    /// Without it, the controller may rewrite the resources that exist when this runs.
    #[arg(long = "group", value_name = "GROUP")]
    groups: Vec<String>,
    /// Where the controller serves its metrics, without authentication. The default can be reached from within its pod, as
    /// with `kubectl port-forward`; 0.0.0.0:9443 lets Prometheus, and everyone else in the pod network, read them.
    #[arg(long, value_name = "ADDR:PORT", default_value_t = InstallOptions::default().metrics_listen)]
    metrics_listen: SocketAddr,
    /// Print the manifests for this cluster, with comments on all permissions, and install nothing.
    #[arg(long)]
    dry_run: bool,
    /// The output format.
    #[arg(long, short, value_name = "FORMAT", default_value = "yaml", requires = "dry_run")]
    output: ManifestFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ManifestFormat {
    Yaml,
}

pub(crate) async fn run_install(args: InstallArgs) -> anyhow::Result<()> {
    let options = InstallOptions {
        image: args.image,
        resources: if args.crds_only { ResourceFilter::Custom } else { ResourceFilter::All },
        groups: args.groups,
        metrics_listen: args.metrics_listen,
    };
    let cluster = args.cluster.connect().await?;
    if args.dry_run {
        print!("{}", manifests(cluster.client(), &options).await?);
        return Ok(());
    }
    for installed in install(cluster.client(), &options).await? {
        println!("{} {}", installed.name, installed.action);
    }
    Ok(())
}
