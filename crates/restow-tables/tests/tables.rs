//! The parsers read the tables of this repository, and what is in them fits together.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use restow_tables::kubernetes_types::Types;
use restow_tables::{checks, columns, default_policy, defaults, resources, signatures};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Finds a table by its name, in whichever crate it is.
fn table(name: &str) -> &'static str {
    fn find(folder: &Path, name: &str) -> Option<PathBuf> {
        let mut entries: Vec<PathBuf> = fs::read_dir(folder).ok()?.map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        entries.into_iter().find_map(|path| match path.is_dir() {
            true => find(&path, name),
            false => (path.file_name()? == name).then_some(path),
        })
    }
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let path = find(&crates, name).unwrap_or_else(|| panic!("there is no table {name}"));
    fs::read_to_string(path).unwrap().leak()
}

fn types() -> Types {
    let text = table("kubernetes.types");
    let types = Types::parse(text).unwrap();
    types.check(text).unwrap();
    assert!(types.ids().count() > 1500);
    types
}

#[test]
fn every_table_is_read_and_fits_the_others() {
    let types = types();
    let resources = resources::parse(table("resources.txt")).unwrap();
    resources::check(&resources, &types).unwrap();
    let rows = columns::parse(table("columns.txt")).unwrap();
    columns::check(&rows, &resources, &types).unwrap();
    let rows = defaults::parse(table("defaults.txt")).unwrap();
    defaults::check(&rows, &types).unwrap();
    let rows = checks::parse(table("checks.txt")).unwrap();
    checks::check(&rows, &types).unwrap();
    let entries = default_policy::parse(table("default_policy.txt")).unwrap();
    default_policy::check(&entries).unwrap();
    let signatures = signatures::parse(table("signatures.txt")).unwrap();
    signatures::check(&signatures).unwrap();
}

/// The default policy is about resources that exist, so that a typo does not leave a role without a right.
#[test]
fn the_default_policy_names_resources_that_exist() {
    let resources = resources::parse(table("resources.txt")).unwrap();
    let known: BTreeSet<&str> = resources.iter().map(|resource| resource.resource).collect();
    let groups: BTreeSet<&str> = resources.iter().map(|resource| resource.group).collect();
    let mut unknown = BTreeSet::new();
    for entry in default_policy::parse(table("default_policy.txt")).unwrap() {
        let (default_policy::Object::ClusterRole { rules, .. }
        | default_policy::Object::Controller { rules, .. }
        | default_policy::Object::Role { rules, .. }) = entry.object
        else {
            continue;
        };
        for rule in rules {
            let default_policy::Rule::Resources { groups: named, resources, .. } = rule else { continue };
            unknown.extend(named.into_iter().filter(|group| !groups.contains(group)));
            let is_known = |name: &&str| known.contains(name.split('/').next().unwrap());
            unknown.extend(resources.into_iter().filter(|name| !is_known(name)));
        }
    }
    let expected =
        ["*", "*/scale", "custom.metrics.k8s.io", "extensions", "external.metrics.k8s.io", "metrics.k8s.io", "signers"];
    assert_eq!(unknown, BTreeSet::from(expected));
}
