//! etcd's JSON gateway, for what the store itself has no calls for: users, and other people's leases.

use restow_local_etcd::LocalEtcd;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Sends a call to etcd's JSON gateway and returns the answer's body.
pub(crate) async fn admin(etcd: &LocalEtcd, token: Option<&str>, call: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", etcd.port())).await.unwrap();
    let token = token.map(|token| format!("Authorization: {token}\r\n")).unwrap_or_default();
    let length = body.len();
    let head = format!("POST /v3/{call} HTTP/1.0\r\nHost: localhost\r\n{token}Content-Length: {length}\r\n\r\n");
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.0 200"), "{call}: {answer}");
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// The values of all fields with this name, numbers or texts.
pub(crate) fn fields(answer: &str, name: &str) -> Vec<String> {
    let quoted = format!("\"{name}\":");
    let values = answer.split(&quoted).skip(1);
    values.map(|rest| rest.trim_start_matches('"').split(['"', ',', '}']).next().unwrap().to_owned()).collect()
}
