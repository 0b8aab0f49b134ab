//! Random stores and responses of API servers: the verdict is "current" only if it is known that nothing old is stored.

use proptest::prelude::*;
use restow_api::{StorageVersionHash, storage_version_hash};
use restow_rules::census::{
    ApiAnswer, Census, CensusEvidence, CensusReport, CensusVerdict, Doubt, Encoding, KindTarget, StoreIdentity,
    VerdictReason, evaluate,
};
use std::collections::BTreeMap;

fn target(group: &str, kind: &str, resource: &str, version: Result<&str, &str>) -> KindTarget {
    KindTarget {
        group: group.into(),
        kind: kind.into(),
        resource: resource.into(),
        in_force: version
            .map(|version| StorageVersionHash::new(storage_version_hash(group, version, kind)))
            .map_err(String::from),
        candidates: vec!["v1".into(), "v2".into()],
        defined: None,
    }
}

fn targets() -> Vec<KindTarget> {
    vec![
        target("", "Secret", "secrets", Ok("v1")),
        target("", "Event", "events", Ok("v1")),
        target("apps", "Deployment", "deployments.apps", Ok("v1")),
        target("example.com", "Widget", "widgets.example.com", Ok("v2")),
        target("example.com", "Gadget", "gadgets.example.com", Err("they do not agree")),
    ]
}

fn object(api_version: &str, kind: &str) -> Vec<u8> {
    format!(r#"{{"apiVersion":"{api_version}","kind":"{kind}"}}"#).into_bytes()
}

/// A stored value: its key, its bytes, and the expected verdict.
type Value = (&'static str, Vec<u8>, CensusVerdict);

fn known() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(("/secrets/a/b", object("v1", "Secret"), CensusVerdict::Current)),
        Just(("/apps/deployments/a/b", object("apps/v1", "Deployment"), CensusVerdict::Current)),
        Just(("/example.com/widgets/b", object("example.com/v2", "Widget"), CensusVerdict::Current)),
        Just(("/ranges/servicenodeports", object("v1", "RangeAllocation"), CensusVerdict::Current)),
        Just(("/restow/leaders/a", b"x".to_vec(), CensusVerdict::Current)),
    ]
}

fn old() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(("/example.com/widgets/c", object("example.com/v1", "Widget"), CensusVerdict::Old)),
        Just(("/deployments/a/c", object("extensions/v1beta1", "Deployment"), CensusVerdict::Old)),
        Just(("/events/a/c", object("events.k8s.io/v1", "Event"), CensusVerdict::Old)),
    ]
}

fn unknown() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(("/secrets/a/d", b"k8s:enc:aescbc:v1:key:\x01\x02".to_vec(), CensusVerdict::Unknown)),
        Just(("/nowhere/d", b"k8s:enc:kms:v2:name:\x01\x02".to_vec(), CensusVerdict::Unknown)),
        Just(("/secrets/a/d", b"k8s:enc:".to_vec(), CensusVerdict::Unknown)),
        Just(("/secrets/a/d", b"k8s\0\x0a".to_vec(), CensusVerdict::Unknown)),
        Just(("/secrets/a/d", Vec::new(), CensusVerdict::Unknown)),
        Just(("/gone.example.com/things/d", object("gone.example.com/v1", "Thing"), CensusVerdict::Unknown)),
        Just(("/example.com/gadgets/d", object("example.com/v1", "Gadget"), CensusVerdict::Unknown)),
        Just(("/podsecuritypolicy/d", object("policy/v1beta1", "PodSecurityPolicy"), CensusVerdict::Unknown)),
        proptest::collection::vec(any::<u8>(), 0..40).prop_map(|bytes| ("/foreign", bytes, CensusVerdict::Unknown)),
    ]
}

fn evidence(values: &[Value]) -> CensusEvidence {
    let mut census = Census::default();
    for (key, value, _) in values {
        census.add(key.as_bytes(), value);
    }
    CensusEvidence {
        total: values.len() as u64,
        from_revision: 7,
        to_revision: 7,
        rows: census.rows(),
        targets: targets(),
        identity: StoreIdentity::Same { uid: "u".into() },
        answers: BTreeMap::new(),
        elsewhere: BTreeMap::new(),
        wanted: Vec::new(),
    }
}

fn census(values: &[Value]) -> CensusReport {
    evaluate(&evidence(values))
}

proptest! {
    #[test]
    fn the_verdict_is_the_worst_that_is_known(
        mut values in proptest::collection::vec(prop_oneof![3 => known(), 1 => old(), 1 => unknown()], 1..12),
        turn in 0_usize..12,
    ) {
        let turn = turn % values.len();
        values.rotate_left(turn);
        let has = |verdict| values.iter().any(|(_, _, expected)| *expected == verdict);
        let expected = match () {
            () if has(CensusVerdict::Old) => CensusVerdict::Old,
            () if has(CensusVerdict::Unknown) => CensusVerdict::Unknown,
            () => CensusVerdict::Current,
        };
        let report = census(&values);
        prop_assert_eq!(report.verdict, expected);
        // The report counts every value.
        let kinds: u64 = report.kinds.iter().flat_map(|kind| kind.stored.values()).sum();
        let opaque: u64 = report.opaque.iter().map(|values| values.row.count).sum();
        prop_assert_eq!(kinds + opaque, values.len() as u64);
    }

    #[test]
    fn one_unknown_value_makes_the_verdict_unknown(
        mut values in proptest::collection::vec(known(), 0..8),
        unknown in unknown(),
        place in any::<proptest::sample::Index>(),
    ) {
        values.insert(place.index(values.len() + 1), unknown);
        prop_assert_eq!(census(&values).verdict, CensusVerdict::Unknown);
    }

    #[test]
    fn the_verdict_is_unknown_unless_the_store_is_known_to_be_that_of_the_cluster(
        values in proptest::collection::vec(prop_oneof![known(), old(), unknown()], 0..8),
        is_other in any::<bool>(),
    ) {
        let because = "why".to_string();
        let identity =
            if is_other { StoreIdentity::Different { because } } else { StoreIdentity::NotCompared { because } };
        let report = evaluate(&CensusEvidence { identity, ..evidence(&values) });
        prop_assert_eq!(report.verdict, CensusVerdict::Unknown);
        prop_assert!(!report.doubts.is_empty());
    }

    #[test]
    fn a_store_with_doubts_is_never_proven(
        values in proptest::collection::vec(known(), 0..8),
        several_revisions in any::<bool>(),
        is_elsewhere in any::<bool>(),
    ) {
        let elsewhere = is_elsewhere.then(|| ("events".to_string(), "they lie elsewhere".to_string()));
        let report = evaluate(&CensusEvidence {
            to_revision: 7 + u64::from(several_revisions),
            elsewhere: elsewhere.into_iter().collect(),
            ..evidence(&values)
        });
        let is_proven = !values.is_empty() && !several_revisions && !is_elsewhere;
        prop_assert_eq!(report.verdict == CensusVerdict::Current, is_proven);
        prop_assert_eq!(report.doubts.is_empty(), is_proven);
    }
}

#[test]
fn an_empty_store_proves_nothing() {
    let report = census(&[]);
    assert_eq!(report.verdict, CensusVerdict::Unknown);
    assert_eq!(report.doubts, [Doubt::NothingStored]);
}

#[test]
fn encrypted_values_have_the_verdict_of_the_api_servers() {
    let secret = |key| (key, b"k8s:enc:aescbc:v1:key:\x01".to_vec(), CensusVerdict::Unknown);
    let values = [secret("/secrets/a/b"), secret("/secrets/a/c"), secret("/masterleases/10.0.0.1")];
    let with = |answer: Option<ApiAnswer>| {
        let answers = answer.map(|answer| ("secrets".to_string(), answer)).into_iter().collect();
        evaluate(&CensusEvidence { answers, ..evidence(&values) })
    };
    assert_eq!(with(None).verdict, CensusVerdict::Unknown);
    assert_eq!(with(Some(ApiAnswer::AllCurrent { objects: 2 })).verdict, CensusVerdict::Current);
    assert_eq!(with(Some(ApiAnswer::AllCurrent { objects: 1 })).verdict, CensusVerdict::Unknown, "one was not shown");
    assert_eq!(with(Some(ApiAnswer::SomeOld { words: "two".into() })).verdict, CensusVerdict::Old);
    assert_eq!(with(Some(ApiAnswer::Unknown { words: "no".into() })).verdict, CensusVerdict::Unknown);
    let encrypted = with(None).opaque.into_iter().find(|values| values.row.folder == "/secrets").unwrap();
    assert_eq!(encrypted.because, VerdictReason::Encrypted { resource: Some("secrets".into()) });
    assert!(matches!(encrypted.row.encoding, Encoding::Encrypted { .. }));
}

#[test]
fn a_verdict_on_some_resources_ignores_only_other_resources() {
    let check = |values: &[Value], wanted: &str, expected: CensusVerdict| {
        let report = evaluate(&CensusEvidence { wanted: vec![wanted.into()], ..evidence(values) });
        assert_eq!(report.verdict, expected, "{values:?} {wanted}");
    };
    let secret = ("/secrets/a/b", b"k8s:enc:aescbc:v1:key:\x01".to_vec(), CensusVerdict::Unknown);
    let widget = ("/example.com/widgets/b", object("example.com/v2", "Widget"), CensusVerdict::Current);
    check(&[widget.clone(), secret.clone()], "widgets.example.com", CensusVerdict::Current);
    check(&[widget.clone(), secret], "secrets", CensusVerdict::Unknown);
    // Unreadable bytes, and objects of an unexpected kind, under the keys of the requested resource.
    let foreign = ("/example.com/widgets/c", b"?".to_vec(), CensusVerdict::Unknown);
    check(&[widget.clone(), foreign.clone()], "widgets.example.com", CensusVerdict::Unknown);
    check(&[widget.clone(), foreign], "secrets", CensusVerdict::Current);
    let strange = ("/example.com/widgets/c", object("example.com/v2", "Strange"), CensusVerdict::Unknown);
    check(&[widget.clone(), strange], "widgets.example.com", CensusVerdict::Unknown);
    let moved = ("/deployments/a/c", object("extensions/v1beta1", "Deployment"), CensusVerdict::Old);
    check(&[widget.clone(), moved.clone()], "deployments.apps", CensusVerdict::Old);
    check(&[widget, moved], "widgets.example.com", CensusVerdict::Current);
}
