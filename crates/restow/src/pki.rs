//! `restow pki`: certificates for servers that have none.

use clap::Args;
pub(crate) use restow_apiserver::serving::pki::{Identity, Pki, write_private};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

/// Make the certificates that `restow serve` needs: a CA, one for the servers, one for an admin, and a kubeconfig.
///
/// What is there already of the CA is kept; the rest is made anew from it.
#[derive(Debug, Args)]
pub(crate) struct PkiArgs {
    /// Where to put them.
    directory: PathBuf,
    /// An address at which clients reach the servers, beside the local ones; can be given several times.
    #[arg(long = "address", value_name = "IP")]
    addresses: Vec<IpAddr>,
    /// The address that the kubeconfig names.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:6443")]
    server: String,
}

pub(crate) fn run(args: &PkiArgs) -> anyhow::Result<()> {
    let local = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    let addresses: Vec<IpAddr> = local.into_iter().chain(args.addresses.iter().copied()).collect();
    let pki = Pki::open(&args.directory, &addresses)?;
    write_private(&args.directory.join("kubeconfig"), &pki.kubeconfig(&args.server))?;
    println!("certificates and a kubeconfig for https://{} are in {}", args.server, args.directory.display());
    Ok(())
}
