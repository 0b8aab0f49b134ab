//! Self-managed certificates: a CA, a server certificate and an admin certificate, and the same for front proxies; and the TLS
//! configuration for these or
//! for given certificates.
//!
//! The CA is created on the first start and kept. The other certificates are issued on every start, so that they cover the
//! configured addresses and do not expire while in use.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;
use time::{Duration, OffsetDateTime};

/// The certificates and keys of a server, as PEM.
pub struct Pki {
    /// The certificate of the authority.
    pub ca: String,
    /// The certificate of the server.
    pub server: CertificateAndKey,
    /// The client certificate of an administrator, in the group `system:masters`.
    pub admin: CertificateAndKey,
    /// The certificate of the authority of front proxies.
    pub front_proxy_ca: String,
    /// The client certificate with which the server passes requests on to the API servers behind it.
    pub front_proxy_client: CertificateAndKey,
}

/// The common name of the certificate of [`Pki::front_proxy_client`].
pub const FRONT_PROXY_CLIENT: &str = "front-proxy-client";
/// The names of the authorities.
const CA_NAME: &str = "restow-ca";
const FRONT_PROXY_CA_NAME: &str = "restow-front-proxy-ca";

/// A certificate with its key.
pub struct CertificateAndKey {
    /// The certificate, or a chain that begins with it.
    pub certificate: String,
    /// Its key.
    pub key: String,
}

/// Why certificates could not be created, read or used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PkiError {
    /// A directory could not be created.
    #[error("cannot create {0}")]
    CreateDirectory(PathBuf, #[source] io::Error),
    /// A file could not be read.
    #[error("cannot read {0}")]
    Read(PathBuf, #[source] io::Error),
    /// A file could not be written.
    #[error("cannot write {0}")]
    Write(PathBuf, #[source] io::Error),
    /// The key of the authority is damaged.
    #[error("the CA key in {0} is unreadable")]
    AuthorityKey(PathBuf, #[source] rcgen::Error),
    /// A certificate could not be created.
    #[error("cannot create a certificate")]
    Create(#[from] rcgen::Error),
    /// A file is not valid PEM.
    #[error("the {0} is unreadable")]
    Pem(&'static str, #[source] pem::Error),
    /// The certificates of the clients' authority cannot be used.
    #[error("the client CA holds no certificate that can be used: {0}")]
    ClientAuthority(String),
    /// The server's certificate and key do not match, or TLS does not accept them.
    #[error("the server's certificate and key do not match")]
    Server(#[source] rustls::Error),
}

impl Pki {
    /// Reads the certificates in `folder`, or creates them.
    pub fn open(folder: &Path, addresses: &[IpAddr]) -> Result<Self, PkiError> {
        let created = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
        created.map_err(|error| PkiError::CreateDirectory(folder.into(), error))?;
        let (ca, issuer) = authority(folder, "ca", CA_NAME)?;
        let (front_proxy_ca, proxies) = authority(folder, "front-proxy-ca", FRONT_PROXY_CA_NAME)?;
        // Issued on every start: it takes a millisecond, and never expires in use.
        let server = write(folder, "server", issue_server(&issuer, addresses)?)?;
        let admin = write(folder, "admin", issue_client(&issuer, "restow-admin", Some("system:masters"))?)?;
        let proxy = issue_client(&proxies, FRONT_PROXY_CLIENT, None)?;
        let front_proxy_client = write(folder, FRONT_PROXY_CLIENT, proxy)?;
        Ok(Pki { ca, server, admin, front_proxy_ca, front_proxy_client })
    }

    /// TLS with the server's certificate, for clients with certificates of the same authority.
    pub fn tls(&self) -> Result<Arc<rustls::ServerConfig>, PkiError> {
        tls_config(&self.server, &self.ca)
    }

    /// A kubeconfig for the admin.
    pub fn kubeconfig(&self, address: &str) -> String {
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

/// TLS with this certificate; clients may authenticate with a certificate of the CA.
pub fn tls_config(identity: &CertificateAndKey, client_ca: &str) -> Result<Arc<rustls::ServerConfig>, PkiError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let roots = roots_of(client_ca)?;
    let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .allow_unauthenticated()
        .build()
        .map_err(|error| PkiError::ClientAuthority(error.to_string()))?;
    let chain = CertificateDer::pem_slice_iter(identity.certificate.as_bytes()).collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(|error| PkiError::Pem("server's certificate", error))?;
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes());
    let key = key.map_err(|error| PkiError::Pem("server's key", error))?;
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(PkiError::Server)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(PkiError::Server)?;
    // A resumed session would reuse the client's certificate without checking it again.
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// The CA certificates in a PEM text.
pub(crate) fn roots_of(pem: &str) -> Result<rustls::RootCertStore, PkiError> {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let certificate = certificate.map_err(|error| PkiError::Pem("client CA", error))?;
        roots.add(certificate).map_err(|error| PkiError::ClientAuthority(error.to_string()))?;
    }
    Ok(roots)
}

/// The certificate of an authority in `folder`, created if it is not there, and what it issues certificates with.
fn authority(folder: &Path, file: &str, name: &str) -> Result<(String, Issuer<'static, KeyPair>), PkiError> {
    let ca = match read(folder, file)? {
        Some(ca) => ca,
        None => write(folder, file, create_ca(name)?)?,
    };
    let key = KeyPair::from_pem(&ca.key).map_err(|error| PkiError::AuthorityKey(folder.into(), error))?;
    Ok((ca.certificate, Issuer::new(ca_params(name), key)))
}

fn create_ca(name: &str) -> Result<CertificateAndKey, PkiError> {
    let key = KeyPair::generate()?;
    Ok(CertificateAndKey { certificate: ca_params(name).self_signed(&key)?.pem(), key: key.serialize_pem() })
}

/// Name and usages of the CA. Issuing needs only its name and key, so this works on later starts too.
fn ca_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    valid_for(&mut params, Duration::days(3650));
    params
}

fn issue_server(issuer: &Issuer<'_, KeyPair>, addresses: &[IpAddr]) -> Result<CertificateAndKey, PkiError> {
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

fn issue_client(issuer: &Issuer<'_, KeyPair>, user: &str, group: Option<&str>) -> Result<CertificateAndKey, PkiError> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, user);
    if let Some(group) = group {
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    sign(params, issuer)
}

fn sign(mut params: CertificateParams, issuer: &Issuer<'_, KeyPair>) -> Result<CertificateAndKey, PkiError> {
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    valid_for(&mut params, Duration::days(365));
    let key = KeyPair::generate()?;
    Ok(CertificateAndKey { certificate: params.signed_by(&key, issuer)?.pem(), key: key.serialize_pem() })
}

/// Valid from a day ago, for clients whose clocks are behind.
fn valid_for(params: &mut CertificateParams, time: Duration) {
    let now = OffsetDateTime::now_utc();
    params.not_before = now - Duration::days(1);
    params.not_after = now + time;
}

fn paths(folder: &Path, name: &str) -> (PathBuf, PathBuf) {
    (folder.join(format!("{name}.crt")), folder.join(format!("{name}.key")))
}

fn read(folder: &Path, name: &str) -> Result<Option<CertificateAndKey>, PkiError> {
    let (certificate, key) = paths(folder, name);
    if !certificate.exists() || !key.exists() {
        return Ok(None);
    }
    let read = |path: &Path| fs::read_to_string(path).map_err(|error| PkiError::Read(path.into(), error));
    restrict_permissions(&key).map_err(|error| PkiError::Read(key.clone(), error))?;
    Ok(Some(CertificateAndKey { certificate: read(&certificate)?, key: read(&key)? }))
}

fn write(folder: &Path, name: &str, identity: CertificateAndKey) -> Result<CertificateAndKey, PkiError> {
    let (certificate, key) = paths(folder, name);
    write_private(&key, &identity.key)?;
    write_private(&certificate, &identity.certificate)?;
    Ok(identity)
}

/// Restricts the permissions of an existing key file to its owner.
fn restrict_permissions(path: &Path) -> io::Result<()> {
    let mode = fs::metadata(path)?.permissions().mode();
    if mode & 0o077 == 0 {
        return Ok(());
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode & 0o700))?;
    tracing::warn!(path = %path.display(), "the key file was readable by other users (mode {:o}); restricted to its owner", mode & 0o777);
    Ok(())
}

/// Writes a file that only its owner may read, atomically.
pub fn write_private(path: &Path, text: &str) -> Result<(), PkiError> {
    let draft = path.with_extension("new");
    let written = || -> io::Result<()> {
        // An existing draft may be a symlink, or readable by others: remove it first.
        match fs::remove_file(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&draft, path)
    };
    written().map_err(|error| PkiError::Write(path.into(), error))
}
