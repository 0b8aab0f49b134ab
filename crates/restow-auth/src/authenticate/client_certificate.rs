//! Client certificates: the common name is the user, organizations are groups. Whether the certificate is genuine was
//! settled before, when the connection was made. Whether it is still valid is asked at each request: connections live long.

use crate::User;
use crate::user::CREDENTIAL_ID;
use jiff::Timestamp;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use thiserror::Error;
use x509_parser::der_parser::oid;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

/// A certificate that does not say who its owner is.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CertificateError {
    /// It is not a certificate.
    #[error("the client's certificate cannot be read")]
    Unreadable,
    /// A name in it is not a text.
    #[error("the client's certificate has a name that is not a text")]
    NotText,
    /// It gives several uids, or an empty one.
    #[error("expected 1 UID, but found {0:?}")]
    Uids(Vec<String>),
    /// It, or one that it was issued by, is not valid any more.
    #[error("the client's certificate expired at {0}")]
    Expired(Timestamp),
    /// It, or one that it was issued by, is not valid yet.
    #[error("the client's certificate is valid from {0} on")]
    NotYetValid(Timestamp),
}

/// What a client has shown when it connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// Whose it is; nobody's when it has no common name.
    pub user: Option<User>,
    /// When it begins to be valid, and those that it was issued by.
    pub from: Timestamp,
    /// The last second in which all of them are valid.
    pub until: Timestamp,
}

impl ClientCertificate {
    /// Reads the certificates that a client has shown (in DER form, already verified), its own first.
    pub fn read(shown: &[impl AsRef<[u8]>]) -> Result<Self, CertificateError> {
        let all = shown.iter().map(|der| X509Certificate::from_der(der.as_ref()).map(|(_, certificate)| certificate));
        let mut all = all.collect::<Result<Vec<_>, _>>().map_err(|_| CertificateError::Unreadable)?;
        let own = shown.first().ok_or(CertificateError::Unreadable)?;
        let mut certificate = all.remove(0);
        let (mut from, mut until) = (Timestamp::MIN, Timestamp::MAX);
        loop {
            from = from.max(seconds(certificate.validity().not_before.timestamp())?);
            until = until.min(seconds(certificate.validity().not_after.timestamp())?);
            // What else was shown has no part in it. Of several for one authority, the one that lasts longest counts.
            let issuers = all.iter().enumerate().filter(|(_, other)| other.subject() == certificate.issuer());
            let longest = issuers.max_by_key(|(_, issuer)| issuer.validity().not_after.timestamp());
            let Some(index) = longest.map(|(index, _)| index) else { break };
            certificate = all.swap_remove(index);
        }
        Ok(ClientCertificate { user: user_of_certificate(own.as_ref())?, from, until })
    }

    /// Whose it is at this time.
    pub fn user_at(&self, now: Timestamp) -> Result<Option<&User>, CertificateError> {
        match () {
            () if now < self.from => Err(CertificateError::NotYetValid(self.from)),
            // The last second belongs to it as a whole.
            () if now.as_second() > self.until.as_second() => Err(CertificateError::Expired(self.until)),
            () => Ok(self.user.as_ref()),
        }
    }
}

impl ClientCertificate {
    /// The identity of a user who was authenticated by other means, for instance in this process; it does not expire.
    pub fn of(user: User) -> Self {
        ClientCertificate { user: Some(user), from: Timestamp::MIN, until: Timestamp::MAX }
    }
}

/// A time in a certificate.
fn seconds(timestamp: i64) -> Result<Timestamp, CertificateError> {
    Timestamp::from_second(timestamp).map_err(|_| CertificateError::Unreadable)
}

/// Who owns the certificate (in DER form, already verified); nobody when it has no common name.
pub fn user_of_certificate(der: &[u8]) -> Result<Option<User>, CertificateError> {
    let (_, certificate) = X509Certificate::from_der(der).map_err(|_| CertificateError::Unreadable)?;
    let subject = certificate.subject();
    // As in Kubernetes, the last one counts when there are several.
    let Some(name) = texts(subject.iter_common_name())?.pop().filter(|name| !name.is_empty()) else {
        return Ok(None);
    };
    let fingerprint: String = Sha256::digest(der).iter().map(|byte| format!("{byte:02x}")).collect();
    let extra = BTreeMap::from([(CREDENTIAL_ID.to_string(), vec![format!("X509SHA256={fingerprint}")])]);
    Ok(Some(User { name, uid: uid(subject)?, groups: texts(subject.iter_organization())?, extra }))
}

/// The uid, in an attribute that Kubernetes defined for it (1.3.6.1.4.1.57683.2).
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
