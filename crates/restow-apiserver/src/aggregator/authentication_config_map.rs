//! The ConfigMap `extension-apiserver-authentication`, from which API servers behind this one learn whose certificates and
//! headers to trust.
//!
//! Every server adds what it knows, and removes nothing that another one may have added, except CA certificates that have
//! expired.

use crate::aggregator::Aggregator;
use crate::aggregator::config::AggregatorConfig;
use crate::error::ApiError;
use crate::resource::{ObjectRef, object_meta};
use crate::storage::object_store::{ObjectChange, ObjectDecision};
use async_trait::async_trait;
use restow_apimachinery::object::Object;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;
use x509_parser::prelude::{FromDer, X509Certificate};

const NAMESPACE: &str = "kube-system";
const NAME: &str = "extension-apiserver-authentication";
/// How often the ConfigMap is checked.
const RESYNC_PERIOD: Duration = Duration::from_secs(60);

impl Aggregator {
    /// Writes the ConfigMap, if there is anything to say.
    pub(crate) async fn publish_authentication(&self) -> Result<(), ApiError> {
        let own = data_of(&self.config);
        let Some((resource, version)) = self.core.core_resource("configmaps").filter(|_| !own.is_empty()) else {
            return Ok(());
        };
        let object_ref = ObjectRef { resource: &resource, version: &version, namespace: NAMESPACE, name: NAME };
        let now = restow_host::now().as_second();
        self.core.objects().change(object_ref, &mut Publish { own, now }).await.map(|_| ())
    }

    /// Keeps the ConfigMap until the server ends.
    pub(crate) async fn keep_authentication_published(self: Arc<Self>) {
        loop {
            tokio::time::sleep(RESYNC_PERIOD).await;
            if let Err(error) = self.publish_authentication().await {
                tracing::warn!(%error, "the ConfigMap {NAMESPACE}/{NAME} could not be written; trying again");
            }
        }
    }
}

/// What this server says.
fn data_of(config: &AggregatorConfig) -> Map<String, Value> {
    let mut data = Map::new();
    if let Some(ca) = &config.client_ca {
        data.insert("client-ca-file".into(), ca.as_str().into());
    }
    let Some(request_header) = &config.request_header else { return data };
    let headers = &request_header.headers;
    data.insert("requestheader-client-ca-file".into(), request_header.ca.as_str().into());
    for (key, values) in [
        ("requestheader-allowed-names", &headers.allowed_names),
        ("requestheader-username-headers", &headers.username_headers),
        ("requestheader-group-headers", &headers.group_headers),
        ("requestheader-extra-headers-prefix", &headers.extra_headers_prefix),
        ("requestheader-uid-headers", &headers.uid_headers),
    ] {
        data.insert(key.into(), json!(values).to_string().into());
    }
    data
}

/// Adds what this server says to the ConfigMap.
struct Publish {
    own: Map<String, Value>,
    now: i64,
}

#[async_trait]
impl ObjectDecision for Publish {
    async fn decide(&mut self, before: Option<&Object>) -> Result<ObjectChange, ApiError> {
        let known =
            before.and_then(|object| object.get("data")).and_then(Value::as_object).cloned().unwrap_or_default();
        let data = merged(&known, &self.own, self.now);
        if before.is_some() && data == known {
            return Ok(ObjectChange::Keep);
        }
        let mut object = match before {
            Some(before) => before.clone(),
            None => Object::from_value(json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {
                    "name": NAME, "namespace": NAMESPACE, "uid": restow_host::uuid().to_string(),
                    "creationTimestamp": object_meta::now(),
                },
            }))
            .unwrap_or_default(),
        };
        object.set("data", Some(data.into()));
        Ok(ObjectChange::Write(object))
    }
}

/// The union of both. What cannot be read is replaced.
fn merged(known: &Map<String, Value>, own: &Map<String, Value>, now: i64) -> Map<String, Value> {
    let mut data = known.clone();
    for (key, value) in own {
        let (before, value) =
            (known.get(key).and_then(Value::as_str).unwrap_or_default(), value.as_str().unwrap_or_default());
        let union = match key.ends_with("-ca-file") {
            true => certificates(before, value, now),
            false => names(before, value),
        };
        data.insert(key.clone(), union.into());
    }
    data
}

fn names(one: &str, other: &str) -> String {
    let read = |text: &str| serde_json::from_str::<Vec<String>>(text).unwrap_or_default();
    let mut all = read(one);
    for name in read(other) {
        if !all.contains(&name) {
            all.push(name);
        }
    }
    json!(all).to_string()
}

fn certificates(one: &str, other: &str, now: i64) -> String {
    let mut all: Vec<pem::Pem> = Vec::new();
    for text in [one, other] {
        for certificate in pem::parse_many(text).unwrap_or_default() {
            let valid = X509Certificate::from_der(certificate.contents())
                .is_ok_and(|(_, certificate)| certificate.validity().not_after.timestamp() >= now);
            if valid && all.iter().all(|known| known.contents() != certificate.contents()) {
                all.push(pem::Pem::new("CERTIFICATE", certificate.contents()));
            }
        }
    }
    pem::encode_many_config(&all, pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ca(name: &str) -> String {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.not_after = rcgen::date_time_ymd(2030, 1, 1);
        params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem()
    }

    fn map(ca: &str, names: &str) -> Map<String, Value> {
        let data = json!({"client-ca-file": ca, "requestheader-allowed-names": names});
        data.as_object().unwrap().clone()
    }

    #[test]
    fn what_several_servers_say_is_united() {
        let (one, other) = (ca("one"), ca("other"));
        let own = map(&other, r#"["b","a"]"#);
        let first = merged(&Map::new(), &map(&one, r#"["a"]"#), 0);
        let both = merged(&first, &own, 0);
        assert_eq!(both["requestheader-allowed-names"], r#"["a","b"]"#);
        assert_eq!(pem::parse_many(both["client-ca-file"].as_str().unwrap()).unwrap().len(), 2);
        assert_eq!(merged(&both, &own, 0), both, "nothing changes the second time");
        let other_key = json!({"mine": "1"}).as_object().unwrap().clone();
        assert_eq!(merged(&other_key, &own, 0)["mine"], "1");
    }

    #[test]
    fn expired_certificates_are_removed() {
        let old = map(&ca("old"), "[]");
        assert_eq!(merged(&old, &map("", "[]"), i64::MAX)["client-ca-file"], "");
    }

    #[test]
    fn a_server_without_authorities_says_nothing() {
        assert!(data_of(&AggregatorConfig::default()).is_empty());
    }
}
