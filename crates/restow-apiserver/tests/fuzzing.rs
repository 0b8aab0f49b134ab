//! A short run of the fuzzing entry points: the seeds in `fuzz/seeds`, unchanged and mutated at random.

#![cfg(feature = "fuzzing")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::path::Path;

/// A change of some bytes.
#[derive(Clone, Debug)]
enum Edit {
    Set(usize, u8),
    Remove(usize, usize),
    Repeat(usize, usize, usize),
    Insert(usize, &'static str),
}

/// Words that random bytes would hardly ever contain.
const WORDS: [&str; 16] = [
    "null",
    "{}",
    "[]",
    "\"\"",
    "-1",
    "9223372036854775808",
    "1e400",
    "\\u0000",
    "self",
    "object",
    "(",
    ")",
    "\"type\":\"object\",",
    "\"default\":{},",
    "\"x-kubernetes-preserve-unknown-fields\":true,",
    "\"$patch\":\"replace\",",
];

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let place = any::<prop::sample::Index>().prop_map(|index| index.index(4096));
    let edit = prop_oneof![
        (place.clone(), any::<u8>()).prop_map(|(at, byte)| Edit::Set(at, byte)),
        (place.clone(), 1usize..20).prop_map(|(at, length)| Edit::Remove(at, length)),
        (place.clone(), 1usize..40, 1usize..40).prop_map(|(at, length, times)| Edit::Repeat(at, length, times)),
        (place, prop::sample::select(WORDS.to_vec())).prop_map(|(at, word)| Edit::Insert(at, word)),
    ];
    prop::collection::vec(edit, 0..6)
}

fn edited(seed: &[u8], edits: &[Edit]) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for edit in edits {
        let place = |at: usize| at % bytes.len().max(1);
        match *edit {
            Edit::Set(at, byte) => {
                let at = place(at);
                bytes.get_mut(at..=at).into_iter().flatten().for_each(|slot| *slot = byte);
            }
            Edit::Remove(at, length) => {
                let at = place(at);
                bytes.drain(at..(at + length).min(bytes.len()));
            }
            Edit::Repeat(at, length, times) => {
                let at = place(at);
                let part = bytes[at..(at + length).min(bytes.len())].repeat(times);
                bytes.splice(at..at, part);
            }
            Edit::Insert(at, word) => {
                let at = place(at);
                bytes.splice(at..at, word.bytes());
            }
        }
    }
    bytes
}

#[test]
fn fuzzing_entry_points_accept_any_bytes() {
    run("schema", restow_schema::fuzzing::schema);
    run("cel", restow_schema::fuzzing::cel);
    run("patch", restow_apiserver::fuzzing::patch);
}

fn run(name: &str, target: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(name);
    let seeds: Vec<Vec<u8>> =
        std::fs::read_dir(folder).unwrap().map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect();
    assert!(seeds.len() > 2, "the seeds of {name} are there");
    seeds.iter().for_each(|seed| target(seed));
    let cases = if std::env::var_os("RESTOW_TEST_LONG").is_some() { 100_000 } else { 1_000 };
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let changed = (prop::sample::select(seeds), edits()).prop_map(|(seed, edits)| edited(&seed, &edits));
    let run = TestRunner::new(config).run(&changed, |bytes| {
        target(&bytes);
        Ok(())
    });
    run.unwrap_or_else(|failure| panic!("{name}: {failure}"));
}
