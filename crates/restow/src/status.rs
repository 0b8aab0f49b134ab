//! `restow status`: what is stored in which version, whether the API servers agree, and what is being migrated.

use crate::cluster_args::ClusterArgs;
use crate::output::{Output, columns};
use anyhow::{Context, bail};
use clap::Args;
use restow_migrate::overview::{Overview, ResourceOverview, look};
use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

/// How often `--watch` looks again.
const EVERY: Duration = Duration::from_secs(2);

/// Show every resource with its storage version, what may still be stored, and its migration.
///
/// Ends with 0 when all API servers agree on every resource, and with 4 when they do not.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// The resources to show, such as widgets.example.com; all without.
    #[arg(value_name = "RESOURCE")]
    resources: Vec<String>,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// How to print it.
    #[arg(long, short, value_name = "FORMAT", default_value = "table")]
    output: Output,
    /// Keep it up to date until Ctrl-C.
    #[arg(long, short)]
    watch: bool,
}

pub(crate) async fn run(args: StatusArgs) -> anyhow::Result<ExitCode> {
    let cluster = args.cluster.connect().await?;
    loop {
        let overview = look(&cluster).await.context("cannot look at the cluster")?;
        let overview = args.select(overview)?;
        if args.watch && std::io::stdout().is_terminal() {
            print!("\x1b[2J\x1b[H");
        }
        args.output.print(&overview, || table(&overview, args.output))?;
        if !args.watch {
            let agreed = overview.resources.iter().all(|resource| resource.disagreement.is_none());
            return Ok(if agreed { ExitCode::SUCCESS } else { ExitCode::from(4) });
        }
        tokio::select! {
            () = tokio::time::sleep(EVERY) => {}
            _ = tokio::signal::ctrl_c() => return Ok(ExitCode::SUCCESS),
        }
    }
}

impl StatusArgs {
    fn select(&self, mut overview: Overview) -> anyhow::Result<Overview> {
        for wanted in &self.resources {
            if !overview.resources.iter().any(|resource| is_named(resource, wanted)) {
                bail!("the cluster does not serve {wanted}; name it as in `kubectl api-resources -o name`");
            }
        }
        if !self.resources.is_empty() {
            overview.resources.retain(|resource| self.resources.iter().any(|wanted| is_named(resource, wanted)));
        }
        Ok(overview)
    }
}

/// Whether a resource is meant by its full name, or by its plural name alone.
fn is_named(resource: &ResourceOverview, wanted: &str) -> bool {
    resource.resource == wanted || resource.resource.split('.').next() == Some(wanted)
}

fn table(overview: &Overview, output: Output) -> String {
    let mut lines =
        vec![["RESOURCE", "STORAGE VERSION", "STORED VERSIONS", "SERVERS", "MIGRATION"].map(String::from).to_vec()];
    if output == Output::Wide {
        lines[0].extend(["HASH".to_string(), "DETAILS".to_string()]);
    }
    for resource in &overview.resources {
        lines.push(line(resource, output));
    }
    let mut text = columns(&lines);
    let torn: Vec<&ResourceOverview> = overview.resources.iter().filter(|one| one.disagreement.is_some()).collect();
    if !torn.is_empty() {
        text.push_str(&format!(
            "\nThe API servers do not agree on {} of {} resources:\n\n",
            torn.len(),
            overview.resources.len()
        ));
        text.push_str(&matrix(&torn));
        text.push_str("\nNothing of these is migrated until they agree. See: restow explain agreement\n");
    }
    text
}

fn line(resource: &ResourceOverview, output: Output) -> Vec<String> {
    let stored = resource.stored_versions.as_ref().map_or("unknown".to_string(), |versions| versions.join(","));
    let servers = match &resource.disagreement {
        None => format!("{} agree", resource.servers.len()),
        Some(_) => "disagree".to_string(),
    };
    let migration = resource.migration.as_ref().map_or("-".to_string(), |migration| migration.state.clone());
    let version = resource.storage_version.clone().unwrap_or_else(|| "-".into());
    let mut line = vec![resource.resource.clone(), version, stored, servers, migration];
    if output == Output::Wide {
        line.push(resource.hash.as_ref().map_or("-".into(), ToString::to_string));
        line.push(resource.migration.as_ref().map_or(String::new(), |migration| migration.message.clone()));
    }
    line
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

    fn resource(name: &str, servers: &[(&str, &str)]) -> ResourceOverview {
        let agreed = servers.iter().all(|(_, version)| *version == servers[0].1);
        ResourceOverview {
            resource: name.into(),
            group: String::new(),
            kind: "Widget".into(),
            storage_version: agreed.then(|| servers[0].1.to_string()),
            hash: None,
            stored_versions: Some(vec!["v1".into(), "v2".into()]),
            servers: servers.iter().map(|(server, version)| (server.to_string(), version.to_string())).collect(),
            disagreement: (!agreed).then(|| "they do not".to_string()),
            migration: None,
            candidates: Vec::new(),
        }
    }

    #[test]
    fn a_matrix_shows_who_writes_what_where_servers_disagree() {
        let overview = Overview {
            resources: vec![
                resource("gadgets.example.com", &[("a", "v1"), ("b", "v1")]),
                resource("widgets.example.com", &[("a", "v1"), ("b", "v2")]),
            ],
        };
        let expected = "\
RESOURCE              STORAGE VERSION   STORED VERSIONS   SERVERS    MIGRATION
gadgets.example.com   v1                v1,v2             2 agree    -
widgets.example.com   -                 v1,v2             disagree   -

The API servers do not agree on 1 of 2 resources:

RESOURCE              a    b
widgets.example.com   v1   v2

Nothing of these is migrated until they agree. See: restow explain agreement
";
        assert_eq!(table(&overview, Output::Table), expected);
    }
}
