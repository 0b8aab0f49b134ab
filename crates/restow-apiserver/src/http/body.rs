//! The body of a response: complete bytes, or a stream.

use crate::handlers::Interrupted;
use crate::http::record::RequestRecord;
use bytes::Bytes;
use futures::Stream;
use futures::stream::{BoxStream, StreamExt};
use hyper::body::{Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};

/// The body of every response.
pub(crate) enum Body {
    /// Complete bytes, taken out when they are sent.
    Whole(Bytes),
    /// The items of a stream.
    Stream(StreamBody),
}

/// A body that is a stream.
pub(crate) struct StreamBody {
    pub(crate) chunks: BoxStream<'static, Result<Bytes, Interrupted>>,
    pub(crate) kind: StreamKind,
    /// The record of the request; it is complete when the stream ends or the client disconnects.
    pub(crate) record: Option<Box<RequestRecord>>,
}

/// What a stream consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamKind {
    /// Watch events, which are sent as they happen.
    Watch,
    /// Chunks of one document.
    Document,
}

impl Body {
    /// A body that is a stream.
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
