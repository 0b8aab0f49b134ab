//! Responds with documents of discovery and OpenAPI, with ETag and If-None-Match.

use crate::discovery::documents::Document;
use crate::http::body::Body;
use crate::http::render;
use crate::request::headers;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};

/// Responds with a document, or 304 if the client has it.
pub(crate) fn document_response(document: Document, content_type: &'static str, request: &HeaderMap) -> Response<Body> {
    let quoted = format!("\"{}\"", document.tag);
    let known = headers::text(request, header::IF_NONE_MATCH);
    let unchanged = known.is_some_and(|known| known.split(',').any(|tag| tag.trim() == quoted || tag.trim() == "*"));
    let mut response = render::bytes_response(200, document.bytes, content_type);
    if unchanged {
        *response.body_mut() = Body::Whole(Bytes::new());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    if let Ok(tag) = HeaderValue::from_str(&quoted) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response.headers_mut().append(header::VARY, HeaderValue::from_static("Accept"));
    response
}

/// Responds with a document that is requested by its hash: it never changes, so clients may cache it. With another hash,
/// redirects the client to the current one.
pub(crate) fn versioned_document_response(
    document: Document,
    path: &str,
    wanted: &str,
    request: &HeaderMap,
) -> Response<Body> {
    if !wanted.is_empty() && wanted != document.tag {
        let mut response = render::bytes_response(301, Bytes::new(), "text/plain; charset=utf-8");
        if let Ok(location) = HeaderValue::from_str(&format!("{path}?hash={}", document.tag)) {
            response.headers_mut().insert(header::LOCATION, location);
        }
        return response;
    }
    let mut response = document_response(document, "application/json", request);
    if !wanted.is_empty() {
        response
            .headers_mut()
            .insert(header::CACHE_CONTROL, HeaderValue::from_static("public, immutable, max-age=31536000"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_has_the_document_gets_304() {
        let document = Document::new("{}");
        let mut headers = HeaderMap::new();
        assert_eq!(document_response(document.clone(), "application/json", &headers).status(), 200);
        let known = format!("\"old\", \"{}\"", document.tag);
        headers.insert(header::IF_NONE_MATCH, HeaderValue::from_str(&known).unwrap());
        let unchanged = document_response(document.clone(), "application/json", &headers);
        assert_eq!(unchanged.status(), 304);
        assert_eq!(unchanged.headers()[header::ETAG], format!("\"{}\"", document.tag).as_str());
        let moved = versioned_document_response(document.clone(), "/openapi/v3/api/v1", "OLD", &HeaderMap::new());
        assert_eq!((moved.status().as_u16(), moved.headers().contains_key(header::LOCATION)), (301, true));
        let kept =
            versioned_document_response(document.clone(), "/openapi/v3/api/v1", &document.tag, &HeaderMap::new());
        assert!(kept.headers()[header::CACHE_CONTROL].to_str().unwrap().contains("immutable"));
    }
}
