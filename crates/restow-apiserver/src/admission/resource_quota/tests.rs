//! What a quota limits, what an object takes of it, and what its status says. Tests with a server are those of admission.

use super::*;

fn resource(name: &str) -> GroupResource {
    name.parse().unwrap()
}

fn object(value: Value) -> Object {
    Object::from_value(value).unwrap()
}

fn written_usage(usage: &Usage) -> Vec<(&str, String)> {
    usage.iter().map(|(name, amount)| (name.as_str(), written(name, *amount))).collect()
}

#[test]
fn a_quota_limits_the_resources_that_it_names_and_with_scopes_only_pods() {
    let check = |spec: Value, name: &str, expected: &[&str]| {
        let found = limits(&object(json!({"spec": spec})), &resource(name));
        assert_eq!(found.keys().map(String::as_str).collect::<Vec<_>>(), expected, "{spec} {name}");
    };
    let hard = json!({"pods": "3", "requests.cpu": "2", "configmaps": "4", "count/pods.metrics.k8s.io": "5"});
    let all = json!({"hard": hard});
    check(all.clone(), "pods", &["pods", "requests.cpu"]);
    check(all.clone(), "configmaps", &["configmaps"]);
    check(all.clone(), "secrets", &[]);
    check(all, "pods.metrics.k8s.io", &["count/pods.metrics.k8s.io"]);
    let scoped = json!({"hard": hard, "scopes": ["BestEffort"]});
    check(scoped.clone(), "pods", &["pods", "requests.cpu"]);
    check(scoped.clone(), "configmaps", &[]);
    check(scoped, "pods.metrics.k8s.io", &[]);
    check(json!({}), "pods", &[]);
    check(json!({"hard": {"pods": "not a number"}}), "pods", &[]);
}

#[test]
fn an_update_takes_what_the_object_uses_more_than_before() {
    let claim = |size: &str| object(json!({"spec": {"resources": {"requests": {"storage": size}}}}));
    let (quota, claims) = (object(json!({"spec": {}})), resource("persistentvolumeclaims"));
    let found = |new: &str, old: Option<&str>| {
        let old = old.map(claim);
        let taken = taken(&quota, &claims, &claim(new), old.as_ref());
        (written("x", amount(&taken, "persistentvolumeclaims")), written("storage", amount(&taken, "requests.storage")))
    };
    let expected = |count: &str, size: &str| (count.to_owned(), size.to_owned());
    assert_eq!(found("3Gi", None), expected("1", "3Gi"));
    assert_eq!(found("3Gi", Some("1Gi")), expected("0", "2Gi"));
    assert_eq!(found("1Gi", Some("3Gi")), expected("0", "0"), "less than before gives nothing back here");
    // A pod that comes into the scope of a quota counts as a whole.
    let short = object(json!({"spec": {"scopes": ["Terminating"]}}));
    let pod = |deadline: Value| object(json!({"spec": {"activeDeadlineSeconds": deadline, "containers": []}}));
    let pods = |old: Value| amount(&taken(&short, &resource("pods"), &pod(json!(5)), Some(&pod(old))), "pods");
    assert_eq!((pods(Value::Null), pods(json!(9))), (Amount::whole(1), Amount::default()));
}

#[test]
fn the_recorded_usage_is_believed_if_it_is_complete_and_counting_costs_more() {
    let pods = resource("pods");
    let check = |spec: Value, status: Value, resource: &GroupResource, expected: Option<&[(&str, &str)]>| {
        let quota = object(json!({"spec": spec, "status": status}));
        let found = recorded_usage(&quota, resource, &limits(&quota, resource));
        let expected: Option<Vec<(&str, String)>> =
            expected.map(|all| all.iter().map(|(name, amount)| (*name, (*amount).to_owned())).collect());
        assert_eq!(found.as_ref().map(written_usage), expected, "{quota:?}");
    };
    let hard = json!({"requests.cpu": "2"});
    let of = |used: Value| json!({"hard": hard, "used": used});
    let spec = json!({"hard": hard});
    check(spec.clone(), of(json!({"requests.cpu": "500m"})), &pods, Some(&[("requests.cpu", "500m")]));
    check(spec.clone(), of(json!({})), &pods, None);
    check(spec.clone(), Value::Null, &pods, None);
    check(spec, json!({"hard": {"requests.cpu": "1"}, "used": {"requests.cpu": "500m"}}), &pods, None);
    // The number of all objects is known to the store.
    let counted = json!({"hard": {"count/pods": "9"}, "used": {"count/pods": "4"}});
    check(json!({"hard": {"count/pods": "9"}}), counted.clone(), &pods, None);
    let scoped = json!({"hard": {"count/pods": "9"}, "scopes": ["BestEffort"]});
    check(scoped, counted, &pods, Some(&[("count/pods", "4")]));
}

#[test]
fn the_status_has_the_limits_and_the_usage_of_what_is_limited() {
    let mut quota = object(json!({
        "spec": {"hard": {"pods": "3", "configmaps": "2"}},
        "status": {"hard": {"pods": "1"}, "used": {"configmaps": "1", "secrets": "8"}},
    }));
    set_used(&mut quota, Usage::from([("pods".to_owned(), Amount::whole(2))]));
    let expected = json!({"hard": {"pods": "3", "configmaps": "2"}, "used": {"pods": "2", "configmaps": "1"}});
    assert_eq!(
        quota.get("status"),
        Some(&expected),
        "configmaps are counted elsewhere, secrets are not limited any more"
    );
    let mut new = object(json!({"spec": {}}));
    set_used(&mut new, Usage::new());
    assert_eq!(new.get("status"), Some(&json!({"hard": {}, "used": {}})));
}

#[test]
fn quotas_are_known_by_namespace() {
    let quotas = Quotas::default();
    assert!(!quotas.has_quota("a"));
    quotas.change(|known| _ = known.insert(("a".to_owned(), "few".to_owned())));
    assert!(quotas.has_quota("a") && !quotas.has_quota("b") && !quotas.has_quota("few"));
    assert_eq!(quotas.known(), [("a".to_owned(), "few".to_owned())]);
}
