//! Builds the sources with all mutants at once. Mutants that the compiler refuses are taken out until it is satisfied.

use super::edits::Rewritten;
use super::list::Mutant;
use super::switches;
use crate::source_copy;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The function that tells which mutant is on, and, if asked, writes down which ones were reached.
const SWITCH: &str = include_str!("switch.rs.txt");
/// More rounds than these mean that something else is wrong.
const ROUNDS: usize = 30;

/// What was built.
#[derive(Default)]
pub(crate) struct Built {
    /// The programs with tests.
    pub(crate) tests: Vec<TestProgram>,
    /// `restow`, if the simulation is wanted.
    pub(crate) restow: Option<PathBuf>,
}

/// A program made by `cargo test`.
pub(crate) struct TestProgram {
    pub(crate) path: PathBuf,
    /// The folder of its package, where it runs.
    pub(crate) folder: PathBuf,
}

/// What to build.
pub(crate) struct Build<'a> {
    pub(crate) root: &'a Path,
    pub(crate) copy: &'a Path,
    pub(crate) packages: &'a [String],
    pub(crate) mutants: &'a [Mutant],
    pub(crate) simulation: bool,
    /// Whether third-party crates are taken from a release build.
    pub(crate) release: bool,
}

impl Build<'_> {
    /// Builds everything. The given mutants are known to be unviable; `note` is told of others as soon as they are known.
    pub(crate) fn run(
        &self,
        mut unviable: BTreeSet<u32>,
        mut note: impl FnMut(&BTreeSet<u32>) -> Result<()>,
    ) -> Result<Built> {
        let packages = || self.packages.iter().flat_map(|package| ["--package", package.as_str()]);
        for round in 1..=ROUNDS {
            let files = self.rewrite(&unviable)?;
            let switched: BTreeSet<u32> = files.values().flat_map(Rewritten::mutants).collect();
            let numbers = self.mutants.iter().map(|mutant| mutant.number);
            let mut blamed: BTreeSet<u32> =
                numbers.filter(|number| !switched.contains(number) && !unviable.contains(number)).collect();
            eprintln!("round {round}: {} mutants", switched.len());
            self.write(&files)?;
            // The quick check finds almost all of those that do not compile, but needs a check of all other crates.
            let check: Vec<&str> = ["check", "--tests", "--keep-going"].into_iter().chain(packages()).collect();
            let mut messages = if self.release { Vec::new() } else { self.cargo(&check, &[])? };
            if errors(&messages).next().is_none() {
                let build: Vec<&str> = ["build", "--tests", "--keep-going"].into_iter().chain(packages()).collect();
                let profile = self.release_arguments();
                messages = self.cargo(&build, &profile)?;
                if self.simulation && errors(&messages).next().is_none() {
                    messages.extend(self.cargo(&["build", "--package", "restow", "--bin", "restow"], &profile)?);
                }
            }
            let refused = self.blame(&files, &messages)?;
            let is_built = refused.is_empty();
            blamed.extend(refused);
            note(&blamed)?;
            unviable.extend(blamed);
            if is_built {
                return self.built(&messages);
            }
        }
        anyhow::bail!("the mutants do not build after {ROUNDS} rounds")
    }

    fn rewrite(&self, unviable: &BTreeSet<u32>) -> Result<BTreeMap<PathBuf, Rewritten>> {
        let mut by_file: BTreeMap<&Path, Vec<&Mutant>> = BTreeMap::new();
        for mutant in self.mutants.iter().filter(|mutant| !unviable.contains(&mutant.number)) {
            by_file.entry(&mutant.file).or_default().push(mutant);
        }
        let rewritten = by_file.into_iter().map(|(file, mutants)| {
            let text = fs::read_to_string(self.root.join(file))?;
            let rewritten = switches::rewrite(&text, &mutants).with_context(|| file.display().to_string())?;
            Ok((file.to_owned(), rewritten))
        });
        rewritten.collect()
    }

    fn write(&self, files: &BTreeMap<PathBuf, Rewritten>) -> Result<()> {
        let mut changed: BTreeMap<_, _> =
            files.iter().map(|(file, rewritten)| (file.clone(), rewritten.text.clone())).collect();
        let switch = SWITCH.replace("COUNT", &self.mutants.len().to_string());
        for package in self.mutants.iter().map(|mutant| mutant.package.as_str()).collect::<BTreeSet<_>>() {
            let file = Path::new("crates").join(package).join("src/lib.rs");
            let text = match changed.remove(&file) {
                Some(text) => text,
                None => fs::read_to_string(self.root.join(&file))?,
            };
            changed.insert(file, text + &switch);
        }
        source_copy::write(self.root, self.copy, &changed)
    }

    /// What cargo reports. What does not depend on the copy is taken from the usual build.
    fn cargo(&self, arguments: &[&str], profile: &[String]) -> Result<Vec<Value>> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let ran = Command::new(cargo)
            .args(arguments)
            .args(["--locked", "--quiet", "--message-format", "json"])
            .args(profile)
            .env("CARGO_TARGET_DIR", self.root.join("target"))
            .current_dir(self.copy)
            .stderr(Stdio::inherit())
            .output()?;
        let lines = std::str::from_utf8(&ran.stdout)?.lines();
        let messages: Vec<Value> = lines.filter_map(|line| serde_json::from_str(line).ok()).collect();
        ensure!(ran.status.success() || errors(&messages).next().is_some(), "cargo failed; see above");
        Ok(messages)
    }

    /// The release profile, except that the crates with mutants are checked as in a test and compiled quickly.
    fn release_arguments(&self) -> Vec<String> {
        let settings = ["overflow-checks=true", "debug-assertions=true", "opt-level=1"];
        let packages = self.packages.iter().flat_map(|package| settings.map(|setting| (package, setting)));
        let settings =
            packages.map(|(package, setting)| format!("--config=profile.release.package.{package}.{setting}"));
        if self.release { std::iter::once("--release".to_owned()).chain(settings).collect() } else { Vec::new() }
    }

    /// The mutants that the compiler refuses.
    fn blame(&self, files: &BTreeMap<PathBuf, Rewritten>, messages: &[Value]) -> Result<BTreeSet<u32>> {
        let mut blamed = BTreeSet::new();
        let mut unexplained = "";
        for error in errors(messages) {
            let spans = error["spans"].as_array().map(Vec::as_slice).unwrap_or_default();
            let (primary, others): (Vec<&Value>, Vec<&Value>) =
                spans.iter().partition(|span| span["is_primary"] == true);
            let mut mutants = self.at(files, &primary)?;
            if mutants.is_empty() {
                mutants = self.at(files, &others)?;
            }
            if mutants.is_empty() && !spans.is_empty() {
                unexplained = error["rendered"].as_str().unwrap_or("an error");
            }
            blamed.extend(mutants);
        }
        ensure!(!blamed.is_empty() || unexplained.is_empty(), "not because of a mutant:\n{unexplained}");
        Ok(blamed)
    }

    /// The mutants at these places of the copy.
    fn at(&self, files: &BTreeMap<PathBuf, Rewritten>, spans: &[&Value]) -> Result<BTreeSet<u32>> {
        let mut mutants = BTreeSet::new();
        for span in spans {
            let file = Path::new(span["file_name"].as_str().unwrap_or_default());
            let file = file.strip_prefix(self.copy).unwrap_or(file);
            let (start, end) = (span["byte_start"].as_u64(), span["byte_end"].as_u64());
            if let (Some(rewritten), Some(start), Some(end)) = (files.get(file), start, end) {
                mutants.extend(rewritten.to_blame(usize::try_from(start)?..usize::try_from(end)?));
            }
        }
        Ok(mutants)
    }

    fn built(&self, messages: &[Value]) -> Result<Built> {
        let mut built = Built::default();
        for message in messages {
            let Some(path) = message["executable"].as_str().map(Path::new) else { continue };
            if message["profile"]["test"] == true {
                let manifest = Path::new(message["manifest_path"].as_str().context("a package has a manifest")?);
                let folder = manifest.parent().context("a manifest has a folder")?.to_owned();
                built.tests.push(TestProgram { path: path.to_owned(), folder });
            } else if message["target"]["name"] == "restow" {
                let kept = self.copy.join("restow");
                fs::copy(path, &kept)?;
                built.restow = Some(kept);
            }
        }
        Ok(built)
    }
}

/// The compiler's errors.
fn errors(messages: &[Value]) -> impl Iterator<Item = &Value> {
    let messages = messages.iter().filter(|message| message["reason"] == "compiler-message");
    messages.map(|message| &message["message"]).filter(|message| message["level"] == "error")
}
