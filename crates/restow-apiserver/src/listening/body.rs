//! The body of an answer, which keeps its connection in use until it is sent.

use crate::listening::places::RequestInUse;
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};

/// A body, and the mark that its request is not over.
pub(super) struct InUse<B> {
    body: B,
    _request: RequestInUse,
}

impl<B> InUse<B> {
    pub(super) fn new(body: B, request: RequestInUse) -> Self {
        InUse { body, _request: request }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for InUse<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
