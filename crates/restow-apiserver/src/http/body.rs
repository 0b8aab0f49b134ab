//! The body of an answer: all of it at once, or a stream that goes on.

use crate::handlers::Interrupted;
use crate::http::record::Record;
use bytes::Bytes;
use futures::Stream;
use futures::stream::{BoxStream, StreamExt};
use hyper::body::{Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};

/// The body of every answer.
pub(crate) enum Body {
    /// These bytes; they are taken out when they are sent.
    Whole(Bytes),
    /// What a stream gives, for as long as it does.
    Stream(StreamBody),
}

/// A body that goes on.
pub(crate) struct StreamBody {
    pub(crate) chunks: BoxStream<'static, Result<Bytes, Interrupted>>,
    pub(crate) kind: StreamKind,
    /// What is remembered of the request; it is complete when the stream ends or the client goes.
    pub(crate) record: Option<Box<Record>>,
}

/// What a stream is a stream of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamKind {
    /// Changes, which are sent as they happen, for as long as the client likes.
    Changes,
    /// Parts of one document.
    Parts,
}

impl Body {
    /// A body of what a stream gives.
    pub(crate) fn stream(
        kind: StreamKind,
        chunks: impl Stream<Item = Result<Bytes, Interrupted>> + Send + 'static,
    ) -> Self {
        Body::Stream(StreamBody { chunks: chunks.boxed(), kind, record: None })
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Interrupted;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Interrupted>>> {
        match self.get_mut() {
            Body::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Body::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Body::Stream(body) => body.chunks.poll_next_unpin(context).map(|chunk| Some(chunk?.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Body::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Body::Stream(_) => SizeHint::default(),
        }
    }
}
