//! Documents that clients keep and ask for again: OpenAPI and discovery, with their entity tags.

use crate::http::body::Body;
use crate::http::render;
use crate::registry::Registry;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use ring::digest::{SHA256, digest};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A document as it is sent.
#[derive(Clone)]
pub(crate) struct Document {
    bytes: Bytes,
    /// What the document is, without quotes.
    pub(crate) tag: String,
}

/// Documents that depend on nothing but the registry, kept until there is another one.
#[derive(Default)]
pub(crate) struct Documents {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    registry: Arc<Registry>,
    by_path: HashMap<String, Document>,
}

impl Document {
    /// A document of these bytes.
    pub(crate) fn new(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Document { tag: tag(&bytes), bytes }
    }
}

impl Documents {
    /// The document at a path, made where it is not kept yet; `None` where there is none.
    pub(crate) fn find(
        &self,
        registry: &Arc<Registry>,
        path: &str,
        make: impl FnOnce(&Registry) -> Option<Value>,
    ) -> Option<Document> {
        self.find_bytes(registry, path, |registry| make(registry).map(|value| value.to_string().into_bytes()))
    }

    /// The same, of any bytes.
    pub(crate) fn find_bytes(
        &self,
        registry: &Arc<Registry>,
        path: &str,
        make: impl FnOnce(&Registry) -> Option<Vec<u8>>,
    ) -> Option<Document> {
        {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            if !Arc::ptr_eq(&kept.registry, registry) {
                *kept = Kept { registry: registry.clone(), by_path: HashMap::new() };
            }
            if let Some(document) = kept.by_path.get(path) {
                return Some(document.clone());
            }
        }
        // Made without the lock: it takes long, and others may want another document meanwhile.
        let document = Document::new(make(registry)?);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if Arc::ptr_eq(&kept.registry, registry) {
            kept.by_path.insert(path.to_string(), document.clone());
        }
        Some(document)
    }
}

/// What tells a text from any other; OpenAPI's index names documents by it.
pub(crate) fn tag(text: &[u8]) -> String {
    digest(&SHA256, text).as_ref().iter().take(16).map(|byte| format!("{byte:02X}")).collect()
}

/// Sends a document, or says that the client has it already.
pub(crate) fn answer(document: Document, content_type: &'static str, request: &HeaderMap) -> Response<Body> {
    let quoted = format!("\"{}\"", document.tag);
    let known = request.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
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

/// Sends a document that was asked for by its tag: it never changes, so it may be kept. With another tag, the client is
/// sent to where the document is now.
pub(crate) fn answer_tagged(document: Document, path: &str, wanted: &str, request: &HeaderMap) -> Response<Body> {
    if !wanted.is_empty() && wanted != document.tag {
        let mut answer = render::bytes_answer(301, Bytes::new(), "text/plain; charset=utf-8");
        if let Ok(place) = HeaderValue::from_str(&format!("{path}?hash={}", document.tag)) {
            answer.headers_mut().insert(header::LOCATION, place);
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
    use serde_json::json;

    #[test]
    fn a_document_is_made_once_for_a_registry_and_anew_for_another() {
        let documents = Documents::default();
        let (first, second) = (Arc::new(Registry::default()), Arc::new(Registry::default()));
        let made = documents.find(&first, "/a", |_| Some(json!(1))).unwrap();
        let again = documents.find(&first, "/a", |_| panic!("it is kept")).unwrap();
        assert_eq!(made.tag, again.tag);
        assert_ne!(documents.find(&second, "/a", |_| Some(json!(2))).unwrap().tag, made.tag);
        assert!(documents.find(&second, "/b", |_| None).is_none());
    }

    #[test]
    fn a_client_that_has_the_document_gets_no_other_copy() {
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
