//! Checks the releases in `resources.txt` against a record of what API servers of each release serve and store.
//!
//! The record is JSON: `{"RESOURCE[.GROUP]": {"RELEASE": {"served": ["VERSION"], "storage": "[GROUP/]VERSION"}}}`. It is only
//! compared; the table is edited by hand, because its other lines are not in the record.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::files;

/// A resource that Restow serves and Kubernetes does not: StorageVersion under the group of its proposal.
const NOT_IN_KUBERNETES: &str = "storageversions.kube-apiserver.internal.k8s.io";

/// The served and stored versions of a resource in a release.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
struct Versions {
    served: BTreeSet<String>,
    storage: String,
}

/// The releases of a resource, oldest first.
type History = BTreeMap<Release, Option<Versions>>;

/// A release such as 1.37, in the order of releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Release(u32, u32);

/// One line for each difference.
pub(crate) fn check(resources: &Path, record: &Path) -> Result<Vec<String>> {
    let table = parse_table(&files::read(resources)?).with_context(|| resources.display().to_string())?;
    let record = parse_record(&files::read(record)?).with_context(|| record.display().to_string())?;
    Ok(compare(&table, &record))
}

fn compare(table: &BTreeMap<String, History>, record: &BTreeMap<String, History>) -> Vec<String> {
    let releases: BTreeSet<Release> = record.values().flat_map(|history| history.keys().copied()).collect();
    let names: BTreeSet<&String> =
        table.keys().filter(|name| *name != NOT_IN_KUBERNETES).chain(record.keys()).collect();
    let mut report = Vec::new();
    for name in names {
        for release in &releases {
            // A line of the table holds until the next one; a record names every release.
            let in_table = table.get(name).and_then(|history| history.range(..=*release).next_back());
            let in_table = in_table.and_then(|(_, versions)| versions.as_ref());
            let in_record = record.get(name).and_then(|history| history.get(release)).and_then(Option::as_ref);
            if in_table != in_record {
                let Release(major, minor) = release;
                let (table, record) = (describe(in_table), describe(in_record));
                report.push(format!("{name} in {major}.{minor}: the table has {table}, the record {record}"));
            }
        }
    }
    report
}

fn describe(versions: Option<&Versions>) -> String {
    let Some(Versions { served, storage }) = versions else { return "nothing".to_owned() };
    let served: Vec<&str> = served.iter().map(String::as_str).collect();
    format!("{} stored {storage}", served.join(","))
}

fn parse_record(text: &str) -> Result<BTreeMap<String, History>> {
    let record: BTreeMap<String, BTreeMap<String, Versions>> = serde_json::from_str(text)?;
    let mut histories = BTreeMap::new();
    for (name, releases) in record {
        let history = releases.into_iter().map(|(text, versions)| Ok((release(&text)?, Some(versions))));
        histories.insert(name, history.collect::<Result<History>>()?);
    }
    Ok(histories)
}

/// Reads the head and the release lines of each block. Resources that are never stored are not in a record either.
fn parse_table(text: &str) -> Result<BTreeMap<String, History>> {
    let mut histories: BTreeMap<String, History> = BTreeMap::new();
    let mut block: Option<(String, String)> = None;
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'))
    {
        let words: Vec<&str> = line.split_whitespace().collect();
        match (&block, words.as_slice()) {
            (_, [group, resource, ..]) if !line.starts_with(' ') => {
                let group = if *group == "core" { "" } else { group };
                let name = [*resource, group].join(".").trim_end_matches('.').to_owned();
                block = Some((group.to_owned(), name));
            }
            (Some((group, name)), [first, rest @ ..]) if first.starts_with(|c: char| c.is_ascii_digit()) => {
                let versions = match rest {
                    ["gone"] => None,
                    [_, "unstored"] => continue,
                    [served, "stored", stored] => Some(Versions {
                        served: served.split(',').map(str::to_owned).collect(),
                        storage: group_version(group, stored),
                    }),
                    _ => bail!("line {}: `{}` is not understood", index + 1, line.trim()),
                };
                let history = histories.entry(name.clone()).or_default();
                history.insert(release(first).with_context(|| format!("line {}", index + 1))?, versions);
            }
            (Some(_), _) => {}
            (None, _) => bail!("line {}: a line before the first resource", index + 1),
        }
    }
    Ok(histories)
}

/// A version of the table as a record writes it: with its group, unless that is the core group.
fn group_version(group: &str, version: &str) -> String {
    match version.split_once('/') {
        Some(("core", version)) => version.to_owned(),
        Some(_) => version.to_owned(),
        None if group.is_empty() => version.to_owned(),
        None => format!("{group}/{version}"),
    }
}

fn release(text: &str) -> Result<Release> {
    let numbers = text.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    match numbers {
        Some((major, minor)) => Ok(Release(major, minor)),
        None => bail!("`{text}` is not a release"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "# head

core gadgets Gadget gadget namespaced
  short gd
  1.9 v1 stored v1
  1.11 gone

example.com widgets Widget widget cluster
  shares core/gadgets
  1.9 v1beta1 stored core/v1
  1.10 v1beta1,v1 stored v1

example.com reviews Review review cluster
  1.9 v1 unstored
";

    fn check(record: &str) -> Vec<String> {
        compare(&parse_table(TABLE).unwrap(), &parse_record(record).unwrap())
    }

    #[test]
    fn a_table_that_follows_the_record_has_no_differences() {
        let record = r#"{
            "gadgets": {"1.9": {"served": ["v1"], "storage": "v1"}, "1.10": {"served": ["v1"], "storage": "v1"}},
            "widgets.example.com": {
                "1.9": {"served": ["v1beta1"], "storage": "v1"},
                "1.10": {"served": ["v1", "v1beta1"], "storage": "example.com/v1"},
                "1.11": {"served": ["v1", "v1beta1"], "storage": "example.com/v1"}
            }
        }"#;
        assert_eq!(check(record), Vec::<String>::new());
    }

    #[test]
    fn differences_name_resource_and_release() {
        let record = r#"{
            "gadgets": {"1.11": {"served": ["v2"], "storage": "v2"}},
            "widgets.example.com": {"1.11": {"served": ["v1"], "storage": "example.com/v1"}},
            "others": {"1.11": {"served": ["v1"], "storage": "v1"}}
        }"#;
        let expected = [
            "gadgets in 1.11: the table has nothing, the record v2 stored v2",
            "others in 1.11: the table has nothing, the record v1 stored v1",
            "widgets.example.com in 1.11: the table has v1,v1beta1 stored example.com/v1, the record v1 stored example.com/v1",
        ];
        assert_eq!(check(record), expected);
    }

    #[test]
    fn malformed_lines_are_refused() {
        assert!(parse_table("core a A a cluster\n  1.9 v1 kept v1\n").is_err());
        assert!(parse_table("core a A a cluster\n  1.x v1 stored v1\n").is_err());
        assert!(parse_record(r#"{"a": {"1.9": {"served": [], "storage": "v1", "other": 1}}}"#).is_err());
    }
}
