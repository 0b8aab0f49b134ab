//! The keys and options with which the server issues and verifies service account tokens.

use crate::service_account::claims::Claims;
use crate::service_account::keys::{SigningKey, VerifyingKey};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// The maximum number of tokens in the cache of verified tokens; a full cache is cleared.
const MAX_CACHED_TOKENS: usize = 4096;

/// How tokens are issued, and which are accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenOptions {
    /// The issuer of the tokens: an https URL under which OpenID discovery finds the keys.
    pub issuer: String,
    /// The audiences of this API server; never empty. It refuses tokens for other audiences.
    pub api_audiences: Vec<String>,
    /// The maximum lifetime of a token in seconds. A longer one is shortened, with a warning to the client.
    pub max_expiration_seconds: Option<i64>,
    /// Whether tokens that a kubelet mounts into a pod are valid for a year, for old clients that never read the token
    /// again. The claim `warnafter` says when they should have been replaced.
    pub extend_expiration: bool,
}

/// Issues and verifies service account tokens.
pub struct Tokens {
    /// Issuer, audiences and lifetimes.
    pub options: TokenOptions,
    /// The key that signs new tokens.
    pub signing_key: SigningKey,
    /// The keys that verify tokens.
    pub verifying_keys: Vec<VerifyingKey>,
    /// The claims of tokens whose signature was verified, by the hash of the token. A signature stays valid, and everything
    /// else is checked for each request, so the cache is never out of date.
    verified: Mutex<HashMap<[u8; 32], Arc<Claims>>>,
}

impl TokenOptions {
    /// Tokens of this issuer, with the issuer as the only audience of this API server.
    pub fn new(issuer: impl Into<String>) -> Self {
        let issuer = issuer.into();
        let api_audiences = vec![issuer.clone()];
        TokenOptions { issuer, api_audiences, max_expiration_seconds: None, extend_expiration: true }
    }
}

impl Tokens {
    /// Signs with the key; accepts the signatures of this key and of the further keys.
    pub fn new(options: TokenOptions, signing_key: SigningKey, further_keys: Vec<VerifyingKey>) -> Self {
        let mut verifying_keys = vec![signing_key.verifying_key().clone()];
        verifying_keys.extend(further_keys);
        Tokens { options, signing_key, verifying_keys, verified: Mutex::default() }
    }

    /// The options.
    pub fn options(&self) -> &TokenOptions {
        &self.options
    }

    /// The cached claims of a verified token.
    pub fn cached_claims(&self, hash: &[u8; 32]) -> Option<Arc<Claims>> {
        self.verified.lock().unwrap_or_else(PoisonError::into_inner).get(hash).cloned()
    }

    /// Caches the claims of a verified token.
    pub fn cache_claims(&self, hash: [u8; 32], claims: &Arc<Claims>) {
        let mut verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        if verified.len() >= MAX_CACHED_TOKENS {
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
