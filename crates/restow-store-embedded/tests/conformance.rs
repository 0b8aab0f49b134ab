//! The embedded store passes the suite that every back end passes.

#![allow(clippy::unwrap_used)]

use restow_store::Limits;
use restow_store::conformance::{Fixture, Opened};
use restow_store_embedded::{EmbeddedConfig, EmbeddedStore};
use std::sync::Arc;

/// A fresh directory for each check.
struct Fresh {
    cache_bytes: usize,
}

impl Fresh {
    fn open(&self, limits: Limits) -> Opened {
        let directory = tempfile::tempdir().unwrap();
        let config = EmbeddedConfig {
            limits,
            cache_bytes: self.cache_bytes,
            ..EmbeddedConfig::new(directory.path().join("store"))
        };
        Opened::new(Arc::new(EmbeddedStore::open(config).unwrap()), limits).keep(Arc::new(directory))
    }
}

#[async_trait::async_trait]
impl Fixture for Fresh {
    async fn open(&self) -> Opened {
        Fresh::open(self, Limits::default())
    }

    async fn open_small(&self) -> Option<Opened> {
        Some(Fresh::open(self, Limits { store_bytes: Some(6 << 20), ..Limits::default() }))
    }
}

mod with_values_in_memory {
    use super::*;
    restow_store::conformance_tests!(Fresh { cache_bytes: 64 << 20 });
}

mod with_values_on_disk {
    use super::*;
    restow_store::conformance_tests!(Fresh { cache_bytes: 0 });
}
