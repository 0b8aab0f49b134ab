//! Connections that only consume resources: of anonymous clients and of users, at the API server, the guard and the metrics.

use bytes::Bytes;
use h2::client::SendRequest;
use restow_testkit::{
    Cluster, Credentials, On, Process, RawClient, Server, TIMEOUT, eventually_blocking, restow_binary,
};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// `restow up` with no more open files than this.
fn up_with_files(folder: &Path, files: u32) -> Server {
    up_with(folder, files, &["--controller=false"])
}

fn up_with(folder: &Path, files: u32, flags: &[&str]) -> Server {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("ulimit -n {files}; exec \"$0\" \"$@\"")]).arg(restow_binary());
    Server::up_by(shell, folder, "127.0.0.1:0", flags)
}

/// The server responds to an anonymous health check and to an administrator.
async fn is_well(stranger: &RawClient, admin: &RawClient, when: &str) {
    assert_eq!(stranger.get("/readyz").await.code, 200, "{when}");
    assert_eq!(admin.get("/api/v1/namespaces").await.code, 200, "{when}");
}

#[tokio::test]
async fn connections_that_send_nothing_block_no_other_client() {
    let folder = tempfile::tempdir().unwrap();
    let server = up_with_files(folder.path(), 256);
    let (stranger, admin) = (RawClient::anonymous(&server), RawClient::admin(&server));
    let mut open = Vec::new();
    for round in 0..4 {
        for _ in 0..100 {
            open.push(stranger.connect().await.unwrap());
        }
        is_well(&stranger, &admin, &format!("after {round} rounds")).await;
    }
    // Not even a handshake.
    let mut silent = Vec::new();
    for _ in 0..400 {
        silent.push(TcpStream::connect(&server.address).await.unwrap());
    }
    is_well(&stranger, &admin, "after connections without a handshake").await;
    let first = tokio::time::timeout(TIMEOUT, open[0].read(&mut [0])).await.expect("the first one is closed");
    assert!(first.is_err() || first.is_ok_and(|read| read == 0));
}

#[tokio::test]
async fn idle_connections_of_users_block_no_other_client() {
    let folder = tempfile::tempdir().unwrap();
    let server = up_with_files(folder.path(), 256);
    let (stranger, admin) = (RawClient::anonymous(&server), RawClient::admin(&server));
    let mut open = Vec::new();
    for _ in 0..300 {
        let mut connection = admin.connect().await.unwrap();
        connection.write_all(b"GET /version HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        assert_ne!(connection.read(&mut [0; 16]).await.unwrap(), 0);
        open.push(connection);
    }
    is_well(&stranger, &admin, "after 300 idle connections").await;
}

#[tokio::test]
async fn watches_on_all_connections_leave_a_reserve_for_health_and_administrators() {
    let folder = tempfile::tempdir().unwrap();
    let server = up_with_files(folder.path(), 256);
    let (stranger, admin) = (RawClient::anonymous(&server), RawClient::admin(&server));
    let mut watches = Vec::new();
    // As many connections as there are slots: half of the open files.
    while watches.len() < 128 {
        let mut connection = admin.connect().await.unwrap();
        let request = b"GET /api/v1/configmaps?watch=1 HTTP/1.1\r\nhost: a\r\n\r\n";
        connection.write_all(request).await.unwrap();
        let mut head = [0; 15];
        connection.read_exact(&mut head).await.unwrap();
        assert_eq!(&head, b"HTTP/1.1 200 OK");
        watches.push(connection);
    }
    is_well(&stranger, &admin, "with watches in every place").await;
    let turned_away = stranger.get("/version").await;
    assert_eq!(turned_away.code, 429, "{}", turned_away.text);
    assert!(turned_away.text.to_ascii_lowercase().contains("retry-after: 1"), "{}", turned_away.text);
    // The last connections serve one response each.
    for request in
        ["GET /readyz HTTP/1.1\r\nhost: a\r\n\r\n", "GET /readyz HTTP/1.1\r\nhost: a\r\nauthorization: x\r\n\r\n"]
    {
        let mut connection = stranger.connect().await.unwrap();
        connection.write_all(request.as_bytes()).await.unwrap();
        let closed = tokio::time::timeout(Duration::from_secs(30), connection.read_to_end(&mut Vec::new())).await;
        assert!(closed.is_ok(), "it stays open after {request:?}");
    }
    drop(watches);
    eventually_blocking("places are free again", || {
        server.try_kubectl(&["get", "--raw", "/version", "--as=anybody"]).status.success()
    });
}

/// An HTTP/2 connection with unread responses. Its client acknowledges pings, and reads no byte of the responses.
struct Unread {
    connection: JoinHandle<Result<(), h2::Error>>,
    _client: SendRequest<Bytes>,
    /// Dropping a response would cancel it.
    answers: Vec<http::Response<h2::RecvStream>>,
}

impl Unread {
    async fn open(raw: &RawClient, path: &str, token: &str, requests: usize) -> Option<Self> {
        let stream = raw.connect().await.ok()?;
        let builder = h2::client::Builder::new().initial_window_size(0).handshake(stream).await;
        let (mut client, connection) = builder.ok()?;
        let connection = tokio::spawn(connection);
        let mut heads = Vec::new();
        for _ in 0..requests {
            let mut request = http::Request::get(format!("https://a{path}"));
            if !token.is_empty() {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            client = client.ready().await.ok()?;
            heads.push(client.send_request(request.body(()).unwrap(), true).ok()?.0);
        }
        let mut answers = Vec::new();
        for head in heads {
            answers.extend(head.await.ok());
        }
        Some(Unread { connection, _client: client, answers })
    }
}

#[tokio::test]
async fn unread_responses_block_no_other_client() {
    let folder = tempfile::tempdir().unwrap();
    let server = up_with(folder.path(), 256, &["--controller=false", "--stall-timeout=5"]);
    let (stranger, admin) = (RawClient::anonymous(&server), RawClient::admin(&server));
    let (mut unread, mut first) = (Vec::new(), None);
    for (who, token, code) in [(&stranger, "wrong", 401), (&admin, "", 200)] {
        for _ in 0..160 {
            // A refused client connects again.
            let Some(open) = Unread::open(who, "/version", token, 20).await else { continue };
            let codes: Vec<u16> = open.answers.iter().map(|answer| answer.status().as_u16()).collect();
            assert!(codes.iter().all(|answered| *answered == code), "{codes:?}");
            unread.push(open);
        }
        // From then on they count as idle.
        tokio::time::sleep(Duration::from_secs(2)).await;
        is_well(&stranger, &admin, &format!("with {} unread connections", unread.len())).await;
        first = first.or_else(|| Some(unread.remove(0)));
    }
    assert!(unread.len() > 100, "only {} got through", unread.len());
    unread.extend(first);
    for open in unread {
        tokio::time::timeout(TIMEOUT, open.connection).await.expect("each is closed").unwrap().ok();
    }
}

/// Each of these watches begins with four megabytes of events, and reads none of them.
#[tokio::test]
async fn unread_watches_take_little_memory() {
    let folder = tempfile::tempdir().unwrap();
    let server = up_with(folder.path(), 1024, &["--controller=false", "--stall-timeout=600"]);
    let admin = RawClient::admin(&server);
    let maps = "/api/v1/namespaces/default/configmaps";
    let map = serde_json::json!({"metadata": {"name": "x"}, "data": {"a": "x".repeat(100 << 10)}});
    let json = "content-type: application/json\r\n";
    assert_eq!(admin.request("POST", maps, json, &map.to_string()).await.code, 201);
    let revision = server.kubectl(&["get", "configmap", "x", "-o", "jsonpath={.metadata.resourceVersion}"]);
    for number in 0..40 {
        let patch = format!(r#"{{"data": {{"n": "{number}"}}}}"#);
        let kind = "content-type: application/merge-patch+json\r\n";
        assert_eq!(admin.request("PATCH", &format!("{maps}/x"), kind, &patch).await.code, 200);
    }
    let before = server.process().memory("VmRSS");
    let mut unread = Vec::new();
    for _ in 0..5 {
        let path = format!("{maps}?watch=1&resourceVersion={revision}&labelSelector=!a");
        let open = Unread::open(&admin, &path, "", 20).await.unwrap();
        assert!(open.answers.len() == 20 && open.answers.iter().all(|answer| answer.status() == 200));
        unread.push(open);
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    let grown = server.process().memory("VmRSS").saturating_sub(before) >> 20;
    assert!(unread.iter().all(|open| !open.connection.is_finished()));
    assert!(grown < 120, "the server has grown by {grown} MB");
}

fn open_files(process: Pid) -> u64 {
    std::fs::read_dir(format!("/proc/{}/fd", process.as_raw_nonzero())).unwrap().count() as u64
}

fn limit_files(process: Pid, files: u64) {
    let limit = prlimit(Some(process), Resource::Nofile, Rlimit { current: Some(files), maximum: Some(files) });
    limit.unwrap_or_else(|error| panic!("cannot limit the files of {process:?}: {error}"));
}

#[tokio::test]
async fn a_server_out_of_open_files_closes_connections_and_continues() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::up(folder.path());
    let (stranger, admin) = (RawClient::anonymous(&server), RawClient::admin(&server));
    limit_files(server.process().id(), open_files(server.process().id()) + 10);
    let mut open = Vec::new();
    for _ in 0..40 {
        open.push(TcpStream::connect(&server.address).await.unwrap());
    }
    is_well(&stranger, &admin, "with no files left").await;
}

/// Another Restow process, and where it listens.
struct Listener {
    process: Process,
    address: String,
}

impl Listener {
    fn start(arguments: &[&str], kubeconfig: &Path) -> Self {
        let mut command = Command::new(restow_binary());
        command.args(arguments).arg("--kubeconfig").arg(kubeconfig);
        let (process, line) = Process::spawn_and_read_line(&mut command);
        let address = line.split("://").nth(1).and_then(|rest| rest.split(['/', '\n']).next());
        let address = address.unwrap_or_else(|| panic!("it printed {line:?}")).trim().to_string();
        Listener { process, address }
    }
}

#[tokio::test]
async fn the_guard_reads_no_more_than_a_review_and_survives_running_out_of_files() {
    let cluster = Cluster::one(On::Embedded).await;
    let server = &cluster.servers[0];
    let arguments = ["webhook", "--listen", "127.0.0.1:0", "--host", "127.0.0.1", "--namespace", "kube-system"];
    let guard = Listener::start(&arguments, &server.kubeconfig);
    let configurations = ["get", "validatingwebhookconfigurations", "-o", "jsonpath={..caBundle}"];
    let ca = cluster.kubectl(&configurations);
    let raw = RawClient::new(&guard.address, &Credentials::anonymous(&ca));
    let review = r#"{"kind": "AdmissionReview", "request": {"uid": "a", "oldObject": {}, "object": {}}}"#;
    assert!(raw.request("POST", "/", "", review).await.text.contains(r#""allowed":true"#));

    let unread = Unread::open(&raw, "/", "", 5).await.unwrap();
    let before = guard.process.memory("VmHWM");
    let mut floods = Vec::new();
    for _ in 0..8 {
        let mut connection = raw.connect().await.unwrap();
        let head = b"POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 800000000\r\n\r\n";
        connection.write_all(head).await.unwrap();
        floods.push(tokio::spawn(async move {
            let chunk = vec![b' '; 1 << 20];
            for _ in 0..100 {
                if connection.write_all(&chunk).await.is_err() {
                    break;
                }
            }
        }));
    }
    assert!(raw.request("POST", "/", "", review).await.text.contains(r#""allowed":true"#), "meanwhile");
    for flood in floods {
        flood.await.unwrap();
    }
    let grown = guard.process.memory("VmHWM").saturating_sub(before) >> 20;
    assert!(grown < 200, "the guard has grown by {grown} MB");
    tokio::time::timeout(TIMEOUT, unread.connection)
        .await
        .expect("the server closes a connection with unread responses")
        .unwrap()
        .ok();

    limit_files(guard.process.id(), open_files(guard.process.id()) + 5);
    let mut open = Vec::new();
    for _ in 0..40 {
        open.push(TcpStream::connect(&guard.address).await.unwrap());
    }
    assert!(raw.request("POST", "/", "", review).await.text.contains(r#""allowed":true"#), "without files");
}

#[tokio::test]
async fn the_port_of_the_controller_serves_only_metrics() {
    let cluster = Cluster::one(On::Embedded).await;
    let arguments = ["controller", "--crds-only", "--metrics-listen", "127.0.0.1:0"];
    let controller = Listener::start(&arguments, &cluster.servers[0].kubeconfig);
    let mut open = Vec::new();
    for _ in 0..100 {
        open.push(TcpStream::connect(&controller.address).await.unwrap());
    }
    for (request, expected) in [("GET /metrics", "200"), ("GET /", "404"), ("POST /metrics", "405")] {
        let mut connection = TcpStream::connect(&controller.address).await.unwrap();
        let request = format!("{request} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        connection.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tokio::time::timeout(TIMEOUT, connection.read_to_string(&mut answer)).await.unwrap().unwrap();
        assert_eq!(answer.split(' ').nth(1), Some(expected), "{request}: {answer}");
    }
}

#[tokio::test]
async fn openapi_documents_are_cached_once_for_all_spellings_of_a_path() {
    let cluster = Cluster::one(On::Embedded).await;
    let server = &cluster.servers[0];
    let admin = RawClient::admin(server);
    let user = "impersonate-user: nobody\r\nimpersonate-group: system:authenticated\r\n";
    assert_eq!(admin.request("GET", "/openapi/v3/apis/apps/v1", user, "").await.code, 200);
    let before = server.process().memory("VmRSS");
    for number in 1..1_000 {
        let path = spelling("/openapi/v3/apis/apps/v1", number);
        let answer = admin.request("GET", &path, user, "").await;
        assert_eq!(answer.code, 200, "{path}");
    }
    assert_eq!(admin.request("GET", "/openapi//v3/apis/apps/v1", user, "").await.code, 404, "another path");
    let grown = server.process().memory("VmRSS").saturating_sub(before) >> 20;
    assert!(grown < 100, "the server has grown by {grown} MB");
}

/// A path with some letters percent-encoded: those whose bit in `number` is set.
fn spelling(path: &str, number: usize) -> String {
    let letters = path.chars().enumerate().map(|(place, letter)| match letter {
        letter if letter != '/' && place < 32 && number >> place & 1 == 1 => format!("%{:02X}", u32::from(letter)),
        letter => letter.to_string(),
    });
    letters.collect()
}
