//! What `restow status` shows: a line for each resource, and below it what a person has to know.

use crate::output::{Colour, Output, columns, has_colour};
use restow_migrate::overview::{NO_ANSWER, Overview, ResourceOverview, Source};
use std::collections::BTreeSet;

/// How much there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// Everything.
    Enough,
    /// So many lines. Resources about which there is something to say go before others.
    Lines(usize),
}

/// The overview as a table.
pub(super) fn table(overview: &Overview, output: Output, room: Room) -> String {
    let below = below(overview);
    let mut shown: Vec<&ResourceOverview> = overview.resources.iter().collect();
    let mut left_out = 0;
    if let Room::Lines(lines) = room {
        // The heading, an empty line, a line about those that are left out, and the one that the cursor is in.
        let fitting = lines.saturating_sub(below.lines().count() + 4).max(1);
        if shown.len() > fitting {
            shown.sort_by_key(|resource| colour(resource).is_none());
            left_out = shown.len() - fitting;
            shown.truncate(fitting);
        }
    }
    let mut cells = vec![heading(output)];
    cells.extend(shown.iter().map(|resource| line(resource, output)));
    let mut text = String::new();
    let is_coloured = has_colour(&std::io::stdout());
    for (number, line) in columns(&cells).lines().enumerate() {
        let colour = number.checked_sub(1).and_then(|number| colour(shown[number])).filter(|_| is_coloured);
        text.push_str(&colour.map_or(line.to_owned(), |colour| colour.paint(line)));
        text.push('\n');
    }
    if left_out > 0 {
        text.push_str(&format!("... and {left_out} more\n"));
    }
    text + &below
}

fn heading(output: Output) -> Vec<String> {
    let mut heading = vec!["RESOURCE", "STORAGE VERSION", "STORED VERSIONS", "SERVERS", "MIGRATION"];
    if output == Output::Wide {
        heading.extend(["HASH", "WRITTEN BY"]);
    }
    heading.into_iter().map(String::from).collect()
}

fn line(resource: &ResourceOverview, output: Output) -> Vec<String> {
    let stored = resource.stored_versions.as_ref().map_or("unknown".to_string(), |versions| versions.join(","));
    let silent = resource.servers.values().filter(|words| *words == NO_ANSWER).count();
    let servers = match (&resource.disagreement, silent) {
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

/// The state of the migration, with how much of it is done where that is known.
fn migration(resource: &ResourceOverview) -> String {
    let Some(migration) = &resource.migration else { return "-".to_string() };
    match migration.counts.filter(|_| migration.state == "Running").and_then(|counts| {
        let done = counts.rewritten + counts.skipped + counts.failed;
        Some((done * 100).checked_div(done + counts.remaining?).unwrap_or(100))
    }) {
        Some(percent) => format!("Running {percent} %"),
        None => migration.state.clone(),
    }
}

/// How urgent it is; nothing where there is nothing to say.
fn colour(resource: &ResourceOverview) -> Option<Colour> {
    let state = resource.migration.as_ref().map(|migration| migration.state.as_str());
    match state {
        _ if resource.disagreement.is_some() => Some(Colour::Red),
        Some("Failed") if resource.waits_for.is_some() => Some(Colour::Red),
        Some("Running") => Some(Colour::Cyan),
        _ => resource.waits_for.as_ref().map(|_| Colour::Yellow),
    }
}

/// What a person has to know, in sentences.
fn below(overview: &Overview) -> String {
    let mut text = format!("\n{}\n", about_servers(overview));
    let torn: Vec<&ResourceOverview> = overview.resources.iter().filter(|one| differ(one)).collect();
    if !torn.is_empty() {
        text.push_str(&format!("\nThey write different versions:\n\n{}", matrix(&torn)));
    }
    if overview.resources.iter().any(|one| one.disagreement.is_some()) {
        text.push_str("\nNothing is migrated that they do not agree on. See: restow explain agreement\n");
    }
    let waiting = overview.resources.iter().filter_map(|one| Some((&one.resource, one.waits_for.as_ref()?)));
    for (number, (resource, words)) in waiting.enumerate() {
        text.push_str(if number == 0 { "\n" } else { "" });
        text.push_str(&format!("{resource}: {words}\n"));
    }
    let unknown = overview.resources.iter().filter(|one| one.stored_versions.is_none()).count();
    if unknown > 0 {
        text.push_str(&format!(
            "\nOf {unknown} resources nobody has kept record of what is stored. `restow verify` reads it from the store; \
             `restow install` and `restow controller` keep record.\n"
        ));
    }
    text
}

fn about_servers(overview: &Overview) -> String {
    let names: Vec<&str> = overview.servers.iter().map(|server| server.name.as_str()).collect();
    let how = match overview.source {
        Source::Reports => "by their reports",
        Source::Discovery => "each asked for itself",
    };
    let open = overview.resources.iter().filter(|one| one.disagreement.is_some()).count();
    let count = overview.resources.len();
    let agreement = match open {
        0 if count == 1 => "They agree.".to_string(),
        0 => format!("They agree on all {count} resources."),
        open => format!("They do not agree on {open} of {count} resources."),
    };
    let agreement = if names.len() == 1 && open == 0 { String::new() } else { format!(" {agreement}") };
    let plural = if names.len() == 1 { "" } else { "s" };
    let mut text = format!("{} API server{plural}, {how}: {}.{agreement}", names.len(), names.join(", "));
    for server in &overview.servers {
        if let Some(why) = &server.silent_because {
            text.push_str(&format!("\n{} does not answer, and may still be writing: {why}", server.name));
        }
    }
    text
}

/// Whether those servers that answer write different versions.
fn differ(resource: &ResourceOverview) -> bool {
    let told: BTreeSet<&String> = resource.servers.values().filter(|words| *words != NO_ANSWER).collect();
    resource.disagreement.is_some() && told.len() > 1
}

/// Servers against resources, each cell being what the server writes.
fn matrix(resources: &[&ResourceOverview]) -> String {
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
    use restow_migrate::overview::ServerOverview;

    fn resource(name: &str, servers: &[(&str, &str)]) -> ResourceOverview {
        let agreed = servers.iter().all(|(_, version)| *version == servers[0].1);
        ResourceOverview {
            resource: name.into(),
            group: String::new(),
            kind: "Widget".into(),
            storage_version: agreed.then(|| servers[0].1.to_string()),
            hash: None,
            stored_versions: Some(vec!["v1".into()]),
            servers: servers.iter().map(|(server, version)| (server.to_string(), version.to_string())).collect(),
            disagreement: (!agreed).then(|| "they do not".to_string()),
            migration: None,
            waits_for: None,
            candidates: Vec::new(),
        }
    }

    fn overview(resources: Vec<ResourceOverview>) -> Overview {
        let server = |name: &str| ServerOverview { name: name.into(), silent_because: None };
        Overview { servers: vec![server("a"), server("b")], source: Source::Reports, resources }
    }

    #[test]
    fn a_matrix_shows_who_writes_what_where_servers_disagree() {
        let overview = overview(vec![
            resource("gadgets.example.com", &[("a", "v1"), ("b", "v1")]),
            resource("widgets.example.com", &[("a", "v1"), ("b", "v2")]),
        ]);
        let expected = "\
RESOURCE              STORAGE VERSION   STORED VERSIONS   SERVERS    MIGRATION
gadgets.example.com   v1                v1                2 agree    -
widgets.example.com   -                 v1                disagree   -

2 API servers, by their reports: a, b. They do not agree on 1 of 2 resources.

They write different versions:

RESOURCE              a    b
widgets.example.com   v1   v2

Nothing is migrated that they do not agree on. See: restow explain agreement
";
        assert_eq!(table(&overview, Output::Table, Room::Enough), expected);
    }

    #[test]
    fn a_silent_server_is_told_of_once_and_not_in_a_matrix() {
        let mut overview = overview(vec![resource("widgets.example.com", &[("a", "v1"), ("b", NO_ANSWER)])]);
        overview.servers[1].silent_because = Some("connection refused".into());
        let text = table(&overview, Output::Table, Room::Enough);
        assert!(text.contains("1 silent") && !text.contains("different versions"), "{text}");
        assert!(text.contains("b does not answer, and may still be writing: connection refused"), "{text}");
    }

    #[test]
    fn what_there_is_something_to_say_about_is_shown_first_where_there_is_little_room() {
        let mut resources: Vec<ResourceOverview> =
            (0..30).map(|number| resource(&format!("r{number}"), &[("a", "v1"), ("b", "v1")])).collect();
        resources[29].waits_for = Some("something".into());
        let text = table(&overview(resources), Output::Table, Room::Lines(12));
        assert!(text.lines().nth(1).is_some_and(|line| line.starts_with("r29")), "{text}");
        assert!(text.contains("... and 25 more") && text.lines().count() < 12, "{text}");
    }
}
