//! Documents that clients keep and ask for again: OpenAPI and discovery, with their entity tags.

use crate::discovery::Half;
use crate::discovery::tag;
use crate::http::body::Body;
use crate::http::render;
use crate::request::headers;
use crate::resource::registry::Registry;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use restow_api::GroupVersion;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::OnceCell;

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

/// A document that can be kept. What a client asks for is understood before it is looked for here, so that there are never
/// more documents than a registry has, in however many ways their paths can be written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum DocumentName {
    /// All of discovery below one of its roots.
    Discovery(Half),
    /// OpenAPI of version 2.
    OpenApiV2,
    /// The same in protobuf.
    OpenApiV2Protobuf,
    /// Where the documents of version 3 are.
    OpenApiV3Index,
    /// One group-version in version 3.
    OpenApiV3(GroupVersion),
}

#[derive(Default)]
struct Kept {
    registry: Arc<Registry>,
    documents: HashMap<DocumentName, Arc<OnceCell<Document>>>,
}

impl Document {
    /// A document of these bytes.
    pub(crate) fn new(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Document { tag: tag(&bytes), bytes }
    }
}

impl Documents {
    /// A document, made where it is not kept yet; `None` where there is none.
    ///
    /// It takes long to make one, so that is done once however many clients ask at the same time, and not on a thread that
    /// serves requests.
    pub(crate) async fn find(
        &self,
        registry: &Arc<Registry>,
        name: DocumentName,
        make: impl FnOnce(&Registry) -> Option<Vec<u8>> + Send + 'static,
    ) -> Option<Document> {
        let cell = self.cell(registry, &name);
        let making = || async {
            let registry = registry.clone();
            let made = tokio::task::spawn_blocking(move || make(&registry).map(Document::new)).await;
            made.ok().flatten().ok_or(())
        };
        let found = cell.get_or_try_init(making).await.cloned().ok();
        if found.is_none() {
            // What does not exist is not kept either.
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            if kept.documents.get(&name).is_some_and(|cell| !cell.initialized()) {
                kept.documents.remove(&name);
            }
        }
        found
    }

    fn cell(&self, registry: &Arc<Registry>, name: &DocumentName) -> Arc<OnceCell<Document>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&kept.registry, registry) {
            *kept = Kept { registry: registry.clone(), documents: HashMap::new() };
        }
        kept.documents.entry(name.clone()).or_default().clone()
    }

    #[cfg(test)]
    fn count(&self) -> usize {
        self.kept.lock().unwrap().documents.len()
    }
}

/// Sends a document, or says that the client has it already.
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

    #[tokio::test]
    async fn a_document_is_made_once_for_a_registry_and_anew_for_another() {
        let documents = Documents::default();
        let (first, second) = (Arc::new(Registry::default()), Arc::new(Registry::default()));
        let name = DocumentName::OpenApiV2;
        let made = documents.find(&first, name.clone(), |_| Some(b"1".to_vec())).await.unwrap();
        let again = documents.find(&first, name.clone(), |_| panic!("it is kept")).await.unwrap();
        assert_eq!(made.tag, again.tag);
        assert_ne!(documents.find(&second, name, |_| Some(b"2".to_vec())).await.unwrap().tag, made.tag);
        assert_eq!(documents.count(), 1);
    }

    #[tokio::test]
    async fn what_does_not_exist_is_not_kept() {
        let (documents, registry) = (Documents::default(), Arc::new(Registry::default()));
        for number in 0..10 {
            let name = DocumentName::OpenApiV3(GroupVersion::new("example.com", format!("v{number}")).unwrap());
            assert!(documents.find(&registry, name, |_| None).await.is_none());
        }
        assert_eq!(documents.count(), 0);
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
