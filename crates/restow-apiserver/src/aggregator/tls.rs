//! TLS to the servers behind APIServices: how their certificates are verified, and the certificate that this server shows.

use crate::aggregator::api_service::{BackendSpec, Verification};
use crate::webhook_client::SYSTEM_ROOTS;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use std::sync::Arc;
use thiserror::Error;

/// The certificate that identifies this server to the servers behind it, with its key, in PEM.
#[derive(Clone)]
pub struct ProxyClientCertificate {
    /// The certificate, or a chain that begins with it.
    pub certificate: String,
    /// Its key.
    pub key: String,
}

/// Why no TLS connection to a server can be configured.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum AggregatorTlsError {
    /// The CA bundle of the APIService cannot be used.
    #[error("unable to load root certificates: {0}")]
    Roots(String),
    /// The proxy client certificate cannot be used.
    #[error("the proxy client certificate is unusable: {0}")]
    ProxyClientCertificate(String),
    /// The name of the service is no DNS name.
    #[error("the service has no valid DNS name: {0}")]
    ServerName(String),
}

impl std::fmt::Debug for ProxyClientCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ProxyClientCertificate(…)")
    }
}

impl ProxyClientCertificate {
    /// Checks that the certificate and its key can be used.
    pub fn check(&self) -> Result<(), AggregatorTlsError> {
        config(&Verification::SystemRoots, Some(self)).map(|_| ())
    }

    fn read(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), AggregatorTlsError> {
        let wrong = |error: &dyn std::fmt::Display| AggregatorTlsError::ProxyClientCertificate(error.to_string());
        let chain = CertificateDer::pem_slice_iter(self.certificate.as_bytes()).collect::<Result<Vec<_>, _>>();
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).map_err(|error| wrong(&error))?;
        Ok((chain.map_err(|error| wrong(&error))?, key))
    }
}

/// The name in the certificate of a server: the DNS name of its service.
pub(super) fn server_name(spec: &BackendSpec) -> Result<ServerName<'static>, AggregatorTlsError> {
    let name = format!("{}.{}.svc", spec.name, spec.namespace);
    ServerName::try_from(name.clone()).map_err(|_| AggregatorTlsError::ServerName(name))
}

/// The TLS configuration of connections to a server.
pub(super) fn config(
    verification: &Verification,
    identity: Option<&ProxyClientCertificate>,
) -> Result<ClientConfig, AggregatorTlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let wrong = |error: &dyn std::fmt::Display| AggregatorTlsError::Roots(error.to_string());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(&error))?;
    let builder = match verification {
        Verification::SystemRoots => builder.with_root_certificates(SYSTEM_ROOTS.clone()),
        Verification::CaBundle(pem) => builder.with_root_certificates(roots(pem)?),
        Verification::Skip => builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(provider))),
    };
    let Some(identity) = identity else { return Ok(builder.with_no_client_auth()) };
    let (chain, key) = identity.read()?;
    builder
        .with_client_auth_cert(chain, key)
        .map_err(|error| AggregatorTlsError::ProxyClientCertificate(error.to_string()))
}

fn roots(pem: &[u8]) -> Result<RootCertStore, AggregatorTlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| AggregatorTlsError::Roots(error.to_string()))?;
        roots.add(certificate).map_err(|error| AggregatorTlsError::Roots(error.to_string()))?;
    }
    match roots.is_empty() {
        true => Err(AggregatorTlsError::Roots("the caBundle holds no certificate".into())),
        false => Ok(roots),
    }
}

/// Accepts every certificate, because the APIService says `insecureSkipTLSVerify`.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_without_certificates_is_refused() {
        for pem in [&b""[..], b"nonsense"] {
            let failure = config(&Verification::CaBundle(pem.to_vec()), None).unwrap_err();
            assert_eq!(failure.to_string(), "unable to load root certificates: the caBundle holds no certificate");
        }
        assert!(config(&Verification::Skip, None).is_ok());
    }

    #[test]
    fn the_name_in_the_certificate_is_that_of_the_service() {
        let verification = Verification::Skip;
        let spec = BackendSpec { namespace: "garden".into(), name: "api".into(), port: 443, verification };
        assert_eq!(server_name(&spec).unwrap().to_str(), "api.garden.svc");
        let wrong = BackendSpec { name: "a b".into(), ..spec };
        assert!(server_name(&wrong).is_err());
    }
}
