//! A connection that a client and the server behind an APIService have upgraded to another protocol.

use futures::future::Either;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};

/// How long one direction may go on when the other one has ended. A side that has vanished never ends it.
const GRACE: Duration = Duration::from_secs(10);

/// A connection that both sides have upgraded to another protocol.
pub(crate) struct Tunnel {
    pub(super) client: OnUpgrade,
    pub(super) server: OnUpgrade,
}

impl Tunnel {
    /// Copies in both directions until one side has closed the connection, and the other one has had time to finish.
    pub(crate) async fn run(self) {
        let Ok((client, server)) = futures::try_join!(self.client, self.server) else { return };
        relay(TokioIo::new(client), TokioIo::new(server), GRACE).await;
    }
}

async fn relay<A, B>(client: A, server: B, grace: Duration)
where
    A: AsyncRead + AsyncWrite,
    B: AsyncRead + AsyncWrite,
{
    let (from_client, to_client) = tokio::io::split(client);
    let (from_server, to_server) = tokio::io::split(server);
    let upward = std::pin::pin!(copy(from_client, to_server));
    let downward = std::pin::pin!(copy(from_server, to_client));
    let other = match futures::future::select(upward, downward).await {
        Either::Left((_, downward)) => Either::Left(downward),
        Either::Right((_, upward)) => Either::Right(upward),
    };
    let _ = tokio::time::timeout(grace, other).await;
}

/// Copies one direction, and passes its end on.
async fn copy<R: AsyncRead, W: AsyncWrite>(mut from: ReadHalf<R>, mut to: WriteHalf<W>) -> io::Result<()> {
    let copied = tokio::io::copy(&mut from, &mut to).await;
    to.shutdown().await?;
    copied.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, DuplexStream};

    /// The ends of a tunnel: that of the client, that of the server, and the tunnel itself.
    fn tunnel(grace: Duration) -> (DuplexStream, DuplexStream, impl Future<Output = ()>) {
        let (client, near_client) = tokio::io::duplex(64);
        let (server, near_server) = tokio::io::duplex(64);
        let open = async move {
            let relayed = tokio::time::timeout(Duration::from_secs(20), relay(near_client, near_server, grace));
            relayed.await.expect("the tunnel ends");
        };
        (client, server, open)
    }

    #[tokio::test]
    async fn a_tunnel_ends_when_one_side_closes_it_and_the_other_one_has_vanished() {
        let (client, server, open) = tunnel(Duration::from_millis(10));
        drop(client);
        open.await;
        drop(server);
        let (client, server, open) = tunnel(Duration::from_millis(10));
        drop(server);
        open.await;
        drop(client);
    }

    #[tokio::test]
    async fn a_side_that_has_sent_everything_still_gets_the_answer() {
        let (mut client, mut server, open) = tunnel(GRACE);
        let answering = async {
            client.write_all(b"abcd").await.unwrap();
            client.shutdown().await.unwrap();
            let mut asked = String::new();
            server.read_to_string(&mut asked).await.unwrap();
            server.write_all(b"dcba").await.unwrap();
            drop(server);
            let mut answered = String::new();
            client.read_to_string(&mut answered).await.unwrap();
            (asked, answered)
        };
        let ((), found) = futures::join!(open, answering);
        assert_eq!(found, ("abcd".to_string(), "dcba".to_string()));
    }
}
