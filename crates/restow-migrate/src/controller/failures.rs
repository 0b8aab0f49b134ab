//! The list of objects that could not be rewritten, if there are more than fit into the status of the migration.

use super::events::migration_reference;
use super::{Context, MigrationObject};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, ObjectMeta, Patch, PatchParams};
use restow_api::migration::MigrationFailure;
use std::collections::BTreeMap;

/// How many are listed in the status of the migration.
pub(super) const IN_STATUS: usize = 1_000;
/// How many go into one ConfigMap. With messages of maximum length this stays below the size limit of an object.
const IN_CONFIG_MAP: usize = 700;
const LABEL: &str = "restow.dev/migration";

/// Writes the other failures to ConfigMaps that the migration owns. Returns where they are; `None` if there are none.
pub(super) async fn write_down(
    context: &Context,
    migration: &MigrationObject,
    rest: &[MigrationFailure],
    total: u64,
) -> Option<String> {
    if rest.is_empty() {
        return None;
    }
    let api: Api<ConfigMap> = Api::namespaced(context.cluster.client().clone(), &context.config.namespace);
    let name = migration.metadata.name.clone().unwrap_or_default();
    let parameters = PatchParams { field_manager: Some("restow".to_owned()), ..PatchParams::default() };
    for (number, chunk) in rest.chunks(IN_CONFIG_MAP).enumerate() {
        let map = config_map(migration, &format!("{name}-failures-{number}"), chunk);
        let map_name = map.metadata.name.clone().unwrap_or_default();
        let created = match api.create(&kube::api::PostParams::default(), &map).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {
                api.patch(&map_name, &parameters, &Patch::Merge(&map)).await
            }
            other => other,
        };
        if let Err(error) = created {
            tracing::warn!("cannot record which objects failed: {error}");
            return Some(format!("the first {IN_STATUS} are listed; the others could not be recorded: {error}"));
        }
    }
    let listed = IN_STATUS as u64 + rest.len() as u64;
    let unlisted = match total.saturating_sub(listed) {
        0 => String::new(),
        more => format!(", but for the last {more}"),
    };
    Some(format!(
        "the first {IN_STATUS} are listed here, the others in the ConfigMaps of the namespace {} with the label \
         {LABEL}={name}{unlisted}",
        context.config.namespace
    ))
}

fn config_map(migration: &MigrationObject, name: &str, chunk: &[MigrationFailure]) -> ConfigMap {
    let owner = migration_reference(migration);
    let owner = OwnerReference {
        api_version: owner.api_version.unwrap_or_default(),
        kind: owner.kind.unwrap_or_default(),
        name: owner.name.unwrap_or_default(),
        uid: owner.uid.unwrap_or_default(),
        ..OwnerReference::default()
    };
    let label = migration.metadata.name.clone().unwrap_or_default();
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(BTreeMap::from([(LABEL.to_owned(), label)])),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([("failures.json".to_owned(), serde_json::json!(chunk).to_string())])),
        ..ConfigMap::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::fake_api::FakeApi;
    use crate::controller::migration_api;
    use serde_json::{Value, json};

    fn failures(count: usize) -> Vec<MigrationFailure> {
        let named = |number| MigrationFailure { name: format!("w{number}"), ..MigrationFailure::default() };
        (0..count).map(named).collect()
    }

    fn migration() -> MigrationObject {
        let mut object = MigrationObject::new("m", &migration_api(), Default::default());
        object.metadata.uid = Some("u".to_owned());
        object
    }

    #[tokio::test]
    async fn failures_that_do_not_fit_into_the_status_go_into_config_maps_that_the_migration_owns() {
        let api = FakeApi::new(|request| (201, request.body.clone()));
        let words = write_down(&api.context(), &migration(), &failures(IN_CONFIG_MAP + 1), 1_711).await.unwrap();
        assert!(words.ends_with("the label restow.dev/migration=m, but for the last 10"), "{words}");
        assert!(words.contains("namespace restow-system"), "{words}");
        let maps = api.requests();
        let names: Vec<&Value> = maps.iter().map(|map| &map.body["metadata"]["name"]).collect();
        assert_eq!(names, ["m-failures-0", "m-failures-1"]);
        let metadata = &maps[1].body["metadata"];
        assert_eq!(metadata["labels"], json!({"restow.dev/migration": "m"}));
        let owner = json!({"apiVersion": "migration.k8s.io/v1alpha1", "kind": "StorageVersionMigration", "name": "m",
            "uid": "u"});
        assert_eq!(metadata["ownerReferences"], json!([owner]));
        let listed: Vec<Value> = serde_json::from_str(maps[1].body["data"]["failures.json"].as_str().unwrap()).unwrap();
        assert_eq!((listed.len(), &listed[0]["name"]), (1, &json!("w700")));
    }

    #[tokio::test]
    async fn without_more_failures_nothing_is_written() {
        let api = FakeApi::new(|_| (500, json!("unexpected")));
        assert_eq!(write_down(&api.context(), &migration(), &[], 1_000).await, None);
        assert!(api.calls().is_empty());
    }

    #[tokio::test]
    async fn a_config_map_of_an_earlier_attempt_is_replaced() {
        let api = FakeApi::new(|request| match request.method.as_str() {
            "POST" => (409, json!("it exists")),
            _ => (200, request.body.clone()),
        });
        let words = write_down(&api.context(), &migration(), &failures(1), 1_001).await.unwrap();
        assert!(words.ends_with("restow.dev/migration=m"), "all are listed: {words}");
        let last = api.calls().pop().unwrap();
        assert!(last.starts_with("PATCH /api/v1/namespaces/restow-system/configmaps/m-failures-0?"), "{last}");
    }

    #[tokio::test]
    async fn the_condition_says_if_failures_could_not_be_recorded() {
        let api = FakeApi::new(|_| (403, json!("no config maps here")));
        let words = write_down(&api.context(), &migration(), &failures(1), 1_001).await.unwrap();
        assert!(words.starts_with("the first 1000 are listed; the others could not be recorded"), "{words}");
        assert_eq!(api.calls().len(), 1, "a refusal is final");
    }
}
