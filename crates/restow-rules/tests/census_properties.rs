//! Whatever lies in a store and whatever the API servers say: "nothing old is stored" is said only when it is known.

use proptest::prelude::*;
use restow_api::{StorageVersionHash, storage_version_hash};
use restow_rules::census::{
    ApiAnswer, Because, Census, Doubt, Encoding, Evidence, Identity, Judgement, Target, Verdict, judge,
};
use std::collections::BTreeMap;

fn target(group: &str, kind: &str, resource: &str, version: Result<&str, &str>) -> Target {
    Target {
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

fn targets() -> Vec<Target> {
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

/// A stored value: its key, its bytes, and what must come of it.
type Value = (&'static str, Vec<u8>, Verdict);

fn known() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(("/secrets/a/b", object("v1", "Secret"), Verdict::Current)),
        Just(("/apps/deployments/a/b", object("apps/v1", "Deployment"), Verdict::Current)),
        Just(("/example.com/widgets/b", object("example.com/v2", "Widget"), Verdict::Current)),
        Just(("/ranges/servicenodeports", object("v1", "RangeAllocation"), Verdict::Current)),
        Just(("/restow/leaders/a", b"x".to_vec(), Verdict::Current)),
    ]
}

fn old() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(("/example.com/widgets/c", object("example.com/v1", "Widget"), Verdict::Old)),
        Just(("/deployments/a/c", object("extensions/v1beta1", "Deployment"), Verdict::Old)),
        Just(("/events/a/c", object("events.k8s.io/v1", "Event"), Verdict::Old)),
    ]
}

fn unknown() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(("/secrets/a/d", b"k8s:enc:aescbc:v1:key:\x01\x02".to_vec(), Verdict::Unknown)),
        Just(("/nowhere/d", b"k8s:enc:kms:v2:name:\x01\x02".to_vec(), Verdict::Unknown)),
        Just(("/secrets/a/d", b"k8s:enc:".to_vec(), Verdict::Unknown)),
        Just(("/secrets/a/d", b"k8s\0\x0a".to_vec(), Verdict::Unknown)),
        Just(("/secrets/a/d", Vec::new(), Verdict::Unknown)),
        Just(("/gone.example.com/things/d", object("gone.example.com/v1", "Thing"), Verdict::Unknown)),
        Just(("/example.com/gadgets/d", object("example.com/v1", "Gadget"), Verdict::Unknown)),
        Just(("/podsecuritypolicy/d", object("policy/v1beta1", "PodSecurityPolicy"), Verdict::Unknown)),
        proptest::collection::vec(any::<u8>(), 0..40).prop_map(|bytes| ("/foreign", bytes, Verdict::Unknown)),
    ]
}

fn evidence(values: &[Value]) -> Evidence {
    let mut census = Census::default();
    for (key, value, _) in values {
        census.add(key.as_bytes(), value);
    }
    Evidence {
        total: values.len() as u64,
        from_revision: 7,
        to_revision: 7,
        rows: census.rows(),
        targets: targets(),
        identity: Identity::Same { uid: "u".into() },
        answers: BTreeMap::new(),
        elsewhere: BTreeMap::new(),
        wanted: Vec::new(),
    }
}

fn judged(values: &[Value]) -> Judgement {
    judge(&evidence(values))
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
            () if has(Verdict::Old) => Verdict::Old,
            () if has(Verdict::Unknown) => Verdict::Unknown,
            () => Verdict::Current,
        };
        let judgement = judged(&values);
        prop_assert_eq!(judgement.verdict, expected);
        // Nothing is left out of what is shown.
        let kinds: u64 = judgement.kinds.iter().flat_map(|kind| kind.stored.values()).sum();
        let opaque: u64 = judgement.opaque.iter().map(|values| values.row.count).sum();
        prop_assert_eq!(kinds + opaque, values.len() as u64);
    }

    #[test]
    fn one_unknown_is_enough_to_say_nothing(
        mut values in proptest::collection::vec(known(), 0..8),
        unknown in unknown(),
        place in any::<proptest::sample::Index>(),
    ) {
        values.insert(place.index(values.len() + 1), unknown);
        prop_assert_eq!(judged(&values).verdict, Verdict::Unknown);
    }

    #[test]
    fn nothing_is_said_of_a_store_that_is_not_known_to_be_that_of_the_cluster(
        values in proptest::collection::vec(prop_oneof![known(), old(), unknown()], 0..8),
        is_other in any::<bool>(),
    ) {
        let because = "why".to_string();
        let identity =
            if is_other { Identity::Different { because } } else { Identity::NotCompared { because } };
        let judgement = judge(&Evidence { identity, ..evidence(&values) });
        prop_assert_eq!(judgement.verdict, Verdict::Unknown);
        prop_assert!(!judgement.doubts.is_empty());
    }

    #[test]
    fn no_doubt_ends_in_a_proof(
        values in proptest::collection::vec(known(), 0..8),
        several_revisions in any::<bool>(),
        is_elsewhere in any::<bool>(),
    ) {
        let elsewhere = is_elsewhere.then(|| ("events".to_string(), "they lie elsewhere".to_string()));
        let judgement = judge(&Evidence {
            to_revision: 7 + u64::from(several_revisions),
            elsewhere: elsewhere.into_iter().collect(),
            ..evidence(&values)
        });
        let is_proven = !values.is_empty() && !several_revisions && !is_elsewhere;
        prop_assert_eq!(judgement.verdict == Verdict::Current, is_proven);
        prop_assert_eq!(judgement.doubts.is_empty(), is_proven);
    }
}

#[test]
fn nothing_stored_proves_nothing() {
    let judgement = judged(&[]);
    assert_eq!(judgement.verdict, Verdict::Unknown);
    assert_eq!(judgement.doubts, [Doubt::NothingStored]);
}

#[test]
fn encrypted_values_are_what_the_api_servers_say_of_all_of_them() {
    let secret = |key| (key, b"k8s:enc:aescbc:v1:key:\x01".to_vec(), Verdict::Unknown);
    let values = [secret("/secrets/a/b"), secret("/secrets/a/c"), secret("/masterleases/10.0.0.1")];
    let with = |answer: Option<ApiAnswer>| {
        let answers = answer.map(|answer| ("secrets".to_string(), answer)).into_iter().collect();
        judge(&Evidence { answers, ..evidence(&values) })
    };
    assert_eq!(with(None).verdict, Verdict::Unknown);
    assert_eq!(with(Some(ApiAnswer::AllCurrent { objects: 2 })).verdict, Verdict::Current);
    assert_eq!(with(Some(ApiAnswer::AllCurrent { objects: 1 })).verdict, Verdict::Unknown, "one was not shown");
    assert_eq!(with(Some(ApiAnswer::SomeOld { words: "two".into() })).verdict, Verdict::Old);
    assert_eq!(with(Some(ApiAnswer::Unknown { words: "no".into() })).verdict, Verdict::Unknown);
    let encrypted = with(None).opaque.into_iter().find(|values| values.row.folder == "/secrets").unwrap();
    assert_eq!(encrypted.because, Because::Encrypted { resource: Some("secrets".into()) });
    assert!(matches!(encrypted.row.encoding, Encoding::Encrypted { .. }));
}

#[test]
fn a_verdict_on_some_resources_leaves_out_only_what_cannot_be_theirs() {
    let check = |values: &[Value], wanted: &str, expected: Verdict| {
        let judgement = judge(&Evidence { wanted: vec![wanted.into()], ..evidence(values) });
        assert_eq!(judgement.verdict, expected, "{values:?} {wanted}");
    };
    let secret = ("/secrets/a/b", b"k8s:enc:aescbc:v1:key:\x01".to_vec(), Verdict::Unknown);
    let widget = ("/example.com/widgets/b", object("example.com/v2", "Widget"), Verdict::Current);
    check(&[widget.clone(), secret.clone()], "widgets.example.com", Verdict::Current);
    check(&[widget.clone(), secret], "secrets", Verdict::Unknown);
    // Bytes that cannot be read, and objects of a strange kind, in the folder of what was asked for.
    let foreign = ("/example.com/widgets/c", b"?".to_vec(), Verdict::Unknown);
    check(&[widget.clone(), foreign.clone()], "widgets.example.com", Verdict::Unknown);
    check(&[widget.clone(), foreign], "secrets", Verdict::Current);
    let strange = ("/example.com/widgets/c", object("example.com/v2", "Strange"), Verdict::Unknown);
    check(&[widget.clone(), strange], "widgets.example.com", Verdict::Unknown);
    let moved = ("/deployments/a/c", object("extensions/v1beta1", "Deployment"), Verdict::Old);
    check(&[widget.clone(), moved.clone()], "deployments.apps", Verdict::Old);
    check(&[widget, moved], "widgets.example.com", Verdict::Current);
}
