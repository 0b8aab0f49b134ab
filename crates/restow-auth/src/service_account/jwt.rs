//! JSON web tokens in compact form, signed with ES256: parsing and signing.

use crate::service_account::keys::{KeyError, SigningKey};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

pub(super) const ALGORITHM: &str = "ES256";

/// A parsed token that is not verified yet.
pub(super) struct Parsed<'a> {
    pub algorithm: String,
    /// The id of the key that signed it (`kid`), if the header has one.
    pub key_id: Option<String>,
    /// Do not trust them before the signature is verified.
    pub claims: Value,
    /// The signed bytes.
    pub message: &'a [u8],
    pub signature: Vec<u8>,
}

/// Parses a token; `None` if it is not a JSON web token.
pub(super) fn parse(token: &str) -> Option<Parsed<'_>> {
    let (message, signature) = token.rsplit_once('.')?;
    let (header, claims) = message.split_once('.')?;
    let header = decode(header)?;
    Some(Parsed {
        algorithm: header.get("alg")?.as_str()?.into(),
        key_id: header.get("kid").and_then(Value::as_str).filter(|id| !id.is_empty()).map(String::from),
        claims: decode(claims)?,
        message: message.as_bytes(),
        signature: URL_SAFE_NO_PAD.decode(signature).ok()?,
    })
}

/// A signed token with these claims.
pub(super) fn sign(claims: &Value, key: &SigningKey) -> Result<String, KeyError> {
    let header = json!({"alg": ALGORITHM, "kid": key.verifying_key().id()});
    let mut token = format!("{}.{}", encode(&header), encode(claims));
    let signature = key.sign(token.as_bytes())?;
    token.push('.');
    token.push_str(&URL_SAFE_NO_PAD.encode(signature));
    Ok(token)
}

fn encode(value: &Value) -> String {
    URL_SAFE_NO_PAD.encode(value.to_string())
}

fn decode(part: &str) -> Option<Value> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).ok()?).ok()
}
