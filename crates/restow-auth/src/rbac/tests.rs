//! Tests of RBAC, case by case; `against_reference.rs` compares it with a slow and simple implementation.

mod against_reference;

use super::*;
use crate::user::MASTERS;
use crate::{Attributes, Authorizer, Decision, PrivilegedGroup, ResourceAttributes, User};
use serde_json::{Value, json};

pub(super) fn cluster_role(name: &str, rules: Value) -> Value {
    json!({"kind": "ClusterRole", "metadata": {"name": name}, "rules": rules})
}

fn role(namespace: &str, name: &str, rules: Value) -> Value {
    json!({"kind": "Role", "metadata": {"namespace": namespace, "name": name}, "rules": rules})
}

fn cluster_binding(name: &str, role: &str, subjects: Value) -> Value {
    let role_ref = json!({"apiGroup": GROUP, "kind": "ClusterRole", "name": role});
    json!({"kind": "ClusterRoleBinding", "metadata": {"name": name}, "roleRef": role_ref, "subjects": subjects})
}

fn binding(namespace: &str, name: &str, role: (&str, &str), subjects: Value) -> Value {
    let role_ref = json!({"apiGroup": GROUP, "kind": role.0, "name": role.1});
    let metadata = json!({"namespace": namespace, "name": name});
    json!({"kind": "RoleBinding", "metadata": metadata, "roleRef": role_ref, "subjects": subjects})
}

fn subject(kind: &str, name: &str) -> Value {
    json!({"kind": kind, "name": name, "apiGroup": GROUP})
}

/// Parses attributes such as "list apps/deployments/scale in web named x"; `in …` and `named …` are optional, and the core
/// group is "-".
fn attributes(text: &str) -> Attributes {
    let words: Vec<&str> = text.split(' ').collect();
    if words[1].starts_with('/') {
        return Attributes::path(words[0], words[1]);
    }
    let after = |word: &str| words.iter().position(|other| *other == word).map_or("", |place| words[place + 1]);
    let mut thing = words[1].splitn(3, '/');
    let mut next = || thing.next().unwrap_or_default().to_string();
    let (group, resource, subresource) = (next(), next(), next());
    ResourceAttributes {
        verb: words[0].into(),
        group: if group == "-" { String::new() } else { group },
        version: "v1".into(),
        resource,
        subresource,
        namespace: after("in").into(),
        name: after("named").into(),
    }
    .into()
}

fn policy(objects: &[Value]) -> Rules {
    let (rules, malformed) = Rules::from_objects(objects);
    assert_eq!(malformed, []);
    rules
}

fn example() -> Rules {
    policy(&[
        cluster_role(
            "all",
            json!([
                {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
                {"verbs": ["*"], "nonResourceURLs": ["*"]},
            ]),
        ),
        cluster_role(
            "reader",
            json!([
                {"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods", "pods/log"]},
                {"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["one", "two"]},
                {"verbs": ["get"], "nonResourceURLs": ["/healthz", "/healthz/*"]},
            ]),
        ),
        cluster_role("scaler", json!([{"verbs": ["update"], "apiGroups": ["*"], "resources": ["*/scale"]}])),
        cluster_role("odd", json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods/*"]}])),
        role("web", "deployer", json!([{"verbs": ["*"], "apiGroups": ["apps"], "resources": ["deployments"]}])),
        cluster_binding("admins", "all", json!([subject("Group", "admins")])),
        cluster_binding("readers", "reader", json!([subject("User", "ann"), subject("Group", "readers")])),
        cluster_binding("scalers", "scaler", json!([{"kind": "ServiceAccount", "namespace": "ops", "name": "hpa"}])),
        cluster_binding("odd", "odd", json!([subject("User", "odd")])),
        cluster_binding("nowhere", "missing", json!([subject("User", "lost")])),
        cluster_binding("homeless", "all", json!([{"kind": "ServiceAccount", "name": "hpa"}])),
        binding(
            "web",
            "deployers",
            ("Role", "deployer"),
            json!([subject("User", "bob"), {"kind": "ServiceAccount", "name": "ci"}]),
        ),
        binding("web", "local-readers", ("ClusterRole", "reader"), json!([subject("User", "bob")])),
        binding("web", "lost", ("Role", "gone"), json!([subject("User", "lost")])),
    ])
}

#[test]
fn requests_are_allowed_as_in_kubernetes() {
    let rules = example();
    let check = |user: &User, asked: &str, expected: &str| {
        let decision = rules.authorize(user, &attributes(asked));
        let expected = match expected {
            "" => Decision::NoOpinion { reason: String::new() },
            reason => Decision::Allow { reason: format!("RBAC: allowed by {reason}") },
        };
        assert_eq!(decision, expected, "{} {asked}", user.name);
    };
    let ann = User::named("ann");
    let by_name = r#"ClusterRoleBinding "readers" of ClusterRole "reader" to User "ann""#;
    check(&ann, "get -/pods in web named x", by_name);
    check(&ann, "list -/pods", by_name);
    check(&ann, "get -/pods/log in web named x", by_name);
    check(&ann, "get -/pods/status in web named x", "");
    check(&ann, "delete -/pods in web named x", "");
    check(&ann, "get apps/pods in web named x", "");
    check(&ann, "get -/configmaps in web named two", by_name);
    check(&ann, "get -/configmaps in web named three", "");
    check(&ann, "get -/configmaps in web", "");
    check(&ann, "get /healthz", by_name);
    check(&ann, "get /healthz/etcd", by_name);
    check(&ann, "get /healthzz", "");
    check(&ann, "post /healthz", "");

    let group = User::named("eve").with_group("others").with_group("readers");
    check(&group, "list -/pods", r#"ClusterRoleBinding "readers" of ClusterRole "reader" to Group "readers""#);
    // The reason names the first matching subject of the binding.
    check(&ann.clone().with_group("readers"), "list -/pods", by_name);
    let admin = User::named("x").with_group("admins");
    let as_admin = r#"ClusterRoleBinding "admins" of ClusterRole "all" to Group "admins""#;
    check(&admin, "impersonate -/users named ann", as_admin);
    check(&admin, "put /anything", as_admin);

    let account = User::service_account("ops", "hpa", "1");
    let as_account = r#"ClusterRoleBinding "scalers" of ClusterRole "scaler" to ServiceAccount "hpa/ops""#;
    check(&account, "update apps/deployments/scale in web named x", as_account);
    check(&account, "update apps/deployments in web named x", "");
    check(&User::service_account("web", "hpa", "1"), "update apps/deployments/scale in web named x", "");

    let bob = User::named("bob");
    let as_deployer = r#"RoleBinding "deployers/web" of Role "deployer" to User "bob""#;
    check(&bob, "create apps/deployments in web", as_deployer);
    check(&bob, "create apps/deployments in other", "");
    check(&bob, "create apps/deployments", "");
    check(&bob, "list -/pods in web", r#"RoleBinding "local-readers/web" of ClusterRole "reader" to User "bob""#);
    check(&bob, "get /healthz", "");
    let ci = User::service_account("web", "ci", "1");
    check(
        &ci,
        "get apps/deployments in web",
        r#"RoleBinding "deployers/web" of Role "deployer" to ServiceAccount "ci/web""#,
    );
    // `*` matches everything, and before a slash every resource; after a slash it matches nothing but itself.
    check(&User::named("odd"), "get -/pods/log in web named x", "");
    check(&User::named("nobody"), "get -/pods in web named x", "");
}

#[test]
fn missing_roles_are_the_reason_for_no_opinion() {
    let rules = example();
    let reason = |asked: &str| rules.authorize(&User::named("lost"), &attributes(asked)).reason().to_string();
    assert_eq!(reason("get -/pods"), r#"RBAC: clusterrole.rbac.authorization.k8s.io "missing" not found"#);
    assert_eq!(
        reason("get -/pods in web"),
        r#"RBAC: [clusterrole.rbac.authorization.k8s.io "missing" not found, role.rbac.authorization.k8s.io "gone" not found]"#
    );
}

#[test]
fn system_masters_bypass_rbac() {
    let authorizer = PrivilegedGroup::new(Rules::default());
    let asked = attributes("delete -/nodes");
    let master = User::named("x").with_group(MASTERS);
    assert_eq!(authorizer.authorize(&master, &asked), Decision::Allow { reason: String::new() });
    assert!(!authorizer.authorize(&User::named("x"), &asked).is_allowed());
}

#[test]
fn single_objects_are_replaced_and_removed() {
    let mut rules = example();
    let bob = User::named("bob");
    let asked = attributes("create apps/deployments in web");
    assert!(rules.authorize(&bob, &asked).is_allowed());

    let narrower =
        role("web", "deployer", json!([{"verbs": ["get"], "apiGroups": ["apps"], "resources": ["deployments"]}]));
    rules.set(RbacKind::Role, "web", "deployer", Some(&narrower)).unwrap();
    assert!(!rules.authorize(&bob, &asked).is_allowed());
    assert!(rules.authorize(&bob, &attributes("get apps/deployments in web")).is_allowed());

    let other = binding("web", "deployers", ("Role", "deployer"), json!([subject("User", "eve")]));
    rules.set(RbacKind::RoleBinding, "web", "deployers", Some(&other)).unwrap();
    assert!(!rules.authorize(&bob, &attributes("get apps/deployments in web")).is_allowed());
    assert!(rules.authorize(&User::named("eve"), &attributes("get apps/deployments in web")).is_allowed());

    rules.set(RbacKind::RoleBinding, "web", "deployers", None).unwrap();
    assert!(!rules.authorize(&User::named("eve"), &attributes("get apps/deployments in web")).is_allowed());
    rules.set(RbacKind::ClusterRoleBinding, "", "never-was", None).unwrap();
}

#[test]
fn malformed_objects_are_reported_and_allow_nothing() {
    let check = |object: Value, expected: &str| {
        let (_, malformed) = Rules::from_objects([&object]);
        assert_eq!(malformed.iter().map(ToString::to_string).collect::<Vec<_>>(), [expected]);
    };
    check(
        cluster_role("a", json!([{"verbs": "get"}])),
        r#"ClusterRole "a" is ignored: rules[0].verbs: invalid type: string "get", expected a sequence"#,
    );
    check(
        role("n", "a", json!([{"verbs": [1]}])),
        r#"Role "n/a" is ignored: rules[0].verbs[0]: invalid type: integer `1`, expected a string"#,
    );
    check(cluster_role("a", json!({})), r#"ClusterRole "a" is ignored: rules: invalid type: map, expected a sequence"#);
    check(
        cluster_role("a", json!([["get"]])),
        r#"ClusterRole "a" is ignored: rules[0]: invalid type: sequence, expected struct PolicyRule"#,
    );
    check(
        binding("n", "a", ("User", "b"), json!([])),
        r#"RoleBinding "n/a" is ignored: unsupported role reference kind: "User""#,
    );
    check(
        cluster_binding("a", "b", json!([{"kind": 1}])),
        r#"ClusterRoleBinding "a" is ignored: subjects[0].kind: invalid type: integer `1`, expected a string"#,
    );
    check(
        json!({"kind": "Pod", "metadata": {"name": "a"}}),
        r#"Pod "a" is ignored: its kind is not part of the policy"#,
    );

    let mut rules = example();
    let broken = cluster_role("reader", json!("everything"));
    assert!(rules.set(RbacKind::ClusterRole, "", "reader", Some(&broken)).is_err());
    assert!(!rules.authorize(&User::named("ann"), &attributes("list -/pods")).is_allowed());
}

#[test]
fn rules_of_a_user_are_listed_once() {
    let rules = example();
    let user = User::named("ann").with_group("readers");
    assert_eq!(rules.rules_for(&user, "web").rules.len(), 3);
    let bob = rules.rules_for(&User::named("bob"), "web");
    assert_eq!((bob.rules.len(), bob.errors.len()), (4, 0));
    assert_eq!(rules.rules_for(&User::named("bob"), "other").rules, []);
    let lost = rules.rules_for(&User::named("lost"), "web");
    assert_eq!((lost.rules.len(), lost.errors.len()), (0, 2));
}

#[test]
fn writing_a_role_needs_the_permissions_that_it_grants() {
    let rules = example();
    let bob = User::named("bob").with_group("dev").with_group("system:authenticated");
    let check = |object: Value, expected: Result<(), &str>| {
        let outcome = rules.check_write(&bob, &object, None, "").map_err(|error| error.to_string());
        assert_eq!(outcome, expected.map_err(String::from), "{object}");
    };
    let held = json!([{"verbs": ["get", "delete"], "apiGroups": ["apps"], "resources": ["deployments"]}]);
    check(role("web", "a", held.clone()), Ok(()));
    let prefix = "user \"bob\" (groups=[\"dev\" \"system:authenticated\"]) is attempting to grant RBAC permissions not currently held:\n";
    let apps = r#"{APIGroups:["apps"], Resources:["deployments"], Verbs:["get" "delete"]}"#;
    check(role("other", "a", held.clone()), Err(&format!("{prefix}{apps}")));
    check(cluster_role("a", held), Err(&format!("{prefix}{apps}")));
    let mixed = json!([
        {"verbs": ["list", "delete"], "apiGroups": [""], "resources": ["pods", "secrets"]},
        {"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["one", "three"]},
        {"verbs": ["get"], "nonResourceURLs": ["/healthz/a", "/metrics"]},
    ]);
    let missing = [
        r#"{APIGroups:[""], Resources:["configmaps"], ResourceNames:["three"], Verbs:["get"]}"#,
        r#"{APIGroups:[""], Resources:["pods"], Verbs:["delete"]}"#,
        r#"{APIGroups:[""], Resources:["secrets"], Verbs:["list" "delete"]}"#,
        r#"{NonResourceURLs:["/metrics"], Verbs:["get"]}"#,
    ];
    check(role("web", "a", mixed), Err(&format!("{prefix}{}", missing.join("\n"))));
    check(binding("web", "b", ("Role", "deployer"), json!([])), Ok(()));
    check(binding("web", "b", ("ClusterRole", "reader"), json!([])), Ok(()));
    let scale = r#"{APIGroups:["*"], Resources:["*/scale"], Verbs:["update"]}"#;
    check(binding("web", "b", ("ClusterRole", "scaler"), json!([])), Err(&format!("{prefix}{scale}")));
    check(binding("web", "b", ("Role", "none"), json!([])), Err(r#"role.rbac.authorization.k8s.io "none" not found"#));
    check(json!({"kind": "Pod"}), Ok(()));
}

#[test]
fn permissions_are_covered_only_by_equal_or_wider_ones() {
    let rule = |text: &str| {
        let lists: Vec<Vec<String>> = text.split(' ').map(|list| list.split(',').map(String::from).collect()).collect();
        match lists.as_slice() {
            [verbs, paths] => {
                PolicyRule { verbs: verbs.clone(), non_resource_urls: paths.clone(), ..PolicyRule::default() }
            }
            [verbs, groups, resources, names @ ..] => PolicyRule {
                verbs: verbs.clone(),
                api_groups: groups.clone(),
                resources: resources.clone(),
                resource_names: names.concat(),
                non_resource_urls: Vec::new(),
            },
            _ => panic!("{text}"),
        }
    };
    let check = |held: &[&str], wanted: &str, missing: usize| {
        let held: Vec<PolicyRule> = held.iter().map(|text| rule(text)).collect();
        assert_eq!(uncovered(&held, &[rule(wanted)]).len(), missing, "{held:?} {wanted}");
    };
    check(&["get apps deployments"], "get apps deployments", 0);
    check(&["get apps deployments"], "get apps deployments x", 0);
    check(&["get apps deployments x"], "get apps deployments", 1);
    check(&["get apps deployments x"], "get apps deployments x,y", 1);
    check(&["get apps deployments x", "get apps deployments y"], "get apps deployments x,y", 0);
    check(&["* * *"], "get,list apps,batch a,b/c", 0);
    check(&["get,list apps a"], "* apps a", 1);
    check(&["get apps,batch a"], "get * a", 1);
    check(&["get apps a,b"], "get apps *", 1);
    check(&["get * */scale"], "get apps a/scale", 0);
    check(&["get * */scale"], "get apps a,a/status", 2);
    check(&["get apps a", "list apps a"], "get,list apps a,b", 2);
    check(&["get /a/*"], "get /a/b,/a/*,/a,/b", 2);
    check(&["get *"], "get /a", 0);
    check(&["get /a"], "get *", 1);
    check(&["* * *"], "get /a", 1);
}

#[test]
fn escalate_bind_and_system_masters_pass_the_escalation_check() {
    let mut rules = example();
    let verbs = cluster_role(
        "verbs",
        json!([
            {"verbs": ["escalate"], "apiGroups": [GROUP], "resources": ["roles"]},
            {"verbs": ["bind"], "apiGroups": [GROUP], "resources": ["clusterroles"], "resourceNames": ["scaler"]},
        ]),
    );
    rules.set(RbacKind::ClusterRole, "", "verbs", Some(&verbs)).unwrap();
    let to_eve = binding("web", "eve", ("ClusterRole", "verbs"), json!([subject("User", "eve")]));
    rules.set(RbacKind::RoleBinding, "web", "eve", Some(&to_eve)).unwrap();
    let may = |user: &User, object: Value| rules.check_write(user, &object, None, "").is_ok();
    let eve = User::named("eve");
    let power = json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]);
    assert!(may(&eve, role("web", "a", power.clone())));
    assert!(!may(&eve, role("other", "a", power.clone())));
    assert!(!may(&eve, cluster_role("a", power.clone())));
    assert!(may(&eve, binding("web", "b", ("ClusterRole", "scaler"), json!([]))));
    assert!(!may(&eve, binding("other", "b", ("ClusterRole", "scaler"), json!([]))));
    assert!(!may(&eve, binding("web", "b", ("ClusterRole", "all"), json!([]))));
    assert!(may(&eve.clone().with_group(MASTERS), cluster_role("a", power.clone())));
    assert!(may(&User::named("x").with_group("admins"), cluster_role("a", power)));
}

#[test]
fn aggregation_rules_need_cluster_admin_and_gc_updates_need_no_permission() {
    let rules = example();
    let aggregate = json!({"kind": "ClusterRole", "metadata": {"name": "a"}, "rules": [],
        "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}});
    let plain = cluster_role("a", json!([]));
    let bob = User::named("bob");
    let forbidden = Err(Escalation::Forbidden("must have cluster-admin privileges to use the aggregationRule".into()));
    assert_eq!(rules.check_write(&bob, &aggregate, None, ""), forbidden);
    assert_eq!(rules.check_write(&bob, &plain, Some(&aggregate), "a"), forbidden);
    assert_eq!(rules.check_write(&User::named("x").with_group("admins"), &aggregate, None, ""), Ok(()));
    let mut collected = aggregate.clone();
    collected["metadata"]["finalizers"] = json!(["orphan"]);
    assert_eq!(rules.check_write(&bob, &collected, Some(&aggregate), "a"), Ok(()));
}

#[test]
fn aggregates_of_aggregates_are_resolved() {
    let labelled = |name: &str, label: &str, rules: Value| {
        let mut role = cluster_role(name, rules);
        role["metadata"]["labels"] = json!({label: "true"});
        role
    };
    let gathers = |mut role: Value, label: &str| {
        role["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {label: "true"}}]});
        role
    };
    let rule = |resource: &str| json!({"verbs": ["get"], "apiGroups": [""], "resources": [resource]});
    let objects = [
        gathers(cluster_role("a-top", Value::Null), "to-top"),
        gathers(labelled("b-middle", "to-top", Value::Null), "to-middle"),
        labelled("leaf", "to-middle", json!([rule("pods"), rule("nodes")])),
        labelled("own", "to-top", json!([rule("secrets"), rule("pods")])),
    ];
    let mut rules = policy(&objects);
    let resources = |rules: &[PolicyRule]| rules.iter().flat_map(|rule| rule.resources.clone()).collect::<Vec<_>>();
    assert_eq!(resources(&rules.aggregated_rules("a-top").unwrap().unwrap()), ["secrets", "pods"]);
    assert!(rules.aggregated_rules("leaf").is_none());
    let stale = rules.stale_aggregates();
    assert_eq!(stale.keys().collect::<Vec<_>>(), ["a-top", "b-middle"]);
    assert_eq!(resources(&stale["a-top"]), ["pods", "nodes", "secrets"]);
    assert_eq!(resources(&stale["b-middle"]), ["pods", "nodes"]);
    for (mut object, name) in objects.into_iter().zip(["a-top", "b-middle"]) {
        object["rules"] = json!(stale[name]);
        rules.set(RbacKind::ClusterRole, "", name, Some(&object)).unwrap();
    }
    assert!(rules.stale_aggregates().is_empty());
    let broken = json!({"kind": "ClusterRole", "metadata": {"name": "x"},
        "aggregationRule": {"clusterRoleSelectors": [{"matchExpressions": [{"key": "a", "operator": "Like"}]}]}});
    rules.set(RbacKind::ClusterRole, "", "x", Some(&broken)).unwrap();
    assert!(rules.aggregated_rules("x").unwrap().is_err());
    assert!(rules.stale_aggregates().is_empty());
}
