//! `restow pki`: creates certificates for `restow serve`.

use anyhow::Context;
use clap::Args;
pub(crate) use restow_apiserver::serving::pki::{CertificateAndKey, Pki, write_private};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

/// Create the certificates that `restow serve` needs: a CA, a server certificate, an admin certificate, and a kubeconfig.
///
/// An existing CA is kept; the other files are created again from it.
#[derive(Debug, Args)]
pub(crate) struct PkiArgs {
    /// The directory to write them to.
    directory: PathBuf,
    /// Another IP address at which clients reach the servers, beside loopback; can be given several times.
    #[arg(long = "address", value_name = "IP")]
    addresses: Vec<IpAddr>,
    /// The address of the server in the kubeconfig.
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

/// Reads a certificate or key file.
pub(crate) fn read_pem(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}
