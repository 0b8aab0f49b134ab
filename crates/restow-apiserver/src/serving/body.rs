//! A response body that keeps its connection in use until the client has read it.
//!
//! With HTTP/2 flow control, data that a client does not read stays in the server's memory while the connection looks
//! healthy. So a body is passed on in chunks, the next one when the client's window has room, and the connection records
//! since when a chunk is unread. HTTP/1.1 does not need this: TCP's own flow control blocks the write.

use crate::serving::slots::ActiveRequest;
use bytes::Bytes;
use hyper::Version;
use hyper::body::{Body, Frame, SizeHint};
use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The largest chunk in HTTP/2. A client that reads less than this within the stall timeout is disconnected.
const MAX_CHUNK: usize = 64 << 10;

/// Something that is held until the client has read a response. It is put into the extensions of the response.
#[derive(Clone)]
pub(crate) struct ResponseGuard {
    _held: Arc<dyn Any + Send + Sync>,
}

impl ResponseGuard {
    pub(crate) fn new(held: impl Send + Sync + 'static) -> Self {
        ResponseGuard { _held: Arc::new(held) }
    }
}

/// A body together with its running request.
pub(super) struct TrackedBody<B> {
    body: B,
    version: Version,
    /// What is left of the current frame.
    rest: Bytes,
    request: ActiveRequest,
    _guard: Option<ResponseGuard>,
}

impl<B> TrackedBody<B> {
    pub(super) fn new(body: B, version: Version, request: ActiveRequest, guard: Option<ResponseGuard>) -> Self {
        TrackedBody { body, version, rest: Bytes::new(), request, _guard: guard }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for TrackedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = &mut *self;
        if this.version != Version::HTTP_2 {
            return Pin::new(&mut this.body).poll_frame(context);
        }
        if this.rest.is_empty() {
            match Pin::new(&mut this.body).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => this.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                // More is requested, so everything before was read.
                other => {
                    this.request.all_read();
                    return other;
                }
            }
        }
        this.request.sent();
        Poll::Ready(Some(Ok(Frame::data(next_chunk(&mut this.rest)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (mut hint, rest) = (self.body.size_hint(), self.rest.len() as u64);
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + rest);
        }
        hint.set_lower(hint.lower() + rest);
        hint
    }
}

/// Takes the next chunk. The last byte is a chunk of its own: hyper passes a chunk on as soon as the window has room for one
/// byte of it, and polls again at once. Only when there is room for the last byte have all bytes fitted.
fn next_chunk(rest: &mut Bytes) -> Bytes {
    match rest.len().saturating_sub(1) {
        0 => std::mem::take(rest),
        others => rest.split_to(others.min(MAX_CHUNK)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_bounded_and_the_last_byte_is_a_chunk_of_its_own() {
        let check = |length: usize, expected: &[usize]| {
            let mut rest = Bytes::from(vec![7; length]);
            let mut pieces = vec![next_chunk(&mut rest).len()];
            while !rest.is_empty() {
                pieces.push(next_chunk(&mut rest).len());
            }
            assert_eq!(pieces, expected, "{length} bytes");
        };
        check(0, &[0]);
        check(1, &[1]);
        check(200, &[199, 1]);
        check(MAX_CHUNK + 1, &[MAX_CHUNK, 1]);
        check(2 * MAX_CHUNK, &[MAX_CHUNK, MAX_CHUNK - 1, 1]);
    }
}
