//! The built-in resources of Kubernetes, as rows of a table: `builtin/resources.txt`.
//!
//! Adding a kind is adding a row there and, if it has rules of its own, a strategy. Nothing else knows single kinds.

mod convert;
mod strategy;
mod table;

use crate::release::Release;
use crate::resource::{Names, Origin, Resource, Scope, Storage};
use restow_api::GroupVersion;
use std::sync::{Arc, LazyLock};
use strategy::BuiltinStrategy;
pub use table::TableError;
use table::{History, Row};

static ROWS: LazyLock<Result<Vec<Row>, TableError>> =
    LazyLock::new(|| table::parse(include_str!("builtin/resources.txt")));

/// Versions below GA that Kubernetes serves without being asked, because they were on before betas were off.
const BETAS_ON: &[&str] = &["flowcontrol.apiserver.k8s.io"];

/// Which versions below GA are served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeConfig {
    /// Every beta version.
    pub all_betas: bool,
    /// Every alpha version.
    pub all_alphas: bool,
    /// Single group-versions, turned on or off by name; this goes before the rest.
    pub versions: Vec<(GroupVersion, bool)>,
}

impl RuntimeConfig {
    /// Whether this version is served.
    pub fn serves(&self, version: &GroupVersion) -> bool {
        if let Some((_, on)) = self.versions.iter().rev().find(|(named, _)| named == version) {
            return *on;
        }
        if version.version().contains("alpha") {
            return self.all_alphas;
        }
        if version.version().contains("beta") {
            return self.all_betas || BETAS_ON.contains(&version.group());
        }
        true
    }
}

/// The built-in resources that a release has, those that are served in no version left out.
pub fn resources(release: Release, config: &RuntimeConfig) -> Result<Vec<Resource>, TableError> {
    let rows = ROWS.as_ref().map_err(Clone::clone)?;
    Ok(rows.iter().filter_map(|row| resource(row, release, config)).collect())
}

fn resource(row: &Row, release: Release, config: &RuntimeConfig) -> Option<Resource> {
    let history = row.at(release)?;
    let mut served: Vec<GroupVersion> =
        history.versions.iter().filter(|version| config.serves(version)).cloned().collect();
    if served.is_empty() {
        return None;
    }
    served.sort_by(GroupVersion::compare_by_priority);
    Some(Resource {
        group_resource: row.group_resource.clone(),
        names: Names {
            singular: row.singular.clone(),
            kind: row.kind.clone(),
            list_kind: format!("{}List", row.kind),
            short: row.short.clone(),
            categories: row.categories.clone(),
        },
        scope: if row.namespaced { Scope::Namespaced } else { Scope::Cluster },
        verbs: row.verbs.clone(),
        served,
        subresources: row.subresources.clone(),
        storage: storage(row, history, release),
        selectable_fields: row.fields.clone(),
        strategy: Arc::new(BuiltinStrategy::of(row)),
        converter: convert::converter(row.group_resource.group(), &row.kind),
        origin: Origin::Builtin,
    })
}

fn storage(row: &Row, history: &History, release: Release) -> Option<Storage> {
    let encoding = history.stored.clone()?;
    Some(Storage::new(row.location.clone(), encoding, row.decodable_at(release)))
}
