//! Answering AdmissionReviews. Nobody who asks is known, so what is read of them is bounded: the size of a body, the time
//! that it takes, what all bodies hold together, and how many are understood at once.

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Request, Response, StatusCode};
use restow_apiserver::listening::{Connection, Handler};
use restow_rules::migrate::guard::refusal;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};

/// The largest review: a CRD before and after a change, each as large as an API server takes it.
const MAX_REVIEW: usize = 8 << 20;
/// The part of a review for which there is always room. Hardly any is longer, so whoever sends large ones keeps nobody out.
const FREE: usize = 256 << 10;
/// What all bodies may hold together, that part apart.
const MAX_REVIEWS: usize = 32 << 20;
/// How many reviews are understood at once: a text can take many times its size once it is read.
const UNDERSTOOD_AT_ONCE: usize = 2;
/// How long a review may take to arrive. The API server waits no longer for the answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Answers AdmissionReviews.
pub(super) struct Reviews {
    room: Semaphore,
    turns: Semaphore,
}

impl Default for Reviews {
    fn default() -> Self {
        Reviews { room: Semaphore::new(MAX_REVIEWS), turns: Semaphore::new(UNDERSTOOD_AT_ONCE) }
    }
}

/// Why a review is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    TooLarge,
    TooSlow,
    Unreadable,
}

impl Handler for Reviews {
    type Peer = ();
    type Body = Full<Bytes>;

    fn connected(&self, _: &Connection, _: Option<&rustls::ServerConnection>) {}

    async fn answer(self: Arc<Self>, request: Request<Incoming>, _: Arc<()>) -> Response<Full<Bytes>> {
        match self.review(request.into_body(), PATIENCE).await {
            Ok(answer) => respond(StatusCode::OK, answer),
            Err(Refused::TooLarge) => respond(StatusCode::PAYLOAD_TOO_LARGE, format!("more than {MAX_REVIEW} bytes")),
            Err(Refused::TooSlow) => respond(StatusCode::REQUEST_TIMEOUT, "the review took too long".to_owned()),
            Err(Refused::Unreadable) => {
                respond(StatusCode::BAD_REQUEST, "this takes AdmissionReviews and nothing else".to_owned())
            }
        }
    }
}

impl Reviews {
    async fn review<B: Body<Data = Bytes> + Unpin>(&self, body: B, patience: Duration) -> Result<String, Refused> {
        let reading = async {
            let (bytes, _room) = self.read(body).await?;
            let _turn = self.turns.acquire().await.map_err(|_| Refused::TooSlow)?;
            // Understanding a large text takes a while; other connections go on meanwhile.
            tokio::task::spawn_blocking(move || understand(&bytes)).await.map_err(|_| Refused::Unreadable)?
        };
        tokio::time::timeout(patience, reading).await.unwrap_or(Err(Refused::TooSlow))
    }

    /// Reads a body, and keeps room for it.
    async fn read<B: Body<Data = Bytes> + Unpin>(
        &self,
        mut body: B,
    ) -> Result<(Bytes, Option<SemaphorePermit<'_>>), Refused> {
        let (mut bytes, mut room) = (BytesMut::new(), None::<SemaphorePermit<'_>>);
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(|_| Refused::Unreadable)?.into_data() else { continue };
            if bytes.len() + data.len() > MAX_REVIEW {
                return Err(Refused::TooLarge);
            }
            bytes.extend_from_slice(&data);
            let needed = bytes.len().saturating_sub(FREE) - room.as_ref().map_or(0, SemaphorePermit::num_permits);
            let needed = u32::try_from(needed).map_err(|_| Refused::TooLarge)?;
            let more = self.room.acquire_many(needed).await.map_err(|_| Refused::TooSlow)?;
            match &mut room {
                Some(room) => room.merge(more),
                None => room = Some(more),
            }
        }
        Ok((bytes.freeze(), room))
    }
}

fn understand(bytes: &[u8]) -> Result<String, Refused> {
    match serde_json::from_slice::<Value>(bytes) {
        Ok(review) if review["kind"] == "AdmissionReview" => Ok(review_of(&review).to_string()),
        _ => Err(Refused::Unreadable),
    }
}

fn respond(code: StatusCode, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The answer to a question about one change.
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
        let reviews = Reviews::default();
        let size = 1 << 20;
        let read = reviews.review(parts(MAX_REVIEW / size, size), PATIENCE).await;
        assert_eq!(read, Err(Refused::Unreadable), "it is all blank");
        let read = reviews.review(parts(MAX_REVIEW / size + 1, size), PATIENCE).await;
        assert_eq!(read, Err(Refused::TooLarge));
        assert_eq!(reviews.room.available_permits(), MAX_REVIEWS);
    }

    #[tokio::test]
    async fn a_body_that_does_not_end_is_given_up() {
        let reviews = Reviews::default();
        let endless = StreamBody::new(futures::stream::pending::<Result<Frame<Bytes>, Infallible>>());
        assert_eq!(reviews.review(endless, Duration::from_millis(10)).await, Err(Refused::TooSlow));
    }

    #[tokio::test]
    async fn a_review_is_answered() {
        let review = json!({"kind": "AdmissionReview", "request": {"uid": "a", "oldObject": {}, "object": {}}});
        let answer = Reviews::default().review(Full::<Bytes>::from(review.to_string()), PATIENCE).await.unwrap();
        assert!(answer.contains(r#""allowed":true"#), "{answer}");
    }
}
