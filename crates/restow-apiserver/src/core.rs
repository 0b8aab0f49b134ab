//! What every part of a server works with: the resources that are served, their objects, the watch cache, and the tasks that run
//! beside requests.

pub(crate) mod reflector;
mod startup;

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

/// The common ground of a server's parts.
pub(crate) struct Core {
    objects: ObjectStore,
    watch_cache: Arc<WatchCache>,
    registry: ArcSwap<Registry>,
    startup: Startup,
    /// Cancelled when the server is asked to stop: requests and watches come to an end.
    stopping: CancellationToken,
    /// Cancelled when the server is gone: its tasks end.
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

    /// The recent changes.
    pub(crate) fn watch_cache(&self) -> &Arc<WatchCache> {
        &self.watch_cache
    }

    /// What is served now.
    pub(crate) fn registry(&self) -> Arc<Registry> {
        self.registry.load_full()
    }

    /// Serves other resources from now on. Requests that run go on with what they have found.
    pub(crate) fn serve_resources(&self, registry: Registry) {
        self.registry.store(Arc::new(registry));
    }

    /// A resource of the core group, where it is served, with its version.
    pub(crate) fn core_resource(&self, plural: &str) -> Option<(Arc<Resource>, GroupVersion)> {
        let version = GroupVersion::new("", "v1").ok()?;
        let resource = self.registry().find(&version, plural)?.clone();
        Some((resource, version))
    }

    /// How far the server has come in starting.
    pub(crate) fn startup(&self) -> &Startup {
        &self.startup
    }

    /// Runs a task until it completes or the server is gone.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        let ended = self.ended.clone();
        tokio::spawn(async move {
            ended.run_until_cancelled(task).await;
        })
    }

    /// Lets requests and watches come to an end.
    pub(crate) fn stop(&self) {
        self.stopping.cancel();
    }

    /// Whether the server was asked to stop.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.is_cancelled()
    }

    /// Completes when the server is asked to stop.
    pub(crate) fn stopping(&self) -> impl Future<Output = ()> + Send + 'static {
        self.stopping.clone().cancelled_owned()
    }

    /// Ends all tasks: the server is gone.
    pub(crate) fn end(&self) {
        self.ended.cancel();
    }
}
