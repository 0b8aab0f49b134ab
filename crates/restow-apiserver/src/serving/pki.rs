//! The certificates of a server that nobody has given any: a CA of its own, one for the server, one for its admin; and
//! TLS with these or with others.
//!
//! The CA is made on the first start and kept. The others are made from it on every start, so that they cover the
//! addresses asked for and never expire while they are in use.

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
    /// What the server shows.
    pub server: Identity,
    /// What an administrator shows, a member of `system:masters`.
    pub admin: Identity,
}

/// A certificate with its key.
pub struct Identity {
    /// The certificate, or a chain that begins with it.
    pub certificate: String,
    /// Its key.
    pub key: String,
}

/// Why there are no certificates, or why they cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PkiError {
    /// A folder could not be made.
    #[error("cannot make {0}")]
    MakeFolder(PathBuf, #[source] io::Error),
    /// A file could not be read.
    #[error("cannot read {0}")]
    Read(PathBuf, #[source] io::Error),
    /// A file could not be written.
    #[error("cannot write {0}")]
    Write(PathBuf, #[source] io::Error),
    /// The key of the authority is damaged.
    #[error("the CA key in {0} is unreadable")]
    AuthorityKey(PathBuf, #[source] rcgen::Error),
    /// A certificate could not be made.
    #[error("cannot make a certificate")]
    Make(#[from] rcgen::Error),
    /// A text that should be PEM is not.
    #[error("the {0} is unreadable")]
    Pem(&'static str, #[source] pem::Error),
    /// The certificates of the clients' authority cannot be used.
    #[error("the client CA holds no certificate that can be used: {0}")]
    ClientAuthority(String),
    /// The server's certificate and key do not fit together, or TLS wants others.
    #[error("the server's certificate and key do not fit together")]
    Server(#[source] rustls::Error),
}

impl Pki {
    /// Reads the certificates in `folder`, or makes them.
    pub fn open(folder: &Path, addresses: &[IpAddr]) -> Result<Self, PkiError> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|error| PkiError::MakeFolder(folder.into(), error))?;
        let ca = match read(folder, "ca")? {
            Some(ca) => ca,
            None => write(folder, "ca", make_ca()?)?,
        };
        let key = KeyPair::from_pem(&ca.key).map_err(|error| PkiError::AuthorityKey(folder.into(), error))?;
        let issuer = Issuer::new(ca_params(), key);
        // Made on every start: it costs a millisecond, and is never out of date.
        let server = write(folder, "server", make_server(&issuer, addresses)?)?;
        let admin = write(folder, "admin", make_client(&issuer, "restow-admin", "system:masters")?)?;
        Ok(Pki { ca: ca.certificate, server, admin })
    }

    /// TLS with the server's certificate, for clients with certificates of the same authority.
    pub fn tls(&self) -> Result<Arc<rustls::ServerConfig>, PkiError> {
        tls_config(&self.server, &self.ca)
    }

    /// How the admin's clients reach the server.
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

/// TLS with this identity; clients may show a certificate of the CA.
pub fn tls_config(identity: &Identity, client_ca: &str) -> Result<Arc<rustls::ServerConfig>, PkiError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(client_ca.as_bytes()) {
        let certificate = certificate.map_err(|error| PkiError::Pem("client CA", error))?;
        roots.add(certificate).map_err(|error| PkiError::ClientAuthority(error.to_string()))?;
    }
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
    // A session that is taken up again would bring its client's certificate along without anyone looking at it.
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn make_ca() -> Result<Identity, PkiError> {
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

fn make_server(issuer: &Issuer<'_, KeyPair>, addresses: &[IpAddr]) -> Result<Identity, PkiError> {
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

fn make_client(issuer: &Issuer<'_, KeyPair>, user: &str, group: &str) -> Result<Identity, PkiError> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, user);
    params.distinguished_name.push(DnType::OrganizationName, group);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    sign(params, issuer)
}

fn sign(mut params: CertificateParams, issuer: &Issuer<'_, KeyPair>) -> Result<Identity, PkiError> {
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    valid_for(&mut params, Duration::days(365));
    let key = KeyPair::generate()?;
    Ok(Identity { certificate: params.signed_by(&key, issuer)?.pem(), key: key.serialize_pem() })
}

/// A day of the past is included, for clocks that are behind: whoever is shown the certificate goes by its own.
fn valid_for(params: &mut CertificateParams, time: Duration) {
    let now = OffsetDateTime::now_utc();
    params.not_before = now - Duration::days(1);
    params.not_after = now + time;
}

fn paths(folder: &Path, name: &str) -> (PathBuf, PathBuf) {
    (folder.join(format!("{name}.crt")), folder.join(format!("{name}.key")))
}

fn read(folder: &Path, name: &str) -> Result<Option<Identity>, PkiError> {
    let (certificate, key) = paths(folder, name);
    if !certificate.exists() || !key.exists() {
        return Ok(None);
    }
    let read = |path: &Path| fs::read_to_string(path).map_err(|error| PkiError::Read(path.into(), error));
    close_to_others(&key).map_err(|error| PkiError::Read(key.clone(), error))?;
    Ok(Some(Identity { certificate: read(&certificate)?, key: read(&key)? }))
}

fn write(folder: &Path, name: &str, identity: Identity) -> Result<Identity, PkiError> {
    let (certificate, key) = paths(folder, name);
    write_private(&key, &identity.key)?;
    write_private(&certificate, &identity.certificate)?;
    Ok(identity)
}

/// Lets only its owner read a key that was made earlier, or brought from elsewhere.
fn close_to_others(path: &Path) -> io::Result<()> {
    let mode = fs::metadata(path)?.permissions().mode();
    if mode & 0o077 == 0 {
        return Ok(());
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode & 0o700))?;
    tracing::warn!(path = %path.display(), "other users could read this key (mode {:o}); now only its owner can", mode & 0o777);
    Ok(())
}

/// Writes a file that only its owner may read, as a whole or not at all.
pub fn write_private(path: &Path, text: &str) -> Result<(), PkiError> {
    let draft = path.with_extension("new");
    let written = || -> io::Result<()> {
        // One that is there may be a link to somewhere else, or be open to others; it is not written to.
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
