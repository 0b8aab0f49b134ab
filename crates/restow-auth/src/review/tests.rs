//! Tests of reviews; error messages are those of Kubernetes.

use super::*;
use crate::authenticate::{AnonymousAccess, Authenticators, TokenFile};
use crate::rbac::Rules;
use crate::service_account::{BoundKind, BoundObject, ServiceAccounts, SigningKey, TokenOptions, Tokens};
use crate::{PrivilegedGroup, User};
use jiff::Timestamp;
use serde_json::json;

fn authorizer() -> PrivilegedGroup<Rules> {
    let (rules, malformed) = Rules::from_objects(&[
        json!({"kind": "ClusterRole", "metadata": {"name": "reader"}, "rules": [
            {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]},
            {"verbs": ["get"], "nonResourceURLs": ["/healthz"]},
        ]}),
        json!({"kind": "ClusterRoleBinding", "metadata": {"name": "readers"}, "roleRef": {"kind": "ClusterRole", "name": "reader"},
            "subjects": [{"kind": "User", "name": "ann"}, {"kind": "Group", "name": "readers"}]}),
        json!({"kind": "RoleBinding", "metadata": {"name": "lost", "namespace": "web"}, "roleRef": {"kind": "Role", "name": "gone"},
            "subjects": [{"kind": "User", "name": "ann"}]}),
    ]);
    assert_eq!(malformed, []);
    PrivilegedGroup::new(rules)
}

fn pods(verb: &str) -> Value {
    json!({"verb": verb, "resource": "pods", "namespace": "web"})
}

fn messages(outcome: Result<Value, ReviewError>) -> Vec<String> {
    match outcome.unwrap_err() {
        ReviewError::Invalid(problems) => problems.iter().map(ToString::to_string).collect(),
        ReviewError::BadRequest(message) => vec![message],
    }
}

#[test]
fn subject_access_review_returns_the_decision() {
    let review =
        |spec: Value| subject_access_review(&authorizer(), &json!({"kind": "SubjectAccessReview", "spec": spec}));
    let status = |spec: Value| review(spec).unwrap()["status"].clone();
    assert_eq!(
        status(json!({"user": "ann", "resourceAttributes": pods("get")})),
        json!({"allowed": true, "reason": r#"RBAC: allowed by ClusterRoleBinding "readers" of ClusterRole "reader" to User "ann""#})
    );
    assert_eq!(
        status(json!({"user": "ann", "resourceAttributes": pods("delete")})),
        json!({"allowed": false, "reason": r#"RBAC: role.rbac.authorization.k8s.io "gone" not found"#})
    );
    assert_eq!(status(json!({"user": "bob", "resourceAttributes": pods("get")})), json!({"allowed": false}));
    assert_eq!(
        status(json!({"groups": ["readers"], "nonResourceAttributes": {"verb": "get", "path": "/healthz"}}))["allowed"],
        true
    );
    assert_eq!(
        status(json!({"user": "x", "groups": ["system:masters"], "resourceAttributes": pods("delete")})),
        json!({"allowed": true})
    );
    let review = review(json!({"user": "bob", "resourceAttributes": pods("get")})).unwrap();
    assert_eq!((&review["kind"], &review["spec"]["user"]), (&json!("SubjectAccessReview"), &json!("bob")));
}

#[test]
fn invalid_subject_access_reviews_are_refused() {
    let check = |request: Value, expected: &[&str]| {
        assert_eq!(messages(subject_access_review(&authorizer(), &request)), expected)
    };
    let one_of = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
    let no_subject = r#"spec.user: Invalid value: "": at least one of user or group must be specified"#;
    check(json!({}), &[&format!("spec: Invalid value: null: {one_of}"), no_subject]);
    let path = json!({"path": "/", "verb": "get"});
    check(
        json!({"spec": {"user": "a", "resourceAttributes": {}, "nonResourceAttributes": path}}),
        &[&format!("spec: Invalid value: {path}: {one_of}")],
    );
    check(
        json!({"metadata": {"name": "x", "labels": {}}, "spec": {"user": "a", "resourceAttributes": {}}}),
        &[r#"metadata: Invalid value: {"labels":{},"name":"x"}: must be empty"#],
    );
    check(
        json!({"spec": {"user": 1, "resourceAttributes": {}}}),
        &["spec.user: invalid type: integer `1`, expected a string"],
    );
    let selectors = json!({
        "fieldSelector": {"rawSelector": "a=b", "requirements": [{"key": "", "operator": "In"}]},
        "labelSelector": {"requirements": []},
    });
    check(
        json!({"spec": {"user": "a", "resourceAttributes": selectors}}),
        &[
            r#"spec.resourceAttributes.fieldSelector.rawSelector: Invalid value: "a=b": may not specified at the same time as requirements"#,
            "spec.resourceAttributes.fieldSelector.requirements[0].key: Required value: must be specified",
            "spec.resourceAttributes.fieldSelector.requirements[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'",
            "spec.resourceAttributes.labelSelector.requirements: Required value: when spec.resourceAttributes.labelSelector is specified, requirements or rawSelector is required",
        ],
    );
    let newer = json!({"labelSelector": {"requirements": [{"key": "a", "operator": "Newer"}]}});
    assert!(subject_access_review(&authorizer(), &json!({"spec": {"user": "a", "resourceAttributes": newer}})).is_ok());
}

#[test]
fn self_and_local_subject_access_reviews_return_the_decision() {
    let own = json!({"metadata": {"creationTimestamp": null}, "spec": {"resourceAttributes": pods("get")}});
    let review = self_subject_access_review(&authorizer(), &User::named("ann"), &own).unwrap();
    assert_eq!(review["status"]["allowed"], true);
    assert_eq!(messages(self_subject_access_review(&authorizer(), &User::named("ann"), &json!({}))).len(), 1);

    let local = |metadata: Value, spec: Value| {
        local_subject_access_review(&authorizer(), "web", &json!({"metadata": metadata, "spec": spec}))
    };
    let spec = json!({"user": "ann", "resourceAttributes": pods("get")});
    assert_eq!(local(json!({"namespace": "web"}), spec.clone()).unwrap()["status"]["allowed"], true);
    assert_eq!(local(json!({}), spec.clone()).unwrap()["status"]["allowed"], true);
    assert_eq!(
        messages(local(json!({"namespace": "other", "name": "x"}), spec)),
        [
            r#"metadata: Invalid value: {"name":"x","namespace":"other"}: must be empty except for namespace"#,
            r#"spec.resourceAttributes.namespace: Invalid value: "web": must match metadata.namespace"#,
        ]
    );
    assert_eq!(
        messages(local(json!({}), json!({"user": "ann", "nonResourceAttributes": {"path": "/"}}))),
        [r#"spec.nonResourceAttributes: Invalid value: {"path":"/"}: disallowed on this kind of request"#]
    );
    let elsewhere = json!({"user": "ann", "resourceAttributes": {"namespace": "other"}});
    assert_eq!(
        messages(local(json!({"namespace": "other"}), elsewhere)),
        ["spec.resourceAttributes.namespace must match namespace: web"]
    );
}

#[test]
fn self_subject_rules_review_lists_the_rules() {
    let request = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": "web"}});
    let review = self_subject_rules_review(&authorizer(), &User::named("ann"), &request).unwrap();
    assert_eq!(
        review,
        json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "metadata": {}, "spec": {},
        "status": {
            "resourceRules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}],
            "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/healthz"]}],
            "incomplete": false,
            "evaluationError": r#"role.rbac.authorization.k8s.io "gone" not found"#,
        }})
    );
    let nowhere = self_subject_rules_review(&authorizer(), &User::named("ann"), &json!({"spec": {}}));
    assert_eq!(messages(nowhere), ["no namespace on request"]);
}

#[test]
fn self_subject_review_returns_the_user() {
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let user = User::named("ann").authenticated();
    assert_eq!(
        self_subject_review(&user, &request, Timestamp::UNIX_EPOCH),
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview",
            "metadata": {"creationTimestamp": "1970-01-01T00:00:00Z"},
            "status": {"userInfo": {"username": "ann", "groups": ["system:authenticated"]}}})
    );
}

struct One;

impl ServiceAccounts for One {
    fn uid_of(&self, namespace: &str, name: &str) -> Option<String> {
        (namespace == "web" && name == "ci").then(|| "1".into())
    }

    fn bound_object(&self, _: BoundKind, _: &str, _: &str) -> Option<BoundObject> {
        None
    }
}

#[test]
fn token_review_authenticates_tokens() {
    let tokens = Tokens::new(TokenOptions::new("https://issuer"), SigningKey::generate().unwrap().0, Vec::new());
    let account = crate::service_account::Account { namespace: "web", name: "ci", uid: "1" };
    let now = Timestamp::UNIX_EPOCH;
    let issue = |spec: Value| {
        let issued = tokens.issue(&json!({"spec": spec}), &account, &One, now).unwrap();
        issued.response["status"]["token"].as_str().unwrap().to_string()
    };
    let (ours, for_vault) = (issue(json!({})), issue(json!({"audiences": ["vault"]})));
    let authenticators = Authenticators {
        token_file: Some(TokenFile::parse("t1,ann,7").unwrap()),
        tokens: Some(tokens),
        api_audiences: vec!["https://issuer".into()],
        anonymous: AnonymousAccess::Never,
    };
    let review = |spec: Value| token_review(&authenticators, &One, &json!({"spec": spec}), now);
    let status = |spec: Value| review(spec).unwrap()["status"].clone();
    assert_eq!(
        status(json!({"token": "t1"})),
        json!({"authenticated": true, "audiences": ["https://issuer"],
            "user": {"username": "ann", "uid": "7", "groups": ["system:authenticated"]}})
    );
    assert_eq!(status(json!({"token": ours}))["user"]["username"], "system:serviceaccount:web:ci");
    assert_eq!(status(json!({"token": for_vault, "audiences": ["vault", "x"]}))["audiences"], json!(["vault"]));
    assert_eq!(
        status(json!({"token": for_vault})),
        json!({"user": {}, "error": r#"[invalid bearer token, token audiences ["vault"] is invalid for the target audiences ["https://issuer"]]"#})
    );
    assert_eq!(status(json!({"token": "x"})), json!({"user": {}, "error": "invalid bearer token"}));
    assert_eq!(messages(review(json!({}))), ["token is required for TokenReview in authentication"]);
}
