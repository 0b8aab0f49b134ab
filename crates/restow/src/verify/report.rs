//! The output of `restow verify`.

use crate::output::{Colour, Output, columns, paint_rows};
use restow_rules::census::{
    CensusReport, CensusVerdict, Encoding, KindVerdict, OpaqueVerdict, StoreIdentity, VerdictReason,
};
use serde::Serialize;
use std::collections::BTreeSet;

/// The result.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Proof {
    /// The revision of the store that was read.
    pub(super) revision: u64,
    /// How many values were read.
    pub(super) total: u64,
    /// Whether the store belongs to the cluster that was queried.
    pub(super) identity: StoreIdentity,
    #[serde(flatten)]
    pub(super) report: CensusReport,
    /// Resources of aggregated API servers that are not in this store and were not verified.
    pub(super) not_covered: BTreeSet<String>,
    /// The commands to run next.
    pub(super) next: Vec<String>,
}

impl Proof {
    /// The commands to run next, according to the result.
    pub(super) fn commands(report: &CensusReport, this: &str) -> Vec<String> {
        let mut old = BTreeSet::new();
        let mut encrypted = false;
        let kinds = report.kinds.iter().map(|kind| (&kind.resource, &kind.because));
        let opaque = report.opaque.iter().map(|values| (&values.resource, &values.because));
        for (resource, because) in kinds.chain(opaque) {
            match because {
                VerdictReason::Encrypted { resource: Some(_) } => encrypted = true,
                _ if because.verdict() == CensusVerdict::Old => {
                    old.insert(resource.as_str());
                }
                _ => {}
            }
        }
        let is_of_this_cluster = !report.doubts.iter().any(|doubt| {
            use restow_rules::census::Doubt;
            matches!(doubt, Doubt::NothingStored | Doubt::OtherCluster { .. } | Doubt::ClusterNotCompared { .. })
        });
        if !is_of_this_cluster {
            return Vec::new();
        }
        let migrate =
            (!old.is_empty()).then(|| format!("restow migrate {}", old.into_iter().collect::<Vec<_>>().join(" ")));
        let read_api_state = encrypted.then(|| format!("{this} --through-api"));
        migrate.into_iter().chain(read_api_state).collect()
    }

    /// The table.
    pub(super) fn table(&self, output: Output) -> String {
        let is_wide = output == Output::Wide;
        let mut lines =
            vec![["RESOURCE", "KIND", "STORAGE VERSION", "REALLY STORED", "VERDICT"].map(String::from).to_vec()];
        if is_wide {
            lines[0].push("EXAMPLE".into());
        }
        let mut colours = Vec::new();
        let is_record = |values: &&OpaqueVerdict| values.because == VerdictReason::RecordsOfServers;
        let kinds = self.report.kinds.iter().map(|kind| (kind_cells(kind), &kind.example, kind.verdict));
        let opaque = self.report.opaque.iter().filter(|values| is_wide || !is_record(values));
        let examples: Vec<_> = opaque.map(|values| (values, Some(values.row.example.clone()))).collect();
        let opaque = examples.iter().map(|(values, example)| (opaque_cells(values), example, values.verdict));
        for (mut cells, example, verdict) in kinds.chain(opaque) {
            cells.push(words(verdict).to_string());
            if is_wide {
                cells.push(example.clone().unwrap_or_default());
            }
            lines.push(cells);
            colours.push(colour(verdict));
        }
        let mut text = paint_rows(&columns(&lines), &colours);
        text.push_str(&self.reasons());
        text.push_str(&format!("\n{}\n", self.summary()));
        text
    }

    /// One line for everything that is not current, and for what was not verified.
    fn reasons(&self) -> String {
        let mut text = String::new();
        for kind in self.report.kinds.iter().filter(|kind| kind.verdict != CensusVerdict::Current) {
            let name = if kind.resource.is_empty() { named(&kind.group, &kind.kind) } else { kind.resource.clone() };
            let example = kind.example.as_deref().unwrap_or_default();
            text.push_str(&format!("{name}: {} (for instance {example})\n", kind.because));
        }
        for values in self.report.opaque.iter().filter(|values| values.verdict != CensusVerdict::Current) {
            let name = if values.resource.is_empty() { &values.row.folder } else { &values.resource };
            text.push_str(&format!("{name}: {} (for instance {})\n", values.because, values.row.example));
        }
        for resource in &self.not_covered {
            text.push_str(&format!(
                "{resource}: served by another API server, which does not store it here: not verified\n"
            ));
        }
        if text.is_empty() { text } else { format!("\n{text}") }
    }

    fn summary(&self) -> String {
        let read = format!("{} values read at revision {}", self.total, self.revision);
        let mut text = match self.report.verdict {
            CensusVerdict::Current => format!("Nothing old is stored ({read})."),
            CensusVerdict::Old => format!("Something old is stored ({read})."),
            CensusVerdict::Unknown => format!("It is unknown whether something old is stored ({read})."),
        };
        for doubt in &self.report.doubts {
            text.push_str(&format!("\nBecause {doubt}."));
        }
        for command in &self.next {
            text.push_str(&format!("\nNext: {command}"));
        }
        if self.report.verdict == CensusVerdict::Unknown {
            text.push_str("\nSee also: restow explain proof");
        }
        text
    }
}

fn kind_cells(kind: &KindVerdict) -> Vec<String> {
    let stored: Vec<String> = kind.stored.iter().map(|(version, count)| format!("{version}: {count}")).collect();
    let is_moved = matches!(kind.because, VerdictReason::Moved { .. });
    let resource = if kind.resource.is_empty() { "-".to_string() } else { kind.resource.clone() };
    let version = match (&kind.storage_version, &kind.because) {
        (Some(version), _) => version.clone(),
        (None, VerdictReason::RecordsOfServers) => "-".into(),
        (None, _) => "unknown".into(),
    };
    let name = if is_moved || kind.resource.is_empty() { named(&kind.group, &kind.kind) } else { kind.kind.clone() };
    vec![resource, name, version, stored.join(", ")]
}

fn opaque_cells(values: &OpaqueVerdict) -> Vec<String> {
    let count = values.row.count;
    let stored = match &values.row.encoding {
        Encoding::Encrypted { provider, key } => format!("encrypted with {provider}, key {key}: {count}"),
        Encoding::Record => format!("records: {count}"),
        Encoding::Other | Encoding::Json { .. } | Encoding::Protobuf { .. } => format!("unreadable: {count}"),
    };
    let name = if values.resource.is_empty() { &values.row.folder } else { &values.resource };
    vec![name.clone(), "-".into(), "-".into(), stored]
}

/// A kind with its group.
fn named(group: &str, kind: &str) -> String {
    if group.is_empty() { kind.to_string() } else { format!("{kind}.{group}") }
}

pub(super) fn colour(verdict: CensusVerdict) -> Option<Colour> {
    match verdict {
        CensusVerdict::Old => Some(Colour::Red),
        CensusVerdict::Unknown => Some(Colour::Yellow),
        CensusVerdict::Current => None,
    }
}

pub(super) fn words(verdict: CensusVerdict) -> &'static str {
    match verdict {
        CensusVerdict::Current => "current",
        CensusVerdict::Old => "OLD",
        CensusVerdict::Unknown => "unknown",
    }
}
