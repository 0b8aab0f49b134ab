//! Client certificates: the common name is the user, organizations are groups. Whether the certificate is genuine was
//! settled before, when the connection was made.

use crate::auth::User;
use crate::auth::user::CREDENTIAL_ID;
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
