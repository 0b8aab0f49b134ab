//! What has to happen before a resource is as it should be, in one sentence.

use super::{MigrationOverview, ResourceOverview};

/// What a resource waits for; nothing where nothing is to be done.
pub(super) fn waits_for(resource: &ResourceOverview) -> Option<String> {
    let name = &resource.resource;
    let has_old = resource.stored_versions.as_ref().is_some_and(|stored| {
        stored.len() > 1
            || resource.storage_version.as_ref().is_some_and(|version| stored.iter().any(|one| one != version))
    });
    let open = resource.migration.as_ref().filter(|migration| migration.is_open());
    let failed = resource.migration.as_ref().filter(|migration| migration.state == "Failed");
    match (open, failed) {
        _ if resource.disagreement.is_some() && (has_old || open.is_some()) => {
            Some("its migration waits until all API servers write the same version".to_owned())
        }
        (Some(migration), _) => Some(progress(migration)),
        (None, Some(migration)) if has_old || resource.stored_versions.is_none() => Some(failure(migration)),
        _ if has_old => Some(format!(
            "older versions may be stored, and nothing rewrites them: restow migrate {name}, or have a controller do it"
        )),
        _ => None,
    }
}

fn progress(migration: &MigrationOverview) -> String {
    let mut words = match (migration.state.as_str(), migration.counts) {
        ("Pending", _) => "its migration has not begun".to_owned(),
        (_, None) => "its migration runs".to_owned(),
        (_, Some(counts)) => {
            let left = counts.remaining.map(|left| format!(", {left} left")).unwrap_or_default();
            let failed = if counts.failed > 0 { format!(", {} refused", counts.failed) } else { String::new() };
            format!("its migration runs: {} rewritten, {} current{failed}{left}", counts.rewritten, counts.skipped)
        }
    };
    if !migration.message.is_empty() {
        words = format!("{words}; {}", migration.message);
    }
    words
}

fn failure(migration: &MigrationOverview) -> String {
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

    fn resource(stored: Option<&[&str]>) -> ResourceOverview {
        ResourceOverview {
            resource: "widgets.example.com".into(),
            group: "example.com".into(),
            kind: "Widget".into(),
            storage_version: Some("v2".into()),
            hash: None,
            stored_versions: stored.map(|stored| stored.iter().map(ToString::to_string).collect()),
            servers: BTreeMap::new(),
            disagreement: None,
            migration: None,
            waits_for: None,
            candidates: Vec::new(),
        }
    }

    fn migration(state: &str, counts: Option<MigrationCounts>) -> MigrationOverview {
        MigrationOverview {
            name: "widgets-1".into(),
            api: "migration.k8s.io",
            state: state.into(),
            counts,
            message: String::new(),
            first_failure: None,
        }
    }

    fn check(resource: &ResourceOverview, expected: Option<&str>) {
        let words = waits_for(resource);
        match expected {
            None => assert_eq!(words, None),
            Some(expected) => assert!(words.as_ref().is_some_and(|words| words.contains(expected)), "{words:?}"),
        }
    }

    #[test]
    fn what_is_current_or_unknown_waits_for_nothing() {
        check(&resource(Some(&["v2"])), None);
        check(&resource(None), None);
        check(
            &ResourceOverview { disagreement: Some("no".into()), storage_version: None, ..resource(Some(&["v2"])) },
            None,
        );
        check(&ResourceOverview { migration: Some(migration("Succeeded", None)), ..resource(Some(&["v2"])) }, None);
    }

    #[test]
    fn what_is_old_waits_for_agreement_for_its_migration_or_for_somebody() {
        let old = resource(Some(&["v1", "v2"]));
        check(&old, Some("restow migrate widgets.example.com"));
        check(&resource(Some(&["v1"])), Some("restow migrate widgets.example.com"));
        check(&ResourceOverview { disagreement: Some("no".into()), ..old.clone() }, Some("until all API servers"));
        check(&ResourceOverview { migration: Some(migration("Pending", None)), ..old.clone() }, Some("has not begun"));
        let counts = MigrationCounts { seen: 9, rewritten: 4, skipped: 1, failed: 2, remaining: Some(3) };
        let running = ResourceOverview { migration: Some(migration("Running", Some(counts))), ..old.clone() };
        check(&running, Some("4 rewritten, 1 current, 2 refused, 3 left"));
        let first =
            MigrationFailure { namespace: "a".into(), name: "b".into(), message: "no".into(), ..Default::default() };
        let failed = MigrationOverview { first_failure: Some(first), ..migration("Failed", Some(counts)) };
        check(
            &ResourceOverview { migration: Some(failed), ..old },
            Some("2 objects were refused, the first being a/b: no"),
        );
    }
}
