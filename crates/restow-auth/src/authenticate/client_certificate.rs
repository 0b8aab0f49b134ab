//! Client certificates: the common name is the user name, the organizations are the groups. The TLS handshake has verified
//! the signatures already. The validity period is checked for each request, because connections can be long-lived.

use crate::User;
use crate::user::CREDENTIAL_ID;
use jiff::Timestamp;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use thiserror::Error;
use x509_parser::der_parser::oid;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

/// Why a client certificate does not authenticate a user.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CertificateError {
    /// The bytes are not a certificate.
    #[error("the client's certificate cannot be read")]
    Unreadable,
    /// The certificate is not of the authority of users' certificates.
    #[error("x509: certificate signed by unknown authority")]
    UnknownAuthority,
    /// A name in the subject is not a string.
    #[error("the client's certificate has a name that is not a string")]
    NotText,
    /// The subject has several uids, or an empty one.
    #[error("expected 1 UID, but found {0:?}")]
    Uids(Vec<String>),
    /// The certificate, or one in its chain, has expired.
    #[error("the client's certificate expired at {0}")]
    Expired(Timestamp),
    /// The certificate, or one in its chain, is not valid yet.
    #[error("the client's certificate is valid from {0} on")]
    NotYetValid(Timestamp),
}

/// The client certificate of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The user; `None` if the certificate has no common name.
    pub user: Option<User>,
    /// The time from which the whole chain is valid.
    pub not_before: Timestamp,
    /// The last second in which the whole chain is valid.
    pub not_after: Timestamp,
}

impl ClientCertificate {
    /// Reads the chain that a client has sent (in DER form, already verified), its own certificate first.
    pub fn read(chain: &[impl AsRef<[u8]>]) -> Result<Self, CertificateError> {
        let all = chain.iter().map(|der| X509Certificate::from_der(der.as_ref()).map(|(_, certificate)| certificate));
        let mut all = all.collect::<Result<Vec<_>, _>>().map_err(|_| CertificateError::Unreadable)?;
        let own = chain.first().ok_or(CertificateError::Unreadable)?;
        let mut certificate = all.remove(0);
        let (mut not_before, mut not_after) = (Timestamp::MIN, Timestamp::MAX);
        loop {
            not_before = not_before.max(seconds(certificate.validity().not_before.timestamp())?);
            not_after = not_after.min(seconds(certificate.validity().not_after.timestamp())?);
            // Other certificates that were sent do not count. Of several certificates of one issuer, the one that expires
            // last counts.
            let issuers = all.iter().enumerate().filter(|(_, other)| other.subject() == certificate.issuer());
            let longest = issuers.max_by_key(|(_, issuer)| issuer.validity().not_after.timestamp());
            let Some(index) = longest.map(|(index, _)| index) else { break };
            certificate = all.swap_remove(index);
        }
        Ok(ClientCertificate { user: user_of_certificate(own.as_ref())?, not_before, not_after })
    }

    /// The user, if the certificate is valid at this time.
    pub fn user_at(&self, now: Timestamp) -> Result<Option<&User>, CertificateError> {
        match () {
            () if now < self.not_before => Err(CertificateError::NotYetValid(self.not_before)),
            // The certificate is valid until the end of its last second.
            () if now.as_second() > self.not_after.as_second() => Err(CertificateError::Expired(self.not_after)),
            () => Ok(self.user.as_ref()),
        }
    }
}

impl ClientCertificate {
    /// The identity of a user that was authenticated in another way, for example in this process. It does not expire.
    pub fn of(user: User) -> Self {
        ClientCertificate { user: Some(user), not_before: Timestamp::MIN, not_after: Timestamp::MAX }
    }
}

/// A time of a certificate, from seconds since 1970.
fn seconds(timestamp: i64) -> Result<Timestamp, CertificateError> {
    Timestamp::from_second(timestamp).map_err(|_| CertificateError::Unreadable)
}

/// The user of a certificate (in DER form, already verified); `None` if it has no common name.
pub fn user_of_certificate(der: &[u8]) -> Result<Option<User>, CertificateError> {
    let (_, certificate) = X509Certificate::from_der(der).map_err(|_| CertificateError::Unreadable)?;
    let subject = certificate.subject();
    // As in Kubernetes, the last of several common names counts.
    let Some(name) = texts(subject.iter_common_name())?.pop().filter(|name| !name.is_empty()) else {
        return Ok(None);
    };
    let fingerprint: String = Sha256::digest(der).iter().map(|byte| format!("{byte:02x}")).collect();
    let extra = BTreeMap::from([(CREDENTIAL_ID.to_string(), vec![format!("X509SHA256={fingerprint}")])]);
    Ok(Some(User { name, uid: uid(subject)?, groups: texts(subject.iter_organization())?, extra }))
}

/// The uid, from the attribute that Kubernetes defines for it (1.3.6.1.4.1.57683.2).
fn uid(subject: &X509Name<'_>) -> Result<String, CertificateError> {
    let attribute = oid!(1.3.6.1.4.1.57683.2);
    let mut uids = texts(subject.iter_by_oid(&attribute))?;
    match uids.as_slice() {
        [] => Ok(String::new()),
        [uid] if !uid.is_empty() => Ok(uids.remove(0)),
        _ => Err(CertificateError::Uids(uids)),
    }
}

fn texts<'a>(attributes: impl Iterator<Item = &'a AttributeTypeAndValue<'a>>) -> Result<Vec<String>, CertificateError> {
    attributes.map(|attribute| attribute.as_str().map(String::from).map_err(|_| CertificateError::NotText)).collect()
}
