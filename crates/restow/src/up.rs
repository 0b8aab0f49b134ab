//! `restow up`: an API server on the embedded store, ready to use.

use crate::aggregator_args::{self, AggregatorArgs};
use crate::agreement_args::AgreementArgs;
use crate::file_permissions;
use crate::in_process;
use crate::pki::{Pki, write_private};
use crate::serving::{self, Setup};
use clap::Args;
use restow_apiserver::release::Release;
use restow_store::Store;
use restow_store_embedded::{EmbeddedConfig, EmbeddedStore, OnDamage};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

/// Start an API server on the embedded store, ready to use with kubectl.
///
/// The first start creates the data directory, the certificates and a kubeconfig. Stop it with Ctrl-C; the next start serves
/// the same data.
#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    /// The directory for the store, the certificates and the kubeconfig.
    #[arg(long, value_name = "DIR", default_value = "restow-data")]
    data_dir: PathBuf,
    /// Where to listen. Port 0 takes any free port.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:6443")]
    listen: SocketAddr,
    /// The Kubernetes release to behave as: it decides which versions are served and stored.
    #[arg(long, value_name = "RELEASE", default_value_t = Release::NEWEST)]
    release: Release,
    /// Whether to run the controller that migrates stored objects when a storage version changes.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    controller: bool,
    /// Start on a damaged store, and serve the objects that can be recovered.
    ///
    /// Without this flag a server refuses to start on a damaged store. With it, the server keeps what can be recovered, and
    /// moves the damaged files to another place in the data directory. The rest is lost; restore a backup instead if there is
    /// one. The flag does nothing on an undamaged store.
    #[arg(long)]
    accept_data_loss: bool,
    #[command(flatten)]
    serving: serving::ServingArgs,
    #[command(flatten)]
    agreement: AgreementArgs,
    #[command(flatten)]
    aggregator: AggregatorArgs,
}

pub(crate) async fn run(args: UpArgs) -> anyhow::Result<()> {
    file_permissions::create_data_directory(&args.data_dir)?;
    let listener = serving::listen(args.listen).await?;
    let address = listener.local_addr()?;
    let on_damage = if args.accept_data_loss { OnDamage::AcceptLoss } else { OnDamage::Refuse };
    let config = EmbeddedConfig { on_damage, ..EmbeddedConfig::new(args.data_dir.join("store")) };
    let store: Arc<dyn Store> = Arc::new(tokio::task::spawn_blocking(|| EmbeddedStore::open(config)).await??);
    let addresses = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST), address.ip()];
    let pki = Pki::open(&args.data_dir.join("pki"), &addresses)?;
    let kubeconfig = args.data_dir.join("kubeconfig");
    // A client cannot connect to the unspecified address.
    let reachable = match address.ip().is_unspecified() {
        true => SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), address.port()),
        false => address,
    };
    write_private(&kubeconfig, &pki.kubeconfig(&reachable.to_string()))?;
    let authenticators = serving::authenticators(Some(&args.data_dir.join("pki/service-accounts.key")), None)?;
    let data = args.data_dir.canonicalize().unwrap_or_else(|_| args.data_dir.clone());
    // The identity comes from the data directory alone: two servers cannot share one, and the address may change.
    let agreement = args.agreement.config(&[&data.to_string_lossy()])?;
    let (release, gates) = (args.release, args.agreement.gates()?);
    let root_ca = Some(pki.ca.clone());
    let aggregator = args.aggregator.config_with(&pki)?;
    let tls = aggregator_args::tls(&pki.server, &aggregator)?;
    let setup =
        Setup { release, address, authenticators, gates, agreement, root_ca, aggregator, options: &args.serving };
    let server = serving::server(store, setup).await?;
    let path = kubeconfig.display();
    let greeting = format!(
        "restow is ready at https://{address} as Kubernetes {release}; kubeconfig: {path}\n\
         try: kubectl --kubeconfig {path} api-resources"
    );
    let controller = args.controller.then(|| {
        let metrics = restow_migrate::controller::Metrics::default();
        server.metrics().register(|registry| metrics.register(registry));
        tokio::spawn(in_process::run(kubeconfig.clone(), metrics))
    });
    let served = serving::run(server, listener, tls, greeting).await;
    if let Some(controller) = controller {
        // The controller has got the stop signal too. It continues unfinished migrations at the next start.
        controller.abort();
    }
    served
}
