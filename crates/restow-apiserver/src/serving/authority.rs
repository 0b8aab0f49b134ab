//! An authority of client certificates. A listener that accepts the certificates of several authorities tells by them who a
//! client is: a user, or a front proxy.

use crate::serving::pki::{PkiError, roots_of};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use std::sync::Arc;

/// The CA certificates of one authority.
#[derive(Clone)]
pub(crate) struct CertificateAuthority(Arc<dyn ClientCertVerifier>);

impl CertificateAuthority {
    /// The authority of these CA certificates, in PEM.
    pub(crate) fn read(pem: &str) -> Result<Self, PkiError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots_of(pem)?), provider).build();
        Ok(CertificateAuthority(verifier.map_err(|error| PkiError::ClientAuthority(error.to_string()))?))
    }

    /// Whether a chain, the client's certificate first, is of this authority.
    pub(crate) fn has_issued(&self, chain: &[CertificateDer<'_>]) -> bool {
        let Some((own, others)) = chain.split_first() else { return false };
        self.0.verify_client_cert(own, others, UnixTime::now()).is_ok()
    }
}
