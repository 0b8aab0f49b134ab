//! Front proxies that name users in headers, and what this server tells the servers behind it about them.

use crate::fixture::{Authorities, Listening, Main, connect, main_config, read_head, store};
use restow_apiserver::ApiServer;
use restow_apiserver::serving::pki::CertificateAndKey;
use serde_json::Value;
use tokio::io::AsyncWriteExt;

const SECRETS: &str = "/api/v1/namespaces/default/secrets";

/// The code of a request with this certificate and these headers.
async fn code(authorities: &Authorities, listening: &Listening, own: &CertificateAndKey, headers: &str) -> u16 {
    let mut stream = connect(authorities, own, listening.address).await;
    let head = format!("GET {SECRETS} HTTP/1.1\r\nHost: a\r\n{headers}Connection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let response = read_head(&mut stream).await;
    response.split(' ').nth(1).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_front_proxy_can_name_users_in_headers() {
    let authorities = Authorities::new();
    let main = Main::start(&store(), &authorities).await;
    let listening = Listening::start(&main, &authorities).await;
    let ask = async |own: &CertificateAndKey, headers: &str| code(&authorities, &listening, own, headers).await;
    let root = "X-Remote-User: anna\r\nX-Remote-Group: system:masters\r\n";
    let proxy = authorities.proxies.issue("front-proxy-client", &[]);
    assert_eq!(ask(&proxy, root).await, 200);
    assert_eq!(ask(&proxy, "X-Remote-User: anna\r\n").await, 403);
    assert_eq!(ask(&proxy, "").await, 401);
    let another = authorities.proxies.issue("another", &[]);
    assert_eq!(ask(&another, root).await, 401, "its name is not allowed");
    // The CA of front proxies issues no certificates of users.
    let pretender = authorities.proxies.issue_in("admin", &["system:masters"], &[]);
    assert_eq!(ask(&pretender, "").await, 401);
    let user = authorities.servers.issue("anna", &[]);
    assert_eq!(ask(&user, root).await, 403, "a user names nobody");
    let named_as_proxy = authorities.servers.issue("front-proxy-client", &[]);
    assert_eq!(ask(&named_as_proxy, root).await, 403, "the certificate is of the CA of users");
    let admin = authorities.servers.issue_in("admin", &["system:masters"], &[]);
    assert_eq!(ask(&admin, "").await, 200);
}

#[tokio::test]
async fn the_servers_behind_learn_whom_to_trust_from_a_config_map() {
    let authorities = Authorities::new();
    let main = Main::start(&store(), &authorities).await;
    let (code, map) = main.get("/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication").await;
    assert_eq!(code, 200, "{map}");
    let text = |key: &str| map["data"][key].as_str().unwrap_or_default().replace('\r', "");
    assert_eq!(text("client-ca-file").trim(), authorities.servers.pem.replace('\r', "").trim());
    assert_eq!(text("requestheader-client-ca-file").trim(), authorities.proxies.pem.replace('\r', "").trim());
    assert_eq!(text("requestheader-allowed-names"), r#"["front-proxy-client"]"#);
    assert_eq!(text("requestheader-username-headers"), r#"["X-Remote-User"]"#);
    assert_eq!(text("requestheader-group-headers"), r#"["X-Remote-Group"]"#);
    assert_eq!(text("requestheader-extra-headers-prefix"), r#"["X-Remote-Extra-"]"#);
    assert_eq!(text("requestheader-uid-headers"), r#"["X-Remote-Uid"]"#);
    let role =
        "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/roles/extension-apiserver-authentication-reader";
    let (code, role) = main.get(role).await;
    assert_eq!(
        (code, &role["rules"][0]["resourceNames"][0]),
        (200, &Value::from("extension-apiserver-authentication"))
    );
}

#[tokio::test]
async fn a_ca_of_users_and_of_nameless_front_proxies_is_refused() {
    let authorities = Authorities::new();
    let start = async |proxies: String, names: &[&str]| {
        let mut config = main_config(&store(), &authorities);
        let trusted = config.aggregator.request_header.as_mut().unwrap();
        trusted.ca = proxies;
        trusted.headers.allowed_names = names.iter().map(|name| name.to_string()).collect();
        ApiServer::new(config).await.map(|_| ()).map_err(|error| error.to_string())
    };
    let shared = || format!("{}{}", authorities.proxies.pem, authorities.servers.pem);
    let refusal = start(shared(), &[]).await.unwrap_err();
    assert!(refusal.contains("--requestheader-allowed-names"), "{refusal}");
    assert_eq!(start(shared(), &["front-proxy-client"]).await, Ok(()));
    assert_eq!(start(authorities.proxies.pem.clone(), &[]).await, Ok(()));
}
