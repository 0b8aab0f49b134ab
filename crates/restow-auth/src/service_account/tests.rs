//! Tests of service account tokens: issuing, verifying, each reason of refusal; tokens are never printed.

use super::jwt;
use super::*;
use crate::User;
use crate::user::CREDENTIAL_ID;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const ISSUER: &str = "https://kubernetes.default.svc";
const ACCOUNT: Account<'_> = Account { namespace: "web", name: "ci", uid: "account-uid" };

struct Cluster(BTreeMap<&'static str, BoundObject>);

impl ServiceAccounts for Cluster {
    fn uid_of(&self, namespace: &str, name: &str) -> Option<String> {
        self.0.get(format!("ServiceAccount/{namespace}/{name}").as_str()).map(|object| object.uid.clone())
    }

    fn bound_object(&self, kind: BoundKind, namespace: &str, name: &str) -> Option<BoundObject> {
        self.0.get(format!("{}/{namespace}/{name}", kind.as_str()).as_str()).cloned()
    }
}

fn cluster() -> Cluster {
    let object = |uid: &str| BoundObject { uid: uid.into(), ..BoundObject::default() };
    let pod = |account: &str, node: &str| BoundObject {
        uid: "pod-uid".into(),
        service_account_name: account.into(),
        node_name: node.into(),
    };
    Cluster(BTreeMap::from([
        ("ServiceAccount/web/ci", object("account-uid")),
        ("Pod/web/runner", pod("ci", "node-1")),
        ("Pod/web/waiting", pod("ci", "")),
        ("Pod/web/stranger", pod("other", "node-1")),
        ("Secret/web/key", object("secret-uid")),
        ("Node//node-1", object("node-uid")),
    ]))
}

fn now() -> Timestamp {
    "2026-11-15T21:34:05.9Z".parse().unwrap()
}

fn later(seconds: i64) -> Timestamp {
    now() + SignedDuration::from_secs(seconds)
}

fn tokens() -> Tokens {
    let options = TokenOptions { api_audiences: vec!["api".into(), ISSUER.into()], ..TokenOptions::new(ISSUER) };
    Tokens::new(options, SigningKey::generate().unwrap().0, Vec::new())
}

fn request(spec: Value) -> Value {
    json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
}

fn issue(tokens: &Tokens, spec: Value) -> String {
    let issued = tokens.issue(&request(spec), &ACCOUNT, &cluster(), now()).unwrap();
    issued.response["status"]["token"].as_str().unwrap().into()
}

fn claims(token: &str) -> Value {
    jwt::parse(token).unwrap().claims
}

fn verify(tokens: &Tokens, token: &str, at: Timestamp) -> Result<Option<User>, String> {
    let outcome = tokens.verify(token, None, &cluster(), at);
    outcome.map(|found| found.map(|found| found.user)).map_err(|error| error.to_string())
}

#[test]
fn a_token_request_response_has_the_token_and_defaults() {
    let tokens = tokens();
    let issued = tokens.issue(&request(json!({})), &ACCOUNT, &cluster(), now()).unwrap();
    let mut response = issued.response.clone();
    let token = response["status"]["token"].take();
    let token = token.as_str().unwrap();
    assert!(!format!("{issued:?} {tokens:?}").contains(token));
    assert_eq!(
        response["spec"],
        json!({"audiences": ["api", ISSUER], "expirationSeconds": 3600, "boundObjectRef": null})
    );
    assert_eq!(response["status"]["expirationTimestamp"], "2026-11-15T22:34:05Z");
    assert_eq!(response["metadata"]["name"], "ci");
    assert_eq!(response["metadata"]["namespace"], "web");
    assert_eq!(response["metadata"]["creationTimestamp"], "2026-11-15T21:34:05Z");

    let mut claims = claims(token);
    let id = claims["jti"].take();
    assert_eq!(issued.credential_id, format!("JTI={}", id.as_str().unwrap()));
    assert_eq!(id.as_str().unwrap().len(), 36);
    let time = now().as_second();
    assert_eq!(
        claims,
        json!({"aud": ["api", ISSUER], "exp": time + 3600, "iat": time, "iss": ISSUER, "jti": null, "nbf": time,
            "sub": "system:serviceaccount:web:ci",
            "kubernetes.io": {"namespace": "web", "serviceaccount": {"name": "ci", "uid": "account-uid"}}})
    );
    let user = verify(&tokens, token, now()).unwrap().unwrap();
    assert_eq!(user.name, "system:serviceaccount:web:ci");
    assert_eq!(user.uid, "account-uid");
    assert_eq!(user.groups, ["system:serviceaccounts", "system:serviceaccounts:web"]);
    assert_eq!(user.extra[CREDENTIAL_ID], [issued.credential_id]);
}

#[test]
fn tokens_are_invalid_when_their_bound_object_is_deleted() {
    let tokens = tokens();
    let bound = |kind: &str, name: &str| {
        issue(&tokens, json!({"boundObjectRef": {"kind": kind, "apiVersion": "v1", "name": name}}))
    };
    let pod = bound("Pod", "runner");
    let private = claims(&pod)["kubernetes.io"].clone();
    assert_eq!(private["pod"], json!({"name": "runner", "uid": "pod-uid"}));
    assert_eq!(private["node"], json!({"name": "node-1", "uid": "node-uid"}));
    let user = verify(&tokens, &pod, now()).unwrap().unwrap();
    let extra = |key: &str| user.extra[&format!("authentication.kubernetes.io/{key}")].clone();
    assert_eq!([extra("pod-name"), extra("pod-uid")], [["runner"], ["pod-uid"]]);
    assert_eq!([extra("node-name"), extra("node-uid")], [["node-1"], ["node-uid"]]);
    assert_eq!(claims(&bound("Pod", "waiting"))["kubernetes.io"].get("node"), None);
    assert_eq!(claims(&bound("Secret", "key"))["kubernetes.io"]["secret"], json!({"name": "key", "uid": "secret-uid"}));

    let check = |token: &str, gone: &'static str, expected: &str| {
        let mut without = cluster();
        without.0.remove(gone);
        let error = tokens.verify(token, None, &without, now()).unwrap_err();
        assert_eq!(error.to_string(), expected);
    };
    check(&pod, "Pod/web/runner", "service account token has been invalidated");
    check(&bound("Secret", "key"), "Secret/web/key", "service account token has been invalidated");
    check(&bound("Node", "node-1"), "Node//node-1", "service account token has been invalidated");
    check(&pod, "ServiceAccount/web/ci", r#"serviceaccounts "ci" not found"#);
    // A pod's token stays valid without the node.
    let mut without_node = cluster();
    without_node.0.remove("Node//node-1");
    assert!(tokens.verify(&pod, None, &without_node, now()).is_ok());

    let check = |changed: &'static str, expected: &str| {
        let mut other = cluster();
        other.0.get_mut(changed).unwrap().uid = "new".into();
        assert_eq!(tokens.verify(&pod, None, &other, now()).unwrap_err().to_string(), expected);
    };
    check("ServiceAccount/web/ci", "service account UID (new) does not match claim (account-uid)");
    check("Pod/web/runner", "pod UID (new) does not match service account pod ref claim (pod-uid)");
}

#[test]
fn invalid_token_requests_are_refused() {
    let tokens = tokens();
    let check = |request: Value, expected: &str| {
        let error = tokens.issue(&request, &ACCOUNT, &cluster(), now()).unwrap_err();
        assert_eq!(error.to_string(), expected);
    };
    let seconds = |seconds: i64| request(json!({"expirationSeconds": seconds}));
    let prefix = "spec.expirationSeconds: Invalid value";
    check(seconds(599), &format!("{prefix}: 599: may not specify a duration less than 10 minutes"));
    check(seconds(-1), &format!("{prefix}: -1: may not specify a duration less than 10 minutes"));
    check(
        seconds((1 << 32) + 1),
        &format!("{prefix}: 4294967297: may not specify a duration larger than 2^32 seconds"),
    );
    check(
        request(json!({"expirationSeconds": "1h"})),
        "spec.expirationSeconds: invalid type: string \"1h\", expected i64",
    );
    check(request(json!({"audiences": "api"})), "spec.audiences: invalid type: string \"api\", expected a sequence");
    let bound = |kind: &str, version: &str, name: &str, uid: &str| {
        request(json!({"boundObjectRef": {"kind": kind, "apiVersion": version, "name": name, "uid": uid}}))
    };
    check(bound("Pod", "v1", "none", ""), r#"pods "none" not found"#);
    check(
        bound("Pod", "v1", "stranger", ""),
        r#"cannot bind token for serviceaccount "ci" to pod running with different serviceaccount name."#,
    );
    check(bound("Deployment", "apps/v1", "x", ""), "cannot bind token to object of type apps/v1, Kind=Deployment");
    check(
        bound("Pod", "v1", "runner", "old"),
        "the UID in the bound object reference (old) does not match the UID in record. The object might have been deleted and then recreated",
    );
    let named = |field: &str, value: &str| json!({"metadata": {field: value}, "spec": {}});
    check(named("name", "x"), r#"metadata.name: Invalid value: "x": must match the service account name if specified"#);
    check(
        named("namespace", "x"),
        r#"metadata.namespace: Invalid value: "x": must match the service account namespace if specified"#,
    );
    check(
        named("uid", "x"),
        "the UID in the token request (x) does not match the UID of the service account (account-uid)",
    );
    assert!(tokens.issue(&seconds(600), &ACCOUNT, &cluster(), now()).is_ok());
    assert!(tokens.issue(&seconds(1 << 32), &ACCOUNT, &cluster(), now()).is_ok());
}

#[test]
fn long_lifetimes_are_shortened_and_kubelet_tokens_are_extended() {
    let mut tokens = tokens();
    tokens.options.max_expiration_seconds = Some(7200);
    let issued = tokens.issue(&request(json!({"expirationSeconds": 8000})), &ACCOUNT, &cluster(), now()).unwrap();
    assert_eq!(issued.warning.unwrap(), "requested expiration of 8000 seconds shortened to 7200 seconds");
    assert_eq!(issued.response["spec"]["expirationSeconds"], 7200);

    let pod = json!({"kind": "Pod", "apiVersion": "v1", "name": "runner"});
    let life = |tokens: &Tokens, spec: Value| {
        let claims = claims(&issue(tokens, spec));
        let warn_after =
            claims["kubernetes.io"].get("warnafter").map(|time| time.as_i64().unwrap() - now().as_second());
        (claims["exp"].as_i64().unwrap() - now().as_second(), warn_after)
    };
    let year = 365 * 24 * 3600;
    assert_eq!(life(&tokens, json!({"expirationSeconds": 3607, "boundObjectRef": pod})), (year, Some(3607)));
    assert_eq!(life(&tokens, json!({"expirationSeconds": 3608, "boundObjectRef": pod})), (3608, None));
    assert_eq!(life(&tokens, json!({"expirationSeconds": 3607})), (3607, None));
    assert_eq!(
        life(&tokens, json!({"expirationSeconds": 3607, "boundObjectRef": pod, "audiences": ["x"]})),
        (3607, None)
    );
    tokens.options.extend_expiration = false;
    assert_eq!(life(&tokens, json!({"expirationSeconds": 3607, "boundObjectRef": pod})), (3607, None));
}

#[test]
fn token_times_are_checked_with_leeway() {
    let tokens = tokens();
    let token = issue(&tokens, json!({"expirationSeconds": 600}));
    assert!(verify(&tokens, &token, later(660)).is_ok());
    assert_eq!(verify(&tokens, &token, later(661)), Err("service account token has expired".into()));
    assert!(verify(&tokens, &token, later(-60)).is_ok());
    assert_eq!(verify(&tokens, &token, later(-61)), Err("service account token is not valid yet".into()));
    let signed = |change: &dyn Fn(&mut Value)| {
        let mut claims = claims(&token);
        change(&mut claims);
        jwt::sign(&claims, &tokens.signing_key).unwrap()
    };
    let future = signed(&|claims| claims["iat"] = json!(later(61).as_second()));
    assert_eq!(verify(&tokens, &future, now()), Err("service account token is issued in the future".into()));
    let endless = signed(&|claims| _ = claims.as_object_mut().unwrap().remove("exp"));
    assert!(verify(&tokens, &endless, now()).is_err());
}

#[test]
fn token_and_verifier_must_share_an_audience() {
    let tokens = tokens();
    let check = |token: &[&str], wanted: Option<&[&str]>, expected: Result<&[&str], &str>| {
        let token = issue(&tokens, json!({"audiences": token}));
        let wanted: Option<Vec<String>> = wanted.map(|wanted| wanted.iter().map(ToString::to_string).collect());
        let outcome = tokens.verify(&token, wanted.as_deref(), &cluster(), now());
        let outcome = outcome.map(|found| found.unwrap().audiences).map_err(|error| error.to_string());
        let expected = expected.map(|list| list.iter().map(ToString::to_string).collect()).map_err(String::from);
        assert_eq!(outcome, expected);
    };
    check(&["api"], None, Ok(&["api"]));
    check(&["vault", "api"], Some(&["vault", "other"]), Ok(&["vault"]));
    let refusal = format!(r#"token audiences ["vault"] is invalid for the target audiences ["api" "{ISSUER}"]"#);
    check(&["vault"], None, Err(&refusal));
}

#[test]
fn forged_tokens_and_tokens_of_other_issuers_are_refused() {
    let (ours, theirs) = (tokens(), tokens());
    let token = issue(&ours, json!({}));
    let same_issuer = issue(&theirs, json!({}));
    assert_eq!(verify(&ours, &same_issuer, now()), Err("invalid signature, no keys found".into()));
    for text in ["", "abc", "a.b", "a.b.c", "{\"a\":1}", "..", &token[1..]] {
        assert_eq!(verify(&ours, text, now()), Ok(None), "{text}");
    }
    let parts: Vec<&str> = token.split('.').collect();
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let mut other = claims(&token);
    other["sub"] = json!("system:serviceaccount:kube-system:admin");
    let invalid = Err("invalid signature".to_string());
    assert_eq!(verify(&ours, &format!("{}.{}.{}", parts[0], part(&other), parts[2]), now()), invalid);
    for algorithm in ["none", "HS256", "RS256"] {
        let header = part(&json!({"alg": algorithm}));
        assert_eq!(verify(&ours, &format!("{header}.{}.{}", parts[1], parts[2]), now()), invalid);
        assert_eq!(verify(&ours, &format!("{header}.{}.", parts[1]), now()), invalid);
    }
    // A signature of our own key is valid only with the algorithm ES256 in the header.
    let message = format!("{}.{}", part(&json!({"alg": "RS256"})), parts[1]);
    let signature = URL_SAFE_NO_PAD.encode(ours.signing_key.sign(message.as_bytes()).unwrap());
    assert_eq!(verify(&ours, &format!("{message}.{signature}"), now()), invalid);
    // The forged token is refused a second time too, and the correct token is still accepted.
    assert!(verify(&ours, &token, now()).unwrap().is_some());
    assert!(verify(&ours, &token, now()).unwrap().is_some());
    let further = vec![theirs.signing_key.verifying_key().clone()];
    let both = Tokens::new(ours.options.clone(), SigningKey::generate().unwrap().0, further);
    assert!(verify(&both, &same_issuer, now()).unwrap().is_some());
    assert!(verify(&both, &token, now()).is_err());
}

#[test]
fn keys_are_read_from_pem_and_never_printed() {
    let (key, text) = SigningKey::generate().unwrap();
    let public = key.verifying_key();
    assert_eq!(SigningKey::from_pem(&text).unwrap().verifying_key(), public);
    assert_eq!(format!("{key:?}"), format!("SigningKey {{ id: {:?}, .. }}", public.id()));
    assert_eq!(&VerifyingKey::from_pem(&public.to_pem()).unwrap(), public);
    assert!(VerifyingKey::from_pem(&text).is_err());
    for text in ["", "-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n", &public.to_pem()] {
        assert!(matches!(SigningKey::from_pem(text), Err(KeyError::Format(_))), "{text}");
    }
}

#[test]
fn openid_discovery_publishes_the_keys() {
    let tokens = tokens();
    let configuration = tokens.openid_configuration("https://10.0.0.1:6443/openid/v1/jwks");
    assert_eq!(
        configuration,
        json!({"issuer": ISSUER, "jwks_uri": "https://10.0.0.1:6443/openid/v1/jwks", "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"], "id_token_signing_alg_values_supported": ["ES256"]})
    );
    let keys = tokens.json_web_keys();
    let key = &keys["keys"][0];
    let header: Value = {
        let token = issue(&tokens, json!({}));
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(token.split('.').next().unwrap()).unwrap()).unwrap()
    };
    assert_eq!(header, json!({"alg": "ES256", "kid": key["kid"]}));
    assert_eq!(
        (&key["kty"], &key["crv"], &key["alg"], &key["use"]),
        (&json!("EC"), &json!("P-256"), &json!("ES256"), &json!("sig"))
    );
    for coordinate in ["x", "y"] {
        assert_eq!(URL_SAFE_NO_PAD.decode(key[coordinate].as_str().unwrap()).unwrap().len(), 32);
    }
}
