//! `restow up`: an API server on the embedded store, ready to use.

use crate::pki::{Identity, Pki, write_private};
use anyhow::Context;
use clap::Args;
use restow_apiserver::builtin::{self, RuntimeConfig};
use restow_apiserver::registry::Registry;
use restow_apiserver::release::Release;
use restow_apiserver::{ApiServer, ServerConfig};
use restow_store::Store;
use restow_store_embedded::{EmbeddedConfig, EmbeddedStore};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::TcpListener;

/// Start an API server on the embedded store, ready to use with kubectl.
///
/// On the first start it makes its data directory, its certificates and a kubeconfig. Stop it with Ctrl-C; what it
/// stores is there again on the next start.
#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    /// Where everything is kept.
    #[arg(long, value_name = "DIR", default_value = "restow-data")]
    data_dir: PathBuf,
    /// Where to listen. Port 0 takes any free port.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:6443")]
    listen: SocketAddr,
    /// The Kubernetes release to behave as: it decides which versions are served and stored.
    #[arg(long, value_name = "RELEASE", default_value_t = Release::NEWEST)]
    release: Release,
}

pub(crate) async fn run(args: UpArgs) -> anyhow::Result<()> {
    make_folder(&args.data_dir)?;
    let listener = TcpListener::bind(args.listen).await.with_context(|| {
        format!("cannot listen on {}; is another server running there? Choose another with --listen", args.listen)
    })?;
    let address = listener.local_addr()?;
    let config = EmbeddedConfig::new(args.data_dir.join("store"));
    let store: Arc<dyn Store> = Arc::new(tokio::task::spawn_blocking(|| EmbeddedStore::open(config)).await??);
    let addresses = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST), address.ip()];
    let pki = Pki::open(&args.data_dir.join("pki"), &addresses)?;
    let kubeconfig = args.data_dir.join("kubeconfig");
    write_private(&kubeconfig, &kubeconfig_text(&pki, address))?;
    let resources = builtin::resources(args.release, &RuntimeConfig::default())?;
    let registry = Registry::new(resources.into_iter().map(Arc::new));
    let server = ApiServer::new(ServerConfig { store, registry, release: args.release, address }).await?;
    let tls = tls_config(&pki.server, &pki.ca)?;

    println!(
        "restow is ready at https://{address} as Kubernetes {}; kubeconfig: {}",
        args.release,
        kubeconfig.display()
    );
    println!("try: kubectl --kubeconfig {} api-resources", kubeconfig.display());
    server.serve(listener, tls, stop_signal()).await;
    println!("stopped");
    Ok(())
}

fn make_folder(folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot make the data directory {}; choose another with --data-dir", folder.display()))
}

fn tls_config(identity: &Identity, client_ca: &str) -> anyhow::Result<Arc<rustls::ServerConfig>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(client_ca.as_bytes()) {
        roots.add(certificate?)?;
    }
    let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .allow_unauthenticated()
        .build()?;
    let chain = CertificateDer::pem_slice_iter(identity.certificate.as_bytes()).collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes())?;
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn kubeconfig_text(pki: &Pki, address: SocketAddr) -> String {
    use base64::Engine;
    let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    let (ca, certificate, key) = (encode(&pki.ca), encode(&pki.admin.certificate), encode(&pki.admin.key));
    format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: restow\n  cluster:\n    server: https://{address}\n    \
         certificate-authority-data: {ca}\nusers:\n- name: restow-admin\n  user:\n    client-certificate-data: \
         {certificate}\n    client-key-data: {key}\ncontexts:\n- name: restow\n  context:\n    cluster: restow\n    \
         user: restow-admin\ncurrent-context: restow\n"
    )
}

/// Completes when the process is asked to stop.
async fn stop_signal() {
    let terminate = async {
        match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
            Ok(mut signal) => {
                signal.recv().await;
            }
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        () = terminate => {}
    }
}
