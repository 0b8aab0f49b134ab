//! The state that the store, its threads and its watches share: index, recent changes, engine, and whether it takes writes.

use crate::directory::Directory;
use crate::engine::Engine;
use crate::index::Index;
use crate::recent_changes::RecentChanges;
use crate::snapshot::EngineSnapshot;
use restow_store::{Revision, StoreError};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::sync::watch;

/// What the threads, the watchers and the store share.
pub(crate) struct SharedState {
    pub(crate) recent_changes: RecentChanges,
    pub(crate) progress: watch::Sender<Progress>,
    pub(crate) directory: Directory,
    index: RwLock<Index>,
    /// `None` while it is reopened.
    engine: RwLock<Option<Arc<Engine>>>,
    /// Why the store is not ready for writes, if it is not.
    not_ready: RwLock<Option<StoreError>>,
}

/// The state of the store that watches wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) revision: Revision,
    pub(crate) closed: bool,
}

impl SharedState {
    /// The state of a store that was just opened.
    pub(crate) fn new(directory: Directory, engine: Engine, index: Index) -> Self {
        let revision = index.revision();
        SharedState {
            recent_changes: RecentChanges::after(revision),
            progress: watch::channel(Progress { revision, closed: false }).0,
            directory,
            index: RwLock::new(index),
            engine: RwLock::new(Some(Arc::new(engine))),
            not_ready: RwLock::new(None),
        }
    }

    pub(crate) fn index(&self) -> RwLockReadGuard<'_, Index> {
        // A change to the index is complete before anything in it can panic.
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn index_mut(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The engine. Callers must not keep it for long, because it can be reopened only when it is not in use.
    pub(crate) fn engine(&self) -> Result<Arc<Engine>, StoreError> {
        let engine = self.engine.read().unwrap_or_else(PoisonError::into_inner);
        engine.clone().ok_or_else(|| StoreError::Unavailable("the store is being reopened".into()))
    }

    /// A snapshot of the engine.
    pub(crate) fn snapshot(&self) -> Result<EngineSnapshot, StoreError> {
        self.engine().map(EngineSnapshot::of)
    }

    /// Replaces the engine.
    pub(crate) fn replace_engine(&self, engine: Option<Arc<Engine>>) -> Option<Arc<Engine>> {
        std::mem::replace(&mut *self.engine.write().unwrap_or_else(PoisonError::into_inner), engine)
    }

    /// Fails if the store is not ready for writes.
    pub(crate) fn check_ready(&self) -> Result<(), StoreError> {
        self.not_ready.read().unwrap_or_else(PoisonError::into_inner).clone().map_or(Ok(()), Err)
    }

    /// Sets why the store is not ready for writes, or that it is.
    pub(crate) fn set_not_ready(&self, not_ready: Option<StoreError>) {
        *self.not_ready.write().unwrap_or_else(PoisonError::into_inner) = not_ready;
    }
}
