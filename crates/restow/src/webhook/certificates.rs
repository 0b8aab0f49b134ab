//! The certificates of the guard webhook: its own CA and server certificate, in a Secret that all replicas share.

use anyhow::Context;
use base64::Engine;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{Api, ObjectMeta, PostParams};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use time::OffsetDateTime;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::time::ASN1Time;

/// The server certificate with its key and CA bundle.
#[derive(Clone, Debug)]
pub(super) struct Bundle {
    certificate: String,
    key: String,
    /// The CA certificate, and the one before it, whose certificates other replicas may still use.
    trusted: String,
    info: CertificateInfo,
}

/// The fields of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CertificateInfo {
    names: BTreeSet<String>,
    made: u64,
    lifetime: Duration,
}

/// Reads and renews the certificates in a Secret.
pub(super) struct CertificateStore {
    api: Api<Secret>,
    client: Client,
    names: Vec<String>,
    lifetime: Duration,
}

const SECRET: &str = "restow-webhook";
const LOOK_EVERY: Duration = Duration::from_secs(3600);
/// How far in the past certificates begin to be valid, for API servers whose clocks are behind.
const CLOCKS_BEHIND: Duration = Duration::from_secs(24 * 3600);
/// How many conflicts with other replicas are retried.
const MOST_TRIES: usize = 5;

impl CertificateStore {
    pub(super) fn new(client: Client, namespace: &str, names: Vec<String>, lifetime: Duration) -> Self {
        CertificateStore { api: Api::namespaced(client.clone(), namespace), client, names, lifetime }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// The current certificates. Creates new ones if there are none that can be used, if they are for other names, or if
    /// two thirds of their lifetime have passed.
    pub(super) async fn current(&self) -> anyhow::Result<Bundle> {
        for _ in 0..MOST_TRIES {
            let found = self.api.get_opt(SECRET).await.context("cannot read the secret with the certificates")?;
            let bundle = found.as_ref().and_then(bundle_of);
            let fitting = |bundle: &&Bundle| bundle.info.fits(&self.names, self.lifetime, now());
            if let Some(bundle) = bundle.as_ref().filter(fitting) {
                return Ok(bundle.clone());
            }
            let made = create(&self.names, self.lifetime, bundle.as_ref())?;
            let secret = self.secret(&made, found.as_ref());
            let written = match found {
                None => self.api.create(&PostParams::default(), &secret).await,
                Some(_) => self.api.replace(SECRET, &PostParams::default(), &secret).await,
            };
            match written {
                Ok(_) => return Ok(made),
                // Another replica was faster. Its certificates can be used too.
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(error).context("cannot write the secret with the certificates"),
            }
        }
        anyhow::bail!("other replicas keep writing the secret {SECRET}")
    }

    fn secret(&self, bundle: &Bundle, found: Option<&Secret>) -> Secret {
        let data = [("tls.crt", &bundle.certificate), ("tls.key", &bundle.key), ("ca.crt", &bundle.trusted)];
        let data = data.map(|(name, text)| (name.to_owned(), ByteString(text.clone().into_bytes())));
        Secret {
            metadata: ObjectMeta {
                name: Some(SECRET.to_owned()),
                resource_version: found.and_then(|found| found.metadata.resource_version.clone()),
                ..ObjectMeta::default()
            },
            type_: Some("kubernetes.io/tls".to_owned()),
            data: Some(BTreeMap::from(data)),
            ..Secret::default()
        }
    }
}

impl Bundle {
    /// The TLS configuration with this certificate.
    pub(super) fn tls(&self) -> anyhow::Result<Arc<rustls::ServerConfig>> {
        let chain = CertificateDer::pem_slice_iter(self.certificate.as_bytes()).collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        Ok(Arc::new(config))
    }

    /// The CA bundle for API servers.
    pub(super) fn trusted_base64(&self) -> String {
        base64::engine::general_purpose::STANDARD.encode(&self.trusted)
    }

    /// When to check for renewal.
    pub(super) fn check_again_in(&self, lifetime: Duration) -> Duration {
        let due = Duration::from_secs(self.info.made) + self.info.lifetime.min(lifetime) * 2 / 3;
        due.saturating_sub(Duration::from_secs(now())).clamp(Duration::from_secs(1), LOOK_EVERY)
    }
}

impl CertificateInfo {
    /// The fields of the first certificate in a PEM text, if it can be parsed.
    fn read(certificate: &str) -> Option<CertificateInfo> {
        let der = CertificateDer::from_pem_slice(certificate.as_bytes()).ok()?;
        let (_, certificate) = X509Certificate::from_der(&der).ok()?;
        let names = certificate.subject_alternative_name().ok()??.value.general_names.iter().filter_map(name_of);
        let second = |time: ASN1Time| u64::try_from(time.timestamp()).ok();
        let made = second(certificate.validity.not_before)? + CLOCKS_BEHIND.as_secs();
        let lifetime = second(certificate.validity.not_after)?.saturating_sub(made);
        Some(CertificateInfo { names: names.collect(), made, lifetime: Duration::from_secs(lifetime) })
    }

    /// Whether it has these names, and less than two thirds of its lifetime have passed: of its own, which may be shorter
    /// than that of new certificates, or else of theirs. One that begins in the future comes from a replica whose clock is
    /// ahead; if the difference is too large, its age is unknown.
    fn fits(&self, names: &[String], lifetime: Duration, now: u64) -> bool {
        let lifetime = self.lifetime.min(lifetime);
        names.iter().all(|name| self.names.contains(name)) && now.abs_diff(self.made) < (lifetime * 2 / 3).as_secs()
    }
}

/// A DNS name or an address as text.
fn name_of(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match **bytes {
            [a, b, c, d] => Some(IpAddr::from([a, b, c, d]).to_string()),
            _ => Some(IpAddr::from(<[u8; 16]>::try_from(*bytes).ok()?).to_string()),
        },
        _ => None,
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn bundle_of(secret: &Secret) -> Option<Bundle> {
    let data = secret.data.as_ref()?;
    let text = |name: &str| String::from_utf8(data.get(name)?.0.clone()).ok();
    let certificate = text("tls.crt")?;
    let info = CertificateInfo::read(&certificate)?;
    let bundle = Bundle { certificate, key: text("tls.key")?, trusted: text("ca.crt")?, info };
    // A key that does not match the certificate is useless.
    bundle.tls().is_ok().then_some(bundle)
}

/// Creates a CA and a certificate. The key of the CA is dropped at once: it never signs anything else.
fn create(names: &[String], lifetime: Duration, before: Option<&Bundle>) -> anyhow::Result<Bundle> {
    let until = OffsetDateTime::now_utc() + lifetime;
    let mut authority = CertificateParams::default();
    authority.distinguished_name.push(DnType::CommonName, format!("restow-webhook-ca-{}", now()));
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    authority.not_before = OffsetDateTime::now_utc() - CLOCKS_BEHIND;
    authority.not_after = until;
    let authority_key = KeyPair::generate()?;
    let authority_certificate = authority.self_signed(&authority_key)?.pem();
    let issuer = Issuer::new(authority, authority_key);
    let mut params = CertificateParams::new(names.to_vec())?;
    params.distinguished_name.push(DnType::CommonName, "restow-webhook");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.not_before = OffsetDateTime::now_utc() - CLOCKS_BEHIND;
    params.not_after = until;
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?.pem();
    let old = before.and_then(|before| before.trusted.split_inclusive("-----END CERTIFICATE-----\n").next());
    let trusted = format!("{authority_certificate}{}", old.unwrap_or_default());
    let info = CertificateInfo::read(&certificate).context("the new certificate cannot be parsed")?;
    Ok(Bundle { certificate, key: key.serialize_pem(), trusted, info })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(all: &[&str]) -> Vec<String> {
        all.iter().map(|name| (*name).to_owned()).collect()
    }

    fn secret_of(bundle: &Bundle) -> Secret {
        let data = [("tls.crt", &bundle.certificate), ("tls.key", &bundle.key), ("ca.crt", &bundle.trusted)];
        let data = data.map(|(name, text)| (name.to_owned(), ByteString(text.clone().into_bytes())));
        Secret { data: Some(BTreeMap::from(data)), ..Secret::default() }
    }

    #[test]
    fn certificates_are_renewed_after_two_thirds_of_their_time() {
        let lifetime = Duration::from_secs(90);
        let info = CertificateInfo { names: BTreeSet::new(), made: 1_000, lifetime };
        assert!(info.fits(&[], lifetime, 1_059));
        assert!(!info.fits(&[], lifetime, 1_060));
        assert!(info.fits(&[], lifetime, 960));
        assert!(!info.fits(&[], lifetime, 900), "from the future");
        assert!(!info.fits(&[], lifetime * 100, 1_060), "its own time is shorter");
        assert!(!info.fits(&[], lifetime / 3, 1_020), "it is to be shorter from now on");
    }

    #[test]
    fn certificates_for_other_names_and_unreadable_ones_are_not_used() {
        let lifetime = Duration::from_secs(900);
        let asked = names(&["guard.example.com", "10.0.0.1", "fd00::1"]);
        let made = create(&asked, lifetime, None).unwrap();
        let kept = bundle_of(&secret_of(&made)).unwrap();
        assert_eq!(kept.info, made.info);
        assert!(kept.info.fits(&asked, lifetime, now()));
        assert!(kept.info.fits(&names(&["10.0.0.1"]), lifetime, now()));
        for other in ["other.example.com", "10.0.0.2"] {
            assert!(!kept.info.fits(&names(&["guard.example.com", other]), lifetime, now()), "{other}");
        }
        let another = create(&asked, lifetime, None).unwrap();
        let unreadable = [
            Bundle { certificate: "no certificate".to_owned(), ..made.clone() },
            Bundle { certificate: String::new(), ..made.clone() },
            Bundle { key: "no key".to_owned(), ..made.clone() },
            Bundle { key: another.key, ..made },
        ];
        for bundle in unreadable {
            assert!(bundle_of(&secret_of(&bundle)).is_none());
        }
    }

    #[test]
    fn the_authority_before_stays_trusted_and_no_more_than_that() {
        let names = ["guard.example.com".to_owned()];
        let lifetime = Duration::from_secs(90);
        let first = create(&names, lifetime, None).unwrap();
        let second = create(&names, lifetime, Some(&first)).unwrap();
        let third = create(&names, lifetime, Some(&second)).unwrap();
        let count = |bundle: &Bundle| CertificateDer::pem_slice_iter(bundle.trusted.as_bytes()).count();
        assert_eq!((count(&first), count(&second), count(&third)), (1, 2, 2));
        assert!(second.trusted.contains(&first.trusted));
        assert!(!third.trusted.contains(&first.trusted));
        first.tls().unwrap();
    }
}
