//! What a service account's token says, in the form that Kubernetes gives it.

use serde_json::{Map, Value, json};

const PRIVATE: &str = "kubernetes.io";

/// What a token says. Times are seconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    pub issuer: String,
    pub subject: String,
    pub audiences: Vec<String>,
    pub expiry: Option<i64>,
    pub not_before: Option<i64>,
    pub issued_at: Option<i64>,
    /// What tells this token apart from all others.
    pub id: String,
    pub namespace: String,
    pub account: Reference,
    pub pod: Option<Reference>,
    pub secret: Option<Reference>,
    pub node: Option<Reference>,
    /// When the client should have fetched a new token, though this one is still accepted.
    pub warn_after: Option<i64>,
}

/// An object, by name and uid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reference {
    pub name: String,
    pub uid: String,
}

impl Claims {
    pub fn to_value(&self) -> Value {
        let mut private = Map::new();
        private.insert("namespace".into(), json!(self.namespace));
        private.insert("serviceaccount".into(), self.account.to_value());
        for (field, reference) in [("pod", &self.pod), ("secret", &self.secret), ("node", &self.node)] {
            if let Some(reference) = reference {
                private.insert(field.into(), reference.to_value());
            }
        }
        if let Some(time) = self.warn_after {
            private.insert("warnafter".into(), json!(time));
        }
        json!({
            "iss": self.issuer, "sub": self.subject, "aud": self.audiences, "jti": self.id,
            "exp": self.expiry, "nbf": self.not_before, "iat": self.issued_at,
            PRIVATE: private,
        })
    }

    /// Reads claims; nothing when a field has the wrong type.
    pub fn read(claims: &Value) -> Option<Self> {
        let nothing = Value::Null;
        let private = claims.get(PRIVATE).unwrap_or(&nothing);
        Some(Claims {
            issuer: text(claims, "iss")?,
            subject: text(claims, "sub")?,
            audiences: audiences(claims.get("aud"))?,
            expiry: time(claims, "exp")?,
            not_before: time(claims, "nbf")?,
            issued_at: time(claims, "iat")?,
            id: text(claims, "jti")?,
            namespace: text(private, "namespace")?,
            account: Reference::read(private.get("serviceaccount"))?.unwrap_or_default(),
            pod: Reference::read(private.get("pod"))?,
            secret: Reference::read(private.get("secret"))?,
            node: Reference::read(private.get("node"))?,
            warn_after: time(private, "warnafter")?,
        })
    }
}

impl Reference {
    fn to_value(&self) -> Value {
        let mut value = Map::new();
        for (field, text) in [("name", &self.name), ("uid", &self.uid)] {
            if !text.is_empty() {
                value.insert(field.into(), json!(text));
            }
        }
        Value::Object(value)
    }

    fn read(value: Option<&Value>) -> Option<Option<Self>> {
        match value {
            None | Some(Value::Null) => Some(None),
            Some(value) => Some(Some(Reference { name: text(value, "name")?, uid: text(value, "uid")? })),
        }
    }
}

fn text(claims: &Value, field: &str) -> Option<String> {
    claims.get(field).map_or(Some(String::new()), |value| value.as_str().map(String::from))
}

/// A time is a number of seconds, which the standard allows to have a fraction.
fn time(claims: &Value, field: &str) -> Option<Option<i64>> {
    match claims.get(field) {
        None | Some(Value::Null) => Some(None),
        Some(value) => value.as_i64().or_else(|| value.as_f64().map(|seconds| seconds as i64)).map(Some),
    }
}

/// The standard allows a single audience without a list.
fn audiences(value: Option<&Value>) -> Option<Vec<String>> {
    match value {
        None | Some(Value::Null) => Some(Vec::new()),
        Some(Value::String(one)) => Some(vec![one.clone()]),
        Some(Value::Array(many)) => many.iter().map(|one| one.as_str().map(String::from)).collect(),
        Some(_) => None,
    }
}
