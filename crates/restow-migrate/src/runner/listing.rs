//! Lists objects in pages, and reads only their metadata.

use crate::discovery::StoredResource;
use crate::request::{RequestError, request_json};
use http::Request;
use kube::Client;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// An object that may have to be rewritten.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ListedObject {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    /// The managedFields; read only if needed.
    pub(crate) managed_fields: Vec<Value>,
}

/// One page.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) objects: Vec<ListedObject>,
    pub(crate) continue_token: Option<String>,
    pub(crate) remaining: Option<u64>,
    pub(crate) resource_version: String,
}

/// Which metadata is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    /// What identifies the object.
    Identity,
    /// Also the managedFields.
    ManagedFields,
}

/// Only metadata, if the server supports it; else whole objects, of which the rest is skipped.
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

/// Reads one page of the objects in a namespace, or in all.
pub(crate) async fn page(
    client: &Client,
    resource: &StoredResource,
    query: PageQuery<'_>,
    detail: Detail,
) -> Result<Page, RequestError> {
    let mut path = format!("{}?limit={}", resource.collection_path(query.namespace), query.limit);
    if let Some(token) = query.continue_token {
        path = format!("{path}&continue={}", utf8_percent_encode(token, NON_ALPHANUMERIC));
    }
    match detail {
        Detail::Identity => list::<Identity>(client, &path).await,
        Detail::ManagedFields => list::<WithOwners>(client, &path).await,
    }
}

/// Reads a list. An answer that is not a list must not be mistaken for an empty one.
async fn list<M>(client: &Client, path: &str) -> Result<Page, RequestError>
where
    M: DeserializeOwned + Into<ListedObject>,
{
    let list: List<M> = request_json(client, get(path, METADATA_LIST)?).await?;
    let page = Page {
        objects: list.items.unwrap_or_default().into_iter().map(|item| item.metadata.into()).collect(),
        continue_token: list.metadata.continue_token.filter(|token| !token.is_empty()),
        remaining: list.metadata.remaining_item_count,
        resource_version: list.metadata.resource_version,
    };
    let lacks_identity = |object: &ListedObject| object.uid.is_empty() || object.resource_version.is_empty();
    if !list.kind.ends_with("List") || page.resource_version.is_empty() || page.objects.iter().any(lacks_identity) {
        let message = format!("the answer to {path} is not a list of Kubernetes objects");
        return Err(RequestError { message, ..RequestError::default() });
    }
    Ok(page)
}

/// Which page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageQuery<'a> {
    /// Empty for the objects of all namespaces.
    pub(crate) namespace: &'a str,
    pub(crate) continue_token: Option<&'a str>,
    pub(crate) limit: u32,
}

/// The names of all namespaces.
pub(crate) async fn namespaces(client: &Client) -> Result<Vec<String>, RequestError> {
    let page = list::<Identity>(client, "/api/v1/namespaces").await?;
    Ok(page.objects.into_iter().map(|namespace| namespace.name).collect())
}

/// Reads one object again.
pub(crate) async fn object(
    client: &Client,
    resource: &StoredResource,
    object: &ListedObject,
    detail: Detail,
) -> Result<ListedObject, RequestError> {
    let path = resource.object_path(&object.namespace, &object.name);
    match detail {
        Detail::Identity => Ok(request_json::<Item<Identity>>(client, get(&path, METADATA)?).await?.metadata.into()),
        Detail::ManagedFields => {
            Ok(request_json::<Item<WithOwners>>(client, get(&path, METADATA)?).await?.metadata.into())
        }
    }
}

fn get(path: &str, accept: &str) -> Result<Request<Vec<u8>>, RequestError> {
    Request::get(path)
        .header(http::header::ACCEPT, accept)
        .body(Vec::new())
        .map_err(|error| RequestError { message: error.to_string(), ..RequestError::default() })
}

#[derive(Deserialize)]
struct List<M> {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    metadata: ListMetadata,
    items: Option<Vec<Item<M>>>,
}

#[derive(Deserialize)]
struct Item<M> {
    metadata: M,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListMetadata {
    #[serde(rename = "continue")]
    continue_token: Option<String>,
    remaining_item_count: Option<u64>,
    resource_version: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Identity {
    #[serde(default)]
    namespace: String,
    name: String,
    #[serde(default)]
    uid: String,
    #[serde(default)]
    resource_version: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WithOwners {
    #[serde(flatten)]
    identity: Identity,
    #[serde(default)]
    managed_fields: Vec<Value>,
}

impl From<Identity> for ListedObject {
    fn from(identity: Identity) -> Self {
        let Identity { namespace, name, uid, resource_version } = identity;
        ListedObject { namespace, name, uid, resource_version, managed_fields: Vec::new() }
    }
}

impl From<WithOwners> for ListedObject {
    fn from(metadata: WithOwners) -> Self {
        ListedObject { managed_fields: metadata.managed_fields, ..metadata.identity.into() }
    }
}
