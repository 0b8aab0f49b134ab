//! The state that all components of a server share: the registry of resources, their objects, the watch cache, and
//! background tasks.

pub(crate) mod leader_election;
pub(crate) mod reflector;
mod startup;
mod write_hook;

pub(crate) use write_hook::WriteHook;

use crate::resource::Resource;
use crate::resource::registry::Registry;
use crate::storage::object_store::ObjectStore;
use crate::storage::watch_cache::WatchCache;
use arc_swap::ArcSwap;
use restow_api::GroupVersion;
use startup::Startup;
use std::future::Future;
use std::sync::Arc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The state that all components of a server share.
pub(crate) struct Core {
    objects: ObjectStore,
    watch_cache: Arc<WatchCache>,
    registry: ArcSwap<Registry>,
    startup: Startup,
    /// Cancelled when the server begins to shut down: requests and watches end.
    stopping: CancellationToken,
    /// Cancelled when the server is dropped: its tasks end.
    ended: CancellationToken,
}

impl Core {
    pub(crate) fn new(objects: ObjectStore, watch_cache: Arc<WatchCache>, registry: Registry) -> Self {
        Core {
            objects,
            watch_cache,
            registry: ArcSwap::from_pointee(registry),
            startup: Startup::default(),
            stopping: CancellationToken::new(),
            ended: CancellationToken::new(),
        }
    }

    /// The objects.
    pub(crate) fn objects(&self) -> &ObjectStore {
        &self.objects
    }

    /// The watch cache.
    pub(crate) fn watch_cache(&self) -> &Arc<WatchCache> {
        &self.watch_cache
    }

    /// The resources that are served now.
    pub(crate) fn registry(&self) -> Arc<Registry> {
        self.registry.load_full()
    }

    /// Replaces the served resources. Running requests continue with the earlier ones.
    pub(crate) fn serve_resources(&self, registry: Registry) {
        self.registry.store(Arc::new(registry));
    }

    /// A resource of the core group, where it is served, with its version.
    pub(crate) fn core_resource(&self, plural: &str) -> Option<(Arc<Resource>, GroupVersion)> {
        let version = GroupVersion::new("", "v1").ok()?;
        let resource = self.registry().find(&version, plural)?.clone();
        Some((resource, version))
    }

    /// The startup state.
    pub(crate) fn startup(&self) -> &Startup {
        &self.startup
    }

    /// Runs a task until it completes or the server ends.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        let ended = self.ended.clone();
        restow_host::spawn(async move {
            ended.run_until_cancelled(task).await;
        })
    }

    /// Begins to shut down: requests and watches end.
    pub(crate) fn stop(&self) {
        self.stopping.cancel();
    }

    /// Whether the server is shutting down.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.is_cancelled()
    }

    /// Completes when the server begins to shut down.
    pub(crate) fn stopping(&self) -> impl Future<Output = ()> + Send + 'static {
        self.stopping.clone().cancelled_owned()
    }

    /// Ends all tasks.
    pub(crate) fn end(&self) {
        self.ended.cancel();
    }
}
