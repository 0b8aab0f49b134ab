//! Serves AdmissionReviews. Clients are not authenticated, so everything is bounded: the size of a body, the time to read
//! it, the memory of all bodies, and how many are decoded at once.

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Request, Response, StatusCode};
use restow_apiserver::serving::{Connection, Handler};
use restow_rules::migrate::guard::refusal;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};

/// The largest review: a CRD before and after a change, each at the size limit of an API server.
const MAX_REVIEW: usize = 8 << 20;
/// The part of a review for which memory is always reserved. Hardly any is larger, so clients that send large ones do not
/// block others.
const FREE: usize = 256 << 10;
/// The memory limit of all bodies, without that part.
const MAX_REVIEWS: usize = 32 << 20;
/// How many reviews are decoded at once: decoded JSON can take many times its size.
const UNDERSTOOD_AT_ONCE: usize = 2;
/// The timeout for reading a review. The API server does not wait longer for the response.
const PATIENCE: Duration = Duration::from_secs(5);

/// Serves AdmissionReviews.
pub(super) struct ReviewHandler {
    room: Semaphore,
    turns: Semaphore,
}

impl Default for ReviewHandler {
    fn default() -> Self {
        ReviewHandler { room: Semaphore::new(MAX_REVIEWS), turns: Semaphore::new(UNDERSTOOD_AT_ONCE) }
    }
}

/// Why a review is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReviewError {
    TooLarge,
    TooSlow,
    Unreadable,
}

impl Handler for ReviewHandler {
    type Peer = ();
    type Body = Full<Bytes>;

    fn connected(&self, _: &Connection, _: Option<&rustls::ServerConnection>) {}

    async fn handle(self: Arc<Self>, request: Request<Incoming>, _: Arc<()>) -> Response<Full<Bytes>> {
        match self.review(request.into_body(), PATIENCE).await {
            Ok(answer) => respond(StatusCode::OK, answer),
            Err(ReviewError::TooLarge) => {
                respond(StatusCode::PAYLOAD_TOO_LARGE, format!("more than {MAX_REVIEW} bytes"))
            }
            Err(ReviewError::TooSlow) => respond(StatusCode::REQUEST_TIMEOUT, "the review took too long".to_owned()),
            Err(ReviewError::Unreadable) => {
                respond(StatusCode::BAD_REQUEST, "this endpoint accepts AdmissionReviews only".to_owned())
            }
        }
    }
}

impl ReviewHandler {
    async fn review<B: Body<Data = Bytes> + Unpin>(&self, body: B, timeout: Duration) -> Result<String, ReviewError> {
        let reading = async {
            let (bytes, _room) = self.read(body).await?;
            let _turn = self.turns.acquire().await.map_err(|_| ReviewError::TooSlow)?;
            // Decoding a large text takes a while; other connections are served meanwhile.
            tokio::task::spawn_blocking(move || decode(&bytes)).await.map_err(|_| ReviewError::Unreadable)?
        };
        tokio::time::timeout(timeout, reading).await.unwrap_or(Err(ReviewError::TooSlow))
    }

    /// Reads a body, and reserves memory for it.
    async fn read<B: Body<Data = Bytes> + Unpin>(
        &self,
        mut body: B,
    ) -> Result<(Bytes, Option<SemaphorePermit<'_>>), ReviewError> {
        let (mut bytes, mut room) = (BytesMut::new(), None::<SemaphorePermit<'_>>);
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(|_| ReviewError::Unreadable)?.into_data() else { continue };
            if bytes.len() + data.len() > MAX_REVIEW {
                return Err(ReviewError::TooLarge);
            }
            bytes.extend_from_slice(&data);
            let needed = bytes.len().saturating_sub(FREE) - room.as_ref().map_or(0, SemaphorePermit::num_permits);
            let needed = u32::try_from(needed).map_err(|_| ReviewError::TooLarge)?;
            let more = self.room.acquire_many(needed).await.map_err(|_| ReviewError::TooSlow)?;
            match &mut room {
                Some(room) => room.merge(more),
                None => room = Some(more),
            }
        }
        Ok((bytes.freeze(), room))
    }
}

fn decode(bytes: &[u8]) -> Result<String, ReviewError> {
    match serde_json::from_slice::<Value>(bytes) {
        Ok(review) if review["kind"] == "AdmissionReview" => Ok(review_of(&review).to_string()),
        _ => Err(ReviewError::Unreadable),
    }
}

fn respond(code: StatusCode, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The response to a review.
fn review_of(review: &Value) -> Value {
    let request = &review["request"];
    let mut response = json!({"uid": request["uid"], "allowed": true});
    if let Some(words) = refusal(&request["oldObject"], &request["object"]) {
        response["allowed"] = json!(false);
        response["status"] = json!({"code": 403, "reason": "Forbidden", "message": words});
    }
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use std::convert::Infallible;

    fn parts(count: usize, size: usize) -> impl Body<Data = Bytes, Error = Infallible> + Unpin {
        let part = Bytes::from(vec![b' '; size]);
        let parts = (0..count).map(move |_| Ok::<_, Infallible>(Frame::data(part.clone())));
        StreamBody::new(futures::stream::iter(parts))
    }

    #[tokio::test]
    async fn a_body_is_read_up_to_a_limit_and_leaves_its_room_to_others() {
        let reviews = ReviewHandler::default();
        let size = 1 << 20;
        let read = reviews.review(parts(MAX_REVIEW / size, size), PATIENCE).await;
        assert_eq!(read, Err(ReviewError::Unreadable), "it is all blank");
        let read = reviews.review(parts(MAX_REVIEW / size + 1, size), PATIENCE).await;
        assert_eq!(read, Err(ReviewError::TooLarge));
        assert_eq!(reviews.room.available_permits(), MAX_REVIEWS);
    }

    #[tokio::test]
    async fn a_body_that_does_not_end_is_given_up() {
        let reviews = ReviewHandler::default();
        let endless = StreamBody::new(futures::stream::pending::<Result<Frame<Bytes>, Infallible>>());
        assert_eq!(reviews.review(endless, Duration::from_millis(10)).await, Err(ReviewError::TooSlow));
    }

    #[tokio::test]
    async fn a_review_is_answered() {
        let review = json!({"kind": "AdmissionReview", "request": {"uid": "a", "oldObject": {}, "object": {}}});
        let answer = ReviewHandler::default().review(Full::<Bytes>::from(review.to_string()), PATIENCE).await.unwrap();
        assert!(answer.contains(r#""allowed":true"#), "{answer}");
    }
}
