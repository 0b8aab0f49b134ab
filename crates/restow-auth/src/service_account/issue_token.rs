//! Issues service account tokens: answers a `TokenRequest`.

use crate::posted::{Metadata, Posted};
use crate::service_account::claims::{Claims, PrivateClaims, Reference};
use crate::service_account::tokens::Tokens;
use crate::service_account::verify_token::credential_id;
use crate::service_account::{Account, BoundKind, KeyError, ServiceAccounts, jwt};
use crate::user::service_account_username;
use jiff::Timestamp;
use restow_api::Time;
use restow_apimachinery::field::FieldError;
use restow_apimachinery::go_syntax::quote;
use restow_apimachinery::typed;
use ring::rand::{SecureRandom, SystemRandom};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::fmt;
use thiserror::Error;

const DEFAULT_EXPIRATION_SECONDS: i64 = 60 * 60;
const MIN_EXPIRATION_SECONDS: i64 = 10 * 60;
const MAX_EXPIRATION_SECONDS: i64 = 1 << 32;
/// The lifetime that a kubelet requests for the default token of a pod. The odd number marks the token as extendable.
const EXTENDABLE_SECONDS: i64 = 60 * 60 + 7;
const EXTENDED_SECONDS: i64 = 365 * 24 * 60 * 60;

/// An issued token.
#[derive(Clone, PartialEq)]
pub struct Issued {
    /// The `TokenRequest` of the response: with defaults, and the token in its status.
    pub response: Value,
    /// The credential id of the token, for the audit log.
    pub credential_id: String,
    /// A warning for the client.
    pub warning: Option<String>,
}

/// Why a token request is refused.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum IssueError {
    /// Fields of the request are invalid.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    Invalid(Vec<FieldError>),
    /// The request is malformed.
    #[error("{0}")]
    BadRequest(String),
    /// The object to bind to does not exist.
    #[error("{resource} {} not found", quote(.name))]
    NotFound {
        /// The resource.
        resource: &'static str,
        /// The name.
        name: String,
    },
    /// The uid in the request is not that of the service account or the bound object.
    #[error("{message}")]
    Conflict {
        /// The kind of the object.
        kind: &'static str,
        /// The object's name.
        name: String,
        /// What differs.
        message: String,
    },
    /// The server cannot sign the token.
    #[error("failed to generate token: {0}")]
    Internal(String),
}

/// The spec of a `TokenRequest`.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct TokenRequestSpec {
    audiences: Vec<String>,
    expiration_seconds: Option<i64>,
    bound_object_ref: Option<BoundObjectReference>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct BoundObjectReference {
    api_version: String,
    kind: String,
    name: String,
    uid: String,
}

/// The spec with defaults and with the bound object resolved.
struct Wanted {
    audiences: Vec<String>,
    seconds: i64,
    bound: Option<Bound>,
}

/// The object that the token is bound to.
struct Bound {
    kind: BoundKind,
    object: Reference,
    /// For a pod, its node.
    node: Option<Reference>,
}

impl Tokens {
    /// Answers a `TokenRequest` for the account.
    pub fn issue(
        &self,
        request: &Value,
        account: &Account<'_>,
        accounts: &dyn ServiceAccounts,
        now: Timestamp,
    ) -> Result<Issued, IssueError> {
        let posted = typed::read(request).map_err(|error| IssueError::BadRequest(error.to_string()));
        let Posted { metadata, spec } = posted?;
        check_metadata(&metadata, account)?;
        let mut wanted = self.wanted(spec, account, accounts)?;
        let mut warning = None;
        if let Some(max) = self.options.max_expiration_seconds.filter(|max| wanted.seconds > *max) {
            let requested = wanted.seconds;
            warning = Some(format!("requested expiration of {requested} seconds shortened to {max} seconds"));
            wanted.seconds = max;
        }
        let claims = self.claims(&wanted, account, now)?;
        let internal = |error: KeyError| IssueError::Internal(error.to_string());
        let token = jwt::sign(&json!(claims), &self.signing_key).map_err(internal)?;
        let response = response(request, account, &wanted, &token, now);
        Ok(Issued { response, credential_id: credential_id(&claims.id), warning })
    }

    fn wanted(
        &self,
        spec: TokenRequestSpec,
        account: &Account<'_>,
        accounts: &dyn ServiceAccounts,
    ) -> Result<Wanted, IssueError> {
        let mut audiences = spec.audiences;
        if audiences.is_empty() {
            audiences.clone_from(&self.options.api_audiences);
        }
        let seconds = spec.expiration_seconds.unwrap_or(DEFAULT_EXPIRATION_SECONDS);
        check_seconds(seconds)?;
        let bound = spec.bound_object_ref.map(|reference| resolve(reference, account, accounts)).transpose()?;
        Ok(Wanted { audiences, seconds, bound })
    }

    fn claims(&self, wanted: &Wanted, account: &Account<'_>, now: Timestamp) -> Result<Claims, IssueError> {
        let now = now.as_second();
        let bound = wanted.bound.as_ref();
        let bound_to = |kind| bound.filter(|bound| bound.kind == kind).map(|bound| bound.object.clone());
        let pod = bound_to(BoundKind::Pod);
        let for_us = wanted.audiences.iter().all(|audience| self.options.api_audiences.contains(audience));
        let extends = self.options.extend_expiration && pod.is_some() && for_us && wanted.seconds == EXTENDABLE_SECONDS;
        let (life, warn_after) =
            if extends { (EXTENDED_SECONDS, Some(now + wanted.seconds)) } else { (wanted.seconds, None) };
        Ok(Claims {
            issuer: self.options.issuer.clone(),
            subject: service_account_username(account.namespace, account.name),
            audiences: wanted.audiences.clone(),
            expiry: Some(now + life),
            not_before: Some(now),
            issued_at: Some(now),
            id: random_uuid()?,
            private: PrivateClaims {
                namespace: account.namespace.into(),
                account: Reference { name: account.name.into(), uid: account.uid.into() },
                pod,
                secret: bound_to(BoundKind::Secret),
                node: bound_to(BoundKind::Node).or_else(|| bound.and_then(|bound| bound.node.clone())),
                warn_after,
            },
        })
    }
}

/// Never prints the token.
impl fmt::Debug for Issued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issued").field("credential_id", &self.credential_id).finish_non_exhaustive()
    }
}

fn check_metadata(metadata: &Metadata, account: &Account<'_>) -> Result<(), IssueError> {
    let Metadata { name, namespace, uid } = metadata;
    for (field, given, own) in [("name", name, account.name), ("namespace", namespace, account.namespace)] {
        if !given.is_empty() && given != own {
            let detail = format!("must match the service account {field} if specified");
            return Err(IssueError::Invalid(vec![FieldError::invalid(
                format!("metadata.{field}"),
                &json!(given),
                detail,
            )]));
        }
    }
    if uid.is_empty() || uid == account.uid {
        return Ok(());
    }
    let message =
        format!("the UID in the token request ({uid}) does not match the UID of the service account ({})", account.uid);
    Err(IssueError::Conflict { kind: "TokenRequest", name: account.name.into(), message })
}

fn check_seconds(seconds: i64) -> Result<(), IssueError> {
    let detail = match seconds {
        ..MIN_EXPIRATION_SECONDS => "may not specify a duration less than 10 minutes",
        MIN_EXPIRATION_SECONDS..=MAX_EXPIRATION_SECONDS => return Ok(()),
        _ => "may not specify a duration larger than 2^32 seconds",
    };
    Err(IssueError::Invalid(vec![FieldError::invalid("spec.expirationSeconds", &seconds.into(), detail)]))
}

/// Reads the object that a request refers to.
fn resolve(
    reference: BoundObjectReference,
    account: &Account<'_>,
    accounts: &dyn ServiceAccounts,
) -> Result<Bound, IssueError> {
    let BoundObjectReference { api_version, kind: kind_name, name, uid } = reference;
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let kind = match (group, kind_name.as_str()) {
        ("", "Pod") => BoundKind::Pod,
        ("", "Secret") => BoundKind::Secret,
        ("", "Node") => BoundKind::Node,
        _ => {
            let message = format!("cannot bind token to object of type {group}/{version}, Kind={kind_name}");
            return Err(IssueError::BadRequest(message));
        }
    };
    let namespace = if kind == BoundKind::Node { "" } else { account.namespace };
    let object = accounts.bound_object(kind, namespace, &name);
    let object = object.ok_or_else(|| IssueError::NotFound { resource: kind.resource(), name: name.clone() })?;
    if kind == BoundKind::Pod && object.service_account_name != account.name {
        let account = quote(account.name);
        let message = format!(
            "cannot bind token for serviceaccount {account} to pod running with different serviceaccount name."
        );
        return Err(IssueError::BadRequest(message));
    }
    if !uid.is_empty() && uid != object.uid {
        let message = format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been \
             deleted and then recreated"
        );
        return Err(IssueError::Conflict { kind: kind.as_str(), name, message });
    }
    let node = (!object.node_name.is_empty()).then(|| {
        let node = accounts.bound_object(BoundKind::Node, "", &object.node_name).unwrap_or_default();
        Reference { name: object.node_name.clone(), uid: node.uid }
    });
    Ok(Bound { kind, object: Reference { name, uid: object.uid }, node })
}

fn response(request: &Value, account: &Account<'_>, wanted: &Wanted, token: &str, now: Timestamp) -> Value {
    let mut metadata = request.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
    for (field, value) in [("name", account.name), ("namespace", account.namespace), ("uid", account.uid)] {
        metadata.insert(field.into(), json!(value));
    }
    metadata.insert("creationTimestamp".into(), json!(Time::new(now)));
    let mut spec = request.get("spec").and_then(Value::as_object).cloned().unwrap_or_default();
    spec.insert("audiences".into(), json!(wanted.audiences));
    spec.insert("expirationSeconds".into(), json!(wanted.seconds));
    spec.entry("boundObjectRef").or_insert(Value::Null);
    // The fallback is never used: the maximum lifetime is 137 years, and a timestamp can represent that.
    let expiry = Timestamp::from_second(now.as_second().saturating_add(wanted.seconds)).unwrap_or(Timestamp::MAX);
    let mut response = Map::new();
    response.insert("apiVersion".into(), json!("authentication.k8s.io/v1"));
    response.insert("kind".into(), json!("TokenRequest"));
    response.insert("metadata".into(), Value::Object(metadata));
    response.insert("spec".into(), Value::Object(spec));
    response.insert("status".into(), json!({"token": token, "expirationTimestamp": Time::new(expiry)}));
    Value::Object(response)
}

/// A random (version 4) UUID.
fn random_uuid() -> Result<String, IssueError> {
    let mut bytes = [0; 16];
    let outcome = SystemRandom::new().fill(&mut bytes);
    outcome.map_err(|_| IssueError::Internal("cannot read random bytes from the system".into()))?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]))
}
