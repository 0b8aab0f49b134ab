//! A Go package: the declarations of all its files that people write.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::parser::{self, GoFile};
use super::{Registration, TypeDecl};
use crate::files;

/// A line of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) path: PathBuf,
    pub(crate) line: usize,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.path.display(), self.line)
    }
}

/// A package in a folder.
#[derive(Debug, Default)]
pub(crate) struct Package {
    files: BTreeMap<PathBuf, GoFile>,
    types: BTreeMap<String, TypeDecl>,
    /// The types that have JSON methods of their own.
    pub(crate) json_encoders: BTreeSet<String>,
}

impl Package {
    /// Reads the files of a folder, except tests and generated files.
    pub(crate) fn read(folder: &Path) -> Result<Package> {
        let mut package = Package::default();
        let listing = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
        for item in listing {
            let path = item?.path();
            if is_handwritten(&path) {
                package.add(&path, &files::read(&path)?)?;
            }
        }
        if package.files.is_empty() {
            bail!("{} holds no Go files", folder.display());
        }
        Ok(package)
    }

    /// Adds one file, unless its build constraint leaves it out.
    pub(crate) fn add(&mut self, path: &Path, source: &str) -> Result<()> {
        let file = parser::parse(path, source)?;
        if !file.is_built {
            return Ok(());
        }
        for declared in &file.types {
            if let Some(other) = self.types.insert(declared.name.clone(), declared.clone()) {
                bail!("{}: {} is declared at {} as well", declared.location, declared.name, other.location);
            }
        }
        self.json_encoders.extend(file.json_encoders.iter().cloned());
        self.files.insert(path.to_owned(), file);
        Ok(())
    }

    pub(crate) fn declared(&self, name: &str) -> Option<&TypeDecl> {
        self.types.get(name)
    }

    /// The value of a constant that is a string.
    pub(crate) fn constant(&self, name: &str) -> Option<&str> {
        self.files.values().find_map(|file| file.constants.get(name)).map(String::as_str)
    }

    /// The path of the package that a file calls by this name.
    pub(crate) fn import(&self, location: &Location, name: &str) -> Option<&str> {
        self.files.get(&location.path)?.imports.get(name).map(String::as_str)
    }

    /// The value of a marker above a package clause.
    pub(crate) fn marker(&self, key: &str) -> Option<&str> {
        self.files.values().find_map(|file| file.markers.value(key))
    }

    pub(crate) fn registrations(&self) -> impl Iterator<Item = &Registration> {
        self.files.values().flat_map(|file| &file.registrations)
    }
}

fn is_handwritten(path: &Path) -> bool {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return false };
    name.ends_with(".go")
        && !name.ends_with("_test.go")
        && !name.ends_with("_generated.go")
        && !name.starts_with("zz_generated.")
        && !name.starts_with("generated.")
}
