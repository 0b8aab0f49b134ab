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
