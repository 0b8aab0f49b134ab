//! Disagreements as a metric and as warnings. Repairs are tested with servers, in `tests/agreement/healing.rs`.

use super::*;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use restow_api::internal_apiserver::ServerStorageVersion;
use restow_rules::{Participants, set_common_encoding_version};

fn stored_as(versions: &[&str], since: Timestamp) -> StorageVersion {
    let mut object = StorageVersion::new(&"deployments.apps".parse().unwrap());
    let entry = |(number, version): (usize, &&str)| ServerStorageVersion {
        api_server_id: format!("server-{number}"),
        encoding_version: (*version).to_owned(),
        decodable_versions: vec!["apps/v1".into(), "apps/v2".into()],
        served_versions: Vec::new(),
    };
    object.status.storage_versions = versions.iter().enumerate().map(entry).collect();
    set_common_encoding_version(&mut object.status, 0, &Participants::listed([]), since);
    object
}

/// The value of the metric for deployments.
fn seconds(disagreements: &Disagreements) -> Option<f64> {
    let (mut registry, mut text) = (Registry::default(), String::new());
    registry.register_collector(Box::new(disagreements.clone()));
    encode(&mut text, &registry).unwrap();
    let name = "apiserver_storage_version_disagreement_seconds{group=\"apps\",resource=\"deployments\"} ";
    text.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.parse().unwrap())
}

#[test]
fn a_disagreement_is_a_metric_and_is_warned_about_once() {
    let (disagreements, name) = (Disagreements::default(), "apps.deployments");
    // The condition has whole seconds.
    let now = Timestamp::from_second(restow_host::now().as_second()).unwrap();
    let warned = || disagreements.all().get(name).is_some_and(|status| status.warned);
    let ago = |duration: SignedDuration| now.checked_sub(duration).unwrap();
    disagreements.observe(name, Some(&stored_as(&["apps/v1", "apps/v1"], now)), now);
    disagreements.warn_of_long_ones(now);
    assert_eq!((seconds(&disagreements), warned()), (Some(0.0), false));
    disagreements.observe(name, Some(&stored_as(&["apps/v1", "apps/v2"], ago(LONG_DISAGREEMENT))), now);
    assert!(seconds(&disagreements).unwrap() >= 600.0);
    disagreements.warn_of_long_ones(now);
    assert!(!warned(), "that is still an upgrade");
    let long = stored_as(&["apps/v1", "apps/v2"], ago(LONG_DISAGREEMENT + SignedDuration::from_secs(1)));
    disagreements.observe(name, Some(&long), now);
    disagreements.warn_of_long_ones(now);
    assert!(warned());
    disagreements.observe(name, Some(&long), now);
    assert!(warned(), "it goes on");
    disagreements.observe(name, Some(&stored_as(&["apps/v2", "apps/v2"], now)), now);
    assert_eq!((seconds(&disagreements), warned()), (Some(0.0), false), "the next one is another one");
    disagreements.observe(name, None, now);
    assert_eq!(seconds(&disagreements), None);
}
