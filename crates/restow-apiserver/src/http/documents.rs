//! Responds with documents of discovery and OpenAPI, with ETag and If-None-Match.

use crate::discovery::documents::Document;
use crate::http::body::Body;
use crate::http::render;
use crate::request::headers;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};

/// Responds with a document, or 304 if the client has it.
pub(crate) fn answer(document: Document, content_type: &'static str, request: &HeaderMap) -> Response<Body> {
    let quoted = format!("\"{}\"", document.tag);
    let known = headers::text(request, header::IF_NONE_MATCH);
    let unchanged = known.is_some_and(|known| known.split(',').any(|tag| tag.trim() == quoted || tag.trim() == "*"));
    let mut answer = render::bytes_answer(200, document.bytes, content_type);
    if unchanged {
        *answer.body_mut() = Body::Whole(Bytes::new());
        *answer.status_mut() = StatusCode::NOT_MODIFIED;
    }
    if let Ok(tag) = HeaderValue::from_str(&quoted) {
        answer.headers_mut().insert(header::ETAG, tag);
    }
    answer.headers_mut().append(header::VARY, HeaderValue::from_static("Accept"));
    answer
}

/// Responds with a document that is requested by its hash: it never changes, so clients may cache it. With another hash,
/// redirects the client to the current one.
pub(crate) fn answer_tagged(document: Document, path: &str, wanted: &str, request: &HeaderMap) -> Response<Body> {
    if !wanted.is_empty() && wanted != document.tag {
        let mut answer = render::bytes_answer(301, Bytes::new(), "text/plain; charset=utf-8");
        if let Ok(location) = HeaderValue::from_str(&format!("{path}?hash={}", document.tag)) {
            answer.headers_mut().insert(header::LOCATION, location);
        }
        return answer;
    }
    let mut answer = answer(document, "application/json", request);
    if !wanted.is_empty() {
        answer
            .headers_mut()
            .insert(header::CACHE_CONTROL, HeaderValue::from_static("public, immutable, max-age=31536000"));
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_has_the_document_gets_304() {
        let document = Document::new("{}");
        let mut headers = HeaderMap::new();
        assert_eq!(answer(document.clone(), "application/json", &headers).status(), 200);
        let known = format!("\"old\", \"{}\"", document.tag);
        headers.insert(header::IF_NONE_MATCH, HeaderValue::from_str(&known).unwrap());
        let unchanged = answer(document.clone(), "application/json", &headers);
        assert_eq!(unchanged.status(), 304);
        assert_eq!(unchanged.headers()[header::ETAG], format!("\"{}\"", document.tag).as_str());
        let moved = answer_tagged(document.clone(), "/openapi/v3/api/v1", "OLD", &HeaderMap::new());
        assert_eq!((moved.status().as_u16(), moved.headers().contains_key(header::LOCATION)), (301, true));
        let kept = answer_tagged(document.clone(), "/openapi/v3/api/v1", &document.tag, &HeaderMap::new());
        assert!(kept.headers()[header::CACHE_CONTROL].to_str().unwrap().contains("immutable"));
    }
}
