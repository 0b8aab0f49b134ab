//! A fake etcd that responds as the test wants, with errors that a real one returns only rarely. It implements just enough
//! gRPC for unary calls.

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Response};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::net::{TcpListener, TcpStream};

/// The response to a call.
pub(crate) enum Reply {
    /// Success, at revision 5.
    Success,
    /// This message, encoded.
    Message(&'static [u8]),
    /// A gRPC code and text.
    Status(u16, &'static str),
    /// The connection is closed.
    Close,
}

impl Reply {
    pub(crate) fn status(code: u16, text: &'static str) -> Self {
        Reply::Status(code, text)
    }
}

type Script = dyn Fn(&str, usize) -> Reply + Send + Sync;

/// A running fake; it ends when dropped.
pub(crate) struct Fake {
    endpoint: String,
    calls: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Fake {
    /// A server of this version. The script gets the method and how many calls (but for those about the version) came
    /// before.
    pub(crate) async fn start(
        version: &'static str,
        script: impl Fn(&str, usize) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let calls = Arc::new(AtomicUsize::new(0));
        let (script, counter): (Arc<Script>, _) = (Arc::new(script), calls.clone());
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                connections.spawn(serve(socket, version, script.clone(), counter.clone()));
            }
        });
        Fake { endpoint, calls, task }
    }

    pub(crate) fn endpoint(&self) -> String {
        self.endpoint.clone()
    }

    /// How many calls came, but for those about the version.
    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(socket: TcpStream, version: &str, script: Arc<Script>, calls: Arc<AtomicUsize>) {
    let mut connection = h2::server::handshake(socket).await.unwrap();
    while let Some(Ok((request, answer))) = connection.accept().await {
        let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        let message = match method.as_str() {
            "Status" => status_message(version),
            // The header; a transaction's second field says that it succeeded.
            "Txn" => Bytes::from_static(b"\x0a\x04\x08\x01\x18\x05\x10\x01"),
            _ => Bytes::from_static(b"\x0a\x04\x08\x01\x18\x05"),
        };
        let reply = match method.as_str() {
            "Status" => Reply::Success,
            _ => script(&method, calls.fetch_add(1, Ordering::SeqCst)),
        };
        match reply {
            Reply::Close => return,
            Reply::Success => respond(answer, Some(message), 0, ""),
            Reply::Message(message) => respond(answer, Some(Bytes::from_static(message)), 0, ""),
            Reply::Status(code, text) => respond(answer, None, code, text),
        }
    }
}

fn respond(mut answer: h2::server::SendResponse<Bytes>, message: Option<Bytes>, code: u16, text: &'static str) {
    let head = Response::builder().header("content-type", "application/grpc").body(()).unwrap();
    let Ok(mut body) = answer.send_response(head, false) else { return };
    if let Some(message) = message {
        let mut frame = BytesMut::new();
        frame.put_u8(0);
        frame.put_u32(message.len() as u32);
        frame.put_slice(&message);
        let _ = body.send_data(frame.freeze(), false);
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from(code));
    trailers.insert("grpc-message", HeaderValue::from_static(text));
    let _ = body.send_trailers(trailers);
}

/// The header names a cluster; the second field is the version.
fn status_message(version: &str) -> Bytes {
    let mut message = BytesMut::from(&b"\x0a\x02\x08\x01\x12"[..]);
    message.put_u8(version.len() as u8);
    message.put_slice(version.as_bytes());
    message.freeze()
}
