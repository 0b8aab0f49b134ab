//! The packages of a Kubernetes source tree that are in the table, and their names there.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::files;
use crate::go::Package;
use crate::proto::{self, Messages};

/// Folders of packages that register kinds, two levels deep (group and version), below `staging/src`.
const GROUPS: [&str; 4] = [
    "k8s.io/api",
    "k8s.io/apiextensions-apiserver/pkg/apis",
    "k8s.io/apimachinery/pkg/apis",
    "k8s.io/kube-aggregator/pkg/apis",
];

/// A group that exists only for tests of Kubernetes.
const TEST_GROUP: &str = "testapigroup";

/// A package with its protobuf messages.
pub(crate) struct ApiPackage {
    pub(crate) go: Package,
    pub(crate) messages: Messages,
}

/// A source tree, with the packages read so far.
pub(crate) struct Tree {
    root: PathBuf,
    packages: BTreeMap<String, ApiPackage>,
}

impl Tree {
    pub(crate) fn new(root: &Path) -> Tree {
        Tree { root: root.to_owned(), packages: BTreeMap::new() }
    }

    /// The import paths of all packages that register kinds.
    pub(crate) fn api_packages(&self) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for group in GROUPS {
            let folder = self.folder(group);
            for package in folders(&folder)?.into_iter().filter(|name| name != TEST_GROUP) {
                let versions = folders(&folder.join(&package))?.into_iter().filter(|name| is_version(name));
                let registering =
                    versions.filter(|version| folder.join(&package).join(version).join("register.go").exists());
                found.extend(registering.map(|version| format!("{group}/{package}/{version}")));
            }
        }
        if found.is_empty() {
            bail!("{} has no API packages", self.root.display());
        }
        Ok(found)
    }

    /// Reads a package, unless that was done.
    pub(crate) fn load(&mut self, import_path: &str) -> Result<()> {
        if !self.packages.contains_key(import_path) {
            let package = self.read(import_path)?;
            self.packages.insert(import_path.to_owned(), package);
        }
        Ok(())
    }

    /// A package that was loaded.
    pub(crate) fn package(&self, import_path: &str) -> Result<&ApiPackage> {
        self.packages.get(import_path).with_context(|| format!("{import_path} was not read"))
    }

    fn read(&self, import_path: &str) -> Result<ApiPackage> {
        let folder = self.folder(import_path);
        let file = folder.join("generated.proto");
        let messages = if file.exists() { proto::parse(&file, &files::read(&file)?)? } else { Messages::new() };
        Ok(ApiPackage { go: Package::read(&folder)?, messages })
    }

    fn folder(&self, import_path: &str) -> PathBuf {
        self.root.join("staging/src").join(import_path)
    }
}

/// The name of a package in the table: the end of its path, which for API groups is the group's folder and the version.
/// `None` for packages that are not part of Kubernetes' API.
pub(crate) fn table_name(import_path: &str) -> Option<String> {
    let below = |group: &&str| import_path.strip_prefix(*group)?.strip_prefix('/').map(str::to_owned);
    if let Some(name) = GROUPS.iter().find_map(below) {
        return Some(name);
    }
    let rest = import_path.strip_prefix("k8s.io/apimachinery/pkg/")?;
    rest.rsplit('/').next().map(str::to_owned)
}

/// The first part of the names that OpenAPI gives to the types of a package that does not say otherwise.
pub(crate) fn openapi_prefix(import_path: &str) -> String {
    let path = import_path.strip_prefix("k8s.io").unwrap_or(import_path);
    format!("io.k8s{}", path.replace('/', "."))
}

fn folders(parent: &Path) -> Result<Vec<String>> {
    let listing = fs::read_dir(parent)
        .with_context(|| format!("cannot list {}; is this a Kubernetes source tree?", parent.display()))?;
    let mut names = Vec::new();
    for item in listing {
        let item = item?;
        if item.file_type()?.is_dir() {
            names.extend(item.file_name().into_string());
        }
    }
    names.sort();
    Ok(names)
}

/// `v1`, `v2beta1`.
fn is_version(folder: &str) -> bool {
    folder.strip_prefix('v').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}
