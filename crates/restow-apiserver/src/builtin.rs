//! The built-in resources of Kubernetes, as rows of a table: `builtin/resources.txt`.
//!
//! Adding a kind is adding a row there and, if it has rules of its own, a file in `builtin/kinds/`.

mod checks;
mod convert;
mod defaults;
pub(crate) mod kinds;
mod strategy;
mod table;
mod validation;
mod write_hooks;

pub(crate) use write_hooks::write_hooks;

use crate::release::Release;
use crate::resource::{Names, Origin, Resource, Scope, Storage};
use restow_api::GroupVersion;
use std::str::FromStr;
use std::sync::{Arc, LazyLock};
use table::{ReleaseVersions, ResourceRow};
use thiserror::Error;

static ROWS: LazyLock<Vec<ResourceRow>> = LazyLock::new(table::rows);

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

impl FromStr for RuntimeConfig {
    type Err = RuntimeConfigError;

    /// Reads what `--runtime-config` takes: `api/all`, `api/ga`, `api/beta`, `api/alpha` and single versions, each with
    /// `=true` or `=false`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut config = RuntimeConfig::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, "true"));
            let on = value.parse().map_err(|_| RuntimeConfigError::NotABool(part.into()))?;
            match name {
                "api/all" => (config.all_betas, config.all_alphas) = (on, on),
                "api/beta" => config.all_betas = on,
                "api/alpha" => config.all_alphas = on,
                // What is generally available is served unless it is turned off by name.
                "api/ga" if on => {}
                _ => {
                    let version = match name {
                        "v1" | "api/v1" => GroupVersion::new("", "v1"),
                        _ => match name.split_once('/') {
                            Some((group, version)) => GroupVersion::new(group, version),
                            None => return Err(RuntimeConfigError::Unknown(name.into())),
                        },
                    };
                    let version = version.map_err(|_| RuntimeConfigError::Unknown(name.into()))?;
                    config.versions.push((version, on));
                }
            }
        }
        Ok(config)
    }
}

/// Why a text is no runtime configuration.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RuntimeConfigError {
    /// A value is neither true nor false.
    #[error("{0:?} must be =true or =false")]
    NotABool(String),
    /// A name means nothing.
    #[error("{0:?} is no API version; write GROUP/VERSION, api/all, api/beta or api/alpha")]
    Unknown(String),
}

/// The built-in resources that a release has, those that are served in no version left out.
pub fn resources(release: Release, config: &RuntimeConfig) -> Vec<Resource> {
    ROWS.iter().filter_map(|row| resource(row, release, config)).collect()
}

fn resource(row: &ResourceRow, release: Release, config: &RuntimeConfig) -> Option<Resource> {
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
        storage: storage(row, history, release).map(Arc::new),
        selectable_fields: row.fields.clone(),
        strategy: strategy::of(row, release),
        converter: convert::converter(row.group_resource.group(), &row.kind),
        origin: Origin::Builtin,
        custom: None,
    })
}

fn storage(row: &ResourceRow, history: &ReleaseVersions, release: Release) -> Option<Storage> {
    let encoding = history.stored.clone()?;
    Some(Storage::new(row.location.clone(), encoding, row.decodable_at(release)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_configuration_turns_versions_on_and_off() {
        let config: RuntimeConfig = "api/beta=true, storage.k8s.io/v1alpha1=true,batch/v1=false".parse().unwrap();
        let serves = |group: &str, version: &str| config.serves(&GroupVersion::new(group, version).unwrap());
        assert!(serves("apps", "v1"));
        assert!(serves("any", "v1beta1"));
        assert!(serves("storage.k8s.io", "v1alpha1"));
        assert!(!serves("any", "v1alpha1"));
        assert!(!serves("batch", "v1"));
        let refused = |text: &str| text.parse::<RuntimeConfig>().unwrap_err();
        assert_eq!(refused("api/beta=perhaps"), RuntimeConfigError::NotABool("api/beta=perhaps".into()));
        assert_eq!(refused("beta=true"), RuntimeConfigError::Unknown("beta".into()));
    }
}
