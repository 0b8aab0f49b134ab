//! The certificates of a server that nobody has given any: a CA of its own, one for the server, one for its admin.
//!
//! The CA is made on the first start and kept. The others are made from it on every start, so that they cover the
//! addresses asked for and never expire while they are in use.

use anyhow::Context;
use clap::Args;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};
use std::fs;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use time::{Duration, OffsetDateTime};

/// The certificates and keys of a server, as PEM.
pub(crate) struct Pki {
    pub(crate) ca: String,
    pub(crate) server: Identity,
    pub(crate) admin: Identity,
}

/// A certificate with its key.
pub(crate) struct Identity {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Pki {
    /// Reads the certificates in `folder`, or makes them.
    pub(crate) fn open(folder: &Path, addresses: &[IpAddr]) -> anyhow::Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let ca = match read(folder, "ca")? {
            Some(ca) => ca,
            None => write(folder, "ca", make_ca()?)?,
        };
        let key =
            KeyPair::from_pem(&ca.key).with_context(|| format!("the CA key in {} is unreadable", folder.display()))?;
        let issuer = Issuer::new(ca_params(), key);
        // Made on every start: it costs a millisecond, and is never out of date.
        let server = write(folder, "server", make_server(&issuer, addresses)?)?;
        let admin = write(folder, "admin", make_client(&issuer, "restow-admin", "system:masters")?)?;
        Ok(Pki { ca: ca.certificate, server, admin })
    }

    /// How the admin's clients reach the server.
    pub(crate) fn kubeconfig(&self, address: &str) -> String {
        use base64::Engine;
        let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
        let (ca, certificate, key) = (encode(&self.ca), encode(&self.admin.certificate), encode(&self.admin.key));
        format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: restow\n  cluster:\n    server: https://{address}\n    \
             certificate-authority-data: {ca}\nusers:\n- name: restow-admin\n  user:\n    client-certificate-data: \
             {certificate}\n    client-key-data: {key}\ncontexts:\n- name: restow\n  context:\n    cluster: \
             restow\n    user: restow-admin\ncurrent-context: restow\n"
        )
    }
}

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

fn make_ca() -> anyhow::Result<Identity> {
    let key = KeyPair::generate()?;
    Ok(Identity { certificate: ca_params().self_signed(&key)?.pem(), key: key.serialize_pem() })
}

/// What the CA is called and may do. An issuer is known by its name and key alone, so this serves later starts too.
fn ca_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "restow-ca");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    valid_for(&mut params, Duration::days(3650));
    params
}

fn make_server(issuer: &Issuer<'_, KeyPair>, addresses: &[IpAddr]) -> anyhow::Result<Identity> {
    let names = [
        "localhost",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    ];
    let mut params = CertificateParams::new(names.map(String::from).to_vec())?;
    params.subject_alt_names.extend(addresses.iter().map(|address| SanType::IpAddress(*address)));
    params.distinguished_name.push(DnType::CommonName, "restow-apiserver");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    sign(params, issuer)
}

fn make_client(issuer: &Issuer<'_, KeyPair>, user: &str, group: &str) -> anyhow::Result<Identity> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, user);
    params.distinguished_name.push(DnType::OrganizationName, group);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    sign(params, issuer)
}

fn sign(mut params: CertificateParams, issuer: &Issuer<'_, KeyPair>) -> anyhow::Result<Identity> {
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    valid_for(&mut params, Duration::days(365));
    let key = KeyPair::generate()?;
    Ok(Identity { certificate: params.signed_by(&key, issuer)?.pem(), key: key.serialize_pem() })
}

/// A little of the past is included for clocks that are behind.
fn valid_for(params: &mut CertificateParams, time: Duration) {
    let now = OffsetDateTime::now_utc();
    params.not_before = now - Duration::minutes(10);
    params.not_after = now + time;
}

fn paths(folder: &Path, name: &str) -> (PathBuf, PathBuf) {
    (folder.join(format!("{name}.crt")), folder.join(format!("{name}.key")))
}

fn read(folder: &Path, name: &str) -> anyhow::Result<Option<Identity>> {
    let (certificate, key) = paths(folder, name);
    if !certificate.exists() || !key.exists() {
        return Ok(None);
    }
    let read = |path: &Path| fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
    Ok(Some(Identity { certificate: read(&certificate)?, key: read(&key)? }))
}

fn write(folder: &Path, name: &str, identity: Identity) -> anyhow::Result<Identity> {
    let (certificate, key) = paths(folder, name);
    write_private(&key, &identity.key)?;
    write_private(&certificate, &identity.certificate)?;
    Ok(identity)
}

/// Writes a file that only its owner may read, as a whole or not at all.
pub(crate) fn write_private(path: &Path, text: &str) -> anyhow::Result<()> {
    let draft = path.with_extension("new");
    let written = || -> std::io::Result<()> {
        let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&draft, path)
    };
    written().with_context(|| format!("cannot write {}", path.display()))
}
