//! The reports at the main API server: entries in its StorageVersions, written with optimistic concurrency.

use crate::lease::{HeldLease, Standing};
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

/// Whether this server has already reported a resource under its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Earlier {
    /// No: an entry that is there was written under an earlier lease.
    None,
    /// Yes.
    Reported,
}

/// Writes this server's entry, under this lease. The lease is checked after the object was read: a process that was replaced
/// while it was paused must not overwrite the report of the one in its place, which writes the object after it takes the lease.
/// So the first report is always written: an equal entry of an earlier process is removed before, since a write that
/// changes nothing does not change the resourceVersion.
///
/// Entries of other servers stay, even of those that are gone: one request cannot both write and compare that a lease is
/// absent. The collector of the main server can, and removes them.
pub(crate) async fn report(
    client: &kube::Client,
    held: &HeldLease,
    resource: &GroupResource,
    report: &ServerReport,
    mut earlier: Earlier,
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
        let is_there = is_reported(Some(&object), report, now);
        if is_there && earlier == Earlier::Reported {
            return Ok(ReportOutcome::Unchanged);
        }
        check(client, Standing::Holds(held)).await?;
        let mut status = match is_there {
            true => without_entry(&object, report.id(), now),
            false => register(Some(&object), &Participants::unreadable(), report, now).status,
        };
        set_common_version_as_kubernetes(&object, &mut status, now);
        match (write_status(client, &name, StorageVersion { status, ..object }).await?, is_there) {
            (Written::Yes, false) => return Ok(ReportOutcome::Written),
            (Written::Yes, true) => {
                earlier = Earlier::Reported;
                continue;
            }
            (Written::Conflict, _) => {}
        }
        pause(attempt).await;
    }
    Err(format!("the StorageVersion {name} was changed by others {ATTEMPTS} times in a row"))
}

/// Removes this server's entry. The standing is checked after the object was read, as for a report.
pub(crate) async fn withdraw(
    client: &kube::Client,
    standing: Standing<'_>,
    resource: &GroupResource,
    own: &ServerId,
) -> Result<(), String> {
    withdraw_by_name(client, standing, &StorageVersion::name_for(resource), own).await
}

async fn withdraw_by_name(
    client: &kube::Client,
    standing: Standing<'_>,
    name: &str,
    own: &ServerId,
) -> Result<(), String> {
    for attempt in 0..ATTEMPTS {
        let Some(object) = get(client, name).await? else { return Ok(()) };
        let now = restow_host::now();
        let mut status = without_entry(&object, own, now);
        if status.storage_versions == object.status.storage_versions {
            return Ok(());
        }
        check(client, standing).await?;
        set_common_version_as_kubernetes(&object, &mut status, now);
        if write_status(client, name, StorageVersion { status, ..object }).await? == Written::Yes {
            return Ok(());
        }
        pause(attempt).await;
    }
    Err(format!("the StorageVersion {name} was changed by others {ATTEMPTS} times in a row"))
}

/// The status without the entry of this server. An object without entries is removed by the collector of the main server.
fn without_entry(object: &StorageVersion, own: &ServerId, now: Timestamp) -> StorageVersionStatus {
    match without(object, &Participants::unreadable(), own, now) {
        Collected::Keep => object.status.clone(),
        Collected::Update { status, .. } => status,
        Collected::Delete { .. } => StorageVersionStatus::default(),
    }
}

/// Refuses if another process is in the place of this one.
async fn check(client: &kube::Client, standing: Standing<'_>) -> Result<(), String> {
    match (standing.is_true(client).await.map_err(|error| error.to_string())?, standing) {
        (true, _) => Ok(()),
        (false, Standing::Holds(_)) => {
            Err("the identity lease at the main API server was deleted or replaced".to_owned())
        }
        (false, Standing::Anonymous(id)) => Err(format!(
            "the lease {id} in the namespace kube-system of the main API server says that an aggregated server with this \
             identity runs; if none does, delete the lease and its finalizer"
        )),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    Yes,
    /// Somebody else has written the object.
    Conflict,
}

async fn write_status(client: &kube::Client, name: &str, object: StorageVersion) -> Result<Written, String> {
    let written = send(client, Method::PUT, &format!("{PATH}/{name}/status"), &object).await?;
    Ok(if written.is_some() { Written::Yes } else { Written::Conflict })
}

/// Removes this server's entries of all resources.
pub(crate) async fn withdraw_all(client: &kube::Client, standing: Standing<'_>, own: &ServerId) -> Result<(), String> {
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
            withdraw_by_name(client, standing, &object.metadata.name, own).await?;
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
