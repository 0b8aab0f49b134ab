//! The table of the default RBAC policy, `default_policy.txt`, made from the objects that Kubernetes tests its policy against.

mod objects;
mod row;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::files;
use objects::{Kind, RbacObject};
use row::Row;

/// Where a source tree keeps the objects.
const FOLDER: &str = "plugin/pkg/auth/authorizer/rbac/bootstrappolicy/testdata";

/// Reads the policy of a source tree and writes the table without the comments at its head.
pub(crate) fn generate(root: &Path) -> Result<String> {
    let folder = root.join(FOLDER);
    let list = |name: &str| -> Result<Vec<RbacObject>> {
        let path = folder.join(name);
        objects::parse(&files::read(&path)?).with_context(|| format!("{}", path.display()))
    };
    let sections = [
        rows(list("cluster-roles.yaml")?, Kind::ClusterRole)?,
        controllers(list("controller-roles.yaml")?, list("controller-role-bindings.yaml")?)?,
        rows(list("cluster-role-bindings.yaml")?, Kind::ClusterRoleBinding)?,
        rows(list("namespace-roles.yaml")?, Kind::Role)?,
        rows(list("namespace-role-bindings.yaml")?, Kind::RoleBinding)?,
    ];
    Ok(write(&sections))
}

fn rows(objects: Vec<RbacObject>, kind: Kind) -> Result<Vec<Row>> {
    if objects.is_empty() {
        bail!("the policy has no {kind:?} at all");
    }
    let rows = objects.into_iter().map(|object| {
        if object.kind != kind {
            bail!("{} is a {:?} among {kind:?} objects", object.metadata.name, object.kind);
        }
        let name = object.metadata.name.clone();
        Row::of(object).with_context(|| format!("{kind:?} {name}"))
    });
    rows.collect()
}

/// A controller's role and its binding are one row; a role without a binding, or a binding without a role, is an error.
fn controllers(roles: Vec<RbacObject>, bindings: Vec<RbacObject>) -> Result<Vec<Row>> {
    let mut bindings: BTreeMap<String, RbacObject> =
        bindings.into_iter().map(|binding| (binding.metadata.name.clone(), binding)).collect();
    let mut rows = Vec::new();
    for role in roles {
        let name = role.metadata.name.clone();
        let binding = bindings.remove(&name).with_context(|| format!("the role {name} has no binding"))?;
        rows.push(Row::of_controller(role, binding).with_context(|| format!("controller {name}"))?);
    }
    match bindings.keys().next() {
        Some(name) => bail!("the binding {name} has no role"),
        None => Ok(rows),
    }
}

fn write(sections: &[Vec<Row>]) -> String {
    let mut text = String::new();
    for section in sections {
        text.push('\n');
        for row in section {
            // Writing to a string cannot fail.
            let _ = write!(text, "{row}");
        }
    }
    text
}
