//! A connection that fails when its client stops reading.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Wraps a connection. A write without progress for `timeout` fails, and with it the connection; otherwise a client that
/// never reads would hold its requests forever.
pub(crate) struct StallTimeout<T> {
    inner: T,
    timeout: Duration,
    /// The deadline of the write that is blocked now.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<T> StallTimeout<T> {
    /// Wraps a connection.
    pub(crate) fn new(inner: T, timeout: Duration) -> Self {
        StallTimeout { inner, timeout, deadline: None }
    }

    fn check_deadline<R>(&mut self, context: &mut Context<'_>, outcome: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if outcome.is_ready() {
            self.deadline = None;
            return outcome;
        }
        let timeout = self.timeout;
        let deadline =
            self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + timeout)));
        match deadline.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read"))),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for StallTimeout<T> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_read(context, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for StallTimeout<T> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let outcome = Pin::new(&mut this.inner).poll_write(context, bytes);
        this.check_deadline(context, outcome)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let outcome = Pin::new(&mut this.inner).poll_write_vectored(context, slices);
        this.check_deadline(context, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn a_client_that_reads_is_served_and_one_that_does_not_is_dropped() {
        let (mut client, server) = tokio::io::duplex(16);
        let mut server = StallTimeout::new(server, Duration::from_secs(600));
        let sending = restow_host::spawn(async move { server.write_all(&[7; 64]).await });
        client.read_exact(&mut [0; 64]).await.unwrap();
        sending.await.unwrap().unwrap();

        let (_client, server) = tokio::io::duplex(16);
        let mut server = StallTimeout::new(server, Duration::from_millis(50));
        let outcome = server.write_all(&[7; 64]).await;
        assert_eq!(outcome.map_err(|error| error.kind()), Err(io::ErrorKind::TimedOut));
    }
}
