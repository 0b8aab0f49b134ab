//! Checks the whole history of an etcd against the rules.

use crate::writers::VIA;
use restow_store::{Change, KeyRange, Revision, Store, WatchRequest};
use restow_testkit::TIMEOUT;
use serde_json::Value;
use std::collections::HashMap;

/// The findings in the history.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// How many objects were written in each version, endpoint slices only.
    pub(crate) slices_by_version: HashMap<String, usize>,
    /// How many widgets, which are custom resources, were written in each version.
    pub(crate) widgets_by_version: HashMap<String, usize>,
    /// How many writes were checked.
    pub(crate) checked: usize,
}

/// Reads the whole history and panics at the first object in a version that was not reported when it was written.
pub(crate) async fn check(store: &dyn Store) -> Findings {
    let end = store.status().await.unwrap().revision;
    let mut watch = store.watch(WatchRequest::from(KeyRange::all(), Revision::new(1))).await.unwrap();
    let mut reports: HashMap<String, Value> = HashMap::new();
    let mut findings = Findings::default();
    loop {
        let batch = tokio::time::timeout(TIMEOUT, watch.next()).await.unwrap().unwrap().unwrap();
        for event in batch.events {
            let key = String::from_utf8(event.key().as_bytes().to_vec()).unwrap();
            let parts: Vec<&str> = key.trim_start_matches('/').split('/').collect();
            let [group, resource, rest @ ..] = parts.as_slice() else { continue };
            // Beside objects there are small keys of the servers' own, such as the one that names a version in force.
            if *group == "restow" {
                continue;
            }
            let value = match &event.change {
                Change::Put(entry) => serde_json::from_slice::<Value>(&entry.value).ok().filter(Value::is_object),
                Change::Delete(_) => None,
            };
            let value = value.unwrap_or_default();
            let is_own_lease = *resource == "leases" && rest[0] == "kube-system";
            if *resource == "storageversions" && *group == "internal.apiserver.k8s.io" {
                reports.insert(rest[0].to_string(), value);
            } else if !value.is_null() && !is_own_lease {
                check_write(&key, &format!("{group}.{resource}"), &value, &reports);
                findings.checked += 1;
                if *resource == "endpointslices" {
                    *findings.slices_by_version.entry(value["apiVersion"].as_str().unwrap().into()).or_default() += 1;
                }
                if *resource == "widgets" {
                    *findings.widgets_by_version.entry(value["apiVersion"].as_str().unwrap().into()).or_default() += 1;
                }
            }
        }
        if batch.revision >= end {
            return findings;
        }
    }
}

fn check_write(key: &str, name: &str, object: &Value, reports: &HashMap<String, Value>) {
    let version = &object["apiVersion"];
    let report = reports.get(name).unwrap_or(&Value::Null);
    let entries = report["status"]["storageVersions"].as_array().cloned().unwrap_or_default();
    // If the object names the server that wrote it, that server must have reported the version; else any server.
    let via = &object["metadata"]["annotations"][VIA];
    let reported = entries
        .iter()
        .any(|entry| entry["encodingVersion"] == *version && (via.is_null() || entry["apiServerID"] == *via));
    assert!(reported, "{key} was written in {version} by {via} when this was reported: {report}");
}
