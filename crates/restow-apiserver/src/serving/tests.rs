//! Limits and timeouts of connections.

mod unread;

use super::*;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use http_body_util::StreamBody;
use hyper::body::Frame;
use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

/// Longer than any of it takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(200);

type ResponseBody = StreamBody<BoxStream<'static, Result<Frame<Bytes>, Infallible>>>;

/// Responds to `/` at once, and streams to `/watch` what a test sends.
struct Echo {
    watches: Mutex<Vec<mpsc::UnboundedSender<Bytes>>>,
    authenticates: bool,
}

impl Handler for Echo {
    type Peer = ();
    type Body = ResponseBody;

    fn connected(&self, _: &Connection, _: Option<&rustls::ServerConnection>) {}

    async fn handle(self: Arc<Self>, request: Request<Incoming>, _: Arc<()>) -> Response<ResponseBody> {
        if self.authenticates {
            request.extensions().get::<Connection>().unwrap().set_authenticated();
        }
        let (sender, receiver) = mpsc::unbounded_channel();
        match request.uri().path() {
            "/watch" => self.watches.lock().unwrap().push(sender),
            _ => drop(sender.send(Bytes::from_static(b"here"))),
        }
        let parts = futures::stream::unfold(receiver, |mut receiver| async {
            let part = receiver.recv().await?;
            Some((Ok(Frame::data(part)), receiver))
        });
        Response::new(StreamBody::new(parts.boxed()))
    }
}

fn limits() -> ConnectionLimits {
    ConnectionLimits {
        max_connections: 1000,
        unauthenticated_per_address: 1000,
        handshake_timeout: LONG,
        first_request_timeout: LONG,
        idle_timeout: LONG,
        stall_timeout: LONG,
        drain_timeout: Duration::ZERO,
    }
}

async fn listen(limits: ConnectionLimits, authenticates: bool) -> (SocketAddr, Arc<Echo>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let echo = Arc::new(Echo { watches: Mutex::default(), authenticates });
    let handler = echo.clone();
    restow_host::spawn(async move {
        serve(listener, Transport::Plain, limits, handler, std::future::pending(), || {}).await;
    });
    (address, echo)
}

async fn connect(address: SocketAddr, sent: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(sent).await.unwrap();
    stream
}

/// What is read until the other side closes.
async fn rest(stream: &mut TcpStream) -> String {
    let mut read = Vec::new();
    // A reset is an end like any other.
    let _ = tokio::time::timeout(LONG, stream.read_to_end(&mut read)).await.expect("the connection is closed");
    String::from_utf8_lossy(&read).into_owned()
}

async fn until(stream: &mut TcpStream, words: &str) {
    let mut read = Vec::new();
    let reading = async {
        while !String::from_utf8_lossy(&read).contains(words) {
            assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0, "it was closed before {words:?}: {read:?}");
        }
    };
    tokio::time::timeout(LONG, reading).await.unwrap_or_else(|_| panic!("never {words:?}"));
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
const WATCH: &[u8] = b"GET /watch HTTP/1.1\r\nhost: a\r\n\r\n";

#[tokio::test]
async fn a_connection_without_a_request_is_closed_in_time() {
    let (address, _) = listen(ConnectionLimits { first_request_timeout: SHORT, ..limits() }, false).await;
    for sent in [&b""[..], b"G", b"GET / HTTP/1.1\r\nhost:", b"PRI * HTTP/2.0\r\n", PREFACE] {
        let response = rest(&mut connect(address, sent).await).await;
        assert!(!response.contains("200"), "{response}");
    }
}

#[tokio::test]
async fn an_idle_connection_is_closed_and_one_in_use_is_not() {
    let (address, echo) =
        listen(ConnectionLimits { first_request_timeout: SHORT, idle_timeout: SHORT, ..limits() }, true).await;
    let mut watch = connect(address, WATCH).await;
    until(&mut watch, "200 OK").await;
    for _ in 0..3 {
        let response = rest(&mut connect(address, GET).await).await;
        assert!(response.contains("here"), "{response}");
    }
    let sender = echo.watches.lock().unwrap().pop().unwrap();
    sender.send(Bytes::from_static(b"still watched")).unwrap();
    until(&mut watch, "still watched").await;
}

#[tokio::test]
async fn idle_connections_are_closed_for_new_ones() {
    let (address, _) = listen(ConnectionLimits { unauthenticated_per_address: 3, ..limits() }, false).await;
    let mut silent = Vec::new();
    for _ in 0..10 {
        silent.push(connect(address, b"").await);
        let mut client = connect(address, GET).await;
        until(&mut client, "here").await;
    }
    // Those that came first are gone.
    assert_eq!(rest(&mut silent[0]).await, "");
}

#[tokio::test]
async fn when_all_slots_are_in_use_a_reserve_is_left() {
    let (address, _echo) = listen(ConnectionLimits { max_connections: 8, ..limits() }, true).await;
    let mut watches = Vec::new();
    for _ in 0..8 {
        let mut watch = connect(address, WATCH).await;
        until(&mut watch, "200 OK").await;
        watches.push(watch);
    }
    let mut client = connect(address, GET).await;
    until(&mut client, "here").await;
    let mut more = Vec::new();
    for _ in 0..4 {
        let mut watch = connect(address, WATCH).await;
        let mut byte = [0];
        if watch.read(&mut byte).await.is_ok_and(|read| read == 1) {
            more.push(watch);
        }
    }
    assert!(more.len() <= 4, "the reserve has an end");
}

#[tokio::test]
async fn requests_without_one_host_are_refused() {
    let (address, _) = listen(limits(), false).await;
    for (sent, expected) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "400 Bad Request: missing required Host header"),
        (b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", "400 Bad Request: too many Host headers"),
    ] {
        let response = rest(&mut connect(address, sent).await).await;
        assert!(response.ends_with(expected), "{response}");
    }
    until(&mut connect(address, b"GET / HTTP/1.0\r\n\r\n").await, "here").await;
    let many = (0..2000).map(|number| format!("impersonate-group: {number}\r\n")).collect::<String>();
    let request = format!("GET / HTTP/1.1\r\nhost: a\r\n{many}\r\n");
    until(&mut connect(address, request.as_bytes()).await, "here").await;
}

#[tokio::test]
async fn a_stopped_listener_lets_requests_finish() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let echo = Arc::new(Echo { watches: Mutex::default(), authenticates: true });
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let limits = ConnectionLimits { drain_timeout: LONG, ..limits() };
    let serving = serve(listener, Transport::Plain, limits, echo.clone(), stopped.map(|_| ()), || {});
    let serving = restow_host::spawn(serving);
    let mut watch = connect(address, WATCH).await;
    until(&mut watch, "200 OK").await;
    let mut idle = connect(address, GET).await;
    until(&mut idle, "here").await;
    stop.send(()).unwrap();
    let _ = rest(&mut idle).await;
    let sender = echo.watches.lock().unwrap().pop().unwrap();
    sender.send(Bytes::from_static(b"the last")).unwrap();
    drop(sender);
    until(&mut watch, "the last").await;
    serving.await.unwrap();
}

#[tokio::test]
async fn slots_are_counted_correctly() {
    let slots = Arc::new(ConnectionSlots::new(ConnectionLimits {
        max_connections: 4,
        unauthenticated_per_address: 2,
        ..limits()
    }));
    let address = |last: u8| IpAddr::from([192, 0, 2, last]);
    let admit = |last: u8| slots.acquire(address(last));
    let first = admit(1).unwrap();
    let second = admit(1).unwrap();
    let busy = first.connection().begin_request();
    // The third of an address takes the slot of the second, which is idle; the first is in use.
    let third = admit(1).unwrap();
    assert!(second.evicted().now_or_never().is_some() && first.evicted().now_or_never().is_none());
    // Evicted or not, showing credentials counts once.
    second.connection().set_authenticated();
    third.connection().set_authenticated();
    third.connection().set_authenticated();
    drop(second);
    let fourth = admit(1).unwrap();
    let (_busy_third, _busy_fourth) = (third.connection().begin_request(), fourth.connection().begin_request());
    // Two unauthenticated ones are in use: there is none to give way.
    assert!(admit(1).is_none());
    let other = admit(2).unwrap();
    assert!(other.connection().is_reserved(), "half of the slots are for the authenticated");
    drop((busy, first, third, fourth, other));
    assert!(!admit(1).unwrap().connection().is_reserved());
}

#[tokio::test]
async fn closing_a_reserved_connection_frees_no_regular_slot() {
    let slots = Arc::new(ConnectionSlots::new(ConnectionLimits { max_connections: 4, ..limits() }));
    let admit = || slots.acquire(IpAddr::from([192, 0, 2, 1])).expect("there is a reserve");
    let taken: Vec<(ConnectionSlot, _)> = (0..4)
        .map(|_| {
            let slot = admit();
            slot.connection().set_authenticated();
            let in_use = slot.connection().begin_request();
            (slot, in_use)
        })
        .collect();
    for _ in 0..10 {
        // The one before idles in the reserve, and gives way.
        let reserved = admit();
        assert!(reserved.connection().is_reserved());
        std::mem::forget(reserved);
    }
    drop(taken);
    assert!(!admit().connection().is_reserved());
}
