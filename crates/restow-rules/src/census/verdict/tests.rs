//! Examples of what is said of single kinds.

use super::super::Census;
use super::*;
use restow_api::StorageVersionHash;

fn target(api: (&str, &str), resource: &str, version: Option<&str>) -> KindTarget {
    let (group, kind) = api;
    let hash = |version| StorageVersionHash::new(storage_version_hash(group, version, kind));
    KindTarget {
        group: group.into(),
        kind: kind.into(),
        resource: resource.into(),
        in_force: version.map(hash).ok_or("they do not agree".into()),
        candidates: vec!["v1".into(), "v2".into()],
        defined: (group == "example.com").then(|| vec!["v1".into(), "v2".into()]),
    }
}

fn census(stored: &[(&str, &str, &str)]) -> Vec<CensusRow> {
    let mut census = Census::default();
    for (key, api_version, kind) in stored {
        census.add(key.as_bytes(), format!(r#"{{"apiVersion":"{api_version}","kind":"{kind}"}}"#).as_bytes());
    }
    census.rows()
}

fn check(stored: &[(&str, &str)], storage_version: Option<&str>, expected: VerdictReason) {
    let stored: Vec<_> = stored.iter().map(|(version, kind)| ("/example.com/widgets/a", *version, *kind)).collect();
    let verdicts =
        evaluate_kinds(&census(&stored), &[target(("example.com", "Widget"), "widgets.example.com", storage_version)]);
    assert_eq!(verdicts.len(), 1, "{stored:?}");
    assert_eq!(verdicts[0].because, expected, "{stored:?} {storage_version:?}");
    assert_eq!(verdicts[0].verdict, expected.verdict());
    if !verdicts[0].resource.is_empty() {
        assert_eq!(verdicts[0].storage_version.as_deref(), storage_version);
    }
}

#[test]
fn only_values_in_the_storage_version_in_force_are_current() {
    let older = |version: &str| VerdictReason::OlderVersion { versions: vec![version.into()] };
    check(&[("example.com/v1", "Widget")], Some("v1"), VerdictReason::InStorageVersion);
    check(&[("example.com/v1", "Widget"), ("example.com/v2", "Widget")], Some("v2"), older("v1"));
    check(&[("example.com/v1", "Widget")], Some("v2"), older("v1"));
    check(&[("example.com/v1", "Widget")], None, VerdictReason::NotAgreed { words: "they do not agree".into() });
    check(&[("example.com/v1", "Gadget")], Some("v1"), VerdictReason::NotServed);
    check(&[("other.com/v1", "Widget")], Some("v1"), VerdictReason::NotServed);
    let undefined = VerdictReason::UndefinedVersion { versions: vec!["v0".into()] };
    check(&[("example.com/v0", "Widget"), ("example.com/v1", "Widget")], Some("v2"), undefined);
}

#[test]
fn objects_of_a_group_that_has_moved_are_old_where_their_kind_is_served() {
    let targets = [
        target(("networking.k8s.io", "Ingress"), "ingresses.networking.k8s.io", Some("v1")),
        target(("apps", "Deployment"), "deployments.apps", Some("v1")),
        target(("", "Event"), "events", Some("v1")),
        target(("batch", "CronJob"), "cronjobs.batch", None),
    ];
    let one = |key: &str, api_version: &str, kind: &str| {
        let mut verdicts = evaluate_kinds(&census(&[(key, api_version, kind)]), &targets);
        (verdicts.remove(0).because, verdicts.len()).0
    };
    let moved = |to: &str| VerdictReason::Moved { to: to.into() };
    assert_eq!(one("/ingress/a/b", "extensions/v1beta1", "Ingress"), moved("ingresses.networking.k8s.io"));
    assert_eq!(one("/deployments/a/b", "extensions/v1beta1", "Deployment"), moved("deployments.apps"));
    assert_eq!(one("/events/a/b", "events.k8s.io/v1", "Event"), moved("events"));
    assert!(matches!(one("/cronjobs/a/b", "batch/v2alpha1", "ScheduledJob"), VerdictReason::NotAgreed { .. }));
    assert_eq!(one("/podsecuritypolicy/a", "extensions/v1beta1", "PodSecurityPolicy"), VerdictReason::NotServed);
    assert_eq!(one("/events/a/b", "v1", "Event"), VerdictReason::InStorageVersion);
}

#[test]
fn an_api_server_that_still_writes_the_former_group_is_taken_at_its_word() {
    let hash = StorageVersionHash::new(storage_version_hash("extensions", "v1beta1", "Ingress"));
    let mut ingresses = target(("networking.k8s.io", "Ingress"), "ingresses.networking.k8s.io", None);
    ingresses.in_force = Ok(hash);
    let rows = census(&[("/ingress/a/b", "extensions/v1beta1", "Ingress")]);
    assert_eq!(evaluate_kinds(&rows, &[ingresses])[0].because, VerdictReason::InStorageVersion);
}

#[test]
fn internal_records_of_kube_apiserver_are_known_by_name() {
    let because = |rows: &[CensusRow]| evaluate_kinds(rows, &[])[0].because.clone();
    assert_eq!(because(&census(&[("/ranges/serviceips", "v1", "RangeAllocation")])), VerdictReason::RecordsOfServers);
    assert_eq!(because(&census(&[("/ranges/serviceips", "v2", "RangeAllocation")])), VerdictReason::NotServed);
    assert_eq!(because(&census(&[("/elsewhere/serviceips", "v1", "RangeAllocation")])), VerdictReason::NotServed);
}

#[test]
fn a_reason_says_what_is_stored() {
    let versions = || vec!["v1".to_owned(), "v1beta1".to_owned()];
    for (reason, words) in [
        (VerdictReason::InStorageVersion, "in the storage version"),
        (VerdictReason::OlderVersion { versions: versions() }, "stored in v1, v1beta1"),
        (VerdictReason::UndefinedVersion { versions: versions() }, "v1, v1beta1, which the CRD does not have"),
        (VerdictReason::Moved { to: "events".into() }, "today they are events"),
        (VerdictReason::NotServed, "no API server serves this kind"),
        (VerdictReason::Encrypted { resource: None }, "not known of which resource"),
        (VerdictReason::Unreadable, "neither objects of Kubernetes nor"),
    ] {
        assert!(reason.to_string().contains(words), "{reason}");
    }
}
