//! Custom resource definitions: their mark while objects are migrated, and their stored versions.
//!
//! Each write carries the revision that was read, so that it never builds on something that has changed.

use crate::exchange::{Failure, exchange_json};
use crate::runner::OwnersPlan;
use http::Request;
use kube::Client;
use restow_api::GroupResource;
use restow_rules::migrate::managed_fields::{VersionView, staying};
use restow_rules::migrate::stored_versions::{DefinitionView, MIGRATING_ANNOTATION};
use restow_rules::migrate::verdict::{Absence, MOST_TRIES, Verdict, absence, judge, wait_after};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What is read of a custom resource definition. Its schemas, which can be large, are not.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DefinitionSpec {
    /// The group of its resource.
    pub group: String,
    /// The names of its resource.
    pub names: DefinitionNames,
    /// Its versions.
    pub versions: Vec<DefinitionVersion>,
}

/// The names of a resource.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DefinitionNames {
    /// The resource.
    pub plural: String,
    /// The kind of its objects.
    pub kind: String,
}

/// One version of a definition.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DefinitionVersion {
    /// The version.
    pub name: String,
    /// Whether clients can use it.
    pub served: bool,
    /// Whether objects are stored in it.
    pub storage: bool,
    /// Whether clients are told not to use it.
    pub deprecated: bool,
}

/// What is read of a definition's status.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DefinitionStatus {
    /// The versions in which objects may be stored.
    pub stored_versions: Vec<String>,
}

/// A custom resource definition, as far as we read it.
pub type Definition = kube::core::Object<DefinitionSpec, DefinitionStatus>;

const PATH: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Reads a definition; nothing where there is none, which is so for built-in resources.
pub async fn read(client: &Client, resource: &GroupResource) -> Result<Option<Definition>, Failure> {
    if resource.group().is_empty() {
        return Ok(None);
    }
    let request = request("GET", &format!("{PATH}/{resource}"), None)?;
    match patiently(client, request).await {
        Ok(definition) => Ok(Some(definition)),
        // A server that does not serve definitions (yet) has not said that there is none.
        Err(failure) => match absence(&failure.refusal(), &resource.to_string()) {
            Some(Absence::Gone) => Ok(None),
            _ => Err(failure),
        },
    }
}

/// Changes annotations of a definition; null takes one away. Returns it as it is then.
pub async fn annotate(client: &Client, definition: &Definition, annotations: Value) -> Result<Definition, Failure> {
    let mut metadata = precondition(definition);
    metadata["annotations"] = annotations;
    let name = definition.metadata.name.as_deref().unwrap_or_default();
    let request = request("PATCH", &format!("{PATH}/{name}"), Some(json!({ "metadata": metadata })))?;
    patiently(client, request).await
}

/// Writes the stored versions.
pub async fn set_stored_versions(
    client: &Client,
    definition: &Definition,
    versions: &[String],
) -> Result<Definition, Failure> {
    let name = definition.metadata.name.as_deref().unwrap_or_default();
    let body = json!({"metadata": precondition(definition), "status": {"storedVersions": versions}});
    patiently(client, request("PATCH", &format!("{PATH}/{name}/status"), Some(body))?).await
}

/// How many definitions are read at a time. Their schemas can be large.
const AT_A_TIME: u32 = 50;

/// All definitions by the name of their resource.
pub async fn list(client: &Client) -> Result<BTreeMap<String, Definition>, Failure> {
    #[derive(Deserialize)]
    struct Page {
        metadata: PageMetadata,
        items: Vec<Definition>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct PageMetadata {
        #[serde(rename = "continue")]
        token: String,
    }
    let mut found = BTreeMap::new();
    let mut token = String::new();
    loop {
        let path = format!("{PATH}?limit={AT_A_TIME}&continue={token}");
        let page: Page = patiently(client, request("GET", &path, None)?).await?;
        for definition in page.items {
            found.insert(definition.metadata.name.clone().unwrap_or_default(), definition);
        }
        if page.metadata.token.is_empty() {
            return Ok(found);
        }
        token = page.metadata.token;
    }
}

/// Sends a request, and sends it again when the server has too much to do or an answer got lost. A write that was made
/// nevertheless is refused the second time, because it carries the revision that was read.
async fn patiently<T: DeserializeOwned>(client: &Client, request: Request<Vec<u8>>) -> Result<T, Failure> {
    let mut tries = 0;
    loop {
        let failure = match exchange_json(client, request.clone()).await {
            Ok(answer) => return Ok(answer),
            Err(failure) if failure.is_silent || tries >= MOST_TRIES => return Err(failure),
            Err(failure) => failure,
        };
        match judge(&failure.refusal()) {
            Verdict::Overloaded(wait) => tokio::time::sleep(wait).await,
            Verdict::TryAgain => tokio::time::sleep(wait_after(tries)).await,
            _ => return Err(failure),
        }
        tries += 1;
    }
}

fn precondition(definition: &Definition) -> Value {
    json!({"uid": definition.metadata.uid, "resourceVersion": definition.metadata.resource_version})
}

fn request(method: &str, path: &str, body: Option<Value>) -> Result<Request<Vec<u8>>, Failure> {
    let mut request = Request::builder().method(method).uri(path).header(http::header::ACCEPT, "application/json");
    if body.is_some() {
        request = request.header(http::header::CONTENT_TYPE, "application/merge-patch+json");
    }
    request
        .body(body.map(|body| body.to_string().into_bytes()).unwrap_or_default())
        .map_err(|error| Failure { message: error.to_string(), ..Failure::default() })
}

/// The resource that a definition is about.
pub fn resource(definition: &Definition) -> Option<GroupResource> {
    GroupResource::new(&definition.spec.group, &definition.spec.names.plural).ok()
}

/// What decides about a definition.
pub fn view(definition: &Definition) -> DefinitionView {
    let annotations = definition.metadata.annotations.as_ref();
    DefinitionView {
        uid: definition.metadata.uid.clone().unwrap_or_default(),
        generation: definition.metadata.generation.unwrap_or_default(),
        storage_version: storage_version(definition).unwrap_or_default().to_owned(),
        stored_versions: definition.status.clone().unwrap_or_default().stored_versions,
        is_marked: annotations.and_then(|all| all.get(MIGRATING_ANNOTATION)).is_some_and(|value| value == "true"),
    }
}

/// What is done about owners of fields that name a version of this definition which is about to go.
pub fn owners_plan(definition: &Definition) -> Option<OwnersPlan> {
    let target = storage_version(definition)?;
    let group = &definition.spec.group;
    let versions: Vec<VersionView> = definition
        .spec
        .versions
        .iter()
        .map(|version| VersionView {
            name: version.name.clone(),
            is_served: version.served,
            is_deprecated: version.deprecated,
        })
        .collect();
    Some(OwnersPlan { staying: staying(group, &versions, target), target: format!("{group}/{target}") })
}

/// The versions in which clients can use the resource, the storage version first if it is one of them.
pub(crate) fn served_versions(definition: &Definition) -> Vec<String> {
    let mut served: Vec<&DefinitionVersion> =
        definition.spec.versions.iter().filter(|version| version.served).collect();
    served.sort_by_key(|version| !version.storage);
    served.into_iter().map(|version| version.name.clone()).collect()
}

fn storage_version(definition: &Definition) -> Option<&str> {
    definition.spec.versions.iter().find(|version| version.storage).map(|version| version.name.as_str())
}
