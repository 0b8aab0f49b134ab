//! The migrations of a cluster, of `migration.k8s.io` and of the in-tree `storagemigration.k8s.io`.

use super::list;
use crate::cluster::Cluster;
use crate::request::RequestError;
use restow_api::migration::{MigrationCounts, MigrationFailure};
use restow_api::{GroupResource, StorageVersionHash};
use serde::{Deserialize, Serialize};

/// The APIs, each with its versions. The first served version is used.
const APIS: [(&str, &[&str]); 2] =
    [("migration.k8s.io", &["v1alpha1"]), ("storagemigration.k8s.io", &["v1", "v1beta1", "v1alpha1"])];

/// The status of a migration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MigrationStatus {
    /// The name of the object.
    pub name: String,
    /// The group of the object: `migration.k8s.io`, or the in-tree `storagemigration.k8s.io`.
    pub api: &'static str,
    /// `Pending`, `Running`, `Waiting`, `Paused`, `Succeeded` or `Failed`.
    pub state: String,
    /// The version that it was for, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// How many objects it has processed, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counts: Option<MigrationCounts>,
    /// What it waits for or why it ended.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The first of the objects that could not be rewritten.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_failure: Option<MigrationFailure>,
}

/// A migration of any of these APIs, as far as it is read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Migration {
    #[serde(skip)]
    api: &'static str,
    metadata: Metadata,
    spec: Spec,
    status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    name: String,
    creation_timestamp: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    resource: Resource,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Resource {
    group: String,
    resource: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    target_storage_version_hash: Option<StorageVersionHash>,
    conditions: Vec<Condition>,
    reason: String,
    counts: Option<MigrationCounts>,
    failures: Vec<MigrationFailure>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Condition {
    #[serde(rename = "type")]
    condition_type: String,
    status: String,
    reason: String,
    message: String,
}

/// All migrations.
pub(super) async fn all(cluster: &Cluster) -> Result<Vec<Migration>, RequestError> {
    let mut all = Vec::new();
    for (api, versions) in APIS {
        for version in versions {
            let path = format!("/apis/{api}/{version}/storageversionmigrations");
            let Some(found) = list::<Migration>(cluster, &path).await? else { continue };
            all.extend(found.into_iter().map(|migration| Migration { api, ..migration }));
            break;
        }
    }
    Ok(all)
}

/// The migration of a resource that runs or waits, else the latest.
pub(super) fn latest(
    migrations: &[Migration],
    name: &GroupResource,
    version_of: &dyn Fn(&StorageVersionHash) -> String,
) -> Option<MigrationStatus> {
    let of_resource = migrations.iter().filter(|migration| {
        let wanted = &migration.spec.resource;
        wanted.group == name.group() && wanted.resource == name.resource()
    });
    let newest = of_resource.max_by_key(|migration| {
        let is_open = !matches!(migration.state(), "Succeeded" | "Failed");
        (is_open, &migration.metadata.creation_timestamp)
    })?;
    Some(MigrationStatus {
        name: newest.metadata.name.clone(),
        api: newest.api,
        state: newest.state().to_owned(),
        target: newest.status.target_storage_version_hash.as_ref().map(version_of),
        counts: newest.status.counts,
        message: newest.message(),
        first_failure: newest.status.failures.first().cloned(),
    })
}

impl MigrationStatus {
    /// Whether it has not ended.
    pub fn is_open(&self) -> bool {
        !matches!(self.state.as_str(), "Succeeded" | "Failed")
    }
}

impl Migration {
    fn state(&self) -> &'static str {
        let states = ["Succeeded", "Failed", "Running"];
        let waiting = ["Waiting", "Paused"];
        let state = states.into_iter().find(|state| self.condition(state).is_some());
        let is_said = |reason: &&str| self.status.conditions.iter().any(|one| one.reason == **reason);
        state.or_else(|| waiting.into_iter().find(is_said)).unwrap_or("Pending")
    }

    fn condition(&self, state: &str) -> Option<&Condition> {
        self.status.conditions.iter().find(|condition| condition.condition_type == state && condition.status == "True")
    }

    fn message(&self) -> String {
        match (self.status.reason.as_str(), self.condition(self.state())) {
            ("", Some(condition)) => condition.message.clone(),
            (reason, _) => reason.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn migration(name: &str, created: &str, condition: &str) -> Migration {
        let conditions = match condition {
            "" => json!([]),
            condition => json!([{"type": condition, "status": "True", "message": "because"}]),
        };
        serde_json::from_value(json!({
            "metadata": {"name": name, "creationTimestamp": created},
            "spec": {"resource": {"group": "example.com", "version": "v1", "resource": "widgets"}},
            "status": {"conditions": conditions},
        }))
        .unwrap()
    }

    #[test]
    fn what_runs_or_waits_is_shown_before_what_has_ended() {
        let name: GroupResource = "widgets.example.com".parse().unwrap();
        let (old, new) =
            (migration("old", "2026-01-01T00:00:00Z", ""), migration("new", "2026-01-02T00:00:00Z", "Failed"));
        let latest = |migrations: &[Migration]| super::latest(migrations, &name, &ToString::to_string);
        let shown = latest(&[old, new.clone()]).unwrap();
        assert_eq!((shown.name.as_str(), shown.state.as_str()), ("old", "Pending"));
        let before = migration("before", "2026-01-01T00:00:00Z", "Succeeded");
        let shown = latest(&[new, before]).unwrap();
        assert_eq!((shown.name.as_str(), shown.state.as_str(), shown.message.as_str()), ("new", "Failed", "because"));
        assert_eq!(latest(&[]), None);
    }

    #[test]
    fn what_waits_or_is_paused_does_not_run() {
        for (reason, expected) in [("Waiting", "Waiting"), ("Paused", "Paused"), ("", "Pending")] {
            let mut migration = migration("one", "2026-01-01T00:00:00Z", "Running");
            migration.status.conditions[0].status = "False".into();
            migration.status.conditions[0].reason = reason.into();
            assert_eq!(migration.state(), expected);
        }
    }
}
