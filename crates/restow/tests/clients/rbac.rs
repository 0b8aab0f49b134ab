//! RBAC and service account tokens with kubectl, and the paths that an anonymous client may read.

use restow_testkit::{Cluster, On, RawClient, eventually_blocking, output};
use std::process::Command;

#[tokio::test]
async fn rbac_roles_grant_and_refuse() {
    let cluster = Cluster::one(On::Embedded).await;
    let server = &cluster.servers[0];
    cluster.kubectl(&["create", "namespace", "demo"]);
    assert_eq!(cluster.kubectl(&["auth", "can-i", "delete", "nodes"]), "yes\n");
    let refused = server.kubectl_fails(&["-n", "demo", "get", "cm", "--as=alice"]);
    assert!(
        refused.contains(
            "configmaps is forbidden: User \"alice\" cannot list resource \"configmaps\" in API group \"\" in the \
             namespace \"demo\""
        ),
        "{refused}"
    );
    cluster.kubectl(&["-n", "demo", "create", "rolebinding", "alice-views", "--clusterrole=view", "--user=alice"]);
    eventually_blocking("the binding is known", || {
        server.try_kubectl(&["-n", "demo", "get", "cm", "--as=alice"]).status.success()
    });
    let refused = server.kubectl_fails(&["-n", "demo", "create", "cm", "x", "--as=alice"]);
    assert!(refused.contains("cannot create resource"), "{refused}");
    let refused = server.kubectl_fails(&["-n", "default", "get", "cm", "--as=alice"]);
    assert!(refused.contains("in the namespace \"default\""), "{refused}");

    cluster.kubectl(&["-n", "demo", "create", "rolebinding", "bob-admin", "--clusterrole=admin", "--user=bob"]);
    let bind = ["-n", "demo", "create", "rolebinding", "grab", "--clusterrole=cluster-admin", "--user=bob", "--as=bob"];
    eventually_blocking("the binding is known", || !server.try_kubectl(&bind).status.success());
    let refused = server.kubectl_fails(&bind);
    assert!(refused.contains("attempting to grant RBAC permissions not currently held"), "{refused}");
}

#[tokio::test]
async fn service_account_tokens_authenticate_until_the_account_is_deleted() {
    let cluster = Cluster::one(On::Embedded).await;
    let server = &cluster.servers[0];
    cluster.kubectl(&["create", "serviceaccount", "robot"]);
    cluster.kubectl(&[
        "create",
        "clusterrolebinding",
        "robots",
        "--clusterrole=view",
        "--serviceaccount=default:robot",
    ]);
    let token = cluster.kubectl(&["create", "token", "robot"]);
    let config = cluster.file("bare", "");
    let with_token = |token: &str, arguments: &[&str]| {
        let mut command = Command::new("kubectl");
        command.env("KUBECONFIG", &config).args(["--server", &format!("https://{}", server.address)]);
        output(command.args(["--insecure-skip-tls-verify", "--token", token]).args(arguments))
    };
    eventually_blocking("the binding is known", || with_token(token.trim(), &["get", "cm"]).status.success());
    let who = with_token(token.trim(), &["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"]);
    assert_eq!(String::from_utf8_lossy(&who.stdout), "system:serviceaccount:default:robot");
    assert!(!with_token(token.trim(), &["create", "cm", "x"]).status.success());
    assert!(!with_token("nonsense", &["get", "cm"]).status.success());
    cluster.kubectl(&["delete", "serviceaccount", "robot"]);
    eventually_blocking("the account's token is void", || !with_token(token.trim(), &["get", "cm"]).status.success());
}

#[tokio::test]
async fn anonymous_clients_may_read_only_health_and_version() {
    let cluster = Cluster::one(On::Embedded).await;
    let anonymous = RawClient::anonymous(&cluster.servers[0]);
    for path in ["/healthz", "/livez", "/readyz", "/version"] {
        assert_eq!(anonymous.get(path).await.code, 200, "{path}");
    }
    for path in ["/api", "/apis", "/api/v1/namespaces", "/api/v1/secrets", "/openapi/v3", "/nothing"] {
        assert_eq!(anonymous.get(path).await.code, 401, "{path}");
    }
}
