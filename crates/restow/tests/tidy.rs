//! The rules of the workspace that a compiler does not check: directions between crates and between modules, how files
//! open, and that documents name files and tests that exist.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Each crate with the crates of this workspace that it may depend on when it is built for use (tests may depend on
/// more). A crate that is missing here fails the test: say first where it stands.
const ALLOWED: &[(&str, &[&str])] = &[
    ("restow-api", &[]),
    ("restow-rules", &["restow-api"]),
    ("restow-host", &[]),
    ("restow-store", &[]),
    ("restow-store-embedded", &["restow-host", "restow-store"]),
    ("restow-store-etcd", &["restow-host", "restow-store"]),
    ("restow-tables", &[]),
    ("restow-apimachinery", &["restow-tables"]),
    ("restow-auth", &["restow-api", "restow-apimachinery", "restow-tables"]),
    ("restow-schema", &["restow-apimachinery", "restow-tables"]),
    (
        "restow-apiserver",
        &[
            "restow-api",
            "restow-apimachinery",
            "restow-auth",
            "restow-host",
            "restow-rules",
            "restow-schema",
            "restow-store",
            "restow-tables",
        ],
    ),
    ("restow-aggregated", &["restow-api", "restow-rules", "restow-apiserver", "restow-host"]),
    ("restow-migrate", &["restow-api", "restow-rules", "restow-host"]),
    (
        "restow",
        &[
            "restow-api",
            "restow-rules",
            "restow-local-etcd",
            "restow-store",
            "restow-store-embedded",
            "restow-store-etcd",
            "restow-apimachinery",
            "restow-apiserver",
            "restow-auth",
            "restow-migrate",
            "restow-torture",
        ],
    ),
    // Runs all of it, in a simulated world and as processes.
    (
        "restow-torture",
        &[
            "restow-aggregated",
            "restow-api",
            "restow-apiserver",
            "restow-auth",
            "restow-host",
            "restow-migrate",
            "restow-store",
            "restow-store-embedded",
            "restow-store-etcd",
        ],
    ),
    // For tests and benchmarks: private etcd servers.
    ("restow-local-etcd", &[]),
    // For tests of every crate.
    ("restow-testkit", &["restow-local-etcd", "restow-store-etcd"]),
    // A tool of this repository, not of Restow.
    ("xtask", &[]),
];

/// A longer file is hard to read.
const LONGEST_FILE: usize = 800;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn crate_folders() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> =
        fs::read_dir(root().join("crates")).unwrap().map(|folder| folder.unwrap().path()).collect();
    folders.sort();
    folders
}

fn source_files(folder: &Path, found: &mut Vec<PathBuf>) {
    let Ok(listing) = fs::read_dir(folder) else { return };
    for path in listing.map(|item| item.unwrap().path()) {
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            source_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn dependencies_point_in_the_allowed_directions() {
    let allowed: BTreeMap<&str, BTreeSet<&str>> =
        ALLOWED.iter().map(|(name, others)| (*name, others.iter().copied().collect())).collect();
    let mut broken = Vec::new();
    for folder in crate_folders() {
        let text = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let manifest: toml::Table = text.parse().unwrap();
        let name = manifest["package"]["name"].as_str().unwrap().to_string();
        assert_eq!(folder.file_name().unwrap().to_str(), Some(name.as_str()), "a crate's folder has the crate's name");
        let Some(allowed) = allowed.get(name.as_str()) else {
            broken.push(format!("{name} is not in the table of allowed directions"));
            continue;
        };
        for section in ["dependencies", "build-dependencies"] {
            let dependencies = manifest.get(section).and_then(toml::Value::as_table);
            for dependency in dependencies.into_iter().flat_map(toml::Table::keys) {
                if dependency.starts_with("restow") && !allowed.contains(dependency.as_str()) {
                    broken.push(format!("{name} must not depend on {dependency}"));
                }
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// The crates that run in simulations, and what they take from `restow-host` instead.
const SIMULATED: &[&str] = &["restow-apiserver", "restow-migrate", "restow-aggregated", "restow-rules", "restow-auth"];
const NOT_SIMULATED: &[(&str, &str)] = &[
    ("tokio::spawn(", "restow_host::spawn"),
    ("spawn_blocking(", "restow_host::run_blocking"),
    ("Timestamp::now(", "restow_host::now"),
    ("SystemTime::now(", "restow_host::now"),
    ("Uuid::new_v4(", "restow_host::uuid"),
    ("rand::rng(", "restow_host::random"),
];

/// Code that takes time, random numbers or tasks from elsewhere would be another one in a simulation than in production,
/// and a seed would not repeat what it did.
#[test]
fn simulated_crates_take_time_and_random_numbers_and_tasks_from_the_host() {
    let mut broken = Vec::new();
    for name in SIMULATED {
        let mut files = Vec::new();
        source_files(&root().join("crates").join(name).join("src"), &mut files);
        for file in files {
            let text = fs::read_to_string(&file).unwrap();
            // Tests of a module are at the end of its file.
            let code = text.split("#[cfg(test)]").next().unwrap();
            let is_test = file.to_string_lossy().contains("/tests");
            // Connections are not simulated.
            let has_sockets = file.to_string_lossy().contains("/src/serving");
            for (number, line) in code.lines().enumerate().filter(|_| !is_test) {
                for (word, instead) in NOT_SIMULATED.iter().filter(|(word, _)| line.contains(word)) {
                    broken.push(format!("{}:{}: {word}…: use {instead}", file.display(), number + 1));
                }
                if line.contains("select! {")
                    && !has_sockets
                    && !code.lines().nth(number + 1).unwrap().contains("biased;")
                {
                    broken.push(format!("{}:{}: the order of select! must be biased", file.display(), number + 1));
                }
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// The layers of the API server, the topmost first, from the table in ARCHITECTURE.md: rows that begin with a number.
fn layers() -> Vec<BTreeSet<String>> {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let section = page.split("## Layers of the API server").nth(1).expect("ARCHITECTURE.md has the table of layers");
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| ") && line.as_bytes()[2].is_ascii_digit());
    let names = |row: &str| {
        let modules = row.split('|').nth(2).unwrap();
        modules.split('`').skip(1).step_by(2).map(str::to_string).collect()
    };
    rows.map(names).collect()
}

/// The top-level modules that a file refers to, tests and comments aside.
fn modules_used(text: &str) -> BTreeSet<String> {
    let code: String =
        text.lines().filter(|line| !line.trim_start().starts_with("//")).map(|line| format!("{line}\n")).collect();
    let code = code.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let mut used = BTreeSet::new();
    for rest in code.split("crate::").skip(1) {
        let word = |text: &str| -> String {
            text.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect()
        };
        match rest.strip_prefix('{') {
            None => drop(used.insert(word(rest))),
            Some(group) => {
                let group = group.split(';').next().unwrap();
                used.extend(group.split(',').map(|item| word(item.trim())));
            }
        }
    }
    used
}

#[test]
fn modules_of_the_api_server_use_only_lower_layers() {
    let sources = root().join("crates/restow-apiserver/src");
    let layers = layers();
    let layer_of: BTreeMap<&str, usize> = layers
        .iter()
        .enumerate()
        .flat_map(|(number, names)| names.iter().map(move |name| (name.as_str(), number)))
        .collect();
    assert!(layer_of.len() > 15, "the table of layers was not found");
    let mut files = Vec::new();
    source_files(&sources, &mut files);
    let (mut broken, mut seen) = (Vec::new(), BTreeSet::new());
    for file in files {
        let path = file.strip_prefix(&sources).unwrap();
        let module = path.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs").to_string();
        let is_test = path.iter().any(|part| part == "tests" || part == "tests.rs");
        if is_test || matches!(module.as_str(), "lib" | "fuzzing") {
            continue;
        }
        let Some(layer) = layer_of.get(module.as_str()) else {
            broken.push(format!("{module} is in no layer of ARCHITECTURE.md"));
            continue;
        };
        seen.insert(module.clone());
        for used in modules_used(&fs::read_to_string(&file).unwrap()) {
            if used != module && layer_of.get(used.as_str()).is_some_and(|below| below <= layer) {
                broken.push(format!("{}: {module} must not use {used}", path.display()));
            }
        }
    }
    let gone: Vec<&&str> = layer_of.keys().filter(|name| !seen.contains(**name)).collect();
    assert!(gone.is_empty(), "modules in ARCHITECTURE.md that do not exist: {gone:?}");
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// Modules that refer to each other and cannot be separated: a schema node holds compiled rules, a rule is a CEL program, and
/// CEL reads a value by its node.
const ONE_PIECE: &[(&str, &[&str])] =
    &[("restow-schema", &["cel", "correlate", "format", "list_type", "node", "rules"])];

/// The top-level modules of a crate, each with those that it refers to.
fn module_graph(sources: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let mut files = Vec::new();
    source_files(sources, &mut files);
    let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in files {
        let path = file.strip_prefix(sources).unwrap();
        let module = path.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs");
        let is_test = path.iter().any(|part| part == "tests" || part == "tests.rs");
        if !is_test && !matches!(module, "lib" | "main" | "bin") {
            let used = modules_used(&fs::read_to_string(&file).unwrap());
            graph.entry(module.to_string()).or_default().extend(used);
        }
    }
    graph
}

/// Removes modules that refer to none of the others, again and again. The remaining modules are in a cycle, or refer to one.
fn without_leaves(mut graph: BTreeMap<String, BTreeSet<String>>) -> BTreeSet<String> {
    loop {
        let names: BTreeSet<String> = graph.keys().cloned().collect();
        graph.retain(|module, used| used.iter().any(|other| other != module && names.contains(other)));
        if graph.len() == names.len() {
            return names;
        }
    }
}

#[test]
fn no_crate_has_a_cycle_between_its_modules() {
    let mut broken = Vec::new();
    for folder in crate_folders() {
        let name = folder.file_name().unwrap().to_str().unwrap();
        let mut graph = module_graph(&folder.join("src"));
        // Modules that cannot be separated count as one.
        for piece in ONE_PIECE.iter().filter(|(owner, _)| *owner == name).map(|(_, piece)| piece) {
            let merged: BTreeSet<String> = piece.iter().flat_map(|module| graph.remove(*module).unwrap()).collect();
            let rename =
                |module: &String| if piece.contains(&module.as_str()) { piece[0].to_string() } else { module.clone() };
            graph.insert(piece[0].to_string(), merged);
            graph = graph.iter().map(|(module, used)| (module.clone(), used.iter().map(rename).collect())).collect();
        }
        let left = without_leaves(graph);
        if !left.is_empty() {
            broken.push(format!("{name}: {left:?}"));
        }
    }
    assert!(broken.is_empty(), "modules in a cycle, or above one:\n{}", broken.join("\n"));
}

#[test]
fn every_source_file_has_a_header_and_a_bounded_length() {
    let mut files = Vec::new();
    for folder in ["crates", "examples"] {
        source_files(&root().join(folder), &mut files);
    }
    assert!(files.len() > 10, "the sources were not found");
    let mut broken = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        if !text.starts_with("//!") {
            broken.push(format!("{}: does not open with a //! header", file.display()));
        }
        if text.lines().count() > LONGEST_FILE {
            broken.push(format!("{}: longer than {LONGEST_FILE} lines", file.display()));
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// A header that cannot be decoded must not be ignored: a request with an undecodable `Impersonate-User` once ran as the caller.
/// `request/headers.rs` reads headers.
#[test]
fn http_headers_with_invalid_bytes_are_not_ignored() {
    let mut files = Vec::new();
    source_files(&root().join("crates/restow-apiserver/src"), &mut files);
    assert!(!files.is_empty());
    let drops = |path: &&PathBuf| fs::read_to_string(path).unwrap().contains("to_str().ok()");
    let broken: Vec<&PathBuf> = files.iter().filter(drops).collect();
    assert!(broken.is_empty(), "these files leave headers out: {broken:?}");
}

/// The documents that describe the code.
fn documents() -> Vec<PathBuf> {
    let pages = |folder: &str| fs::read_dir(root().join(folder)).unwrap().map(|item| item.unwrap().path());
    let mut found: Vec<PathBuf> = ["", "docs", "docs/decisions"].into_iter().flat_map(pages).collect();
    // The changelog also names removed files and tests.
    found.retain(|path| path.extension().is_some_and(|extension| extension == "md") && !path.ends_with("CHANGELOG.md"));
    assert!(found.len() > 10, "the documents were not found");
    found
}

/// The words of a page in backticks, each with the text between it and the one before.
fn code_words(page: &str) -> Vec<(&str, &str)> {
    let parts: Vec<&str> = page.split('`').collect();
    parts.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect()
}

fn is_source_file(word: &str) -> bool {
    word.ends_with(".rs") && !word.starts_with(['.', '<']) && !word.contains([' ', '*', '…']) && word != "foo.rs"
}

/// Names of tests are sentences; file names and fields are shorter.
fn is_test_name(word: &str) -> bool {
    word.split('_').count() > 3 && word.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
}

#[test]
fn documents_name_source_files_that_exist() {
    let mut files = Vec::new();
    for folder in ["crates", "examples", "fuzz"] {
        source_files(&root().join(folder), &mut files);
    }
    let (mut broken, mut checked) = (Vec::new(), 0);
    for document in documents() {
        let page = fs::read_to_string(&document).unwrap();
        for (_, word) in code_words(&page).into_iter().filter(|(_, word)| is_source_file(word)) {
            checked += 1;
            if !files.iter().any(|file| file.ends_with(word)) {
                broken.push(format!("{}: {word}", document.display()));
            }
        }
    }
    assert!(checked > 300, "only {checked} names of files were found");
    assert!(broken.is_empty(), "documents name files that do not exist:\n{}", broken.join("\n"));
}

/// The claims of these pages rely on the tests that they name. A test that follows a file's name is in that file.
#[test]
fn every_test_that_the_records_of_reliability_and_security_name_exists() {
    let mut files = Vec::new();
    source_files(&root().join("crates"), &mut files);
    let mut tests: BTreeMap<String, Vec<&Path>> = BTreeMap::new();
    for file in &files {
        for rest in fs::read_to_string(file).unwrap().split("fn ").skip(1) {
            let name: String = rest.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect();
            tests.entry(name).or_default().push(file);
        }
    }
    let mut broken = Vec::new();
    for (page, fewest) in [("docs/reliability.md", 80), ("docs/security.md", 30)] {
        let record = fs::read_to_string(root().join(page)).unwrap();
        let words = code_words(&record);
        let mut checked = 0;
        for (index, (between, word)) in words.iter().enumerate().filter(|(_, (_, word))| is_test_name(word)) {
            checked += 1;
            let before = words[index.saturating_sub(1)].1;
            let file = Some(before).filter(|before| *between == " " && is_source_file(before));
            let found =
                tests.get(*word).is_some_and(|all| file.is_none_or(|file| all.iter().any(|it| it.ends_with(file))));
            if !found {
                broken.push(format!("{page}: {} {word}", file.unwrap_or_default()));
            }
        }
        assert!(checked > fewest, "{page} names only {checked} tests");
    }
    assert!(broken.is_empty(), "tests that do not exist:\n{}", broken.join("\n"));
}
