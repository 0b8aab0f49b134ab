//! The credentials of a client (CA, certificate and key) from a kubeconfig, as TLS configuration.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// The CA that a client trusts, and its own certificate and key, as PEM.
#[derive(Clone)]
pub struct Credentials {
    /// The CA.
    pub ca: String,
    /// The certificate and its key; `None` for an anonymous client.
    pub certificate: Option<(String, String)>,
}

impl Credentials {
    /// The user of a kubeconfig.
    pub fn of(kubeconfig: &Path) -> Self {
        let text = std::fs::read_to_string(kubeconfig).unwrap();
        let kubeconfig: Value = serde_saphyr::from_str(&text).unwrap();
        let user = &kubeconfig["users"][0]["user"];
        let certificate = (decoded(&user["client-certificate-data"]), decoded(&user["client-key-data"]));
        let ca = decoded(&kubeconfig["clusters"][0]["cluster"]["certificate-authority-data"]);
        Credentials { ca, certificate: Some(certificate) }
    }

    /// An anonymous client that trusts the CA of a `caBundle`.
    pub fn anonymous(ca_bundle: &str) -> Self {
        Credentials { ca: decoded(&ca_bundle.into()), certificate: None }
    }

    /// An anonymous client that trusts the same CA.
    pub fn without_certificate(self) -> Self {
        Credentials { certificate: None, ..self }
    }

    /// The TLS configuration.
    pub fn tls(&self) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.ca.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let builder = builder.with_root_certificates(roots);
        Arc::new(match &self.certificate {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = CertificateDer::pem_slice_iter(certificate.as_bytes()).collect::<Result<_, _>>().unwrap();
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        })
    }
}

fn decoded(text: &Value) -> String {
    String::from_utf8(STANDARD.decode(text.as_str().unwrap()).unwrap()).unwrap()
}
