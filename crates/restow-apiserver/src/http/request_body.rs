//! Reads the body of a request, within limits of size and time.

use crate::error::ApiError;
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use std::pin::Pin;
use std::time::Duration;

/// The largest body that is accepted.
pub(super) const MAX_BODY: usize = 3 << 20;
/// How much of a body that is too large is read and discarded before responding.
const MAX_DISCARDED: usize = 16 << 20;

/// The length of a body according to its headers, or the limit.
pub(super) fn expected_length(body: &impl hyper::body::Body) -> usize {
    let length = body.size_hint().upper().and_then(|length| usize::try_from(length).ok());
    length.unwrap_or(MAX_BODY).min(MAX_BODY)
}

/// Reads a body, up to [`MAX_BODY`].
pub(super) async fn read<B>(request: Request<B>, timeout: Duration) -> Result<Bytes, ApiError>
where
    B: hyper::body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut body = Box::pin(request.into_body());
    let limited = Limited::new(body.as_mut(), MAX_BODY);
    let Ok(collected) = tokio::time::timeout(timeout, limited.collect()).await else {
        return Err(ApiError::Timeout("the body of the request did not arrive in time".into()));
    };
    match collected {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.downcast_ref::<LengthLimitError>().is_some() => {
            // A client that is still sending does not read yet, and would lose the response with the connection.
            let _ = tokio::time::timeout(timeout, discard(body)).await;
            Err(ApiError::TooLarge(format!("Request entity too large: limit is {MAX_BODY}")))
        }
        Err(error) => Err(ApiError::BadRequest(format!("the body could not be read: {error}"))),
    }
}

/// Reads a body and discards it, up to a limit.
pub(super) async fn discard<B: hyper::body::Body<Data = Bytes>>(mut body: Pin<Box<B>>) {
    let mut discarded = 0;
    while discarded < MAX_DISCARDED
        && let Some(Ok(frame)) = body.frame().await
    {
        discarded += frame.data_ref().map_or(0, Bytes::len);
    }
}
