//! OpenID discovery: publishes the keys with which others verify the tokens.

use crate::service_account::jwt::ALGORITHM;
use crate::service_account::keys::VerifyingKey;
use crate::service_account::tokens::Tokens;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

/// The path of [`Tokens::openid_configuration`].
pub const CONFIGURATION_PATH: &str = "/.well-known/openid-configuration";
/// The path of [`Tokens::json_web_keys`].
pub const KEYS_PATH: &str = "/openid/v1/jwks";

impl Tokens {
    /// The document under `/.well-known/openid-configuration`. `keys_uri` is the full address of the keys.
    pub fn openid_configuration(&self, keys_uri: &str) -> Value {
        json!({
            "issuer": self.options.issuer,
            "jwks_uri": keys_uri,
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": [ALGORITHM],
        })
    }

    /// The document under `/openid/v1/jwks`, of media type `application/jwk-set+json`.
    pub fn json_web_keys(&self) -> Value {
        json!({"keys": self.verifying_keys.iter().map(json_web_key).collect::<Vec<_>>()})
    }
}

fn json_web_key(key: &VerifyingKey) -> Value {
    let (x, y) = key.coordinates();
    json!({
        "use": "sig", "kty": "EC", "kid": key.id(), "crv": "P-256", "alg": ALGORITHM,
        "x": URL_SAFE_NO_PAD.encode(x), "y": URL_SAFE_NO_PAD.encode(y),
    })
}
