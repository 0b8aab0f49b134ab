//! The body of an answer, which keeps its connection in use until the client has taken it.
//!
//! In HTTP/2 a client says how much of each answer it takes. What it does not take lies in the server's memory, while the
//! connection looks healthy. So an answer is handed over in pieces, the next one when the client has room for it, and the
//! connection knows since when a client has left a piece. HTTP/1.1 needs none of that: there, it is TCP that waits.

use crate::serving::slots::RequestInUse;
use bytes::Bytes;
use hyper::Version;
use hyper::body::{Body, Frame, SizeHint};
use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The most that is handed over at once in HTTP/2. A client that takes less than this within the stall time is given up.
const PIECE: usize = 64 << 10;

/// Something that is kept until the client has taken an answer. It lies in the extensions of the answer.
#[derive(Clone)]
pub(crate) struct Held {
    _held: Arc<dyn Any + Send + Sync>,
}

impl Held {
    pub(crate) fn new(held: impl Send + Sync + 'static) -> Self {
        Held { _held: Arc::new(held) }
    }
}

/// A body, and the mark that its request is not over.
pub(super) struct InUse<B> {
    body: B,
    version: Version,
    /// What the body gave and was not handed over yet.
    rest: Bytes,
    request: RequestInUse,
    _held: Option<Held>,
}

impl<B> InUse<B> {
    pub(super) fn new(body: B, version: Version, request: RequestInUse, held: Option<Held>) -> Self {
        InUse { body, version, rest: Bytes::new(), request, _held: held }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for InUse<B> {
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
                // It is asked for more: all that was handed over is taken.
                other => {
                    this.request.taken();
                    return other;
                }
            }
        }
        this.request.sent();
        Poll::Ready(Some(Ok(Frame::data(piece(&mut this.rest)))))
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

/// Takes the next piece. The last byte comes alone: hyper hands a piece to the connection as soon as the client has room for
/// one byte of it, and asks for more at once. Only when the client has room for the last byte has it room for all of them.
fn piece(rest: &mut Bytes) -> Bytes {
    match rest.len().saturating_sub(1) {
        0 => std::mem::take(rest),
        others => rest.split_to(others.min(PIECE)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_bounded_and_the_last_byte_comes_alone() {
        let check = |length: usize, expected: &[usize]| {
            let mut rest = Bytes::from(vec![7; length]);
            let mut pieces = vec![piece(&mut rest).len()];
            while !rest.is_empty() {
                pieces.push(piece(&mut rest).len());
            }
            assert_eq!(pieces, expected, "{length} bytes");
        };
        check(0, &[0]);
        check(1, &[1]);
        check(200, &[199, 1]);
        check(PIECE + 1, &[PIECE, 1]);
        check(2 * PIECE, &[PIECE, PIECE - 1, 1]);
    }
}
