//! What the servers behind this one have in a namespace: found and deleted by the namespace controller, object by object.
//!
//! An object is deleted only if it is still the one that was found (its uid): a namespace may have been created again meanwhile,
//! and what is in the new one must stay. So nothing here deletes a collection.

use crate::aggregator::Aggregator;
use crate::aggregator::api_service::GROUP;
use crate::aggregator::api_services::KnownApiService;
use crate::aggregator::backend::Backend;
use crate::aggregator::registration::api_service_resource;
use crate::discovery::aggregation::Freshness;
use crate::discovery::discovered_resource::DiscoveredResource;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use restow_api::GroupVersion;
use restow_auth::User;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use thiserror::Error;

/// How many objects are listed at once.
const PAGE: usize = 500;
/// Names and uids are enough. A server that has no such form sends the objects.
const METADATA: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
/// What is escaped in one segment of a path.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The APIServices have not been read yet, so it is not known what other servers serve.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the APIServices have not been read yet, so it is not known what other API servers serve")]
pub(crate) struct NotRead;

/// The namespaced resources of other servers.
#[derive(Default)]
pub(crate) struct AggregatedResources {
    /// Those that are known.
    pub(crate) resources: Vec<AggregatedResource>,
    /// The group-versions whose servers cannot be asked.
    pub(crate) unknown: Vec<GroupVersion>,
}

/// A resource that another server serves.
pub(crate) struct AggregatedResource {
    service: Arc<KnownApiService>,
    plural: String,
}

/// Some objects on another server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ObjectPage {
    pub(crate) objects: Vec<AggregatedObject>,
    /// The continue token of the next page; empty after the last one.
    pub(crate) next: String,
    /// How many objects there are on this page and, as far as the server says, after it.
    pub(crate) count: usize,
}

/// An object on another server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AggregatedObject {
    name: String,
    uid: String,
}

impl Aggregator {
    /// The namespaced resources of other servers, each in one version.
    pub(crate) fn namespaced_resources(&self) -> Result<AggregatedResources, NotRead> {
        self.check_read()?;
        let mut found = AggregatedResources::default();
        let aggregation = self.aggregation(&self.core.registry());
        let mut seen = BTreeSet::new();
        for (version, service) in &self.known.load().proxied {
            let known = aggregation.versions.get(version).filter(|known| known.freshness == Freshness::Current);
            let Some(known) = known.filter(|_| service.available().is_ok()) else {
                found.unknown.push(version.clone());
                continue;
            };
            let deletable = known.resources.iter().filter_map(|resource| deletable(service, resource));
            let new = deletable.filter(|resource| seen.insert((version.group().to_string(), resource.plural.clone())));
            found.resources.extend(new);
        }
        Ok(found)
    }

    /// Whether another server serves a group-version.
    pub(crate) fn is_proxied(&self, version: &GroupVersion) -> Result<bool, NotRead> {
        if matches!(version.group(), "" | GROUP) {
            return Ok(false);
        }
        self.check_read()?;
        Ok(self.known.load().proxied.contains_key(version))
    }

    /// Before the APIServices have been read, none being known does not mean that there are none.
    fn check_read(&self) -> Result<(), NotRead> {
        match *self.listed.borrow() || api_service_resource(&self.core).is_none() {
            true => Ok(()),
            false => Err(NotRead),
        }
    }
}

/// The resource, if its objects go with their namespace.
fn deletable(service: &Arc<KnownApiService>, resource: &DiscoveredResource) -> Option<AggregatedResource> {
    let goes_with_it = resource.scope == "Namespaced" && resource.has_verb("delete") && resource.has_verb("list");
    goes_with_it.then(|| AggregatedResource { service: service.clone(), plural: resource.resource.clone() })
}

impl AggregatedResource {
    /// The resource and its group, as in `plants.garden.example`.
    pub(crate) fn name(&self) -> String {
        format!("{}.{}", self.plural, self.service.version().group())
    }

    /// The objects in a namespace, from a continue token on; an empty one is the beginning.
    pub(crate) async fn list(&self, namespace: &str, user: &User, from: &str) -> Result<ObjectPage, String> {
        let collection = self.collection(namespace)?;
        let mut path = format!("{collection}?limit={PAGE}");
        if !from.is_empty() {
            path.push_str(&format!("&continue={}", utf8_percent_encode(from, ESCAPED)));
        }
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, HeaderValue::from_static(METADATA));
        let answer = self.backend()?.call(Method::GET, &path, user, headers, None).await;
        let answer = answer.map_err(|error| error.to_string())?;
        match answer.code {
            StatusCode::OK => ObjectPage::read(&collection, &answer.body),
            code => Err(refusal(&collection, code, &answer.body)),
        }
    }

    /// Deletes an object, if it is still the one that was listed.
    pub(crate) async fn delete(&self, namespace: &str, object: &AggregatedObject, user: &User) -> Result<(), String> {
        let path = object.path_in(&self.collection(namespace)?)?;
        let options = json!({
            "kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background",
            "preconditions": {"uid": object.uid},
        });
        let answer = self.backend()?.call(Method::DELETE, &path, user, HeaderMap::new(), Some(&options)).await;
        let answer = answer.map_err(|error| error.to_string())?;
        match answer.code {
            // It is gone, or another object has its name now.
            StatusCode::NOT_FOUND | StatusCode::CONFLICT => Ok(()),
            code if code.is_success() => Ok(()),
            code => Err(refusal(&path, code, &answer.body)),
        }
    }

    fn backend(&self) -> Result<&Backend, String> {
        self.service.available().map(Arc::as_ref).map_err(|error| error.to_string())
    }

    fn collection(&self, namespace: &str) -> Result<String, String> {
        let (namespace, plural) = (segment(namespace)?, segment(&self.plural)?);
        Ok(format!("/apis/{}/namespaces/{namespace}/{plural}", self.service.version()))
    }
}

impl AggregatedObject {
    /// Its path. Without a name it would be that of the collection, and without a uid any object could be deleted.
    fn path_in(&self, collection: &str) -> Result<String, String> {
        match self.uid.is_empty() {
            true => Err(format!("{collection}: the object {:?} has no uid", self.name)),
            false => Ok(format!("{collection}/{}", segment(&self.name)?)),
        }
    }
}

impl ObjectPage {
    /// Reads a list. Another document is no proof that nothing is left.
    fn read(path: &str, body: &[u8]) -> Result<Self, String> {
        let list: Value = serde_json::from_slice(body).map_err(|error| format!("{path}: {error}"))?;
        let items = match list.get("items") {
            Some(Value::Array(items)) => items.as_slice(),
            // Go writes an empty list like this.
            Some(Value::Null) => &[],
            _ => return Err(format!("{path}: the response is not a list")),
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
        let objects: Vec<AggregatedObject> = items
            .iter()
            .map(|item| &item["metadata"])
            .map(|metadata| AggregatedObject { name: text(&metadata["name"]), uid: text(&metadata["uid"]) })
            .collect();
        let metadata = &list["metadata"];
        let next = text(&metadata["continue"]);
        let after = metadata["remainingItemCount"].as_u64().and_then(|count| usize::try_from(count).ok());
        let after = after.unwrap_or_default().max(usize::from(!next.is_empty()));
        Ok(ObjectPage { count: objects.len().saturating_add(after), objects, next })
    }
}

/// One segment of a path. An empty one, `.` and `..` would make it the path of something else.
fn segment(text: &str) -> Result<String, String> {
    match text {
        "" | "." | ".." => Err(format!("{text:?} cannot be a part of a path")),
        text => Ok(utf8_percent_encode(text, ESCAPED).to_string()),
    }
}

fn refusal(path: &str, code: StatusCode, body: &[u8]) -> String {
    let status: Value = serde_json::from_slice(body).unwrap_or_default();
    match status["message"].as_str() {
        Some(message) => message.to_string(),
        None => format!("{path}: the server responded with {code}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin::{self, RuntimeConfig};
    use crate::release::Release;
    use crate::resource::registry::Registry;
    use crate::server::{ApiServer, ServerConfig};
    use restow_store::conformance::ModelStore;
    use std::net::SocketAddr;

    fn read(list: Value) -> Result<(Vec<String>, String, usize), String> {
        let page = ObjectPage::read("/apis/x", list.to_string().as_bytes())?;
        let shown = page.objects.iter().map(|object| format!("{} {}", object.name, object.uid));
        Ok((shown.collect(), page.next, page.count))
    }

    #[test]
    fn objects_are_counted_with_those_on_later_pages() {
        let items = json!([{"metadata": {"name": "rose", "uid": "u-1"}}]);
        let expected = |next: &str, count| Ok((vec!["rose u-1".to_string()], next.to_string(), count));
        assert_eq!(read(json!({"items": items})), expected("", 1));
        assert_eq!(read(json!({"metadata": {"continue": "c"}, "items": items})), expected("c", 2));
        assert_eq!(read(json!({"items": null})), Ok((Vec::new(), String::new(), 0)));
        let metadata = json!({"continue": "c", "remainingItemCount": 7});
        assert_eq!(read(json!({"metadata": metadata, "items": items})), expected("c", 8));
    }

    #[test]
    fn another_document_is_no_empty_list() {
        for other in [json!({"kind": "Status"}), json!({"items": {}}), json!([])] {
            assert!(read(other.clone()).is_err(), "{other}");
        }
    }

    #[test]
    fn only_an_object_with_a_name_and_a_uid_is_deleted() {
        let check = |name: &str, uid: &str, expected: Option<&str>| {
            let object = AggregatedObject { name: name.into(), uid: uid.into() };
            assert_eq!(object.path_in("/c").ok().as_deref(), expected, "{name} {uid}");
        };
        check("rose:red/1 %", "u-1", Some("/c/rose%3Ared%2F1%20%25"));
        check("a-b_c.d~e", "u-1", Some("/c/a-b_c.d~e"));
        check("rose", "", None);
        for name in ["", ".", ".."] {
            check(name, "u-1", None);
        }
    }

    #[tokio::test]
    async fn nothing_is_known_of_other_servers_before_the_api_services_have_been_read() {
        let resources = builtin::resources(Release::NEWEST, &RuntimeConfig::default());
        let address = SocketAddr::from(([127, 0, 0, 1], 6443));
        let config = ServerConfig::new(Arc::new(ModelStore::default()), Registry::new(resources), address);
        // The runtime has one thread: the server's tasks have not run yet.
        let server = ApiServer::new(config).await.unwrap();
        let aggregator = server.aggregator();
        let (core, plants): (GroupVersion, GroupVersion) =
            ("v1".parse().unwrap(), "garden.example/v1".parse().unwrap());
        assert_eq!(aggregator.namespaced_resources().err(), Some(NotRead));
        assert_eq!(aggregator.is_proxied(&plants), Err(NotRead));
        assert_eq!(aggregator.is_proxied(&core), Ok(false));
        server.ready().await.unwrap();
        assert!(aggregator.namespaced_resources().is_ok());
        assert_eq!(aggregator.is_proxied(&plants), Ok(false));
    }
}
