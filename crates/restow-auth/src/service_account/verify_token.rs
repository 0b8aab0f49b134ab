//! Verifies service account tokens: issuer, signature, times, audiences, and the objects that the token is bound to.

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

/// The tolerated difference between the clocks of servers.
const LEEWAY_SECONDS: i64 = 60;

/// Why a token of our issuer is refused. No message contains the token.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum VerifyError {
    /// No verifying key has the key id of the token.
    #[error("invalid signature, no keys found")]
    NoKey,
    /// The signature is invalid.
    #[error("invalid signature")]
    Signature,
    /// The claims are malformed.
    #[error("service account token claims could not be validated")]
    Claims,
    /// The token is for other audiences.
    #[error("token audiences {} is invalid for the target audiences {}", quote_all(.token), quote_all(.wanted))]
    Audience {
        /// The audiences of the token.
        token: Vec<String>,
        /// The required audiences.
        wanted: Vec<String>,
    },
    /// The token has expired.
    #[error("service account token has expired")]
    Expired,
    /// The token is not valid yet.
    #[error("service account token is not valid yet")]
    NotYetValid,
    /// The time of issue is in the future.
    #[error("service account token is issued in the future")]
    IssuedInTheFuture,
    /// The service account does not exist.
    #[error("serviceaccounts {} not found", quote(.0))]
    AccountNotFound(String),
    /// The service account was deleted and created again.
    #[error("service account UID ({found}) does not match claim ({claimed})")]
    AccountUidMismatch {
        /// The uid of the existing service account.
        found: String,
        /// The uid in the token.
        claimed: String,
    },
    /// The bound object does not exist.
    #[error("service account token has been invalidated")]
    Invalidated,
    /// The bound object was deleted and created again.
    #[error("{kind} UID ({found}) does not match service account {kind} ref claim ({claimed})")]
    BoundObjectUidMismatch {
        /// The object's kind, in lower case.
        kind: String,
        /// The uid of the existing object.
        found: String,
        /// The uid in the token.
        claimed: String,
    },
}

impl Tokens {
    /// Verifies a token and returns its user; `None` if the token has another issuer. Without `audiences`, the token must be
    /// valid for this API server.
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

    /// The claims of a token with a valid signature; `None` if the token has another issuer.
    fn signed_claims(&self, token: &str) -> Result<Option<Arc<Claims>>, VerifyError> {
        let hash: [u8; 32] = Sha256::digest(token).into();
        if let Some(claims) = self.cached_claims(&hash) {
            return Ok(Some(claims));
        }
        let Some(parsed) = jwt::parse(token) else { return Ok(None) };
        if parsed.claims.get("iss").and_then(|issuer| issuer.as_str()) != Some(&self.options.issuer) {
            return Ok(None);
        }
        self.check_signature(&parsed)?;
        let claims = Arc::new(typed::read(&parsed.claims).map_err(|_| VerifyError::Claims)?);
        self.cache_claims(hash, &claims);
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
        // A token without audiences is valid for the API server only.
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
        return Err(VerifyError::NotYetValid);
    }
    // The server never issues tokens without an expiry.
    let expiry = claims.expiry.ok_or(VerifyError::Claims)?;
    if now.saturating_sub(LEEWAY_SECONDS) > expiry {
        return Err(VerifyError::Expired);
    }
    if claims.issued_at.is_some_and(|time| now.saturating_add(LEEWAY_SECONDS) < time) {
        return Err(VerifyError::IssuedInTheFuture);
    }
    Ok(())
}

fn check_account(claims: &Claims, accounts: &dyn ServiceAccounts) -> Result<(), VerifyError> {
    let found = accounts.uid_of(&claims.private.namespace, &claims.private.account.name);
    let found = found.ok_or_else(|| VerifyError::AccountNotFound(claims.private.account.name.clone()))?;
    if found == claims.private.account.uid {
        return Ok(());
    }
    Err(VerifyError::AccountUidMismatch { found, claimed: claims.private.account.uid.clone() })
}

fn check_bound_objects(claims: &Claims, accounts: &dyn ServiceAccounts) -> Result<(), VerifyError> {
    let check = |kind: BoundKind, namespace: &str, reference: Option<&Reference>| {
        let Some(reference) = reference else { return Ok(()) };
        let object = accounts.bound_object(kind, namespace, &reference.name).ok_or(VerifyError::Invalidated)?;
        if object.uid == reference.uid {
            return Ok(());
        }
        let kind = kind.as_str().to_lowercase();
        Err(VerifyError::BoundObjectUidMismatch { kind, found: object.uid, claimed: reference.uid.clone() })
    };
    check(BoundKind::Secret, &claims.private.namespace, claims.private.secret.as_ref())?;
    check(BoundKind::Pod, &claims.private.namespace, claims.private.pod.as_ref())?;
    // The node in a pod's token is only informative: the token stays valid without the node.
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

/// The credential id of a token, for logs.
pub(super) fn credential_id(id: &str) -> String {
    format!("JTI={id}")
}
