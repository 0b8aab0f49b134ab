//! `restow verify`: proof of what is stored, from the store itself.

mod source;

use crate::cluster_args::ClusterArgs;
use crate::etcd_args::EtcdArgs;
use crate::output::{Output, columns};
use anyhow::Context;
use clap::Args;
use restow_agreement::census::{CensusRow, Encoding, KindVerdict, Target, Verdict, judge};
use restow_migrate::overview::look;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

/// Prove in which versions objects are stored, by reading the store itself.
///
/// It only reads. Give --etcd-endpoints for etcd (our own or a stock cluster's), or --data-dir for the embedded store of a
/// server that is stopped; without either, the running server is asked to read its store. What the API servers write now is
/// asked of the cluster; for a stopped server it is read from the store.
///
/// Ends with 0 when nothing old is stored, with 3 when something is, with 4 when that cannot be told.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// The resources to verify, such as widgets.example.com; all without.
    #[arg(value_name = "RESOURCE")]
    resources: Vec<String>,
    /// The etcd members to read from.
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    etcd_endpoints: Vec<String>,
    #[command(flatten)]
    etcd: EtcdArgs,
    /// The data directory of a stopped server.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["etcd_endpoints", "kubeconfig"])]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// How to print it.
    #[arg(long, short, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

/// What was found.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Proof {
    /// The revision of the store that was read.
    revision: u64,
    /// How many values were read.
    total: u64,
    kinds: Vec<KindVerdict>,
    /// Values that do not tell their version: encrypted, or no objects.
    opaque: Vec<CensusRow>,
}

pub(crate) async fn run(args: VerifyArgs) -> anyhow::Result<ExitCode> {
    let (census, targets) = match (&args.data_dir, args.etcd_endpoints.is_empty()) {
        (Some(directory), _) => source::stopped(directory).await?,
        (None, false) => {
            let config = args.etcd.config(&args.etcd_endpoints)?;
            (source::etcd(config).await?, args.targets().await?)
        }
        (None, true) => (source::running(&args.cluster).await?, args.targets().await?),
    };
    let (opaque, told): (Vec<CensusRow>, Vec<CensusRow>) =
        census.rows.into_iter().partition(|row| matches!(row.encoding, Encoding::Encrypted { .. } | Encoding::Other));
    let mut kinds = judge(&told, &targets);
    if !args.resources.is_empty() {
        kinds.retain(|kind| args.resources.iter().any(|wanted| is_named(kind, wanted)));
    }
    let proof = Proof { revision: census.to_revision, total: census.total, kinds, opaque };
    args.output.print(&proof, || table(&proof, args.output))?;
    Ok(exit_code(&proof, &args.resources))
}

impl VerifyArgs {
    /// What the API servers write now.
    async fn targets(&self) -> anyhow::Result<Vec<Target>> {
        let cluster = self.cluster.connect().await?;
        let overview = look(&cluster).await.context(
            "cannot ask the API servers which versions they write now, without which nobody can say what is old",
        )?;
        let target = |resource: restow_migrate::overview::ResourceOverview| Target {
            group: resource.group,
            kind: resource.kind,
            resource: resource.resource,
            hash: resource.hash,
            candidates: resource.candidates,
        };
        Ok(overview.resources.into_iter().map(target).collect())
    }
}

fn is_named(kind: &KindVerdict, wanted: &str) -> bool {
    kind.resource == wanted || kind.resource.split('.').next() == Some(wanted)
}

/// Encrypted values hide their version: they are proof of nothing, unless other resources were asked for.
fn exit_code(proof: &Proof, wanted: &[String]) -> ExitCode {
    let worst = |verdict: Verdict| proof.kinds.iter().any(|kind| kind.verdict == verdict);
    let hidden = proof.opaque.iter().any(|row| matches!(row.encoding, Encoding::Encrypted { .. }));
    match () {
        () if worst(Verdict::Old) => ExitCode::from(3),
        () if worst(Verdict::Unknown) || (hidden && wanted.is_empty()) => ExitCode::from(4),
        () => ExitCode::SUCCESS,
    }
}

fn table(proof: &Proof, output: Output) -> String {
    let mut lines =
        vec![["RESOURCE", "KIND", "STORAGE VERSION", "REALLY STORED", "VERDICT"].map(String::from).to_vec()];
    if output == Output::Wide {
        lines[0].push("EXAMPLE OF OLD".into());
    }
    for kind in proof.kinds.iter().filter(|kind| output == Output::Wide || kind.verdict != Verdict::NotServed) {
        let stored: Vec<String> = kind.stored.iter().map(|(version, count)| format!("{version}: {count}")).collect();
        let resource = if kind.resource.is_empty() { "-".to_string() } else { kind.resource.clone() };
        let version = kind.storage_version.clone().unwrap_or_else(|| "unknown".into());
        let mut line = vec![resource, kind.kind.clone(), version, stored.join(", "), words(kind.verdict).to_string()];
        if output == Output::Wide {
            line.push(kind.example_of_old.clone().unwrap_or_default());
        }
        lines.push(line);
    }
    let mut text = columns(&lines);
    for row in &proof.opaque {
        if let Encoding::Encrypted { provider, key } = &row.encoding {
            text.push_str(&format!("{}: {} encrypted with {provider}, key {key}\n", row.group, row.count));
        }
    }
    text.push_str(&format!("\n{}\n", summary(proof)));
    text
}

fn summary(proof: &Proof) -> String {
    let old: Vec<&str> =
        proof.kinds.iter().filter(|kind| kind.verdict == Verdict::Old).map(|kind| kind.resource.as_str()).collect();
    let read = format!("{} values read at revision {}", proof.total, proof.revision);
    match old.as_slice() {
        [] => format!("Nothing old is stored ({read})."),
        old => format!("Something old is stored ({read}). To bring it up to date: restow migrate {}", old.join(" ")),
    }
}

fn words(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Current => "current",
        Verdict::Old => "OLD",
        Verdict::Unknown => "no agreement",
        Verdict::NotServed => "not served",
    }
}
