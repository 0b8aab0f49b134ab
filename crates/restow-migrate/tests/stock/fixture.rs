//! A CRD with two versions and some objects, on the cluster to test against.

use futures::{StreamExt, stream};
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use restow_api::GroupResource;
use restow_migrate::cluster::Cluster;
use restow_migrate::crd;
use restow_testkit::{Crd, crds, eventually};
use serde_json::json;
use std::path::PathBuf;
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A CRD that is removed when the test passes.
pub(crate) struct Fixture {
    pub(crate) cluster: Cluster,
    pub(crate) resource: GroupResource,
    plural: String,
    _company: Option<RwLockReadGuard<'static, ()>>,
}

/// A controller manages everything in the cluster, so that its tests run while no others do.
static CLUSTER: RwLock<()> = RwLock::const_new(());

/// No other test uses the cluster while this guard exists.
pub(crate) async fn alone() -> RwLockWriteGuard<'static, ()> {
    CLUSTER.write().await
}

/// The cluster; `None` if none is configured, and then the test is skipped.
pub(crate) async fn cluster() -> Option<Cluster> {
    let Some(path) = std::env::var_os("RESTOW_TEST_KUBECONFIG") else {
        restow_testkit::skip("set RESTOW_TEST_KUBECONFIG to a cluster that may be changed");
        return None;
    };
    Some(Cluster::connect(Some(&PathBuf::from(path))).await.unwrap())
}

impl Fixture {
    /// A CRD stored in v1 with so many objects, beside those of other tests.
    pub(crate) async fn new(plural: &str, objects: usize) -> Option<Self> {
        let company = CLUSTER.read().await;
        Some(Fixture { _company: Some(company), ..Self::alone(plural, objects).await? })
    }

    /// The same, for a test that has the cluster for itself.
    pub(crate) async fn alone(plural: &str, objects: usize) -> Option<Self> {
        let cluster = cluster().await?;
        let resource = format!("{plural}.migrate.restow.test").parse().unwrap();
        let fixture = Fixture { cluster, resource, plural: plural.to_owned(), _company: None };
        fixture.remove().await;
        let new: DynamicObject = serde_json::from_value(fixture.manifest().manifest()).unwrap();
        fixture.crds().create(&PostParams::default(), &new).await.unwrap();
        eventually("the resource is served", async || {
            fixture.api("v2").list(&ListParams::default().limit(1)).await.is_ok()
        })
        .await;
        fixture.create(0..objects).await;
        Some(fixture)
    }

    fn manifest(&self) -> Crd {
        Crd::new(&self.resource.to_string(), &self.kind()).versions(&["v1", "v2"])
    }

    fn kind(&self) -> String {
        let mut kind = self.plural.clone();
        kind[..1].make_ascii_uppercase();
        kind
    }

    pub(crate) fn api(&self, version: &str) -> Api<DynamicObject> {
        self.manifest().api(self.cluster.client(), version)
    }

    fn crds(&self) -> Api<DynamicObject> {
        crds(self.cluster.client())
    }

    /// Creates objects with these numbers, written through v1.
    pub(crate) async fn create(&self, numbers: std::ops::Range<usize>) {
        let create = |number: usize| {
            let api = self.api("v1");
            let object = self.manifest().object("v1", &format!("object-{number}"), json!({"number": number}));
            async move {
                api.create(&PostParams::default(), &object).await.unwrap();
            }
        };
        stream::iter(numbers).map(create).buffer_unordered(16).collect::<Vec<()>>().await;
    }

    /// Changes the CRD, but not its storage version.
    pub(crate) async fn rename(&self) {
        let patch = json!({"spec": {"names": {"categories": ["restow-test"]}}});
        let name = self.resource.to_string();
        self.crds().patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    }

    /// Makes this version the storage version.
    pub(crate) async fn store_in(&self, version: &str) {
        self.try_to_store_in(version).await.unwrap();
    }

    pub(crate) async fn try_to_store_in(&self, version: &str) -> Result<(), kube::Error> {
        let patch = json!({"spec": {"versions": self.manifest().stored_in(version).spec_versions()}});
        let name = self.resource.to_string();
        self.crds().patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await.map(|_| ())
    }

    pub(crate) async fn crd(&self) -> crd::Crd {
        crd::read(self.cluster.client(), &self.resource).await.unwrap().unwrap()
    }

    pub(crate) async fn stored_versions(&self) -> Vec<String> {
        crd::view(&self.crd().await).stored_versions
    }

    pub(crate) async fn is_marked(&self) -> bool {
        crd::view(&self.crd().await).is_marked
    }

    /// The numbers in the objects' specs, to see that nothing but the encoding has changed.
    pub(crate) async fn numbers(&self) -> Vec<u64> {
        let objects = self.api("v1").list(&ListParams::default()).await.unwrap().items;
        let mut numbers: Vec<u64> =
            objects.iter().map(|object| object.data["spec"]["number"].as_u64().unwrap()).collect();
        numbers.sort_unstable();
        numbers
    }

    pub(crate) async fn remove(&self) {
        let name = self.resource.to_string();
        let _ = self.crds().delete(&name, &DeleteParams::default()).await;
        eventually("the CRD is gone", async || self.crds().get_opt(&name).await.unwrap().is_none()).await;
    }
}
