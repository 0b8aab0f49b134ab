//! The table of `restow status`: a line for each resource, followed by notes.

use crate::output::{Colour, Output, columns, paint_rows};
use restow_migrate::cluster_status::{ClusterStatus, NO_ANSWER, ResourceStatus, VersionSource, WaitingFor};
use std::collections::BTreeSet;

/// The available space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space {
    /// Unlimited.
    Unlimited,
    /// One screen. Resources with notes come first, and long lines are cut.
    Screen { columns: usize, lines: usize },
}

/// How many resources a sentence names, and how many get a note of their own, on one screen.
const FEW: usize = 3;

/// The status as a table.
pub(super) fn table(status: &ClusterStatus, output: Output, space: Space) -> String {
    let notes = notes(status, space);
    let mut shown: Vec<&ResourceStatus> = status.resources.iter().collect();
    let mut left_out = 0;
    if let Space::Screen { lines, .. } = space {
        // The heading, the line about omitted resources, and the cursor line.
        let fitting = lines.saturating_sub(notes.lines().count() + 3).max(1);
        if shown.len() > fitting {
            shown.sort_by_key(|resource| colour(resource).is_none());
            left_out = shown.len() - fitting;
            shown.truncate(fitting);
        }
    }
    let mut cells = vec![heading(output)];
    cells.extend(shown.iter().map(|resource| line(resource, output)));
    let text: String = columns(&cells).lines().map(|line| cut(line, space) + "\n").collect();
    let mut text = paint_rows(&text, &shown.iter().map(|resource| colour(resource)).collect::<Vec<_>>());
    if left_out > 0 {
        text.push_str(&format!("... and {left_out} more\n"));
    }
    text + &notes
}

/// A line, cut to the available width.
fn cut(line: &str, space: Space) -> String {
    match space {
        Space::Screen { columns, .. } if line.chars().count() > columns => {
            line.chars().take(columns.saturating_sub(1)).chain(['…']).collect()
        }
        _ => line.to_owned(),
    }
}

fn heading(output: Output) -> Vec<String> {
    let mut heading = vec!["RESOURCE", "STORAGE", "STORED", "SERVERS", "MIGRATION"];
    if output == Output::Wide {
        heading.extend(["HASH", "WRITTEN BY"]);
    }
    heading.into_iter().map(String::from).collect()
}

fn line(resource: &ResourceStatus, output: Output) -> Vec<String> {
    let stored = resource.stored_versions.as_ref().map_or("unknown".to_string(), |versions| versions.join(","));
    let silent = resource.servers.values().filter(|words| *words == NO_ANSWER).count();
    let servers = match (&resource.disagreement, silent) {
        _ if !resource.is_managed => "not managed".to_string(),
        (None, _) if resource.servers.len() == 1 => "1".to_string(),
        (None, _) => format!("{} agree", resource.servers.len()),
        (Some(_), 0) => "disagree".to_string(),
        (Some(_), silent) => format!("{silent} silent"),
    };
    let version = resource.storage_version.clone().unwrap_or_else(|| "-".into());
    let mut line = vec![resource.resource.clone(), version, stored, servers, migration(resource)];
    if output == Output::Wide {
        line.push(resource.hash.as_ref().map_or("-".into(), ToString::to_string));
        let written = resource.servers.iter().map(|(server, words)| format!("{server}={words}"));
        line.push(written.collect::<Vec<_>>().join(" "));
    }
    line
}

/// The state of the migration, with its percentage if known.
fn migration(resource: &ResourceStatus) -> String {
    let Some(migration) = &resource.migration else {
        return if resource.migrated_by_hand.is_some() { "By hand".to_string() } else { "-".to_string() };
    };
    // A success for another version than the current one says nothing about what waits now.
    if let ("Succeeded", Some(_)) = (migration.state.as_str(), &resource.waits_for) {
        return migration.target.as_ref().map_or("-".to_string(), |target| format!("Succeeded for {target}"));
    }
    match migration.counts.filter(|_| migration.state == "Running").and_then(|counts| {
        let done = counts.rewritten + counts.skipped + counts.failed;
        Some((done * 100).checked_div(done + counts.remaining?).unwrap_or(100))
    }) {
        Some(100) => "Running, checking".to_string(),
        Some(percent) => format!("Running {percent} %"),
        None => migration.state.clone(),
    }
}

/// The colour by urgency; `None` if there is no note.
fn colour(resource: &ResourceStatus) -> Option<Colour> {
    let state = resource.migration.as_ref().map(|migration| migration.state.as_str());
    match state {
        _ if resource.disagreement.is_some() => Some(Colour::Red),
        Some("Failed") if resource.waits_for.is_some() => Some(Colour::Red),
        Some("Running") => Some(Colour::Cyan),
        _ => resource.waits_for.as_ref().map(|_| Colour::Yellow),
    }
}

/// The notes, in sentences.
fn notes(status: &ClusterStatus, space: Space) -> String {
    let mut text = format!("\n{}\n", about_servers(status));
    let disagreeing: Vec<&ResourceStatus> = status.resources.iter().filter(|one| differ(one)).collect();
    if !disagreeing.is_empty() {
        text.push_str(&format!("\nThey write different versions:\n\n{}", matrix(&disagreeing)));
    }
    if status.resources.iter().any(|one| one.disagreement.is_some()) {
        text.push_str("\nA resource is migrated only when all of them agree. See: restow explain agreement\n");
    }
    let waiting = waiting(status, space);
    if !waiting.is_empty() {
        text.push_str(&format!("\n{}\n", waiting.join("\n")));
    }
    let reasons: BTreeSet<&str> =
        status.resources.iter().filter_map(|one| one.not_managed_because.as_deref()).collect();
    text.extend(reasons.into_iter().map(|why| not_managed(status, why)));
    for hidden in &status.hidden {
        text.push_str(&format!("\nUnknown: {hidden}\n"));
    }
    let unknown = status.resources.iter().filter(|one| one.is_managed && one.stored_versions.is_none()).count();
    if unknown > 0 {
        text.push_str(&format!(
            "\nThe stored versions of {unknown} resources are not recorded; `restow verify` reads them from the store.\n"
        ));
    }
    text.lines().map(|line| cut(line, space) + "\n").collect()
}

/// The note about the resources that are not managed for this reason; empty if there are none.
fn not_managed(status: &ClusterStatus, why: &str) -> String {
    let is_of = |one: &&ResourceStatus| one.not_managed_because.as_deref() == Some(why);
    let mut names = status.resources.iter().filter(is_of).map(|one| one.resource.as_str());
    let Some(first) = names.next() else { return String::new() };
    let more = match names.count() {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    format!("\nNot managed, because {why}: {first}{more}.\n")
}

/// The notes on waiting resources: running and failed ones one by one, the others in groups.
fn waiting(status: &ClusterStatus, space: Space) -> Vec<String> {
    let most = if space == Space::Unlimited { usize::MAX } else { FEW };
    let of = |kind: WaitingFor| -> Vec<(&str, &str)> {
        let all = status.resources.iter().filter_map(|one| Some((one.resource.as_str(), one.waits_for.as_ref()?)));
        all.filter(|(_, waiting)| waiting.kind == kind).map(|(name, waiting)| (name, waiting.words.as_str())).collect()
    };
    let mut text = Vec::new();
    for kind in [WaitingFor::Migration, WaitingFor::Mending] {
        text.extend(of(kind).into_iter().take(most).map(|(name, words)| format!("{name}: {words}")));
    }
    for (kind, words) in [
        (WaitingFor::Agreement, "waiting for the API servers to agree"),
        (WaitingFor::Start, "waiting for their migration to begin"),
        (WaitingFor::Somebody, "may be stored in older versions, and nothing rewrites them"),
    ] {
        match of(kind).as_slice() {
            [] => {}
            [(name, words)] => text.push(format!("{name}: {words}")),
            several => {
                let names: Vec<&str> = several.iter().take(FEW).map(|(name, _)| *name).collect();
                let more = if several.len() > FEW { ", ..." } else { "" };
                text.push(format!("{} resources {words}: {}{more}", several.len(), names.join(", ")));
            }
        }
    }
    if let [(name, _), ..] = of(WaitingFor::Somebody).as_slice() {
        text.push(format!("To rewrite them: restow migrate {name}, or let `restow controller` do it."));
    }
    text
}

fn about_servers(status: &ClusterStatus) -> String {
    let names: Vec<&str> = status.servers.iter().map(|server| server.name.as_str()).collect();
    let (open, count) =
        (status.resources.iter().filter(|one| one.disagreement.is_some()).count(), status.resources.len());
    let servers = match (names.len(), open, count) {
        (1, 0, _) => "1 API server".to_string(),
        (1, _, _) => format!("1 API server does not publish the storage version of {open} of {count} resources"),
        (servers, 0, 1) => format!("{servers} API servers agree"),
        (servers, 0, _) => format!("{servers} API servers agree on all {count} resources"),
        (servers, _, 1) => format!("{servers} API servers do not agree"),
        (servers, _, _) => format!("{servers} API servers do not agree on {open} of {count} resources"),
    };
    let how = match status.source {
        VersionSource::Reports => "from StorageVersions",
        VersionSource::Discovery => "from discovery of each",
    };
    let mut text = format!("{servers} ({how}: {}).", names.join(", "));
    for server in &status.servers {
        if let Some(why) = &server.silent_because {
            text.push_str(&format!("\n{} does not answer, and may still be writing: {why}", server.name));
        }
    }
    text
}

/// Whether those servers that answer write different versions.
fn differ(resource: &ResourceStatus) -> bool {
    let told: BTreeSet<&String> = resource.servers.values().filter(|words| *words != NO_ANSWER).collect();
    resource.disagreement.is_some() && told.len() > 1
}

/// A matrix of servers and resources with the version that each server writes.
fn matrix(resources: &[&ResourceStatus]) -> String {
    let servers: BTreeSet<&String> = resources.iter().flat_map(|resource| resource.servers.keys()).collect();
    let mut lines = vec![vec!["RESOURCE".to_string()]];
    lines[0].extend(servers.iter().map(|server| server.to_string()));
    for resource in resources {
        let mut line = vec![resource.resource.clone()];
        line.extend(servers.iter().map(|server| resource.servers.get(*server).cloned().unwrap_or_else(|| "-".into())));
        lines.push(line);
    }
    columns(&lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use restow_migrate::cluster_status::{ResourceWait, ServerStatus};

    fn resource(name: &str, servers: &[(&str, &str)]) -> ResourceStatus {
        let agreed = servers.iter().all(|(_, version)| *version == servers[0].1);
        ResourceStatus {
            resource: name.into(),
            group: String::new(),
            kind: "Widget".into(),
            storage_version: agreed.then(|| servers[0].1.to_string()),
            hash: None,
            stored_versions: Some(vec!["v1".into()]),
            is_managed: true,
            not_managed_because: None,
            aggregated: None,
            servers: servers.iter().map(|(server, version)| (server.to_string(), version.to_string())).collect(),
            disagreement: (!agreed).then(|| "they do not".to_string()),
            migration: None,
            migrated_by_hand: None,
            refused_by_hand: None,
            waits_for: None,
            recorded_at: None,
            candidates: Vec::new(),
        }
    }

    fn status(resources: Vec<ResourceStatus>) -> ClusterStatus {
        let server = |name: &str| ServerStatus { name: name.into(), silent_because: None };
        let servers = vec![server("a"), server("b")];
        ClusterStatus { servers, source: VersionSource::Reports, resources, hidden: Vec::new() }
    }

    #[test]
    fn a_resource_that_is_not_managed_is_named_with_the_reason() {
        let unmanaged = |name: &str, why: &str| ResourceStatus {
            is_managed: false,
            not_managed_because: Some(why.into()),
            ..resource(name, &[("a", "v1")])
        };
        let resources = vec![unmanaged("b", "it rains"), unmanaged("c", "it rains"), unmanaged("d", "it snows")];
        let text = table(&status(resources), Output::Table, Space::Unlimited);
        for note in ["Not managed, because it rains: b and 1 more.", "Not managed, because it snows: d."] {
            assert!(text.contains(note), "{text} lacks {note:?}");
        }
    }

    #[test]
    fn a_matrix_shows_who_writes_what_where_servers_disagree() {
        let status = status(vec![
            resource("gadgets.example.com", &[("a", "v1"), ("b", "v1")]),
            resource("widgets.example.com", &[("a", "v1"), ("b", "v2")]),
        ]);
        let expected = "\
RESOURCE              STORAGE   STORED   SERVERS    MIGRATION
gadgets.example.com   v1        v1       2 agree    -
widgets.example.com   -         v1       disagree   -

2 API servers do not agree on 1 of 2 resources (from StorageVersions: a, b).

They write different versions:

RESOURCE              a    b
widgets.example.com   v1   v2

A resource is migrated only when all of them agree. See: restow explain agreement
";
        assert_eq!(table(&status, Output::Table, Space::Unlimited), expected);
    }

    #[test]
    fn a_silent_server_is_told_of_once_and_not_in_a_matrix() {
        let mut status = status(vec![resource("widgets.example.com", &[("a", "v1"), ("b", NO_ANSWER)])]);
        status.servers[1].silent_because = Some("connection refused".into());
        let text = table(&status, Output::Table, Space::Unlimited);
        assert!(text.contains("1 silent") && !text.contains("different versions"), "{text}");
        assert!(text.contains("b does not answer, and may still be writing: connection refused"), "{text}");
    }

    #[test]
    fn what_there_is_something_to_say_about_is_shown_first_on_a_screen() {
        let mut resources: Vec<ResourceStatus> =
            (0..30).map(|number| resource(&format!("r{number}"), &[("a", "v1"), ("b", "v1")])).collect();
        let waiting = |kind| Some(ResourceWait { kind, words: "is waiting, and that is a long story".into() });
        resources[29].waits_for = waiting(WaitingFor::Migration);
        for resource in &mut resources[10..20] {
            resource.waits_for = waiting(WaitingFor::Start);
        }
        let text = table(&status(resources), Output::Table, Space::Screen { columns: 40, lines: 14 });
        assert!(text.lines().nth(1).is_some_and(|line| line.starts_with("r10")), "{text}");
        assert!(text.contains("more\n") && text.contains("r29: is waiting"), "{text}");
        assert!(text.contains("10 resources waiting for their migratio…"), "{text}");
        assert!(text.lines().count() < 14 && text.lines().all(|line| line.chars().count() <= 40), "{text}");
    }
}
