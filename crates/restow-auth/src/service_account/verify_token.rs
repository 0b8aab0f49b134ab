//! Whether a token is one of ours, still valid, and whose it is.

use crate::User;
use crate::service_account::claims::{Claims, Reference};
use crate::service_account::jwt::{self, Parsed};
use crate::service_account::tokens::Tokens;
use crate::service_account::{BoundKind, ServiceAccounts};
use crate::user::{Authenticated, CREDENTIAL_ID};
use jiff::Timestamp;
use restow_apimachinery::go_syntax::{quote, quote_all};
use restow_apimachinery::typed;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use thiserror::Error;

/// Clocks of servers differ by up to so many seconds.
const LEEWAY_SECONDS: i64 = 60;

/// Why a token of ours is refused. No message holds the token.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum VerifyError {
    /// No key of ours has the name that the token gives.
    #[error("invalid signature, no keys found")]
    NoKey,
    /// The signature is wrong.
    #[error("invalid signature")]
    Signature,
    /// The claims cannot be understood.
    #[error("service account token claims could not be validated")]
    Claims,
    /// It is for someone else.
    #[error("token audiences {} is invalid for the target audiences {}", quote_all(.token), quote_all(.wanted))]
    Audience {
        /// Whom it is for.
        token: Vec<String>,
        /// Who was asked for.
        wanted: Vec<String>,
    },
    /// It is too old.
    #[error("service account token has expired")]
    Expired,
    /// It is not valid yet.
    #[error("service account token is not valid yet")]
    NotYet,
    /// Its time of issue is in the future.
    #[error("service account token is issued in the future")]
    FromTheFuture,
    /// The service account does not exist.
    #[error("serviceaccounts {} not found", quote(.0))]
    NoAccount(String),
    /// The service account was made anew.
    #[error("service account UID ({found}) does not match claim ({claimed})")]
    OtherAccount {
        /// The uid of the account that there is.
        found: String,
        /// The uid in the token.
        claimed: String,
    },
    /// The object that it is bound to does not exist.
    #[error("service account token has been invalidated")]
    Invalidated,
    /// The object that it is bound to was made anew.
    #[error("{kind} UID ({found}) does not match service account {kind} ref claim ({claimed})")]
    OtherObject {
        /// The object's kind, in lower case.
        kind: String,
        /// The uid of the object that there is.
        found: String,
        /// The uid in the token.
        claimed: String,
    },
}

impl Tokens {
    /// Whose token it is; nothing when it is not of our issuers. Without audiences, it must be for this API server.
    pub fn verify(
        &self,
        token: &str,
        audiences: Option<&[String]>,
        accounts: &dyn ServiceAccounts,
        now: Timestamp,
    ) -> Result<Option<Authenticated>, VerifyError> {
        let Some(claims) = self.signed_claims(token)? else { return Ok(None) };
        let audiences = self.common_audiences(&claims, audiences)?;
        check_times(&claims, now.as_second())?;
        check_account(&claims, accounts)?;
        check_bound_objects(&claims, accounts)?;
        Ok(Some(Authenticated { user: user_of(&claims), audiences }))
    }

    /// The claims of a token with a valid signature; nothing when the token says that it is not ours.
    fn signed_claims(&self, token: &str) -> Result<Option<Arc<Claims>>, VerifyError> {
        let hash: [u8; 32] = Sha256::digest(token).into();
        if let Some(claims) = self.remembered(&hash) {
            return Ok(Some(claims));
        }
        let Some(parsed) = jwt::parse(token) else { return Ok(None) };
        if parsed.claims.get("iss").and_then(|issuer| issuer.as_str()) != Some(&self.options.issuer) {
            return Ok(None);
        }
        self.check_signature(&parsed)?;
        let claims = Arc::new(typed::read(&parsed.claims).map_err(|_| VerifyError::Claims)?);
        self.remember(hash, &claims);
        Ok(Some(claims))
    }

    fn check_signature(&self, token: &Parsed<'_>) -> Result<(), VerifyError> {
        let named = |id: &str| token.key_id.as_deref().is_none_or(|wanted| wanted == id);
        let mut keys = self.verifying_keys.iter().filter(|key| named(key.id())).peekable();
        if keys.peek().is_none() {
            return Err(VerifyError::NoKey);
        }
        let signed = token.algorithm == jwt::ALGORITHM && keys.any(|key| key.verify(token.message, &token.signature));
        if signed { Ok(()) } else { Err(VerifyError::Signature) }
    }

    fn common_audiences(&self, claims: &Claims, wanted: Option<&[String]>) -> Result<Vec<String>, VerifyError> {
        let wanted = wanted.unwrap_or(&self.options.api_audiences);
        // A token for nobody in particular is for the API server alone.
        let token = if claims.audiences.is_empty() { &self.options.api_audiences } else { &claims.audiences };
        let common: Vec<String> = token.iter().filter(|audience| wanted.contains(audience)).cloned().collect();
        if common.is_empty() {
            return Err(VerifyError::Audience { token: token.clone(), wanted: wanted.to_vec() });
        }
        Ok(common)
    }
}

fn check_times(claims: &Claims, now: i64) -> Result<(), VerifyError> {
    if claims.not_before.is_some_and(|time| now.saturating_add(LEEWAY_SECONDS) < time) {
        return Err(VerifyError::NotYet);
    }
    // A token without an end is none of ours.
    let expiry = claims.expiry.ok_or(VerifyError::Claims)?;
    if now.saturating_sub(LEEWAY_SECONDS) > expiry {
        return Err(VerifyError::Expired);
    }
    if claims.issued_at.is_some_and(|time| now.saturating_add(LEEWAY_SECONDS) < time) {
        return Err(VerifyError::FromTheFuture);
    }
    Ok(())
}

fn check_account(claims: &Claims, accounts: &dyn ServiceAccounts) -> Result<(), VerifyError> {
    let found = accounts.uid_of(&claims.private.namespace, &claims.private.account.name);
    let found = found.ok_or_else(|| VerifyError::NoAccount(claims.private.account.name.clone()))?;
    if found == claims.private.account.uid {
        return Ok(());
    }
    Err(VerifyError::OtherAccount { found, claimed: claims.private.account.uid.clone() })
}

fn check_bound_objects(claims: &Claims, accounts: &dyn ServiceAccounts) -> Result<(), VerifyError> {
    let check = |kind: BoundKind, namespace: &str, reference: Option<&Reference>| {
        let Some(reference) = reference else { return Ok(()) };
        let object = accounts.bound_object(kind, namespace, &reference.name).ok_or(VerifyError::Invalidated)?;
        if object.uid == reference.uid {
            return Ok(());
        }
        let kind = kind.as_str().to_lowercase();
        Err(VerifyError::OtherObject { kind, found: object.uid, claimed: reference.uid.clone() })
    };
    check(BoundKind::Secret, &claims.private.namespace, claims.private.secret.as_ref())?;
    check(BoundKind::Pod, &claims.private.namespace, claims.private.pod.as_ref())?;
    // In a pod's token the node is only information.
    check(BoundKind::Node, "", claims.private.node.as_ref().filter(|_| claims.private.pod.is_none()))
}

fn user_of(claims: &Claims) -> User {
    let mut user =
        User::service_account(&claims.private.namespace, &claims.private.account.name, &claims.private.account.uid);
    let mut extra = |key: &str, value: &str| {
        if !value.is_empty() {
            user.extra.insert(key.into(), vec![value.into()]);
        }
    };
    if let Some(pod) = &claims.private.pod {
        extra("authentication.kubernetes.io/pod-name", &pod.name);
        extra("authentication.kubernetes.io/pod-uid", &pod.uid);
    }
    if let Some(node) = &claims.private.node {
        extra("authentication.kubernetes.io/node-name", &node.name);
        extra("authentication.kubernetes.io/node-uid", &node.uid);
    }
    if !claims.id.is_empty() {
        extra(CREDENTIAL_ID, &credential_id(&claims.id));
    }
    user
}

/// The name under which logs know a token.
pub(super) fn credential_id(id: &str) -> String {
    format!("JTI={id}")
}
