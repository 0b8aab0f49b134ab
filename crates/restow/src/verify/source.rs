//! Reads the stored values: from etcd, from a running server, or from the directory of a stopped one.

use crate::cluster_args::ClusterArgs;
use anyhow::Context;
use http::Request;
use indicatif::{ProgressBar, ProgressStyle};
use restow_api::internal_apiserver::StorageVersion;
use restow_api::{GroupVersion, StorageVersionHash, storage_version_hash};
use restow_apiserver::builtin::{self, RuntimeConfig};
use restow_apiserver::release::Release;
use restow_apiserver::storage::census::{StoredCensus, take_census};
use restow_rules::census::{KindTarget, StoredForm, StoredUid, folders_of_resource, uid_of};
use restow_store::{Content, Key, RangeRequest, Revision, Store, StoreExt};
use restow_store_embedded::{EmbeddedConfig, EmbeddedStore};
use restow_store_etcd::{EtcdConfig, EtcdStore};
use serde_json::Value;
use std::path::Path;

/// The keys of the namespace kube-system: in the layout of Restow, and in that of kube-apiserver.
const KUBE_SYSTEM: [&str; 2] = ["/core/namespaces/kube-system", "/namespaces/kube-system"];

/// Opens etcd.
pub(super) async fn etcd(mut config: EtcdConfig) -> anyhow::Result<EtcdStore> {
    // kube-apiserver accepts the prefix with or without a slash at its end.
    config.prefix.truncate(config.prefix.trim_end_matches('/').len());
    EtcdStore::connect(config).await.context("cannot use etcd")
}

/// Lets a running server read its store.
pub(super) async fn running(cluster: &ClusterArgs) -> anyhow::Result<StoredCensus> {
    let cluster = cluster.connect().await?;
    let request = Request::get("/debug/stored-versions").body(Vec::new())?;
    match cluster.client().request::<StoredCensus>(request).await {
        Ok(census) => Ok(census),
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => anyhow::bail!(
            "this API server does not read its store for us ({}); give --etcd-endpoints, or --data-dir of a stopped server",
            status.message
        ),
        Err(error) => Err(error).context("cannot ask the API server to read its store"),
    }
}

/// Reads the store of a stopped server, and the storage versions that its servers last reported.
pub(super) async fn stopped(directory: &Path) -> anyhow::Result<(StoredCensus, Vec<KindTarget>)> {
    let folder = directory.join("store");
    anyhow::ensure!(
        folder.is_dir(),
        "{} is no data directory of restow: it has no folder `store`",
        directory.display()
    );
    let config = EmbeddedConfig::new(folder);
    let store = tokio::task::spawn_blocking(|| EmbeddedStore::open(config)).await??;
    Ok((census(&store).await?, targets(&store).await?))
}

/// Reads all values of a store.
pub(super) async fn census(store: &dyn Store) -> anyhow::Result<StoredCensus> {
    let style = ProgressStyle::with_template("{spinner} {pos} values read, {per_sec}")?;
    let bar = ProgressBar::new_spinner().with_style(style);
    let census = take_census(store, |count| bar.set_position(count)).await.context("cannot read the store");
    bar.finish_and_clear();
    census
}

/// The namespace kube-system, as it is stored.
pub(super) async fn uid(store: &dyn Store) -> anyhow::Result<StoredUid> {
    for place in KUBE_SYSTEM {
        if let Some(entry) = store.get(&Key::try_from(place)?).await.context("cannot read the store")? {
            return Ok(match (uid_of(&entry.value), StoredForm::of(&entry.value)) {
                (Some(uid), _) => StoredUid::Is(uid),
                (None, StoredForm::Encrypted { .. }) => StoredUid::Encrypted,
                (None, _) => StoredUid::Unreadable,
            });
        }
    }
    Ok(StoredUid::Absent)
}

/// The store's current revision.
pub(super) async fn revision(store: &dyn Store) -> anyhow::Result<Revision> {
    let request = RangeRequest::prefix("/").limit(1).content(Content::KeysOnly);
    Ok(store.range(request).await.context("cannot read the store")?.revision)
}

/// Whether any object of a resource is stored now.
pub(super) async fn has_any(store: &dyn Store, target: &KindTarget) -> anyhow::Result<bool> {
    for folder in folders_of_resource(target) {
        let request = RangeRequest::prefix(format!("{folder}/")).limit(1).content(Content::KeysOnly);
        if !store.range(request).await.context("cannot read the store")?.entries.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The storage versions, from the StorageVersions and CRDs in the store.
async fn targets(store: &dyn Store) -> anyhow::Result<Vec<KindTarget>> {
    let mut targets = Vec::new();
    let everything = RuntimeConfig { all_betas: true, all_alphas: true, ..RuntimeConfig::default() };
    let builtin = builtin::resources(Release::NEWEST, &everything);
    let reports = store.range(RangeRequest::prefix("/internal.apiserver.k8s.io/storageversions/")).await?;
    for entry in reports.entries {
        // A resource whose StorageVersion cannot be read counts as not served.
        let Ok(report) = serde_json::from_slice::<StorageVersion>(&entry.value) else { continue };
        let named = |resource: &&restow_apiserver::resource::Resource| {
            StorageVersion::name_for(&resource.group_resource) == report.metadata.name
        };
        let Some(resource) = builtin.iter().find(named) else { continue };
        let common = report.status.common_encoding_version.as_deref();
        let encoding = common.and_then(|version| version.parse::<GroupVersion>().ok());
        let kind = resource.names.kind.clone();
        let disagreement = || "its servers did not agree on a storage version when they were stopped".to_string();
        targets.push(KindTarget {
            group: encoding.as_ref().map_or(resource.group_resource.group(), |encoding| encoding.group()).to_string(),
            in_force: encoding
                .as_ref()
                .map(|encoding| hash(encoding.group(), encoding.version(), &kind))
                .ok_or_else(disagreement),
            candidates: encoding.iter().map(|encoding| encoding.version().to_string()).collect(),
            resource: resource.group_resource.to_string(),
            defined: None,
            kind,
        });
    }
    let crds = store.range(RangeRequest::prefix("/apiextensions.k8s.io/customresourcedefinitions/")).await?;
    targets.extend(crds.entries.iter().filter_map(|entry| defined(&serde_json::from_slice(&entry.value).ok()?)));
    Ok(targets)
}

/// The fields of a CRD.
fn defined(crd: &Value) -> Option<KindTarget> {
    let spec = &crd["spec"];
    let (group, kind) = (spec["group"].as_str()?, spec["names"]["kind"].as_str()?);
    let versions = spec["versions"].as_array()?;
    let storage = versions.iter().find(|version| version["storage"] == true)?["name"].as_str()?;
    let names: Vec<String> = versions.iter().filter_map(|version| version["name"].as_str().map(String::from)).collect();
    Some(KindTarget {
        group: group.to_string(),
        kind: kind.to_string(),
        resource: crd["metadata"]["name"].as_str()?.to_string(),
        in_force: Ok(hash(group, storage, kind)),
        candidates: names.clone(),
        defined: Some(names),
    })
}

fn hash(group: &str, version: &str, kind: &str) -> StorageVersionHash {
    StorageVersionHash::new(storage_version_hash(group, version, kind))
}
