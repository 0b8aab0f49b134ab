//! Reads CRDs, and writes their annotations and stored versions.
//!
//! Each write has the revision that was read as precondition.

use crate::backoff::request_delay;
use crate::request::{RequestError, request_json};
use http::Request;
use kube::Client;
use restow_api::GroupResource;
use restow_rules::migrate::managed_fields::{ManagedFieldsPlan, VersionView, staying};
use restow_rules::migrate::response::{Absence, MAX_RETRIES, ResponseClass, absence, classify};
use restow_rules::migrate::stored_versions::{CrdView, MIGRATING_ANNOTATION};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The fields of a CRD's spec that are read. Schemas, which can be large, are not.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CrdSpec {
    /// The group of its resource.
    pub group: String,
    /// The names of its resource.
    pub names: CrdNames,
    /// Its versions.
    pub versions: Vec<CrdVersion>,
}

/// The names of a resource.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CrdNames {
    /// The resource.
    pub plural: String,
    /// The kind of its objects.
    pub kind: String,
}

/// One version of a CRD.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CrdVersion {
    /// The version.
    pub name: String,
    /// Whether clients can use it.
    pub served: bool,
    /// Whether objects are stored in it.
    pub storage: bool,
    /// Whether clients are told not to use it.
    pub deprecated: bool,
}

/// The fields of a CRD's status that are read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CrdStatus {
    /// The versions in which objects may be stored.
    pub stored_versions: Vec<String>,
}

/// A CRD, as far as it is read.
pub type Crd = kube::core::Object<CrdSpec, CrdStatus>;

const PATH: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Reads the CRD of a resource; `None` if there is none, as for built-in resources.
pub async fn read(client: &Client, resource: &GroupResource) -> Result<Option<Crd>, RequestError> {
    if resource.group().is_empty() {
        return Ok(None);
    }
    let request = request("GET", &format!("{PATH}/{resource}"), None)?;
    match patiently(client, request).await {
        Ok(crd) => Ok(Some(crd)),
        // A server that does not serve CRDs (yet) does not say that there is none.
        Err(failure) => match absence(&failure.response(), &resource.to_string()) {
            Some(Absence::Gone) => Ok(None),
            _ => Err(failure),
        },
    }
}

/// Changes annotations of a CRD; null removes one. Returns the CRD after that.
pub async fn annotate(client: &Client, crd: &Crd, annotations: Value) -> Result<Crd, RequestError> {
    let mut metadata = precondition(crd);
    metadata["annotations"] = annotations;
    let name = crd.metadata.name.as_deref().unwrap_or_default();
    let request = request("PATCH", &format!("{PATH}/{name}"), Some(json!({ "metadata": metadata })))?;
    patiently(client, request).await
}

/// Writes the stored versions.
pub async fn set_stored_versions(client: &Client, crd: &Crd, versions: &[String]) -> Result<Crd, RequestError> {
    let name = crd.metadata.name.as_deref().unwrap_or_default();
    let body = json!({"metadata": precondition(crd), "status": {"storedVersions": versions}});
    patiently(client, request("PATCH", &format!("{PATH}/{name}/status"), Some(body))?).await
}

/// The page size. Schemas can be large.
const AT_A_TIME: u32 = 50;

/// All CRDs by the name of their resource.
pub async fn list(client: &Client) -> Result<BTreeMap<String, Crd>, RequestError> {
    #[derive(Deserialize)]
    struct Page {
        metadata: PageMetadata,
        items: Vec<Crd>,
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
        for crd in page.items {
            found.insert(crd.metadata.name.clone().unwrap_or_default(), crd);
        }
        if page.metadata.token.is_empty() {
            return Ok(found);
        }
        token = page.metadata.token;
    }
}

/// Sends a request, and retries if the server is overloaded or an answer got lost. A write that was executed nevertheless
/// is refused the second time, because of its precondition.
async fn patiently<T: DeserializeOwned>(client: &Client, request: Request<Vec<u8>>) -> Result<T, RequestError> {
    let mut tries = 0;
    loop {
        let failure = match request_json(client, request.clone()).await {
            Ok(answer) => return Ok(answer),
            Err(failure) if failure.is_unresponsive || tries >= MAX_RETRIES => return Err(failure),
            Err(failure) => failure,
        };
        match classify(&failure.response()) {
            ResponseClass::Overloaded(wait) => tokio::time::sleep(wait).await,
            ResponseClass::TryAgain => tokio::time::sleep(request_delay(tries)).await,
            _ => return Err(failure),
        }
        tries += 1;
    }
}

fn precondition(crd: &Crd) -> Value {
    json!({"uid": crd.metadata.uid, "resourceVersion": crd.metadata.resource_version})
}

fn request(method: &str, path: &str, body: Option<Value>) -> Result<Request<Vec<u8>>, RequestError> {
    let mut request = Request::builder().method(method).uri(path).header(http::header::ACCEPT, "application/json");
    if body.is_some() {
        request = request.header(http::header::CONTENT_TYPE, "application/merge-patch+json");
    }
    request
        .body(body.map(|body| body.to_string().into_bytes()).unwrap_or_default())
        .map_err(|error| RequestError { message: error.to_string(), ..RequestError::default() })
}

/// The resource of a CRD.
pub fn resource(crd: &Crd) -> Option<GroupResource> {
    GroupResource::new(&crd.spec.group, &crd.spec.names.plural).ok()
}

/// The view of a CRD that decisions are based on.
pub fn view(crd: &Crd) -> CrdView {
    let annotations = crd.metadata.annotations.as_ref();
    CrdView {
        uid: crd.metadata.uid.clone().unwrap_or_default(),
        generation: crd.metadata.generation.unwrap_or_default(),
        storage_version: storage_version(crd).unwrap_or_default().to_owned(),
        stored_versions: crd.status.clone().unwrap_or_default().stored_versions,
        is_marked: annotations.and_then(|all| all.get(MIGRATING_ANNOTATION)).is_some_and(|value| value == "true"),
    }
}

/// How managedFields entries are moved that name a version of this CRD which is going to be removed.
pub fn managed_fields_plan(crd: &Crd) -> Option<ManagedFieldsPlan> {
    let target = storage_version(crd)?;
    let group = &crd.spec.group;
    let versions: Vec<VersionView> = crd
        .spec
        .versions
        .iter()
        .map(|version| VersionView {
            name: version.name.clone(),
            is_served: version.served,
            is_deprecated: version.deprecated,
        })
        .collect();
    Some(ManagedFieldsPlan { staying: staying(group, &versions, target), target: format!("{group}/{target}") })
}

/// The served versions, the storage version first if it is served.
pub(crate) fn served_versions(crd: &Crd) -> Vec<String> {
    let mut served: Vec<&CrdVersion> = crd.spec.versions.iter().filter(|version| version.served).collect();
    served.sort_by_key(|version| !version.storage);
    served.into_iter().map(|version| version.name.clone()).collect()
}

fn storage_version(crd: &Crd) -> Option<&str> {
    crd.spec.versions.iter().find(|version| version.storage).map(|version| version.name.as_str())
}
