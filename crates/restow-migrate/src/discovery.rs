//! Discovery: which resources are stored, and in which version a server stores them.
//!
//! Aggregated discovery does not include the hash of the storage version, so the documents of each group version are read.

use crate::request::path_part;
use crate::request::{RequestError, request_json};
use futures::{StreamExt, TryStreamExt, stream};
use http::Request;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    APIGroup, APIGroupList, APIResource, APIResourceList, APIVersions,
};
use kube::Client;
use restow_api::{GroupResource, GroupVersion, GroupVersionResource, StorageVersionHash};
use std::collections::{BTreeMap, BTreeSet};

/// A resource whose objects are stored and can be rewritten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredResource {
    /// The resource, in the version that is used to rewrite its objects.
    pub resource: GroupVersionResource,
    /// The kind of its objects.
    pub kind: String,
    /// Whether its objects live in namespaces.
    pub is_namespaced: bool,
    /// The version in which the server stores its objects; `None` when that version is not served.
    pub hash: Option<StorageVersionHash>,
}

/// The discovery documents of one server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Discovery {
    /// The resources that it serves.
    pub resources: BTreeMap<GroupResource, StoredResource>,
    /// The group versions whose document could not be read, each with the reason. They may contain any resources.
    pub unread: BTreeMap<String, String>,
}

/// How many documents are read concurrently.
const AT_ONCE: usize = 8;

impl Discovery {
    /// Why it is unknown which resources of a group are served; `None` if it is known.
    pub(crate) fn unread_of(&self, group: &str) -> Option<String> {
        let is_of = |version: &str| version.rsplit_once('/').map_or("", |(group, _)| group) == group;
        let (version, why) = self.unread.iter().find(|(version, _)| is_of(version))?;
        Some(format!("its discovery document of {version} cannot be read: {why}"))
    }
}

impl StoredResource {
    /// The path of the collection in a namespace, or of all objects.
    pub(crate) fn collection_path(&self, namespace: &str) -> String {
        let (group, version, resource) = (self.resource.group(), self.resource.version(), self.resource.resource());
        let root = if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
        match namespace {
            "" => format!("{root}/{resource}"),
            namespace => format!("{root}/namespaces/{}/{resource}", path_part(namespace)),
        }
    }

    /// The same resource in another version, if that is a valid version.
    pub(crate) fn in_version(&self, version: &str) -> Self {
        let group_version = GroupVersion::new(self.resource.group(), version);
        let resource = group_version.and_then(|version| GroupVersionResource::new(version, self.resource.resource()));
        StoredResource { resource: resource.unwrap_or_else(|_| self.resource.clone()), ..self.clone() }
    }

    /// The path of an object.
    pub(crate) fn object_path(&self, namespace: &str, name: &str) -> String {
        format!("{}/{}", self.collection_path(namespace), path_part(name))
    }
}

/// All resources of a server whose objects can be listed and rewritten.
pub async fn discover(client: &Client) -> Result<Discovery, RequestError> {
    let mut versions = core_versions(client).await?;
    let groups: APIGroupList = request_json(client, get("/apis")?).await?;
    let others = groups.groups.into_iter().flat_map(|group| group.versions);
    versions.extend(others.map(|version| version.group_version));
    documents(client, versions).await
}

/// All resources of the groups of these resources, if only those may have changed.
pub async fn discover_groups(client: &Client, resources: &[&GroupResource]) -> Result<Discovery, RequestError> {
    let groups: BTreeSet<String> = resources.iter().map(|resource| resource.group().to_owned()).collect();
    let versions = stream::iter(groups).map(|group| async move { versions_of(client, &group).await });
    let versions: Vec<Vec<String>> = versions.buffered(AT_ONCE).try_collect().await?;
    documents(client, versions.concat()).await
}

/// The versions of a group; none if it is not served.
async fn versions_of(client: &Client, group: &str) -> Result<Vec<String>, RequestError> {
    if group.is_empty() {
        return core_versions(client).await;
    }
    match request_json::<APIGroup>(client, get(&format!("/apis/{group}"))?).await {
        Ok(found) => Ok(found.versions.into_iter().map(|version| version.group_version).collect()),
        Err(failure) if failure.code == 404 => Ok(Vec::new()),
        Err(failure) => Err(failure),
    }
}

async fn core_versions(client: &Client) -> Result<Vec<String>, RequestError> {
    let core: APIVersions = request_json(client, get("/api")?).await?;
    Ok(core.versions)
}

/// A document that is listed and cannot be read belongs to a version that is being added or removed, or to an aggregated
/// server that is down: its resources are unknown.
async fn documents(client: &Client, versions: Vec<String>) -> Result<Discovery, RequestError> {
    let documents: Vec<Result<APIResourceList, (String, RequestError)>> = stream::iter(versions)
        .map(|version| async move {
            let path = if version.contains('/') { format!("/apis/{version}") } else { format!("/api/{version}") };
            match request_json::<APIResourceList>(client, get(&path)?).await {
                Ok(document) => Ok(Ok(document)),
                Err(failure) if matches!(failure.code, 404 | 502..=504) && version.contains('/') => {
                    Ok(Err((version, failure)))
                }
                Err(failure) => Err(failure),
            }
        })
        .buffered(AT_ONCE)
        .try_collect()
        .await?;
    let mut found = Discovery::default();
    for document in documents {
        let document = match document {
            Ok(document) => document,
            Err((version, failure)) => {
                found.unread.insert(version, failure.to_string());
                continue;
            }
        };
        for resource in stored_resources(&document) {
            // Versions come in the server's order of preference; the first usable one is taken. A hash can be missing in
            // one version and present in another.
            let key = resource.resource.group_resource();
            let entry = found.resources.entry(key).or_insert_with(|| resource.clone());
            if entry.hash.is_none() {
                *entry = resource;
            }
        }
    }
    Ok(found)
}

fn stored_resources(document: &APIResourceList) -> Vec<StoredResource> {
    let Ok(group_version) = document.group_version.parse::<GroupVersion>() else { return Vec::new() };
    let is_stored = |resource: &&APIResource| {
        let has = |verb: &str| resource.verbs.iter().any(|served| served == verb);
        !resource.name.contains('/') && has("list") && has("get") && has("patch")
    };
    let to_stored = |resource: &APIResource| {
        Some(StoredResource {
            resource: GroupVersionResource::new(group_version.clone(), resource.name.clone()).ok()?,
            kind: resource.kind.clone(),
            is_namespaced: resource.namespaced,
            hash: resource.storage_version_hash.as_ref().filter(|hash| !hash.is_empty()).map(StorageVersionHash::new),
        })
    };
    document.resources.iter().filter(is_stored).filter_map(to_stored).collect()
}

/// Resources that are other names of the same objects, and are not migrated under this name.
pub fn equivalents() -> BTreeSet<GroupResource> {
    // Both are views of the events of the core group.
    ["events.events.k8s.io", "ingresses.extensions"].iter().filter_map(|name| name.parse().ok()).collect()
}

fn get(path: &str) -> Result<Request<Vec<u8>>, RequestError> {
    Request::get(path)
        .header(http::header::ACCEPT, "application/json")
        .body(Vec::new())
        .map_err(|error| RequestError { message: error.to_string(), ..RequestError::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_what_can_be_listed_and_rewritten_is_a_stored_resource() {
        let document: APIResourceList = serde_json::from_value(json!({
            "kind": "APIResourceList", "groupVersion": "example.com/v1",
            "resources": [
                {"name": "widgets", "singularName": "", "namespaced": true, "kind": "Widget",
                 "verbs": ["get", "list", "patch"], "storageVersionHash": "abc="},
                {"name": "widgets/status", "singularName": "", "namespaced": true, "kind": "Widget",
                 "verbs": ["get", "list", "patch"]},
                {"name": "reviews", "singularName": "", "namespaced": false, "kind": "Review", "verbs": ["create"]},
            ],
        }))
        .unwrap();
        let found = stored_resources(&document);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].resource.to_string(), "widgets.v1.example.com");
        assert_eq!(found[0].hash, Some(StorageVersionHash::new("abc=")));
        assert_eq!(found[0].collection_path(""), "/apis/example.com/v1/widgets");
        assert_eq!(found[0].object_path("n", "a:b"), "/apis/example.com/v1/namespaces/n/widgets/a%3Ab");
    }
}
