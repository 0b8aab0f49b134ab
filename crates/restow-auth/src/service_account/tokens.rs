//! The server's side of service-account tokens: its keys and settings.

use crate::service_account::claims::Claims;
use crate::service_account::keys::{SigningKey, VerifyingKey};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// So many verified tokens are remembered; beyond that, all are forgotten.
const REMEMBERED_TOKENS: usize = 4096;

/// How tokens are made and what is accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenOptions {
    /// Who issues the tokens: an https URL, so that others can find the keys under it.
    pub issuer: String,
    /// The audiences that stand for this API server; never empty. Tokens for others are refused.
    pub api_audiences: Vec<String>,
    /// The longest life of a token, in seconds; requests for more are shortened, with a warning.
    pub max_expiration_seconds: Option<i64>,
    /// Whether tokens that a kubelet puts into a pod live for a year, with a mark of when they should have been
    /// replaced, for the sake of old clients that never read them again.
    pub extend_expiration: bool,
}

/// Issues and verifies service-account tokens.
pub struct Tokens {
    /// What tokens say, and how long they are valid.
    pub options: TokenOptions,
    /// The key that signs new tokens.
    pub signing_key: SigningKey,
    /// The keys that tokens are verified with.
    pub verifying_keys: Vec<VerifyingKey>,
    /// Tokens whose signature was verified, by their hash. A signature stays valid for ever, and all else about a token
    /// is checked each time, so nothing here can be out of date.
    verified: Mutex<HashMap<[u8; 32], Arc<Claims>>>,
}

impl TokenOptions {
    /// Tokens of this issuer, for this API server alone.
    pub fn new(issuer: impl Into<String>) -> Self {
        let issuer = issuer.into();
        let api_audiences = vec![issuer.clone()];
        TokenOptions { issuer, api_audiences, max_expiration_seconds: None, extend_expiration: true }
    }
}

impl Tokens {
    /// Signs with the key; accepts what it signed, and what the further keys' owners signed.
    pub fn new(options: TokenOptions, signing_key: SigningKey, further_keys: Vec<VerifyingKey>) -> Self {
        let mut verifying_keys = vec![signing_key.verifying_key().clone()];
        verifying_keys.extend(further_keys);
        Tokens { options, signing_key, verifying_keys, verified: Mutex::default() }
    }

    /// The settings.
    pub fn options(&self) -> &TokenOptions {
        &self.options
    }

    /// The claims of a token that was verified before.
    pub fn remembered(&self, hash: &[u8; 32]) -> Option<Arc<Claims>> {
        self.verified.lock().unwrap_or_else(PoisonError::into_inner).get(hash).cloned()
    }

    /// Caches the claims of a verified token.
    pub fn remember(&self, hash: [u8; 32], claims: &Arc<Claims>) {
        let mut verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        if verified.len() >= REMEMBERED_TOKENS {
            verified.clear();
        }
        verified.insert(hash, Arc::clone(claims));
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").field("options", &self.options).finish_non_exhaustive()
    }
}
