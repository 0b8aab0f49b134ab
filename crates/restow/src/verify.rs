//! `restow verify`: proof of what is stored, from the store itself.

mod source;
mod through_api;

use crate::cluster_args::ClusterArgs;
use crate::etcd_args::EtcdArgs;
use crate::output::{Colour, Output, columns, paint_rows};
use anyhow::{Context, ensure};
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
/// Without access to the store, --through-api asks the API servers to write each object of the named resources as it is,
/// which changes nothing where it is stored in the storage version already. That is evidence, and covers encrypted objects too,
/// but it is no reading: the first few objects that are stored otherwise are rewritten by being asked about. It stops at
/// them. Objects that somebody else writes meanwhile are asked about again.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes:
  0  nothing old is stored
  1  it could not run
  3  something old is stored
  4  it cannot be told: the API servers disagree, values are encrypted, or objects refuse to be written")]
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
    #[arg(long, value_name = "DIR", conflicts_with_all = ["etcd_endpoints", "kubeconfig", "context"])]
    data_dir: Option<PathBuf>,
    /// Ask the API servers instead of reading the store. Needs the names of resources, and permission to patch their objects.
    #[arg(long, requires = "resources", conflicts_with_all = ["etcd_endpoints", "data_dir"])]
    through_api: bool,
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
    /// The verdict on all that was asked for.
    verdict: Verdict,
    kinds: Vec<KindVerdict>,
    /// Values that do not tell their version: encrypted, or no objects.
    opaque: Vec<CensusRow>,
}

/// What was found by asking.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ThroughApi {
    resources: Vec<through_api::Finding>,
}

pub(crate) async fn run(args: VerifyArgs) -> anyhow::Result<ExitCode> {
    if args.through_api {
        let found = through_api::ask(&args.cluster.connect().await?, &args.resources).await?;
        args.output.print(&found, || through_api::table(&found))?;
        return Ok(exit_code(worst(found.resources.iter().map(|one| one.verdict))));
    }
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
    for wanted in &args.resources {
        ensure!(
            targets.iter().any(|target| is_named(&target.resource, wanted)),
            "the cluster does not serve {wanted}; name it as in `kubectl api-resources -o name`"
        );
    }
    let mut kinds = judge(&told, &targets);
    if !args.resources.is_empty() {
        kinds.retain(|kind| args.resources.iter().any(|wanted| is_named(&kind.resource, wanted)));
    }
    let mut proof =
        Proof { revision: census.to_revision, total: census.total, verdict: Verdict::Unknown, kinds, opaque };
    proof.verdict = verdict(&proof, &args.resources);
    args.output.print(&proof, || table(&proof, args.output))?;
    Ok(exit_code(proof.verdict))
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

/// Whether a resource is meant by its full name, or by its plural name alone.
fn is_named(resource: &str, wanted: &str) -> bool {
    resource == wanted || resource.split('.').next() == Some(wanted)
}

/// Encrypted values hide their version: they are proof of nothing, unless other resources were asked for.
fn verdict(proof: &Proof, wanted: &[String]) -> Verdict {
    let is_wanted = |folder: &str| wanted.is_empty() || wanted.iter().any(|wanted| is_in_folder(wanted, folder));
    let is_encrypted = |row: &&CensusRow| matches!(row.encoding, Encoding::Encrypted { .. });
    let is_hidden = proof.opaque.iter().filter(is_encrypted).any(|row| is_wanted(&row.group));
    worst(proof.kinds.iter().map(|kind| kind.verdict).chain(is_hidden.then_some(Verdict::Unknown)))
}

/// Whether the objects of a resource can lie in this folder of keys, which has its plural name somewhere.
fn is_in_folder(resource: &str, folder: &str) -> bool {
    folder.split('/').any(|part| Some(part) == resource.split('.').next())
}

fn worst(verdicts: impl Iterator<Item = Verdict>) -> Verdict {
    let all: Vec<Verdict> = verdicts.collect();
    [Verdict::Old, Verdict::Unknown].into_iter().find(|verdict| all.contains(verdict)).unwrap_or(Verdict::Current)
}

fn exit_code(verdict: Verdict) -> ExitCode {
    match verdict {
        Verdict::Current | Verdict::NotServed => ExitCode::SUCCESS,
        Verdict::Old => ExitCode::from(3),
        Verdict::Unknown => ExitCode::from(4),
    }
}

fn table(proof: &Proof, output: Output) -> String {
    let mut lines =
        vec![["RESOURCE", "KIND", "STORAGE VERSION", "REALLY STORED", "VERDICT"].map(String::from).to_vec()];
    if output == Output::Wide {
        lines[0].push("EXAMPLE OF OLD".into());
    }
    let mut colours = Vec::new();
    for kind in proof.kinds.iter().filter(|kind| output == Output::Wide || kind.verdict != Verdict::NotServed) {
        let stored: Vec<String> = kind.stored.iter().map(|(version, count)| format!("{version}: {count}")).collect();
        let resource = if kind.resource.is_empty() { "-".to_string() } else { kind.resource.clone() };
        let version = kind.storage_version.clone().unwrap_or_else(|| "unknown".into());
        let mut line = vec![resource, kind.kind.clone(), version, stored.join(", "), words(kind.verdict).to_string()];
        if output == Output::Wide {
            line.push(kind.example_of_old.clone().unwrap_or_default());
        }
        lines.push(line);
        colours.push(colour(kind.verdict));
    }
    let mut text = paint_rows(&columns(&lines), &colours);
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
    match proof.verdict {
        Verdict::Current | Verdict::NotServed => format!("Nothing old is stored ({read})."),
        Verdict::Old => {
            format!("Something old is stored ({read}). To bring it up to date: restow migrate {}", old.join(" "))
        }
        Verdict::Unknown => format!(
            "It cannot be told whether something old is stored ({read}): the API servers do not agree, or values are \
             encrypted. See: restow explain proof"
        ),
    }
}

fn colour(verdict: Verdict) -> Option<Colour> {
    match verdict {
        Verdict::Old => Some(Colour::Red),
        Verdict::Unknown => Some(Colour::Yellow),
        Verdict::Current | Verdict::NotServed => None,
    }
}

fn words(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Current => "current",
        Verdict::Old => "OLD",
        Verdict::Unknown => "unknown",
        Verdict::NotServed => "not served",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proof(verdict: Option<Verdict>, encrypted_in: Option<&str>) -> Proof {
        let kind = |verdict| KindVerdict {
            resource: "widgets.example.com".into(),
            group: "example.com".into(),
            kind: "Widget".into(),
            storage_version: Some("v2".into()),
            stored: Default::default(),
            example_of_old: None,
            verdict,
        };
        let row = |folder: &str| CensusRow {
            group: folder.into(),
            kind: String::new(),
            encoding: Encoding::Encrypted { provider: "aescbc:v1".into(), key: "1".into() },
            count: 1,
            bytes: 1,
            example: String::new(),
        };
        let (kinds, opaque) = (verdict.map(kind).into_iter().collect(), encrypted_in.map(row).into_iter().collect());
        Proof { revision: 1, total: 1, verdict: Verdict::Unknown, kinds, opaque }
    }

    fn check(proof: &Proof, wanted: &[&str], expected: Verdict) {
        let wanted: Vec<String> = wanted.iter().map(ToString::to_string).collect();
        assert_eq!(verdict(proof, &wanted), expected, "{proof:?} {wanted:?}");
    }

    #[test]
    fn only_what_is_seen_to_be_current_is_a_success() {
        check(&proof(Some(Verdict::Current), None), &[], Verdict::Current);
        check(&proof(Some(Verdict::Old), None), &[], Verdict::Old);
        check(&proof(Some(Verdict::Unknown), None), &[], Verdict::Unknown);
        check(&proof(None, Some("secrets/default")), &[], Verdict::Unknown);
        check(&proof(None, Some("secrets/default")), &["secrets"], Verdict::Unknown);
        check(&proof(Some(Verdict::Current), Some("secrets/default")), &["widgets.example.com"], Verdict::Current);
        check(&proof(Some(Verdict::Old), Some("widgets/default")), &["widgets.example.com"], Verdict::Old);
    }
}
