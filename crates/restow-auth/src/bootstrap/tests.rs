//! Tests of the default policy: it is complete, and reconciling removes nothing.

use super::*;
use crate::rbac::{RbacKind, Rules};
use crate::{Attributes, Authorizer, ResourceAttributes, User};
use serde_json::json;
use std::collections::BTreeMap;

fn find<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    objects.iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == name).unwrap()
}

#[test]
fn the_default_policy_is_complete() {
    let objects = bootstrap_objects();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for object in &objects {
        *counts.entry(object["kind"].as_str().unwrap()).or_default() += 1;
    }
    let expected = [("ClusterRole", 73), ("ClusterRoleBinding", 54), ("Role", 7), ("RoleBinding", 7)];
    assert_eq!(counts, BTreeMap::from(expected));
    assert_eq!(Rules::from_objects(&objects).1, []);
}

#[test]
fn default_objects_are_those_of_kubernetes() {
    let objects = bootstrap_objects();
    let group = "rbac.authorization.k8s.io";
    assert_eq!(
        find(&objects, "ClusterRole", "edit"),
        &json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "rules": null,
            "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"rbac.authorization.k8s.io/aggregate-to-edit": "true"}}]},
            "metadata": {"name": "edit", "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"},
                "labels": {"kubernetes.io/bootstrapping": "rbac-defaults", "rbac.authorization.k8s.io/aggregate-to-admin": "true"}},
        })
    );
    assert_eq!(
        find(&objects, "ClusterRoleBinding", "system:controller:ttl-controller")["subjects"],
        json!([{"kind": "ServiceAccount", "name": "ttl-controller", "namespace": "kube-system"}])
    );
    assert_eq!(
        find(&objects, "ClusterRole", "system:controller:ttl-controller")["rules"],
        json!([
            {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "patch", "update", "watch"]},
            {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"]},
        ])
    );
    let reader = find(&objects, "RoleBinding", "system::extension-apiserver-authentication-reader");
    assert_eq!(reader["metadata"]["namespace"], "kube-system");
    assert_eq!(
        reader["roleRef"],
        json!({"apiGroup": group, "kind": "Role", "name": "extension-apiserver-authentication-reader"})
    );
    assert_eq!(find(&objects, "ClusterRoleBinding", "system:node").get("subjects"), None);
}

#[test]
fn the_default_policy_allows_what_it_should() {
    let mut rules = Rules::from_objects(&bootstrap_objects()).0;
    for (name, wanted) in rules.stale_aggregates() {
        let role = json!({"rules": wanted});
        rules.set(RbacKind::ClusterRole, "", &name, Some(&role)).unwrap();
    }
    let grant = |role: &str| json!({"roleRef": {"kind": "ClusterRole", "name": role}, "subjects": [{"kind": "User", "name": role}]});
    for role in ["admin", "edit", "view"] {
        rules.set(RbacKind::RoleBinding, "web", role, Some(&grant(role))).unwrap();
    }
    let check = |user: &str, group: &str, verb: &str, thing: (&str, &str), expected: bool| {
        let user = User::named(user).with_group(group);
        let attributes = match thing.1.starts_with('/') {
            true => Attributes::path(verb, thing.1),
            false => {
                let (resource, namespace) = (thing.1.into(), "web".into());
                let resource = ResourceAttributes {
                    verb: verb.into(),
                    group: thing.0.into(),
                    resource,
                    namespace,
                    ..Default::default()
                };
                resource.into()
            }
        };
        let decision = rules.authorize(&user, &attributes);
        assert_eq!(decision.is_allowed(), expected, "{user} {verb} {thing:?}: {decision:?}");
    };
    check("x", "system:unauthenticated", "get", ("", "/version"), true);
    check("x", "system:unauthenticated", "get", ("", "/api"), false);
    check("x", "system:authenticated", "get", ("", "/apis/apps/v1"), true);
    check("x", "system:authenticated", "get", ("", "/metrics"), false);
    check("x", "system:monitoring", "get", ("", "/metrics"), true);
    check("x", "system:authenticated", "create", ("authorization.k8s.io", "selfsubjectaccessreviews"), true);
    check("x", "system:masters", "delete", ("", "nodes"), true);
    check("view", "", "list", ("", "pods"), true);
    check("view", "", "list", ("", "secrets"), false);
    check("edit", "", "list", ("", "secrets"), true);
    check("edit", "", "list", ("", "pods"), true);
    check("edit", "", "create", ("rbac.authorization.k8s.io", "roles"), false);
    check("admin", "", "create", ("rbac.authorization.k8s.io", "roles"), true);
    check("admin", "", "delete", ("apps", "deployments"), true);
    check("system:kube-scheduler", "", "create", ("", "bindings"), true);
    check("system:serviceaccount:kube-system:generic-garbage-collector", "", "delete", ("example.com", "things"), true);
}

#[test]
fn reconcile_adds_missing_rules_and_keeps_additions() {
    let objects = bootstrap_objects();
    for wanted in &objects {
        assert_eq!(reconcile(None, wanted), Some(Reconciliation::Create(wanted.clone())));
        assert_eq!(reconcile(Some(wanted), wanted), None);
    }
    let wanted = find(&objects, "ClusterRole", "system:basic-user");
    let rule = |verb: &str, resource: &str| json!({"verbs": [verb], "apiGroups": ["authorization.k8s.io"], "resources": [resource]});
    let own = json!({"metadata": {"name": "system:basic-user", "uid": "1", "labels": {"mine": "yes"},
        "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "maybe"}},
        "rules": [rule("create", "selfsubjectaccessreviews"), rule("get", "more")]});
    let Some(Reconciliation::Update(updated)) = reconcile(Some(&own), wanted) else { panic!("no update") };
    assert_eq!(
        updated["rules"],
        json!([
            rule("create", "selfsubjectaccessreviews"),
            rule("get", "more"),
            rule("create", "selfsubjectrulesreviews"),
            {"verbs": ["create"], "apiGroups": ["authentication.k8s.io"], "resources": ["selfsubjectreviews"]},
        ])
    );
    assert_eq!(updated["metadata"]["uid"], "1");
    assert_eq!(updated["metadata"]["labels"], json!({"mine": "yes", BOOTSTRAPPING_LABEL: "rbac-defaults"}));
    assert_eq!(updated["metadata"]["annotations"][AUTOUPDATE_ANNOTATION], "maybe");
    assert_eq!(reconcile(Some(&updated), wanted), None);

    let mut protected = own.clone();
    protected["metadata"]["annotations"][AUTOUPDATE_ANNOTATION] = json!("false");
    assert_eq!(reconcile(Some(&protected), wanted), None);
    let covering =
        json!({"metadata": wanted["metadata"], "rules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]});
    assert_eq!(reconcile(Some(&covering), wanted), None);
}

#[test]
fn reconcile_adds_missing_subjects_and_selectors() {
    let objects = bootstrap_objects();
    let wanted = find(&objects, "ClusterRoleBinding", "system:public-info-viewer");
    let mut own = wanted.clone();
    let extra = json!({"kind": "User", "name": "ann", "apiGroup": "rbac.authorization.k8s.io"});
    own["subjects"] = json!([extra, wanted["subjects"][1]]);
    let Some(Reconciliation::Update(updated)) = reconcile(Some(&own), wanted) else { panic!("no update") };
    assert_eq!(updated["subjects"], json!([extra, wanted["subjects"][1], wanted["subjects"][0]]));
    own["roleRef"]["name"] = json!("other");
    assert_eq!(reconcile(Some(&own), wanted), Some(Reconciliation::Recreate(wanted.clone())));

    let admin = find(&objects, "ClusterRole", "admin");
    let mut own = admin.clone();
    own["rules"] = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]);
    assert_eq!(reconcile(Some(&own), admin), None, "reconcile ignores the rules of an aggregate");
    let selector = json!({"matchLabels": {"mine": "true"}});
    own["aggregationRule"] = json!({"clusterRoleSelectors": [selector]});
    let updated = reconcile(Some(&own), admin).unwrap();
    let selectors = &updated.object()["aggregationRule"]["clusterRoleSelectors"];
    assert_eq!(selectors, &json!([selector, admin["aggregationRule"]["clusterRoleSelectors"][0]]));
    let plain = find(&objects, "ClusterRole", "system:kube-dns");
    let mut own = plain.clone();
    own["aggregationRule"] = json!({"clusterRoleSelectors": [selector]});
    assert_eq!(reconcile(Some(&own), plain), Some(Reconciliation::Update(plain.clone())));
}
