//! The claims of a service account token, in Kubernetes' form.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Number;

/// The claims of a token. Times are seconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Claims {
    #[serde(rename = "iss")]
    pub issuer: String,
    #[serde(rename = "sub")]
    pub subject: String,
    #[serde(rename = "aud", deserialize_with = "audiences")]
    pub audiences: Vec<String>,
    #[serde(rename = "exp", deserialize_with = "time")]
    pub expiry: Option<i64>,
    #[serde(rename = "nbf", deserialize_with = "time")]
    pub not_before: Option<i64>,
    #[serde(rename = "iat", deserialize_with = "time")]
    pub issued_at: Option<i64>,
    /// The unique id of the token.
    #[serde(rename = "jti")]
    pub id: String,
    #[serde(rename = "kubernetes.io")]
    pub private: PrivateClaims,
}

/// Kubernetes' private claims.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct PrivateClaims {
    pub namespace: String,
    #[serde(rename = "serviceaccount")]
    pub account: Reference,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<Reference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<Reference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<Reference>,
    /// When the client should replace the token; it is accepted after this time too.
    #[serde(rename = "warnafter", deserialize_with = "time", skip_serializing_if = "Option::is_none")]
    pub warn_after: Option<i64>,
}

/// An object, by name and uid.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Reference {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

/// A time in seconds. The standard allows fractions.
fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    let number = Option::<Number>::deserialize(deserializer)?;
    Ok(number.and_then(|number| number.as_i64().or_else(|| number.as_f64().map(|seconds| seconds as i64))))
}

/// A list of audiences. The standard allows a single string instead.
fn audiences<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Audiences {
        One(String),
        Many(Vec<String>),
    }
    Ok(match Audiences::deserialize(deserializer)? {
        Audiences::One(audience) => vec![audience],
        Audiences::Many(audiences) => audiences,
    })
}
