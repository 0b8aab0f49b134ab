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
}
