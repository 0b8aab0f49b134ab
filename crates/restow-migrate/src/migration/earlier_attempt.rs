//! What an earlier, failed migration has verified, so that a later one need not process these objects again.

use super::MigrationTarget;
use crate::cluster::Cluster;
use crate::request::request_json;
use crate::runner::{RunOutcome, RunReport, VerifiedObjects};
use restow_api::GroupResource;
use restow_api::migration::{MigrationCondition, MigrationFailure, SettledObjects, StorageVersionMigration};
use restow_rules::migrate::passes::all_are_known;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What an earlier, failed migration has verified. There is none if the uid of a failed object is unknown: it would be
/// mistaken for a verified one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EarlierAttempt {
    target: MigrationTarget,
    objects: SettledObjects,
    except: Arc<BTreeSet<String>>,
}

impl EarlierAttempt {
    /// Objects that were not written since then are in the target version, except for those that failed.
    pub fn new(target: MigrationTarget, objects: SettledObjects, failures: &[MigrationFailure]) -> Option<Self> {
        let uids = || failures.iter().map(|failure| failure.uid.as_str());
        let except = Arc::new(uids().map(str::to_owned).collect());
        all_are_known(uids()).then_some(EarlierAttempt { target, objects, except })
    }

    /// What a run has verified, with the generation of the CRD; `None` if not all failed objects are known.
    pub fn by_run(run: &RunReport, definition_generation: i64) -> Option<SettledObjects> {
        let is_complete = run.failures.len() as u64 == run.progress.counts.failed
            && all_are_known(run.failures.iter().map(|failure| failure.uid.as_str()));
        let is_quiet = run.passes.last().is_some_and(|last| last.is_quiet_but_for_failures());
        let is_usable = run.ending == RunOutcome::SomeFailed && is_complete && is_quiet && !run.settled_at.is_empty();
        is_usable.then(|| SettledObjects { resource_version: run.settled_at.clone(), definition_generation })
    }

    /// What the status of a migration says that it, or the one before it, has verified.
    pub(crate) fn of(migration: &StorageVersionMigration) -> Option<Self> {
        let objects = migration.status.settled.clone()?;
        EarlierAttempt::new(MigrationTarget::of(migration)?, objects, &migration.status.failures)
    }

    /// What the controller's last failed migration of a resource has verified, for a manual migration. `None` if there is
    /// none.
    pub async fn recorded(cluster: &Cluster, resource: &GroupResource) -> Option<Self> {
        #[derive(serde::Deserialize)]
        struct List {
            items: Vec<StorageVersionMigration>,
        }
        let request = http::Request::get("/apis/migration.k8s.io/v1alpha1/storageversionmigrations").body(Vec::new());
        let list: List = request_json(cluster.client(), request.ok()?).await.ok()?;
        let is_of = |migration: &&StorageVersionMigration| {
            let named = &migration.spec.resource;
            named.group == resource.group() && named.resource == resource.resource()
        };
        let is_failed =
            |migration: &&StorageVersionMigration| migration.true_condition(MigrationCondition::FAILED).is_some();
        list.items.iter().filter(is_of).filter(is_failed).find_map(EarlierAttempt::of)
    }

    /// Whether this still holds for a migration to this target: an unchanged StorageVersion, or else an unchanged CRD,
    /// shows that nobody has written another version since.
    pub(super) fn holds_for(&self, target: &MigrationTarget, generation: i64) -> bool {
        self.target == *target
            && (target.revision.is_some() || (generation > 0 && self.objects.definition_generation == generation))
    }

    /// The objects that it has verified.
    pub fn verified(&self) -> VerifiedObjects {
        VerifiedObjects { resource_version: self.objects.resource_version.clone(), except: self.except.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use restow_api::{ResourceVersion, StorageVersionHash};
    use serde_json::json;

    fn target(hash: &str, revision: Option<&str>) -> MigrationTarget {
        MigrationTarget { hash: StorageVersionHash::new(hash), revision: revision.map(ResourceVersion::new) }
    }

    fn objects(definition_generation: i64) -> SettledObjects {
        SettledObjects { resource_version: "70".to_owned(), definition_generation }
    }

    #[test]
    fn an_earlier_attempt_holds_until_another_version_may_have_been_written() {
        for (revision, recorded, found, expected) in [
            (None, 3, 3, true),
            (None, 3, 4, false),
            (None, 0, 0, false),
            (Some("9"), 0, 0, true),
            (Some("9"), 3, 4, true),
        ] {
            let target = target("a", revision);
            let attempt = EarlierAttempt::new(target.clone(), objects(recorded), &[]).unwrap();
            assert_eq!(attempt.holds_for(&target, found), expected, "{revision:?} {recorded} {found}");
        }
        let attempt = EarlierAttempt::new(target("a", Some("9")), objects(3), &[]).unwrap();
        assert!(!attempt.holds_for(&target("a", Some("10")), 3), "the reports have changed");
        assert!(!attempt.holds_for(&target("b", Some("9")), 3));
    }

    #[test]
    fn objects_that_failed_are_not_verified_and_all_of_them_must_be_known() {
        let failure = |uid: &str| MigrationFailure { uid: uid.to_owned(), ..MigrationFailure::default() };
        let attempt = EarlierAttempt::new(target("a", None), objects(3), &[failure("failed")]).unwrap();
        let verified = attempt.verified();
        assert!(verified.covers("other", "70") && verified.covers("other", "5"));
        assert!(!verified.covers("other", "71"), "written since");
        assert!(!verified.covers("failed", "5") && verified.has_failed("failed") && !verified.has_failed("other"));
        assert_eq!(EarlierAttempt::new(target("a", None), objects(3), &[failure("failed"), failure("")]), None);
    }

    #[test]
    fn the_status_of_a_migration_shows_what_it_has_verified() {
        let migration = |annotations: serde_json::Value, status: serde_json::Value| -> StorageVersionMigration {
            serde_json::from_value(json!({"metadata": {"name": "m", "annotations": annotations}, "status": status}))
                .unwrap()
        };
        let annotations = json!({StorageVersionMigration::TARGET_HASH_ANNOTATION: "a"});
        let settled = json!({"settled": {"resourceVersion": "70", "definitionGeneration": 3}});
        let found = EarlierAttempt::of(&migration(annotations.clone(), settled.clone()));
        assert_eq!(found, EarlierAttempt::new(target("a", None), objects(3), &[]));
        assert!(found.is_some());
        assert_eq!(EarlierAttempt::of(&migration(annotations, json!({}))), None);
        assert_eq!(EarlierAttempt::of(&migration(json!({}), settled)), None, "for which version is unknown");
    }
}
