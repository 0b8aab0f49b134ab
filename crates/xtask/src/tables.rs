//! `xtask tables`: regenerates the tables of a Kubernetes release from its source tree, or checks them against it.

mod head;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::difference::differences;
use crate::{files, go, policy, storage_versions, types};
use head::Head;

/// The file that names the release of a source tree.
const VERSION_FOLDER: &str = "staging/src/k8s.io/component-base/version";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A Kubernetes source tree (a checkout of the release's tag)
    #[arg(long, value_name = "PATH", required_unless_present = "storage_versions")]
    kubernetes: Option<PathBuf>,
    /// The release that the tree must be, for example 1.37
    #[arg(long, value_name = "RELEASE")]
    release: Option<String>,
    /// Write nothing; report differences and exit with 1 if there are any
    #[arg(long)]
    check: bool,
    /// The table of types; found below crates/ if not given
    #[arg(long, value_name = "FILE")]
    types: Option<PathBuf>,
    /// The table of the default policy; found below crates/ if not given
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Check resources.txt against the storage versions in this JSON file
    #[arg(long, value_name = "FILE", requires = "check")]
    storage_versions: Option<PathBuf>,
    /// The table of built-in resources; found below crates/ if not given
    #[arg(long, value_name = "FILE")]
    resources: Option<PathBuf>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// A check found differences.
    Different,
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let mut outcome = Outcome::Done;
    if let Some(tree) = &args.kubernetes {
        let release = release(tree, args.release.as_deref())?;
        let policy_rows = policy::generate(tree)?;
        let types::Generated { table: mut generated, left_out } = types::generate(&mut types::Tree::new(tree))?;

        let types_file = path_or_find(args.types.as_deref(), "kubernetes.types")?;
        let types_text = files::read(&types_file)?;
        let earlier =
            types::Table::parse(Head::split(&types_text).1).with_context(|| types_file.display().to_string())?;
        generated.keep_kinds_of(&earlier).with_context(|| types_file.display().to_string())?;
        println!("Kubernetes {release}: {} types", generated.type_count());
        left_out.iter().for_each(|line| println!("registered, but not in the table: {line}"));
        generated.kept().iter().for_each(|name| println!("kept, though Kubernetes {release} does not have it: {name}"));
        let types = Update { file: types_file, before: types_text, rows: generated.to_string() };

        let policy_file = path_or_find(args.policy.as_deref(), "default_policy.txt")?;
        let policy = Update { before: files::read(&policy_file)?, file: policy_file, rows: policy_rows };
        for update in [types, policy] {
            outcome = outcome.and(update.finish(&release, args.check)?);
        }
    }
    if let Some(file) = &args.storage_versions {
        let resources = path_or_find(args.resources.as_deref(), "resources.txt")?;
        let report = storage_versions::check(&resources, file)?;
        report.iter().for_each(|line| println!("{line}"));
        outcome = outcome.and(if report.is_empty() { Outcome::Done } else { Outcome::Different });
    }
    Ok(outcome)
}

impl Outcome {
    fn and(self, other: Outcome) -> Outcome {
        if self == Outcome::Done { other } else { self }
    }
}

/// A table as it is and the rows that it should have.
struct Update {
    file: PathBuf,
    before: String,
    rows: String,
}

impl Update {
    fn finish(&self, release: &str, check: bool) -> Result<Outcome> {
        let name = self.file.display();
        let (head, _) = Head::split(&self.before);
        let after = head.with_release(release).with_context(|| name.to_string())? + &self.rows;
        if after == self.before {
            println!("{name}: up to date");
            return Ok(Outcome::Done);
        }
        let report = differences(&self.before, &after);
        println!("{name}: {} lines of differences", report.len());
        report.iter().for_each(|line| println!("{line}"));
        if report.is_empty() {
            println!("only comments, empty lines or the order of blocks");
        }
        if check {
            return Ok(Outcome::Different);
        }
        fs::write(&self.file, after).with_context(|| format!("cannot write {name}"))?;
        println!("{name}: written");
        Ok(Outcome::Done)
    }
}

/// The release that the tree itself names, which must be the one that was requested. Trees before 1.31 name none.
fn release(tree: &Path, wanted: Option<&str>) -> Result<String> {
    let package = go::Package::read(&tree.join(VERSION_FOLDER))?;
    match (package.constant("DefaultKubeBinaryVersion"), wanted) {
        (Some(found), Some(wanted)) if wanted != found => {
            bail!("{} is Kubernetes {found}, not {wanted}; check out the release's tag", tree.display())
        }
        (Some(release), _) | (None, Some(release)) => Ok(release.to_owned()),
        (None, None) => bail!("{} does not name its release; name it with --release", tree.display()),
    }
}

fn path_or_find(path: Option<&Path>, name: &str) -> Result<PathBuf> {
    path.map_or_else(|| files::find_in_crates(name), |path| Ok(path.to_owned()))
}
