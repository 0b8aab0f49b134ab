//! Executes the effects that the trigger decided.

use super::observe::{ClusterView, known};
use super::{Context, MigrationObject, StateObject};
use crate::api_servers::ResourceObservation;
use crate::request::RequestError;
use crate::step::MigrationStep;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::ObjectMeta;
use restow_api::migration::{
    GroupResourceReference, GroupVersionResourceReference, StorageState, StorageStateSpec, StorageStateStatus,
    StorageVersionMigration, StorageVersionMigrationSpec,
};
use restow_api::{GroupResource, ResourceVersion, StorageVersionHash};
use restow_rules::trigger::TriggerEffect;
use serde_json::json;
use std::collections::BTreeMap;

pub(super) async fn execute(
    context: &Context,
    view: &ClusterView,
    seen: &ResourceObservation,
    effect: TriggerEffect,
) -> Result<(), RequestError> {
    let resource = seen.resource.resource.group_resource();
    context.term.check()?;
    match effect {
        TriggerEffect::RemoveMigration { name, uid, reason } => {
            tracing::info!("{resource}: removing the migration {name}: {reason:?}");
            let precondition = Preconditions { uid: Some(uid), resource_version: None };
            let options = DeleteParams::default().preconditions(precondition);
            match context.migrations().delete(&name, &options).await.map_err(RequestError::from) {
                Err(failure) if failure.code != 404 => Err(failure),
                _ => Ok(()),
            }
        }
        TriggerEffect::CreateStorageState(status) => {
            let name = StorageState::name_for(&resource);
            let spec = StorageStateSpec { resource: GroupResourceReference::from(&resource) };
            let new = StateObject::new(&name, &super::state_api(), spec);
            let created = context.states().create(&PostParams::default(), &new).await?;
            write_status(context, &resource, created, status).await
        }
        TriggerEffect::UpdateStorageState(status) => match view.states.get(&StorageState::name_for(&resource)) {
            Some(state) => write_status(context, &resource, state.clone(), status).await,
            None => Err(RequestError { message: "the StorageState is gone".to_owned(), ..RequestError::default() }),
        },
        TriggerEffect::StartMigration { target, agreement_revision, attempt } => {
            let new = migration(seen, target, agreement_revision, attempt);
            let created = context.migrations().create(&PostParams::default(), &new).await?;
            let name = created.metadata.name.clone().unwrap_or_default();
            tracing::info!("{resource}: migration {name} starts");
            MigrationStep::Created.log(&resource);
            hand_on(context, view, &resource, &created).await;
            Ok(())
        }
        TriggerEffect::RequeueAt(_) => Ok(()),
    }
}

/// Writes the status of a StorageState, with the revision that was read as precondition.
async fn write_status(
    context: &Context,
    resource: &GroupResource,
    state: StateObject,
    status: StorageStateStatus,
) -> Result<(), RequestError> {
    let name = state.metadata.name.clone().unwrap_or_default();
    let written = StateObject { status: Some(status), ..state };
    let written = context.states().replace_status(&name, &PostParams::default(), &written).await?;
    let is_settled = written.status.is_some_and(|status| status.unmigrated_since.is_none());
    let step = if is_settled { MigrationStep::Accounted } else { MigrationStep::StateWritten };
    step.log(resource);
    Ok(())
}

/// Copies to the new migration what the failed attempt before it has verified. Without it the new one verifies more;
/// nothing else depends on it.
async fn hand_on(context: &Context, view: &ClusterView, resource: &GroupResource, new: &MigrationObject) {
    let new = known(new);
    let is_predecessor = |old: &&MigrationObject| {
        let old = known(old);
        old.target == new.target && old.agreement_revision == new.agreement_revision && !old.is_live()
    };
    let Some(status) = view.migrations_of(resource).find(is_predecessor).and_then(|old| old.status.as_ref()) else {
        return;
    };
    let Some(settled) = &status.settled else { return };
    let patch = json!({"status": {"settled": settled, "failures": status.failures}});
    let handed = context.migrations().patch_status(&new.name, &PatchParams::default(), &Patch::Merge(&patch)).await;
    if let Err(error) = handed {
        tracing::debug!("{}: cannot hand on what the last attempt did: {error}", new.name);
    }
}

fn migration(
    seen: &ResourceObservation,
    target: StorageVersionHash,
    revision: Option<ResourceVersion>,
    attempt: u32,
) -> MigrationObject {
    let resource = &seen.resource.resource;
    let mut annotations = BTreeMap::from([
        (StorageVersionMigration::TARGET_HASH_ANNOTATION.to_owned(), target.to_string()),
        (StorageVersionMigration::ATTEMPT_ANNOTATION.to_owned(), attempt.to_string()),
    ]);
    if let Some(revision) = revision {
        annotations.insert(StorageVersionMigration::AGREEMENT_REVISION_ANNOTATION.to_owned(), revision.to_string());
    }
    let spec = StorageVersionMigrationSpec {
        resource: GroupVersionResourceReference::from(resource),
        ..StorageVersionMigrationSpec::default()
    };
    let mut object = MigrationObject::new("", &super::migration_api(), spec);
    object.metadata = ObjectMeta {
        generate_name: Some(format!("{}-", resource.group_resource())),
        annotations: Some(annotations),
        ..ObjectMeta::default()
    };
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::fake_api::FakeApi;
    use crate::discovery::StoredResource;
    use restow_rules::trigger::EncodingAgreement;

    #[test]
    fn a_new_migration_names_its_resource_target_agreement_and_attempt() {
        let hash = StorageVersionHash::new("hash");
        let seen = ResourceObservation {
            resource: StoredResource {
                resource: "widgets.v1.example.com".parse().unwrap(),
                kind: "Widget".to_owned(),
                is_namespaced: true,
                hash: Some(hash.clone()),
            },
            agreement: EncodingAgreement::Agreed(hash.clone()),
            revision: None,
            by_server: Vec::new(),
            marks: Default::default(),
        };
        let found = migration(&seen, hash.clone(), Some(ResourceVersion::new("12")), 3);
        let known = known(&found);
        assert_eq!((known.target, known.agreement_revision), (Some(hash.clone()), Some(ResourceVersion::new("12"))));
        assert_eq!(found.metadata.generate_name.as_deref(), Some("widgets.example.com-"));
        let named = &found.spec.resource;
        assert_eq!([&*named.group, &*named.version, &*named.resource], ["example.com", "v1", "widgets"]);
        let annotations = found.metadata.annotations.unwrap();
        assert_eq!(annotations[StorageVersionMigration::ATTEMPT_ANNOTATION], "3");
        let by_discovery = migration(&seen, hash, None, 1).metadata.annotations.unwrap();
        assert!(!by_discovery.contains_key(StorageVersionMigration::AGREEMENT_REVISION_ANNOTATION));
    }

    /// Executes an effect about widgets. The server answers each request with this code, and with what was sent.
    async fn executed(
        code: u16,
        view: &ClusterView,
        effect: TriggerEffect,
    ) -> (Result<(), RequestError>, Vec<(String, serde_json::Value)>) {
        let api = FakeApi::new(move |request| {
            let created = json!({"metadata": {"name": "new", "uid": "n"}, "spec": {}});
            let mut answer = if request.body["spec"].is_object() { request.body.clone() } else { created };
            answer["metadata"]["name"] = json!("new");
            (code, answer)
        });
        let seen = view.observation.resource(&"widgets.example.com".parse().unwrap(), None).unwrap();
        let result = execute(&api.context(), view, &seen, effect).await;
        let collection =
            |path: String| path.split(['?']).next().unwrap().rsplit("v1alpha1/").next().unwrap().to_owned();
        let said = |request: crate::controller::fake_api::ApiRequest| {
            (format!("{} {}", request.method, collection(request.path)), request.body)
        };
        (result, api.requests().into_iter().map(said).collect())
    }

    #[tokio::test]
    async fn a_migration_is_removed_by_its_uid_and_may_be_gone_already() {
        let remove = || TriggerEffect::RemoveMigration {
            name: "old".to_owned(),
            uid: "u".to_owned(),
            reason: restow_rules::trigger::RemovalReason::Superseded,
        };
        for (code, is_ok) in [(404, true), (409, false), (500, false)] {
            let (result, requests) = executed(code, &ClusterView::of_widgets(), remove()).await;
            assert_eq!(result.is_ok(), is_ok, "{code}");
            assert_eq!(requests[0].0, "DELETE storageversionmigrations/old");
            assert_eq!(requests[0].1["preconditions"], json!({"uid": "u"}));
        }
    }

    #[tokio::test]
    async fn a_storage_state_is_created_and_then_its_status_is_written() {
        let status = StorageStateStatus { observed_servers: Some("a".to_owned()), ..StorageStateStatus::default() };
        let view = ClusterView::of_widgets();
        let (result, requests) = executed(201, &view, TriggerEffect::CreateStorageState(status.clone())).await;
        result.unwrap();
        let calls: Vec<&str> = requests.iter().map(|(call, _)| call.as_str()).collect();
        assert_eq!(calls, ["POST storagestates", "PUT storagestates/new/status"]);
        assert_eq!(requests[0].1["metadata"]["name"], "widgets.example.com");
        assert_eq!(requests[1].1["status"], json!(status));
        let (result, requests) = executed(200, &view, TriggerEffect::UpdateStorageState(status)).await;
        assert!(result.is_err() && requests.is_empty(), "it was deleted, and is created the next time");
    }

    #[tokio::test]
    async fn a_new_attempt_takes_over_what_the_failed_one_before_it_has_verified() {
        let (hash, other) = (StorageVersionHash::new("hash"), StorageVersionHash::new("other"));
        let settled = json!({"resourceVersion": "70", "definitionGeneration": 3});
        let old = |target: &StorageVersionHash, revision: &str, condition: &str, settled: &serde_json::Value| {
            let seen = ClusterView::of_widgets().observation.resource(&"widgets.example.com".parse().unwrap(), None);
            let mut old = migration(&seen.unwrap(), target.clone(), Some(ResourceVersion::new(revision)), 1);
            old.metadata.name = Some("old".to_owned());
            let conditions = json!([{"type": condition, "status": "True"}]);
            old.status = serde_json::from_value(json!({"conditions": conditions, "settled": settled})).unwrap();
            old
        };
        for (before, expected) in [
            (old(&hash, "12", "Failed", &settled), true),
            (old(&hash, "13", "Failed", &settled), false),
            (old(&other, "12", "Failed", &settled), false),
            (old(&hash, "12", "Running", &settled), false),
            (old(&hash, "12", "Failed", &json!(null)), false),
        ] {
            let view = ClusterView::of_widgets().with_migrations(vec![before.clone()]);
            let start = TriggerEffect::StartMigration {
                target: hash.clone(),
                agreement_revision: Some(ResourceVersion::new("12")),
                attempt: 2,
            };
            let (result, requests) = executed(201, &view, start).await;
            result.unwrap();
            assert_eq!(requests[0].0, "POST storageversionmigrations");
            let handed = requests.get(1).map(|(call, body)| (call.as_str(), &body["status"]["settled"]));
            let call = "PATCH storageversionmigrations/new/status";
            assert_eq!(handed, expected.then_some((call, &settled)), "{before:?}");
        }
    }
}
