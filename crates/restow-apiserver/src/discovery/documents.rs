//! Documents that clients keep and ask for again: OpenAPI and discovery, with their entity tags.

use crate::discovery::Half;
use crate::discovery::tag;
use crate::resource::registry::Registry;
use bytes::Bytes;
use restow_api::GroupVersion;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::OnceCell;

/// A document as it is sent.
#[derive(Clone)]
pub(crate) struct Document {
    pub(crate) bytes: Bytes,
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
}
