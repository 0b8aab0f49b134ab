//! Installs what the controller needs: CRDs, permissions, the guard, and the controller itself.
//!
//! Existing objects are changed only where they differ, so installing twice changes nothing.

mod permissions;

use crate::controller::ResourceFilter;
use crate::request::{RequestError, request_json};
use http::Request;
use kube::Client;
use permissions::objects_role;
use serde_json::{Value, json};
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};

const CRDS: &str = include_str!("../manifests/crds.yaml");
const GUARD: &str = include_str!("../manifests/guard.yaml");
const CONTROLLER: &str = include_str!("../manifests/controller.yaml");
const DEPLOYMENT: &str = include_str!("../manifests/deployment.yaml");

/// What to install.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstallOptions {
    /// The image of the controller; `None` installs no Deployment, for a controller that runs elsewhere.
    pub image: Option<String>,
    /// Which objects the controller migrates, and so may read and rewrite.
    pub resources: ResourceFilter,
    /// Groups of which it may rewrite everything, whether they exist yet or not.
    pub groups: Vec<String>,
    /// Where the controller serves its metrics.
    pub metrics_listen: SocketAddr,
}

impl Default for InstallOptions {
    fn default() -> Self {
        InstallOptions {
            image: None,
            resources: ResourceFilter::All,
            groups: Vec::new(),
            metrics_listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 9443)),
        }
    }
}

/// What was done about one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// Its kind and name.
    pub name: String,
    /// What was done.
    pub action: InstallAction,
}

/// What was done about an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstallAction {
    /// It did not exist.
    Created,
    /// It existed, and differed.
    Changed,
    /// It existed as wanted.
    Unchanged,
    /// The cluster does not serve this kind.
    NotServed,
}

/// Why something could not be installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The text of a manifest is broken.
    #[error("the manifest is unreadable: {0}")]
    Manifest(String),
    /// The resources of the cluster could not be listed.
    #[error("cannot find out which resources the cluster has, to allow no more than these: {0}")]
    ResourceFilter(RequestError),
    /// The server refused an object.
    #[error("cannot install {name}: {failure}")]
    Object {
        /// Which one.
        name: String,
        /// Why.
        failure: RequestError,
    },
}

/// All manifests for a cluster as one text. The permissions depend on the resources that exist.
pub async fn manifests(client: &Client, options: &InstallOptions) -> Result<String, InstallError> {
    let role = objects_role(client, options).await.map_err(InstallError::ResourceFilter)?;
    Ok(joined(options, role))
}

fn joined(options: &InstallOptions, role: String) -> String {
    let mut texts = vec![CRDS.to_owned(), GUARD.to_owned(), CONTROLLER.to_owned(), role];
    texts.extend(options.image.as_ref().map(|image| {
        let mut arguments = vec!["controller".to_owned(), format!("--metrics-listen={}", options.metrics_listen)];
        arguments.extend((options.resources == ResourceFilter::Custom).then(|| "--crds-only".to_owned()));
        DEPLOYMENT.replace("IMAGE", image).replace("ARGS", &json!(arguments).to_string())
    }));
    texts.join("---\n")
}

/// Installs everything, and returns what was done.
pub async fn install(client: &Client, options: &InstallOptions) -> Result<Vec<Installed>, InstallError> {
    apply_all(client, &manifests(client, options).await?).await
}

/// Installs what a server with a built-in controller needs: the CRDs and the guard.
pub async fn install_at_own_server(client: &Client) -> Result<(), InstallError> {
    apply_all(client, &[CRDS, GUARD].join("---\n")).await.map(drop)
}

async fn apply_all(client: &Client, manifests: &str) -> Result<Vec<Installed>, InstallError> {
    let mut done = Vec::new();
    for object in objects(manifests)? {
        let name = format!("{}/{}", text(&object["kind"]), text(&object["metadata"]["name"]));
        let action = apply(client, &object).await;
        let action = action.map_err(|failure| InstallError::Object { name: name.clone(), failure })?;
        done.push(Installed { name, action });
    }
    Ok(done)
}

fn objects(manifests: &str) -> Result<Vec<Value>, InstallError> {
    serde_saphyr::from_multiple(manifests).map_err(|error| InstallError::Manifest(error.to_string()))
}

async fn apply(client: &Client, object: &Value) -> Result<InstallAction, RequestError> {
    let collection = collection_path(object);
    let path = format!("{collection}/{}", text(&object["metadata"]["name"]));
    let found: Result<Value, RequestError> = request_json(client, request("GET", &path, "", Vec::new())?).await;
    match found {
        Ok(found) if contains(&found, object) => Ok(InstallAction::Unchanged),
        Ok(_) => {
            let body = object.to_string().into_bytes();
            let patch = request("PATCH", &path, "application/merge-patch+json", body)?;
            request_json::<Value>(client, patch).await.map(|_| InstallAction::Changed)
        }
        Err(failure) if failure.code == 404 => {
            let create = request("POST", &collection, "application/json", object.to_string().into_bytes())?;
            match request_json::<Value>(client, create).await {
                Ok(_) => Ok(InstallAction::Created),
                // The first 404 was for the object; this one is for the collection.
                Err(failure) if failure.code == 404 => Ok(InstallAction::NotServed),
                Err(failure) => Err(failure),
            }
        }
        Err(failure) => Err(failure),
    }
}

/// Whether everything that is wanted is there. Servers add defaults, so there may be more.
fn contains(found: &Value, wanted: &Value) -> bool {
    match (found, wanted) {
        (Value::Object(found), Value::Object(wanted)) => {
            wanted.iter().all(|(name, wanted)| found.get(name).is_some_and(|found| contains(found, wanted)))
        }
        (Value::Array(found), Value::Array(wanted)) => {
            found.len() == wanted.len() && found.iter().zip(wanted).all(|(found, wanted)| contains(found, wanted))
        }
        _ => found == wanted,
    }
}

fn collection_path(object: &Value) -> String {
    let api_version = text(&object["apiVersion"]);
    let root = if api_version.contains('/') { format!("/apis/{api_version}") } else { format!("/api/{api_version}") };
    let plural = match text(&object["kind"]) {
        "ValidatingAdmissionPolicy" => "validatingadmissionpolicies".to_owned(),
        kind => format!("{}s", kind.to_lowercase()),
    };
    match &object["metadata"]["namespace"] {
        Value::String(namespace) => format!("{root}/namespaces/{namespace}/{plural}"),
        _ => format!("{root}/{plural}"),
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn request(method: &str, path: &str, content_type: &str, body: Vec<u8>) -> Result<Request<Vec<u8>>, RequestError> {
    let mut request = Request::builder().method(method).uri(path).header(http::header::ACCEPT, "application/json");
    if !content_type.is_empty() {
        request = request.header(http::header::CONTENT_TYPE, content_type);
    }
    request.body(body).map_err(|error| RequestError { message: error.to_string(), ..RequestError::default() })
}

impl fmt::Display for InstallAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            InstallAction::Created => "created",
            InstallAction::Changed => "changed",
            InstallAction::Unchanged => "unchanged",
            InstallAction::NotServed => "left out: the cluster does not know this kind",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_manifest_is_read_and_has_a_path() {
        let options = InstallOptions { image: Some("example.com/restow:1".into()), ..InstallOptions::default() };
        let objects = objects(&joined(&options, "kind: ClusterRole\n".to_owned())).unwrap();
        let paths: Vec<String> = objects.iter().map(collection_path).collect();
        assert_eq!(objects.len(), 17);
        let arguments = &objects[16]["spec"]["template"]["spec"]["containers"][0]["args"];
        assert_eq!(*arguments, json!(["controller", "--metrics-listen=127.0.0.1:9443"]));
        assert!(paths.contains(&"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies".to_owned()));
        assert!(paths.contains(&"/apis/apps/v1/namespaces/restow-system/deployments".to_owned()));
        assert!(paths.contains(&"/api/v1/namespaces".to_owned()));
    }

    #[test]
    fn the_controller_may_count_the_servers_behind_services_in_any_namespace() {
        let objects = objects(CONTROLLER).unwrap();
        let role = objects.iter().find(|object| object["kind"] == "ClusterRole").unwrap();
        let expected = json!({"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list"]});
        assert!(role["rules"].as_array().unwrap().contains(&expected), "{role}");
    }

    #[test]
    fn defaults_of_the_server_are_no_difference() {
        let wanted = json!({"spec": {"a": [{"b": 1}]}});
        assert!(contains(&json!({"spec": {"a": [{"b": 1, "default": true}]}, "status": {}}), &wanted));
        assert!(!contains(&json!({"spec": {"a": [{"b": 2}]}}), &wanted));
        assert!(!contains(&json!({"spec": {"a": []}}), &wanted));
    }
}
