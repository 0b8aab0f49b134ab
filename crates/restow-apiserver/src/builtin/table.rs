//! Reads the table of built-in resources. The format is described at the top of `resources.txt`.

use crate::release::Release;
use crate::resource::{Subresource, SubresourceKind, Verb};
use restow_api::{GroupResource, GroupVersion};
use thiserror::Error;

/// A line of the table that makes no sense.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("line {line} of the table of built-in resources: {problem}")]
pub struct TableError {
    line: usize,
    problem: String,
}

/// The words that a row may have among its rules. They are explained in `strategy.rs`.
const RULES: [&str; 9] = [
    "create-on-update",
    "crd",
    "generation",
    "name-label",
    "name-path",
    "name-service",
    "status-alone",
    "status-on-create",
    "unconditional-update",
];

/// One resource through all releases.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) group_resource: GroupResource,
    pub(crate) kind: String,
    pub(crate) singular: String,
    pub(crate) namespaced: bool,
    pub(crate) verbs: Vec<Verb>,
    pub(crate) short: Vec<String>,
    pub(crate) categories: Vec<String>,
    pub(crate) subresources: Vec<Subresource>,
    pub(crate) fields: Vec<String>,
    pub(crate) rules: Vec<String>,
    pub(crate) location: GroupResource,
    pub(crate) decodable: Vec<GroupVersion>,
    pub(crate) history: Vec<History>,
}

/// What a resource is from one release on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct History {
    pub(crate) since: Release,
    pub(crate) versions: Vec<GroupVersion>,
    pub(crate) stored: Option<GroupVersion>,
}

impl Row {
    /// What the resource is in a release; `None` when the release does not have it.
    pub(crate) fn at(&self, release: Release) -> Option<&History> {
        let history = self.history.iter().rev().find(|history| history.since <= release)?;
        (!history.versions.is_empty()).then_some(history)
    }

    /// What a release can decode: of what the newest one can, all but the versions that came later; and what it
    /// serves and stores itself.
    pub(crate) fn decodable_at(&self, release: Release) -> Vec<GroupVersion> {
        let mut decodable: Vec<GroupVersion> =
            self.decodable.iter().filter(|version| !self.came_after(version, release)).cloned().collect();
        let own = self.history.iter().filter(|history| history.since <= release);
        let own = own.flat_map(|history| history.versions.iter().cloned().chain(history.stored.clone()));
        let mut missing: Vec<GroupVersion> = own.filter(|version| !decodable.contains(version)).collect();
        // Versions that the newest release has dropped stand behind those it still has.
        if release != Release::NEWEST || self.decodable.is_empty() {
            missing.sort_by(GroupVersion::compare_by_priority);
            missing.dedup();
            decodable.extend(missing);
        }
        decodable
    }

    /// A version of the row's own group, or one of another group when it is written with its group.
    fn version(&self, text: &str) -> Result<GroupVersion, String> {
        let (group, version) = text.split_once('/').unwrap_or((self.group_resource.group(), text));
        GroupVersion::new(group_name(group), version).map_err(|error| error.to_string())
    }

    fn versions(&self, list: &str) -> Result<Vec<GroupVersion>, String> {
        list.split(',').map(|version| self.version(version)).collect()
    }

    fn came_after(&self, version: &GroupVersion, release: Release) -> bool {
        let knows = |history: &&History| history.versions.contains(version) || history.stored.as_ref() == Some(version);
        self.history.iter().find(knows).is_some_and(|first| first.since > release)
    }
}

/// Reads the whole table.
pub(crate) fn parse(text: &str) -> Result<Vec<Row>, TableError> {
    let mut rows: Vec<Row> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.starts_with('#') || line.trim().is_empty() {
            continue;
        }
        let parsed = match (line.starts_with(' '), rows.last_mut()) {
            (false, _) => head(line).map(|row| rows.push(row)),
            (true, Some(row)) => detail(row, line.trim()),
            (true, None) => Err("a detail before the first resource".to_string()),
        };
        parsed.map_err(|problem| TableError { line: number + 1, problem })?;
    }
    Ok(rows)
}

fn head(line: &str) -> Result<Row, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [group, plural, kind, singular, scope] = words.as_slice() else {
        return Err("expected GROUP RESOURCE KIND SINGULAR SCOPE".into());
    };
    let group_resource = group_resource(group, plural)?;
    Ok(Row {
        location: group_resource.clone(),
        group_resource,
        kind: kind.to_string(),
        singular: singular.to_string(),
        namespaced: *scope == "namespaced",
        verbs: Verb::ALL.to_vec(),
        short: Vec::new(),
        categories: Vec::new(),
        subresources: Vec::new(),
        fields: Vec::new(),
        rules: Vec::new(),
        decodable: Vec::new(),
        history: Vec::new(),
    })
}

fn detail(row: &mut Row, line: &str) -> Result<(), String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words.as_slice() {
        ["verbs", list] => row.verbs = verbs(list)?,
        ["short", list] => row.short = names(list),
        ["categories", list] => row.categories = names(list),
        ["sub", name, list, kind @ ..] => row.subresources.push(Subresource {
            name: name.to_string(),
            verbs: verbs(list)?,
            kind: kind.first().map(|kind| subresource_kind(kind)).transpose()?,
        }),
        ["fields", list] => row.fields = names(list),
        ["rules", list] => row.rules = rules(list)?,
        ["shares", other] => {
            let (group, plural) = other.split_once('/').ok_or("expected GROUP/RESOURCE")?;
            row.location = group_resource(group, plural)?;
        }
        ["decodes", versions @ ..] => {
            row.decodable = versions.iter().map(|version| row.version(version)).collect::<Result<_, _>>()?;
        }
        [since, "gone"] => row.history.push(History { since: release(since)?, versions: Vec::new(), stored: None }),
        [since, list, "unstored"] => {
            row.history.push(History { since: release(since)?, versions: row.versions(list)?, stored: None });
        }
        [since, list, "stored", version] => {
            let stored = Some(row.version(version)?);
            row.history.push(History { since: release(since)?, versions: row.versions(list)?, stored });
        }
        _ => return Err(format!("cannot read {line:?}")),
    }
    Ok(())
}

/// A group's resource; the core group's name, which is empty, is written out in the table.
fn group_resource(group: &str, plural: &str) -> Result<GroupResource, String> {
    GroupResource::new(group_name(group), plural).map_err(|error| error.to_string())
}

fn group_name(written: &str) -> &str {
    if written == "core" { "" } else { written }
}

fn subresource_kind(text: &str) -> Result<SubresourceKind, String> {
    let parts: Vec<&str> = text.split('/').collect();
    match parts.as_slice() {
        [kind] => Ok(SubresourceKind { version: None, kind: kind.to_string() }),
        [group, version, kind] => {
            let version = GroupVersion::new(*group, *version).map_err(|error| error.to_string())?;
            Ok(SubresourceKind { version: Some(version), kind: kind.to_string() })
        }
        _ => Err(format!("cannot read the kind {text:?}")),
    }
}

fn verbs(list: &str) -> Result<Vec<Verb>, String> {
    list.split(',').map(|name| Verb::parse(name).ok_or_else(|| format!("unknown verb {name:?}"))).collect()
}

/// The words of a row's rules. One that means nothing would leave its kind without the rule.
fn rules(list: &str) -> Result<Vec<String>, String> {
    match list.split(',').find(|word| !RULES.contains(word)) {
        Some(unknown) => Err(format!("unknown rule {unknown:?}")),
        None => Ok(names(list)),
    }
}

fn names(list: &str) -> Vec<String> {
    list.split(',').map(str::to_string).collect()
}

fn release(text: &str) -> Result<Release, String> {
    text.parse().map_err(|error| format!("{error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_that_means_nothing_is_found() {
        let row = |rule: &str| format!("core widgets Widget widget namespaced\n  rules {rule}\n  1.28 v1 stored v1\n");
        assert!(parse(&row("unconditional-update")).is_ok());
        assert!(parse(&row("unconditional-updates")).is_err());
    }

    /// What Kubernetes' strategies say. Of kinds that hold what others decide by, none is replaced unseen.
    #[test]
    fn kinds_are_replaced_and_made_by_put_as_in_kubernetes() {
        let rows = parse(include_str!("resources.txt")).unwrap();
        let having = |word: &str| -> Vec<String> {
            let rows = rows.iter().filter(|row| row.rules.iter().any(|rule| rule == word));
            rows.map(|row| row.group_resource.to_string()).collect()
        };
        assert_eq!(
            having("create-on-update"),
            [
                "endpoints",
                "events",
                "limitranges",
                "services",
                "leasecandidates.coordination.k8s.io",
                "leases.coordination.k8s.io",
                "events.events.k8s.io",
                "runtimeclasses.node.k8s.io",
                "clusterrolebindings.rbac.authorization.k8s.io",
                "clusterroles.rbac.authorization.k8s.io",
                "rolebindings.rbac.authorization.k8s.io",
                "roles.rbac.authorization.k8s.io",
            ]
        );
        let unseen = having("unconditional-update");
        for group in ["admissionregistration.k8s.io", "coordination.k8s.io", "policy", "apiextensions.k8s.io"] {
            assert!(!unseen.iter().any(|resource| resource.ends_with(&format!(".{group}"))), "{group}");
        }
        assert_eq!(unseen.len(), 50);
    }
}
