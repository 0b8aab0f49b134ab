//! One HTTP/1.1 connection over TLS that stays open between requests, with any bytes in the headers.

use restow_testkit::{Cluster, Credentials, eventually_blocking};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, HandshakeKind, StreamOwned};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

/// A connection.
pub(crate) struct HttpConnection {
    stream: BufReader<StreamOwned<ClientConnection, TcpStream>>,
    /// Headers that every request has.
    always: Vec<(String, Vec<u8>)>,
}

/// The response to a request.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) code: u16,
    pub(crate) body: Value,
}

impl HttpConnection {
    /// The administrator's connection to the first server.
    pub(crate) fn admin(cluster: &Cluster) -> Self {
        let server = &cluster.servers[0];
        Self::open(&server.address, Credentials::of(&server.kubeconfig).tls())
    }

    pub(crate) fn open(address: &str, config: Arc<ClientConfig>) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        let connection = ClientConnection::new(config, ServerName::try_from("localhost").unwrap()).unwrap();
        HttpConnection { stream: BufReader::new(StreamOwned::new(connection, stream)), always: Vec::new() }
    }

    /// Acts as this user from now on.
    pub(crate) fn acting_as(mut self, user: &str) -> Self {
        self.always = vec![("Impersonate-User".into(), user.into())];
        self
    }

    /// Whether the TLS handshake was a full one; known after the first response.
    pub(crate) fn handshake(&self) -> HandshakeKind {
        self.stream.get_ref().conn.handshake_kind().unwrap()
    }

    pub(crate) fn get(&mut self, path: &str) -> Response {
        self.send("GET", path, &[], &Value::Null)
    }

    pub(crate) fn delete(&mut self, path: &str) -> Response {
        self.send("DELETE", path, &[], &Value::Null)
    }

    pub(crate) fn post(&mut self, path: &str, body: &Value) -> Response {
        self.send("POST", path, &[("Content-Type", b"application/json")], body)
    }

    pub(crate) fn put(&mut self, path: &str, body: &Value) -> Response {
        self.send("PUT", path, &[("Content-Type", b"application/json")], body)
    }

    pub(crate) fn patch(&mut self, path: &str, body: &Value) -> Response {
        self.send("PATCH", path, &[("Content-Type", b"application/merge-patch+json")], body)
    }

    /// Sends a request with any headers, and reads the whole response.
    pub(crate) fn send(&mut self, method: &str, path: &str, headers: &[(&str, &[u8])], body: &Value) -> Response {
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
        self.read_response()
    }

    fn read_response(&mut self) -> Response {
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
        Response { code, body: serde_json::from_str(&text).unwrap_or(Value::String(text)) }
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

impl Response {
    pub(crate) fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or_default()
    }

    /// Fails unless the response has this code.
    pub(crate) fn expect(self, code: u16) -> Self {
        assert_eq!(self.code, code, "{}", self.body);
        self
    }
}

/// Grants a user these rules in the whole cluster, and waits until they are in force. Each ClusterRole has a name of its own.
pub(crate) fn grant(admin: &mut HttpConnection, name: &str, user: &str, rules: Value) {
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
    eventually_blocking("the ClusterRole is in force", || {
        let response = admin.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", &review).expect(201);
        response.body["status"]["allowed"] == true
    });
}
