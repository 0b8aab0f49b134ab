//! The conformance suite against the in-memory store: the suite tests itself.

use restow_store::conformance::{Fixture, ModelStore, Opened};
use restow_store::{Limits, conformance_tests};
use std::sync::Arc;

struct InMemory;

#[async_trait::async_trait]
impl Fixture for InMemory {
    async fn open(&self) -> Opened {
        Opened::new(Arc::new(ModelStore::default()), Limits::default())
    }

    async fn open_small(&self) -> Option<Opened> {
        let limits = Limits { store_bytes: Some(1 << 20), ..Limits::default() };
        Some(Opened::new(Arc::new(ModelStore::new(limits)), limits))
    }
}

conformance_tests!(InMemory);
