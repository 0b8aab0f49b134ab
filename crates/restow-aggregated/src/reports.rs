//! The reports at the main API server: entries in its StorageVersions, written with optimistic concurrency.

use crate::lease::HeldLease;
use http::{Method, Request};
use jiff::Timestamp;
use rand::Rng;
use restow_api::internal_apiserver::{ServerStorageVersion, StorageVersion, StorageVersionStatus};
use restow_api::{GroupResource, ServerId};
use restow_rules::collect::Collected;
use restow_rules::{
    Participants, ServerReport, is_reported, register, set_common_encoding_version, withdraw as without,
};
use serde::{Deserialize, Serialize};
use std::time::Duration;

const PATH: &str = "/apis/internal.apiserver.k8s.io/v1alpha1/storageversions";
/// How many times one report is tried.
const ATTEMPTS: u32 = 30;

/// The result of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReportOutcome {
    Unchanged,
    Written,
}

/// Writes this server's entry, under this lease. The lease is checked after the object was read: a process that was replaced
/// while it was paused must not overwrite the report of the one in its place, which writes the object after it takes the lease.
///
/// Entries of other servers stay, even of those that are gone: one request cannot both write and compare that a lease is
/// absent. The collector of the main server can, and removes them.
pub(crate) async fn report(
    client: &kube::Client,
    held: &HeldLease,
    resource: &GroupResource,
    report: &ServerReport,
) -> Result<ReportOutcome, String> {
    let name = StorageVersion::name_for(resource);
    for attempt in 0..ATTEMPTS {
        let object = match get(client, &name).await? {
            Some(object) => object,
            None => match send(client, Method::POST, PATH, &StorageVersion::new(resource)).await? {
                Some(created) => created,
                None => continue,
            },
        };
        let now = restow_host::now();
        if is_reported(Some(&object), report, now) {
            return Ok(ReportOutcome::Unchanged);
        }
        if !held.exists(client).await.map_err(|error| error.to_string())? {
            return Err("the identity lease at the main API server was deleted or replaced".to_owned());
        }
        let mut status = register(Some(&object), &Participants::unreadable(), report, now).status;
        set_common_version_as_kubernetes(&object, &mut status, now);
        let path = format!("{PATH}/{name}/status");
        if send(client, Method::PUT, &path, &StorageVersion { status, ..object }).await?.is_some() {
            return Ok(ReportOutcome::Written);
        }
        pause(attempt).await;
    }
    Err(format!("the StorageVersion {name} was changed by others {ATTEMPTS} times in a row"))
}

/// Removes this server's entry.
pub(crate) async fn withdraw(client: &kube::Client, resource: &GroupResource, own: &ServerId) -> Result<(), String> {
    withdraw_by_name(client, &StorageVersion::name_for(resource), own).await
}

async fn withdraw_by_name(client: &kube::Client, name: &str, own: &ServerId) -> Result<(), String> {
    for attempt in 0..ATTEMPTS {
        let Some(object) = get(client, name).await? else { return Ok(()) };
        let now = restow_host::now();
        let status = match without(&object, &Participants::unreadable(), own, now) {
            Collected::Keep => return Ok(()),
            Collected::Update { mut status, .. } => {
                set_common_version_as_kubernetes(&object, &mut status, now);
                status
            }
            // An object without entries is removed by the collector of the main server.
            Collected::Delete { .. } => StorageVersionStatus::default(),
        };
        if status == object.status {
            return Ok(());
        }
        let path = format!("{PATH}/{name}/status");
        if send(client, Method::PUT, &path, &StorageVersion { status, ..object }).await?.is_some() {
            return Ok(());
        }
        pause(attempt).await;
    }
    Err(format!("the StorageVersion {name} was changed by others {ATTEMPTS} times in a row"))
}

/// Removes this server's entries of all resources.
pub(crate) async fn withdraw_all(client: &kube::Client, own: &ServerId) -> Result<(), String> {
    let request = Request::get(PATH).body(Vec::new()).map_err(|error| error.to_string())?;
    let listed: List = match client.request(request).await {
        Ok(listed) => listed,
        // Without StorageVersions nothing can be reported there.
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
        Err(error) => return Err(error.to_string()),
    };
    for object in listed.items {
        let is_own = |entry: &ServerStorageVersion| entry.api_server_id == own.as_str();
        if object.status.storage_versions.iter().any(is_own) {
            withdraw_by_name(client, &object.metadata.name, own).await?;
        }
    }
    Ok(())
}

#[derive(Deserialize)]
struct List {
    items: Vec<StorageVersion>,
}

/// Sets the status as kube-apiserver expects it, which refuses a status without agreement where all entries are equal. A
/// Restow API server recomputes it.
fn set_common_version_as_kubernetes(object: &StorageVersion, status: &mut StorageVersionStatus, now: Timestamp) {
    status.common_encoding_version = object.status.common_encoding_version.clone();
    status.conditions = object.status.conditions.clone();
    set_common_encoding_version(status, object.metadata.generation, &Participants::listed([]), now);
}

async fn get(client: &kube::Client, name: &str) -> Result<Option<StorageVersion>, String> {
    let request = Request::get(format!("{PATH}/{name}")).body(Vec::new()).map_err(|error| error.to_string())?;
    match client.request(request).await {
        Ok(object) => Ok(Some(object)),
        Err(kube::Error::Api(status)) if status.code == 404 && status.message.contains(name) => Ok(None),
        Err(kube::Error::Api(status)) if status.code == 404 => {
            Err("the main API server has no StorageVersions; turn its feature gate StorageVersionAPI on".into())
        }
        Err(error) => Err(error.to_string()),
    }
}

/// Writes an object; `None` on a conflict.
async fn send(
    client: &kube::Client,
    method: Method,
    path: &str,
    object: &impl Serialize,
) -> Result<Option<StorageVersion>, String> {
    let body = serde_json::to_vec(object).map_err(|error| error.to_string())?;
    let request = Request::builder().method(method).uri(path).header(http::header::CONTENT_TYPE, "application/json");
    match client.request(request.body(body).map_err(|error| error.to_string())?).await {
        Ok(object) => Ok(Some(object)),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// A random backoff after a conflict.
async fn pause(attempt: u32) {
    let longest = Duration::from_millis(250).min(Duration::from_millis(5 << attempt.min(10)));
    let pause = longest.mul_f64(restow_host::random().random_range(0.1..=1.0));
    tokio::time::sleep(pause).await;
}
