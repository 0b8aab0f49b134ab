//! The hash function against what a real Kubernetes 1.37 shows in its discovery documents.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use restow_api::{GroupVersion, storage_version_hash};

const RECORDED: &str = include_str!("fixtures/storage-version-hashes-1.37.tsv");

#[test]
fn every_recorded_hash_is_reproduced() {
    let mut count = 0;
    for line in RECORDED.lines().filter(|line| !line.starts_with('#')) {
        let columns: Vec<&str> = line.split('\t').collect();
        let [served, resource, group, version, kind, hash] = columns[..] else { panic!("malformed line: {line}") };
        let group = if group == "-" { "" } else { group };
        assert_eq!(storage_version_hash(group, version, kind), hash, "{served} {resource}");
        served.parse::<GroupVersion>().unwrap();
        count += 1;
    }
    assert_eq!(count, 65);
}
