//! HTTP/2 clients that do not read their responses, or read them slowly.

use super::*;
use h2::client::{ResponseFuture, SendRequest};
use tokio::task::JoinHandle;

const STALL: Duration = Duration::from_secs(2);

/// A client that takes so many bytes of each response until it says otherwise, and the connection, which ends when it is closed.
async fn client(address: SocketAddr, window: u32) -> (SendRequest<Bytes>, JoinHandle<Result<(), h2::Error>>) {
    let stream = TcpStream::connect(address).await.unwrap();
    let (client, connection) = h2::client::Builder::new().initial_window_size(window).handshake(stream).await.unwrap();
    (client, restow_host::spawn(connection))
}

async fn get(client: &SendRequest<Bytes>, path: &str) -> ResponseFuture {
    let request = Request::get(format!("http://a{path}")).body(()).unwrap();
    client.clone().ready().await.unwrap().send_request(request, true).unwrap().0
}

async fn head(client: &SendRequest<Bytes>, path: &str) -> h2::RecvStream {
    get(client, path).await.await.unwrap().into_body()
}

async fn is_closed(connection: JoinHandle<Result<(), h2::Error>>) {
    let ended = tokio::time::timeout(LONG, connection).await;
    ended.expect("the connection is closed").unwrap().ok();
}

#[tokio::test]
async fn a_client_that_does_not_read_its_responses_is_disconnected() {
    let (address, _) = listen(ConnectionLimits { stall_timeout: STALL, ..limits() }, true).await;
    // Room for one byte lets a server believe that it is rid of the others.
    for window in [0, 1] {
        let (client, connection) = client(address, window).await;
        let mut unread = Vec::new();
        for _ in 0..10 {
            unread.push(head(&client, "/").await);
        }
        is_closed(connection).await;
    }
}

#[tokio::test]
async fn a_slow_reader_and_an_idle_watch_are_served() {
    let (address, echo) = listen(ConnectionLimits { stall_timeout: STALL, ..limits() }, true).await;
    let (client, _connection) = client(address, 64 << 10).await;
    let (mut slow, mut quiet) = (head(&client, "/watch").await, head(&client, "/watch").await);
    let (of_quiet, of_slow) = {
        let mut watches = echo.watches.lock().unwrap();
        (watches.pop().unwrap(), watches.pop().unwrap())
    };
    let begun = Instant::now();
    let size = 800 << 10;
    of_slow.send(vec![7; size].into()).unwrap();
    drop(of_slow);
    let mut read = 0;
    while let Some(data) = slow.data().await {
        let length = data.unwrap().len();
        read += length;
        tokio::time::sleep(Duration::from_millis(80)).await;
        slow.flow_control().release_capacity(length).unwrap();
    }
    assert_eq!(read, size);
    assert!(begun.elapsed() > STALL, "it was slow");
    of_quiet.send(Bytes::from_static(b"news")).unwrap();
    let mut news = Vec::new();
    while news.len() < 4 {
        news.extend_from_slice(&quiet.data().await.unwrap().unwrap());
    }
    assert_eq!(news, b"news");
}

#[tokio::test]
async fn a_client_that_does_not_read_is_disconnected_for_a_new_one() {
    for authenticates in [false, true] {
        let limits = ConnectionLimits { max_connections: 8, unauthenticated_per_address: 3, ..limits() };
        let (address, _) = listen(limits, authenticates).await;
        let mut open = Vec::new();
        for _ in 0..if authenticates { 8 } else { 3 } {
            let (client, connection) = client(address, 0).await;
            let unread = head(&client, "/").await;
            open.push((client, connection, unread));
        }
        // None of them has idled for long enough yet.
        tokio::time::sleep(Duration::from_millis(2 * slots::UNREAD_IDLE_MILLIS)).await;
        until(&mut connect(address, GET).await, "here").await;
        is_closed(open.remove(0).1).await;
    }
}

#[tokio::test]
async fn a_response_guard_is_held_until_the_response_is_read() {
    let slots = Arc::new(ConnectionSlots::new(limits()));
    let slot = slots.acquire(IpAddr::from([192, 0, 2, 1])).unwrap();
    let held = Arc::new(());
    let body = http_body_util::Full::new(Bytes::from_static(b"here"));
    let mut body = TrackedBody::new(
        body,
        hyper::Version::HTTP_2,
        slot.connection().begin_request(),
        Some(ResponseGuard::new(held.clone())),
    );
    use http_body_util::BodyExt;
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "her");
    assert!(!body.is_end_stream() && slot.connection().is_in_use());
    assert_eq!(Arc::strong_count(&held), 2);
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "e");
    assert!(body.is_end_stream());
    drop(body);
    assert!(!slot.connection().is_in_use());
    assert_eq!(Arc::strong_count(&held), 1);
}
