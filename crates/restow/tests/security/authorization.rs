//! Authentication and authorization: headers, client certificates, paths, and verbs that need a second permission.

use crate::http_connection::{HttpConnection, grant};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use restow_testkit::{Cluster, Credentials, On, Server, eventually_blocking};
use rustls::HandshakeKind;
use serde_json::{Value, json};
use std::path::Path;
use time::{Duration, OffsetDateTime};

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
const SERVICES: &str = "/api/v1/namespaces/default/services";

#[tokio::test]
async fn impersonation_headers_with_invalid_bytes_are_refused_and_audited() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("audit.log");
    let flags = ["--controller=false", "--audit-log-path", log.to_str().unwrap()];
    let server = Server::up_with(folder.path(), &flags);
    let mut line = HttpConnection::open(&server.address, Credentials::of(&server.kubeconfig).tls());
    line.post(SECRETS, &json!({"metadata": {"name": "s"}})).expect(201);
    let path = format!("{SECRETS}/s");
    let user = ("Impersonate-User", b"anna".as_slice());
    let refused: [&[(&str, &[u8])]; 12] = [
        &[("Impersonate-User", b"j\xf6rg")],
        &[("Impersonate-User", b"\xff")],
        &[("Impersonate-User", b"")],
        &[("Impersonate-Group", b"system:masters")],
        &[("Impersonate-Uid", b"1")],
        &[("Impersonate-Extra-Scopes", b"view")],
        &[user, ("Impersonate-Group", b"system:masters\xe9")],
        &[user, ("Impersonate-Uid", b"\xe9")],
        &[user, ("Impersonate-Extra-Scopes", b"\xe9")],
        &[user, ("Impersonate-Extra-j%f6rg", b"x")],
        &[user, ("Impersonate-User", b"restow-admin")],
        &[user, ("Impersonate-Groups", b"system:masters")],
    ];
    for headers in refused {
        let answer = line.send("GET", &path, headers, &Value::Null);
        assert_eq!(answer.code, 400, "{headers:?}: {}", answer.body);
    }
    // The readable part of the name is another user, who may not read secrets.
    for headers in [&[("Impersonate-User", "jörg".as_bytes())][..], &[user, ("Impersonate-Group", "jörg".as_bytes())]]
    {
        line.send("GET", &path, headers, &Value::Null).expect(403);
    }
    let who = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let headers = [("Impersonate-User", "jörg".as_bytes()), ("Impersonate-Extra-Acme.com%2fJ%C3%B6rg", "ö".as_bytes())];
    let answer = line.send("POST", who, &headers, &json!({})).expect(201);
    assert_eq!(answer.body["status"]["userInfo"]["username"], "jörg");
    assert_eq!(answer.body["status"]["userInfo"]["extra"]["acme.com/jörg"], json!(["ö"]));
    eventually_blocking("the refusals are in the audit log", || {
        let text = std::fs::read_to_string(&log).unwrap();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let refused = lines.filter(|line| {
            line["responseStatus"]["code"] == 400
                && line["user"]["username"] == "restow-admin"
                && line["responseStatus"]["message"].as_str().is_some_and(|message| message.contains("mpersonat"))
        });
        refused.count() == 12
    });
}

#[tokio::test]
async fn an_authorization_header_with_invalid_bytes_is_refused() {
    let cluster = Cluster::one(On::Embedded).await;
    let server = &cluster.servers[0];
    let anonymous = Credentials::of(&server.kubeconfig).without_certificate();
    let (mut stranger, mut admin) =
        (HttpConnection::open(&server.address, anonymous.tls()), HttpConnection::admin(&cluster));
    let refused: [&[(&str, &[u8])]; 3] = [
        &[("Authorization", b"Bearer t\xf6ken")],
        &[("Authorization", "Bearer töken".as_bytes())],
        &[("Authorization", b"Basic x"), ("Authorization", b"Bearer x")],
    ];
    for headers in refused {
        // A request with an invalid identity does not even get what anonymous users may read.
        assert_eq!(stranger.send("GET", "/version", headers, &Value::Null).code, 401, "{headers:?}");
        assert_eq!(admin.send("GET", "/version", headers, &Value::Null).code, 401, "{headers:?}");
    }
    stranger.get("/version").expect(200);
    stranger.get(SECRETS).expect(401);
    let answer = admin.send("POST", SECRETS, &[("Content-Type", b"application/j\xffson")], &json!({}));
    answer.expect(415);
    admin.send("GET", SECRETS, &[("Accept", b"application/j\xffson")], &Value::Null).expect(406);
}

#[tokio::test]
async fn a_put_that_creates_needs_the_create_permission() {
    for on in [On::Embedded, On::Etcd] {
        let cluster = Cluster::one(on).await;
        let mut admin = HttpConnection::admin(&cluster);
        let mut eve = HttpConnection::admin(&cluster).acting_as("eve");
        let everything =
            ["leases", "services", "roles", "rolebindings", "endpoints", "events", "limitranges", "secrets"];
        let rule = json!([{"apiGroups": ["coordination.k8s.io", "", "rbac.authorization.k8s.io", "node.k8s.io"],
            "resources": everything, "verbs": ["get", "update", "patch"]}]);
        grant(&mut admin, "updates", "eve", rule);
        let policy = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
        let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "x"});
        let port = json!({"ports": [{"port": 80}]});
        let objects = [
            (LEASES.to_string(), json!({})),
            (SERVICES.to_string(), json!({"spec": port})),
            (format!("{policy}/roles"), json!({"rules": []})),
            (format!("{policy}/rolebindings"), json!({"roleRef": role})),
            ("/api/v1/namespaces/default/endpoints".to_string(), json!({})),
            ("/api/v1/namespaces/default/limitranges".to_string(), json!({"spec": {"limits": []}})),
        ];
        for (path, mut object) in objects {
            object["metadata"] = json!({"name": "x"});
            for query in ["", "?dryRun=All"] {
                let answer = eve.put(&format!("{path}/x{query}"), &object).expect(403);
                assert!(answer.message().contains("cannot create resource"), "{}", answer.message());
            }
            admin.get(&format!("{path}/x")).expect(404);
        }
        let applied = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}});
        let apply = [("Content-Type", b"application/apply-patch+yaml".as_slice())];
        eve.send("PATCH", &format!("{SECRETS}/x?fieldManager=eve"), &apply, &applied).expect(403);
        admin.get(&format!("{SECRETS}/x")).expect(404);
        // A user who may create gets all steps of a create.
        let service = json!({"metadata": {"name": "web"}, "spec": port});
        let made = admin.put(&format!("{SERVICES}/web"), &service).expect(201);
        assert!(made.body["spec"]["clusterIP"].as_str().is_some_and(|ip| ip.starts_with("10.")), "{}", made.body);
        assert_eq!(made.body["spec"]["type"], "ClusterIP");
        assert!(made.body["metadata"]["uid"].is_string());
        admin.put(&format!("{SERVICES}/web"), &service).expect(200);
        admin.put("/api/v1/namespaces/none/services/web", &service).expect(404);
        let stale = json!({"metadata": {"name": "old", "uid": "b3b9a6f0-0000-4000-8000-000000000000"}});
        admin.put(&format!("{LEASES}/old"), &stale).expect(409);
        for path in ["/api/v1/nodes/x", &format!("{SECRETS}/x"), "/api/v1/persistentvolumes/x"] {
            admin.put(path, &json!({"metadata": {"name": "x"}})).expect(404);
        }
    }
}

#[tokio::test]
async fn a_put_that_creates_a_role_is_checked_for_escalation() {
    let cluster = Cluster::one(On::Embedded).await;
    let mut admin = HttpConnection::admin(&cluster);
    let mut eve = HttpConnection::admin(&cluster).acting_as("eve");
    let rule = json!([{"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles", "rolebindings"],
        "verbs": ["get", "create", "update", "patch"]}]);
    grant(&mut admin, "writes-roles", "eve", rule);
    let policy = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let all = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "x"},
        "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]});
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"});
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "x"},
        "roleRef": role});
    let apply = [("Content-Type", b"application/apply-patch+yaml".as_slice())];
    for (plural, object) in [("roles", all), ("rolebindings", binding)] {
        let path = format!("{policy}/{plural}");
        eve.post(&path, &object).expect(403);
        eve.put(&format!("{path}/x"), &object).expect(403);
        eve.send("PATCH", &format!("{path}/x?fieldManager=eve"), &apply, &object).expect(403);
        admin.get(&format!("{path}/x")).expect(404);
    }
}

/// A certificate of the cluster's authority for a member of `system:masters`, valid for some seconds.
fn short_lived(pki: &Path, seconds: i64) -> (String, String) {
    let mut authority = CertificateParams::default();
    authority.distinguished_name.push(DnType::CommonName, "restow-ca");
    let key = KeyPair::from_pem(&std::fs::read_to_string(pki.join("ca.key")).unwrap()).unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "late");
    params.distinguished_name.push(DnType::OrganizationName, "system:masters");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.not_before = OffsetDateTime::now_utc() - Duration::minutes(1);
    params.not_after = OffsetDateTime::now_utc() + Duration::seconds(seconds);
    let own = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&own, &Issuer::new(authority, key)).unwrap();
    (certificate.pem(), own.serialize_pem())
}

#[tokio::test]
async fn an_expired_client_certificate_is_refused_on_an_open_connection() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::up(folder.path());
    // A busy machine may need longer than the first certificates last.
    let mut lives = [3, 10, 30, 90].into_iter();
    let (mut line, config) = loop {
        let certificate = short_lived(&folder.path().join("data/pki"), lives.next().unwrap());
        let shown = Credentials { certificate: Some(certificate), ..Credentials::of(&server.kubeconfig) };
        let config = shown.tls();
        let mut line = HttpConnection::open(&server.address, config.clone());
        if line.get(SECRETS).code == 200 {
            break (line, config);
        }
    };
    // A resumed TLS session would use the certificate without checking it.
    let mut again = HttpConnection::open(&server.address, config);
    again.get("/version");
    assert_eq!(again.handshake(), HandshakeKind::Full);
    eventually_blocking("the certificate has expired", || line.get(SECRETS).code == 401);
    // The client is not treated as anonymous either.
    line.get("/version").expect(401);
    line.send("POST", SECRETS, &[], &json!({"metadata": {"name": "s"}})).expect(401);
}

#[tokio::test]
async fn a_list_of_one_name_needs_only_permission_for_that_object() {
    let cluster = Cluster::one(On::Embedded).await;
    let mut admin = HttpConnection::admin(&cluster);
    let mut eve = HttpConnection::admin(&cluster).acting_as("eve");
    for name in ["mine", "other"] {
        admin.post(SECRETS, &json!({"metadata": {"name": name}})).expect(201);
    }
    let rule = json!([{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["mine"],
        "verbs": ["get", "list", "watch", "deletecollection"]}]);
    grant(&mut admin, "sees-one", "eve", rule);
    let named = "fieldSelector=metadata.name%3Dmine";
    let seen = eve.get(&format!("{SECRETS}?{named}")).expect(200);
    assert_eq!(seen.body["items"].as_array().unwrap().len(), 1);
    let all = eve.get(&format!("/api/v1/secrets?{named}")).expect(200);
    assert_eq!(all.body["items"].as_array().unwrap().len(), 1);
    let watched = eve.get(&format!("{SECRETS}?{named}&watch=1&timeoutSeconds=1")).expect(200);
    let text = watched.body.to_string();
    assert!(text.contains("mine") && !text.contains("other"), "{text}");
    let old_way = format!("{}/mine?timeoutSeconds=1", SECRETS.replace("/v1/", "/v1/watch/"));
    let text = eve.get(&old_way).expect(200).body.to_string();
    assert!(text.contains("mine") && !text.contains("other"), "{text}");
    // If an option occurs twice, the first one counts, for authorization and for the list.
    let twice = eve.get(&format!("{SECRETS}?{named}&fieldSelector=")).expect(200);
    assert_eq!(twice.body["items"].as_array().unwrap().len(), 1);
    for refused in [
        "",
        "?watch=1",
        "?fieldSelector=metadata.name%3Dother",
        "?fieldSelector=metadata.name!%3Dmine",
        "?fieldSelector=metadata.name%3Dother&fieldSelector=metadata.name%3Dmine",
        "?fieldSelector=&fieldSelector=metadata.name%3Dmine",
        "?fieldSelector=metadata.namespace%3Ddefault",
        "?labelSelector=metadata.name%3Dmine",
    ] {
        assert_eq!(eve.get(&format!("{SECRETS}{refused}")).code, 403, "{refused}");
    }
    eve.get(&SECRETS.replace("/v1/", "/v1/watch/")).expect(403);
    eve.get(&format!("{}/other", SECRETS.replace("/v1/", "/v1/watch/"))).expect(403);
    // As in Kubernetes, deletecollection is not allowed by `resourceNames`.
    eve.delete(&format!("{SECRETS}?{named}")).expect(403);
    admin.get(&format!("{SECRETS}/mine")).expect(200);
}

#[tokio::test]
async fn request_paths_have_one_spelling() {
    let cluster = Cluster::one(On::Embedded).await;
    let mut admin = HttpConnection::admin(&cluster);
    let mut eve = HttpConnection::admin(&cluster).acting_as("eve");
    admin.post(SECRETS, &json!({"metadata": {"name": "s"}})).expect(201);
    for path in [
        "/api/v1//secrets",
        "/api/v1/namespaces//secrets",
        "/api/v1/namespaces/default//secrets",
        "/api/v1/namespaces/default/secrets//s",
        "/api/v1/./namespaces/default/secrets",
        "/healthz/../metrics",
        "/debug//stored-versions",
        "/api//v1",
    ] {
        assert_eq!(admin.get(path).code, 404, "{path}");
        assert!(matches!(eve.get(path).code, 403 | 404), "{path}");
    }
    // An escaped path is the same path, also for authorization.
    for path in ["/api/v1/namespaces/default%2Fsecrets/s", "/api/v1/%6eamespaces/default/secrets/s"] {
        assert_eq!(admin.get(path).code, 200, "{path}");
        assert_eq!(eve.get(path).code, 403, "{path}");
    }
    for path in ["/metrics", "/%6detrics", "//metrics", "/debug/stored-versions"] {
        assert_eq!(eve.get(path).code, 403, "{path}");
    }
    // A query does not change the verb of a request for one object.
    let one = admin.get(&format!("{SECRETS}/s?watch=true")).expect(200);
    assert_eq!(one.body["kind"], "Secret");
    assert!(matches!(admin.delete(&format!("{}/s", SECRETS.replace("/v1/", "/v1/watch/"))).code, 404 | 405));
    admin.get(&format!("{SECRETS}/s")).expect(200);
}

#[tokio::test]
async fn impersonation_needs_the_permission_for_each_attribute() {
    let cluster = Cluster::one(On::Embedded).await;
    let mut admin = HttpConnection::admin(&cluster);
    let rule =
        json!([{"apiGroups": [""], "resources": ["users"], "resourceNames": ["anna"], "verbs": ["impersonate"]}]);
    grant(&mut admin, "acts-as-anna", "proxy", rule);
    let token = token_of(&cluster, "proxy-token");
    let account = "system:serviceaccount:default:proxy-token";
    let rule =
        json!([{"apiGroups": [""], "resources": ["users"], "resourceNames": ["anna"], "verbs": ["impersonate"]}]);
    grant(&mut admin, "account-acts-as-anna", account, rule);
    let anonymous = Credentials::of(&cluster.servers[0].kubeconfig).without_certificate();
    let mut proxy = HttpConnection::open(&cluster.servers[0].address, anonymous.tls());
    let bearer = format!("Bearer {token}");
    let mut ask = |headers: &[(&str, &[u8])]| {
        let headers: Vec<(&str, &[u8])> =
            [("Authorization", bearer.as_bytes())].into_iter().chain(headers.iter().copied()).collect();
        proxy.send("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", &headers, &json!({})).code
    };
    let anna = ("Impersonate-User", b"anna".as_slice());
    assert_eq!(ask(&[anna]), 201);
    for more in [
        ("Impersonate-Group", b"system:masters".as_slice()),
        ("Impersonate-Uid", b"1"),
        ("Impersonate-Extra-Scopes", b"view"),
    ] {
        assert_eq!(ask(&[anna, more]), 403, "{more:?}");
    }
    for other in ["restow-admin", "system:node:n", "system:serviceaccount:kube-system:default"] {
        assert_eq!(ask(&[("Impersonate-User", other.as_bytes())]), 403, "{other}");
    }
}

/// A token of a new service account.
fn token_of(cluster: &Cluster, name: &str) -> String {
    cluster.kubectl(&["create", "serviceaccount", name]);
    cluster.kubectl(&["create", "token", name]).trim().to_string()
}
