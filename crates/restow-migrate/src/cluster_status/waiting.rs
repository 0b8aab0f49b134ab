//! What a resource waits for until all of its objects are stored in the storage version.

use super::{MigrationStatus, ResourceStatus};
use serde::Serialize;

/// What a resource waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ResourceWait {
    /// The kind of event that it waits for.
    pub kind: WaitingFor,
    /// A sentence with the resource as subject.
    pub words: String,
}

/// The kind of event that a resource waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum WaitingFor {
    /// The end of its running migration.
    Migration,
    /// A user who fixes why its migration failed.
    Mending,
    /// Agreement of all API servers.
    Agreement,
    /// The start of its migration.
    Start,
    /// A user who migrates it.
    Somebody,
}

/// What a resource waits for; `None` if nothing has to be done.
pub(super) fn waits_for(resource: &ResourceStatus) -> Option<ResourceWait> {
    let is_old = |stored: &Vec<String>| {
        stored.len() > 1 || resource.storage_version.as_ref().is_some_and(|version| !stored.contains(version))
    };
    let has_old = resource.stored_versions.as_ref().is_some_and(is_old);
    let migration = resource.migration.as_ref();
    let is_for_this_version =
        |migration: &MigrationStatus| migration.target.is_some() && migration.target == resource.storage_version;
    let has_failed = migration.is_some_and(|migration| migration.state == "Failed");
    let (kind, words) = match migration {
        Some(migration) if resource.disagreement.is_some() && migration.is_open() => {
            (WaitingFor::Agreement, with_message("its migration waits until all API servers agree", migration))
        }
        _ if resource.disagreement.is_some() && has_old => {
            (WaitingFor::Agreement, "cannot be migrated before all API servers agree".to_owned())
        }
        Some(migration) if migration.state == "Pending" => {
            (WaitingFor::Start, with_message("its migration has not begun", migration))
        }
        Some(migration) if migration.is_open() => (WaitingFor::Migration, progress(migration)),
        _ if resource.migrated_by_hand.is_some() => {
            let who = resource.migrated_by_hand.as_deref().unwrap_or_default();
            (WaitingFor::Migration, format!("is being migrated by hand, by {who}"))
        }
        Some(migration) if has_failed && (has_old || resource.stored_versions.is_none()) => {
            (WaitingFor::Mending, failure(migration))
        }
        _ if has_old && resource.refused_by_hand.is_some() => {
            let words = resource.refused_by_hand.as_deref().unwrap_or_default();
            (WaitingFor::Mending, format!("was migrated by hand, but {words}"))
        }
        Some(migration) if migration.state == "Succeeded" && has_old && is_for_this_version(migration) => (
            WaitingFor::Start,
            "its migration has succeeded, and has to be accounted for or made sure of again".to_owned(),
        ),
        _ if has_old && resource.recorded_at.is_some() => {
            let when = resource.recorded_at.as_deref().unwrap_or_default();
            (WaitingFor::Start, format!("its migration has not begun; a controller last looked at {when}"))
        }
        _ if has_old => (WaitingFor::Somebody, "may be stored in older versions, and nothing rewrites it".to_owned()),
        _ => return None,
    };
    Some(ResourceWait { kind, words })
}

fn with_message(words: &str, migration: &MigrationStatus) -> String {
    match migration.message.as_str() {
        "" => words.to_owned(),
        message => format!("{words}; {message}"),
    }
}

fn progress(migration: &MigrationStatus) -> String {
    let runs = match (migration.state.as_str(), migration.counts.and_then(|counts| counts.remaining)) {
        ("Waiting", _) => "its migration waits",
        ("Paused", _) => "its migration is paused",
        (_, Some(0)) => "its migration checks what it has done",
        _ => "its migration runs",
    };
    let Some(counts) = migration.counts.filter(|counts| counts.seen > 0) else { return with_message(runs, migration) };
    let left = counts.remaining.filter(|left| *left > 0).map(|left| format!(", {left} left")).unwrap_or_default();
    let failed = if counts.failed > 0 { format!(", {} refused", counts.failed) } else { String::new() };
    let words = format!("{runs}: {} rewritten, {} current{failed}{left}", counts.rewritten, counts.skipped);
    with_message(&words, migration)
}

fn failure(migration: &MigrationStatus) -> String {
    let count = migration.counts.map_or(0, |counts| counts.failed);
    let first = migration.first_failure.as_ref().map(|failure| {
        let namespace = if failure.namespace.is_empty() { String::new() } else { format!("{}/", failure.namespace) };
        format!(", the first being {namespace}{}: {}", failure.name, failure.message)
    });
    let why = match (count, migration.message.as_str()) {
        (0, "") => String::new(),
        (0, message) => format!(": {message}"),
        (count, _) => format!(": {count} objects were refused{}", first.unwrap_or_default()),
    };
    format!(
        "its migration failed{why}; see kubectl get storageversionmigrations.{} {} -o yaml",
        migration.api, migration.name
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use restow_api::migration::{MigrationCounts, MigrationFailure};
    use std::collections::BTreeMap;

    fn resource(stored: Option<&[&str]>) -> ResourceStatus {
        ResourceStatus {
            resource: "widgets.example.com".into(),
            group: "example.com".into(),
            kind: "Widget".into(),
            storage_version: Some("v2".into()),
            hash: None,
            stored_versions: stored.map(|stored| stored.iter().map(ToString::to_string).collect()),
            is_managed: true,
            not_managed_because: None,
            aggregated: None,
            servers: BTreeMap::new(),
            disagreement: None,
            migration: None,
            migrated_by_hand: None,
            refused_by_hand: None,
            waits_for: None,
            recorded_at: None,
            candidates: Vec::new(),
        }
    }

    fn migration(state: &str, counts: Option<MigrationCounts>) -> MigrationStatus {
        MigrationStatus {
            name: "widgets-1".into(),
            api: "migration.k8s.io",
            state: state.into(),
            target: None,
            counts,
            message: String::new(),
            first_failure: None,
        }
    }

    fn check(resource: &ResourceStatus, expected: Option<(WaitingFor, &str)>) {
        let found = waits_for(resource);
        match (&found, expected) {
            (None, None) => {}
            (Some(found), Some((kind, words))) if found.kind == kind && found.words.contains(words) => {}
            _ => panic!("{found:?} instead of {expected:?}"),
        }
    }

    #[test]
    fn what_is_current_or_unknown_waits_for_nothing() {
        let torn = Some("no".to_owned());
        check(&resource(Some(&["v2"])), None);
        check(&resource(None), None);
        check(&ResourceStatus { disagreement: torn, storage_version: None, ..resource(Some(&["v2"])) }, None);
        check(&ResourceStatus { migration: Some(migration("Succeeded", None)), ..resource(Some(&["v2"])) }, None);
    }

    #[test]
    fn what_is_old_waits_for_agreement_for_its_migration_or_for_somebody() {
        use WaitingFor::{Agreement, Mending, Migration, Somebody, Start};
        let old = resource(Some(&["v1", "v2"]));
        let of = |migration| ResourceStatus { migration: Some(migration), ..old.clone() };
        check(&old, Some((Somebody, "nothing rewrites it")));
        check(&resource(Some(&["v1"])), Some((Somebody, "nothing rewrites it")));
        check(&ResourceStatus { recorded_at: Some("noon".into()), ..old.clone() }, Some((Start, "noon")));
        check(&ResourceStatus { disagreement: Some("no".into()), ..old.clone() }, Some((Agreement, "agree")));
        let torn = ResourceStatus { disagreement: Some("no".into()), ..of(migration("Running", None)) };
        check(&torn, Some((Agreement, "its migration waits")));
        check(&of(migration("Pending", None)), Some((Start, "has not begun")));
        let counts = MigrationCounts { seen: 10, rewritten: 4, skipped: 1, failed: 2, remaining: Some(3) };
        let running = of(migration("Running", Some(counts)));
        check(&running, Some((Migration, "4 rewritten, 1 current, 2 refused, 3 left")));
        let paused = MigrationStatus { message: "because".into(), ..migration("Paused", Some(counts)) };
        check(&of(paused), Some((Migration, "is paused: 4 rewritten, 1 current, 2 refused, 3 left; because")));
        let checking = MigrationCounts { skipped: 4, remaining: Some(0), ..counts };
        check(&of(migration("Running", Some(checking))), Some((Migration, "checks what it has done: 4 rewritten")));
        let by_hand = ResourceStatus { migrated_by_hand: Some("laptop-12".into()), ..old.clone() };
        check(&by_hand, Some((Migration, "by hand, by laptop-12")));
        let refused = ResourceStatus { refused_by_hand: Some("2 objects were refused".into()), ..old.clone() };
        check(&refused, Some((Mending, "but 2 objects were refused")));
        let counted = ResourceStatus { recorded_at: Some("noon".into()), ..of(migration("Succeeded", None)) };
        check(&counted, Some((Start, "has not begun")));
        let this = MigrationStatus { target: Some("v2".into()), ..migration("Succeeded", None) };
        let counted = ResourceStatus { migration: Some(this), ..counted };
        check(&counted, Some((Start, "has succeeded")));
        let first =
            MigrationFailure { namespace: "a".into(), name: "b".into(), message: "no".into(), ..Default::default() };
        let failed = MigrationStatus { first_failure: Some(first), ..migration("Failed", Some(counts)) };
        check(&of(failed), Some((Mending, "2 objects were refused, the first being a/b: no")));
    }
}
