//! Cache of the OpenAPI and discovery documents, with their ETags.

use crate::discovery::DiscoveryRoot;
use crate::discovery::aggregation::Aggregation;
use crate::discovery::tag;
use crate::resource::registry::Registry;
use bytes::Bytes;
use restow_api::GroupVersion;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::OnceCell;

/// A document in its wire form.
#[derive(Clone)]
pub(crate) struct Document {
    pub(crate) bytes: Bytes,
    /// The ETag, without quotes.
    pub(crate) tag: String,
}

/// What documents are made from.
#[derive(Clone, Default)]
pub(crate) struct Sources {
    /// The resources of this server.
    pub(crate) registry: Arc<Registry>,
    /// The group-versions of other servers.
    pub(crate) aggregation: Arc<Aggregation>,
}

impl Sources {
    fn are(&self, others: &Sources) -> bool {
        Arc::ptr_eq(&self.registry, &others.registry) && Arc::ptr_eq(&self.aggregation, &others.aggregation)
    }
}

/// Cached documents. They depend only on their sources, and are dropped when these change.
#[derive(Default)]
pub(crate) struct Documents {
    cache: Mutex<DocumentCache>,
}

/// The key of a cached document. Request paths are parsed first, so that clients cannot fill the cache with variants of a
/// path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum DocumentName {
    /// Aggregated discovery of one root.
    Discovery(DiscoveryRoot),
    /// OpenAPI of version 2.
    OpenApiV2,
    /// The same in protobuf.
    OpenApiV2Protobuf,
    /// The index of version 3.
    OpenApiV3Index,
    /// One group-version in version 3.
    OpenApiV3(GroupVersion),
}

#[derive(Default)]
struct DocumentCache {
    sources: Sources,
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
    /// A document from the cache, or created by `make`; `None` if there is none.
    ///
    /// Creating one takes long, so that is done once for concurrent requests, on a blocking thread.
    pub(crate) async fn find(
        &self,
        sources: &Sources,
        name: DocumentName,
        make: impl FnOnce(&Sources) -> Option<Vec<u8>> + Send + 'static,
    ) -> Option<Document> {
        let cell = self.cell(sources, &name);
        let making = || async {
            let sources = sources.clone();
            let made = restow_host::run_blocking(move || make(&sources).map(Document::new)).await;
            made.ok().flatten().ok_or(())
        };
        let found = cell.get_or_try_init(making).await.cloned().ok();
        if found.is_none() {
            // Documents that do not exist are not cached.
            let mut kept = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
            if kept.documents.get(&name).is_some_and(|cell| !cell.initialized()) {
                kept.documents.remove(&name);
            }
        }
        found
    }

    fn cell(&self, sources: &Sources, name: &DocumentName) -> Arc<OnceCell<Document>> {
        let mut kept = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if !kept.sources.are(sources) {
            *kept = DocumentCache { sources: sources.clone(), documents: HashMap::new() };
        }
        kept.documents.entry(name.clone()).or_default().clone()
    }

    #[cfg(test)]
    fn count(&self) -> usize {
        self.cache.lock().unwrap().documents.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_document_is_created_once_for_each_registry() {
        let documents = Documents::default();
        let (first, second) = (Sources::default(), Sources::default());
        let name = DocumentName::OpenApiV2;
        let made = documents.find(&first, name.clone(), |_| Some(b"1".to_vec())).await.unwrap();
        let again = documents.find(&first, name.clone(), |_| panic!("it is cached")).await.unwrap();
        assert_eq!(made.tag, again.tag);
        assert_ne!(documents.find(&second, name, |_| Some(b"2".to_vec())).await.unwrap().tag, made.tag);
        assert_eq!(documents.count(), 1);
    }

    #[tokio::test]
    async fn documents_that_do_not_exist_are_not_cached() {
        let (documents, sources) = (Documents::default(), Sources::default());
        for number in 0..10 {
            let name = DocumentName::OpenApiV3(GroupVersion::new("example.com", format!("v{number}")).unwrap());
            assert!(documents.find(&sources, name, |_| None).await.is_none());
        }
        assert_eq!(documents.count(), 0);
    }
}
