//! `restow serve`: one instance of a highly available control plane on etcd.

use crate::aggregator_args::{self, AggregatorArgs};
use crate::agreement_args::AgreementArgs;
use crate::etcd_args::{EtcdArgs, connect_with_retries, while_etcd_is_away};
use crate::pki::{CertificateAndKey, read_pem};
use crate::serving::{self, Setup};
use anyhow::Context;
use clap::Args;
use restow_apiserver::release::Release;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// Start one API server on etcd. Any number of them can run on the same etcd.
///
/// `restow pki DIR` creates the certificates that it needs.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// The etcd members to connect to.
    #[arg(long, value_name = "URL", value_delimiter = ',', required = true)]
    etcd_endpoints: Vec<String>,
    #[command(flatten)]
    etcd: EtcdArgs,
    /// Where to listen. Port 0 takes any free port.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:6443")]
    listen: SocketAddr,
    /// The server's certificate.
    #[arg(long, value_name = "FILE")]
    tls_cert_file: PathBuf,
    /// The key of that certificate.
    #[arg(long, value_name = "FILE")]
    tls_private_key_file: PathBuf,
    /// The CA of client certificates.
    #[arg(long, value_name = "FILE")]
    client_ca_file: PathBuf,
    /// The CA of the servers' certificates, which is published in the ConfigMap kube-root-ca.crt of every namespace.
    #[arg(long, value_name = "FILE")]
    root_ca_file: Option<PathBuf>,
    /// The key that signs service account tokens, the same on every server; created if it does not exist.
    #[arg(long, value_name = "FILE")]
    service_account_signing_key_file: Option<PathBuf>,
    /// Tokens of users, one line each: TOKEN,USER,UID,"GROUP,GROUP".
    #[arg(long, value_name = "FILE")]
    token_auth_file: Option<PathBuf>,
    /// The Kubernetes release to behave as: it decides which versions are served and stored.
    #[arg(long, value_name = "RELEASE", default_value_t = Release::NEWEST)]
    release: Release,
    #[command(flatten)]
    serving: serving::ServingArgs,
    #[command(flatten)]
    agreement: AgreementArgs,
    #[command(flatten)]
    aggregator: AggregatorArgs,
}

pub(crate) async fn run(args: ServeArgs) -> anyhow::Result<()> {
    let identity =
        CertificateAndKey { certificate: read_pem(&args.tls_cert_file)?, key: read_pem(&args.tls_private_key_file)? };
    let aggregator = args.aggregator.config(read_pem(&args.client_ca_file)?)?;
    let tls = aggregator_args::tls(&identity, &aggregator)?;
    let config = args.etcd.config(&args.etcd_endpoints)?;
    let prefix = config.prefix.clone();
    let listener = serving::listen(args.listen).await?;
    let address = listener.local_addr()?;
    let store = connect_with_retries(config).await?;
    if args.listen.port() == 0 && !args.agreement.has_identity() {
        tracing::warn!(
            "with port 0 and without --identity, each start counts as another API server; the others wait until the earlier \
             lease has expired"
        );
    }
    let agreement = args.agreement.config(&[&address.to_string(), &prefix])?;
    let (release, gates) = (args.release, args.agreement.gates()?);
    let root_ca = args.root_ca_file.as_deref().map(read_pem).transpose()?;
    let (store, key) = (Arc::new(store), args.service_account_signing_key_file.as_deref());
    // etcd can be lost again right after it was reached.
    let server = while_etcd_is_away(async || {
        let authenticators = serving::authenticators(key, args.token_auth_file.as_deref())?;
        let (agreement, root_ca, aggregator) = (agreement.clone(), root_ca.clone(), aggregator.clone());
        let setup =
            Setup { release, address, authenticators, gates, agreement, root_ca, aggregator, options: &args.serving };
        serving::server(store.clone(), setup).await
    });
    let server = server.await.with_context(|| format!("cannot serve from etcd under the prefix {prefix}"))?;
    let greeting = format!("restow is ready at https://{address} as Kubernetes {release}");
    serving::run(server, listener, tls, greeting).await
}
