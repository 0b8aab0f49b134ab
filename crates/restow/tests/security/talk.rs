//! HTTP/1.1 by hand over TLS: whatever bytes a test wants to send, on a connection that it keeps.

use crate::cluster::{Cluster, Server, eventually};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore, StreamOwned};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

/// What a client shows, as PEM, and the authority that it trusts.
#[derive(Clone)]
pub(crate) struct Credentials {
    pub(crate) authority: String,
    pub(crate) certificate: Option<(String, String)>,
}

/// A connection.
pub(crate) struct Line {
    stream: BufReader<StreamOwned<ClientConnection, TcpStream>>,
    /// Headers that every request has.
    always: Vec<(String, Vec<u8>)>,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) body: Value,
}

impl Credentials {
    /// The administrator of this server.
    pub(crate) fn of(server: &Server) -> Self {
        let kubeconfig = kube::config::Kubeconfig::read_from(&server.kubeconfig).unwrap();
        let decode = |text: &str| String::from_utf8(STANDARD.decode(text).unwrap()).unwrap();
        let cluster = kubeconfig.clusters[0].cluster.as_ref().unwrap();
        let user = serde_json::to_value(kubeconfig.auth_infos[0].auth_info.as_ref().unwrap()).unwrap();
        // The key is kept from whoever prints it, so it is read from the text.
        let text = std::fs::read_to_string(&server.kubeconfig).unwrap();
        let key = text.split("client-key-data: ").nth(1).unwrap().split_whitespace().next().unwrap();
        let certificate = decode(user["client-certificate-data"].as_str().unwrap());
        Credentials {
            authority: decode(cluster.certificate_authority_data.as_ref().unwrap()),
            certificate: Some((certificate, decode(key))),
        }
    }

    /// How connections are made with these.
    pub(crate) fn config(&self) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.authority.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let builder = builder.with_root_certificates(roots);
        Arc::new(match &self.certificate {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        })
    }
}

impl Line {
    /// The administrator's connection to the first server.
    pub(crate) fn admin(cluster: &Cluster) -> Self {
        let server = &cluster.servers[0];
        Self::open(&server.address, Credentials::of(server).config())
    }

    pub(crate) fn open(address: &str, config: Arc<ClientConfig>) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        let connection = ClientConnection::new(config, ServerName::try_from("localhost").unwrap()).unwrap();
        Line { stream: BufReader::new(StreamOwned::new(connection, stream)), always: Vec::new() }
    }

    /// Acts as this user from now on.
    pub(crate) fn acting_as(mut self, user: &str) -> Self {
        self.always = vec![("Impersonate-User".into(), user.into())];
        self
    }

    /// How the connection was made; known once something was answered.
    pub(crate) fn handshake(&self) -> HandshakeKind {
        self.stream.get_ref().conn.handshake_kind().unwrap()
    }

    pub(crate) fn get(&mut self, path: &str) -> Answer {
        self.ask("GET", path, &[], &Value::Null)
    }

    pub(crate) fn delete(&mut self, path: &str) -> Answer {
        self.ask("DELETE", path, &[], &Value::Null)
    }

    pub(crate) fn post(&mut self, path: &str, body: &Value) -> Answer {
        self.ask("POST", path, &[("Content-Type", b"application/json")], body)
    }

    pub(crate) fn put(&mut self, path: &str, body: &Value) -> Answer {
        self.ask("PUT", path, &[("Content-Type", b"application/json")], body)
    }

    pub(crate) fn patch(&mut self, path: &str, body: &Value) -> Answer {
        self.ask("PATCH", path, &[("Content-Type", b"application/merge-patch+json")], body)
    }

    /// Sends a request with whatever headers, and reads its answer to the end.
    pub(crate) fn ask(&mut self, method: &str, path: &str, headers: &[(&str, &[u8])], body: &Value) -> Answer {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut request = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n").into_bytes();
        let length = body.len().to_string();
        let always = self.always.iter().map(|(name, value)| (name.as_str(), value.as_slice()));
        for (name, value) in headers.iter().copied().chain(always).chain([("Content-Length", length.as_bytes())]) {
            request.extend_from_slice(name.as_bytes());
            request.extend_from_slice(b": ");
            request.extend_from_slice(value);
            request.extend_from_slice(b"\r\n");
        }
        request.extend_from_slice(b"\r\n");
        request.extend_from_slice(body.as_bytes());
        let stream = self.stream.get_mut();
        stream.write_all(&request).unwrap();
        stream.flush().unwrap();
        self.answer()
    }

    fn answer(&mut self) -> Answer {
        let head: Vec<String> = std::iter::repeat_with(|| self.line()).take_while(|line| !line.is_empty()).collect();
        let code = head[0].split(' ').nth(1).unwrap().parse().unwrap();
        let header = |name: &str| {
            let mut lines = head.iter().filter_map(|line| line.split_once(':'));
            lines.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim().to_string())
        };
        let body = match header("content-length") {
            Some(length) => self.bytes(length.parse().unwrap()),
            None if header("transfer-encoding").as_deref() == Some("chunked") => self.chunks(),
            None => Vec::new(),
        };
        let text = String::from_utf8_lossy(&body).into_owned();
        Answer { code, body: serde_json::from_str(&text).unwrap_or(Value::String(text)) }
    }

    fn chunks(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            let length = usize::from_str_radix(&self.line(), 16).unwrap();
            all.extend(self.bytes(length));
            self.line();
            if length == 0 {
                return all;
            }
        }
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        line.trim_end().to_string()
    }
}

impl Answer {
    pub(crate) fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or_default()
    }

    /// Fails unless the answer has this code.
    pub(crate) fn expect(self, code: u16) -> Self {
        assert_eq!(self.code, code, "{}", self.body);
        self
    }
}

/// Lets a user do something everywhere, and waits until the server knows. Each grant has a name of its own.
pub(crate) fn grant(admin: &mut Line, name: &str, user: &str, rules: Value) {
    let group = "rbac.authorization.k8s.io";
    let base = format!("/apis/{group}/v1");
    let role = json!({"metadata": {"name": name}, "rules": rules});
    admin.post(&format!("{base}/clusterroles"), &role).expect(201);
    let binding = json!({"metadata": {"name": name}, "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}]});
    admin.post(&format!("{base}/clusterrolebindings"), &binding).expect(201);
    let rule = rules[0].clone();
    let first = |field: &str| rule[field][0].clone();
    let resource = first("resources").as_str().unwrap_or_default().to_string();
    let (resource, subresource) = resource.split_once('/').unwrap_or((&resource, ""));
    let attributes = json!({"verb": first("verbs"), "group": first("apiGroups"), "resource": resource,
        "subresource": subresource, "name": first("resourceNames")});
    let review = json!({"spec": {"user": user, "resourceAttributes": attributes}});
    eventually("the grant is known", || {
        let answer = admin.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", &review).expect(201);
        answer.body["status"]["allowed"] == true
    });
}
