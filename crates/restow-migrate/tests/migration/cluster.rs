//! A simulated cluster with one CRD and some objects. Its API servers can lag behind, be unreachable, and be restarted.

use http::{Method, Request, Response};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use restow_migrate::cluster::Cluster;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

pub(crate) const NAME: &str = "widgets.example.com";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// A change of the cluster that a test triggers at a list request.
pub(crate) type Event = Box<dyn FnOnce(&mut State) + Send>;

/// The state of the cluster.
pub(crate) struct State {
    pub(crate) revision: u64,
    pub(crate) crd: Option<Crd>,
    /// The storage version in discovery; `None` while the resource is not served.
    pub(crate) shown: Option<&'static str>,
    /// Whether discovery has storage version hashes.
    pub(crate) has_hashes: bool,
    /// The version that the handler writes.
    pub(crate) encoded: &'static str,
    /// The revision of each object, and the version that it is stored in.
    pub(crate) objects: BTreeMap<String, (u64, &'static str)>,
    pub(crate) addresses: Vec<&'static str>,
    /// The identity leases and their holders.
    pub(crate) leases: BTreeMap<&'static str, String>,
    /// The start time of the process at each address, in order.
    pub(crate) started: Vec<&'static str>,
    /// How often a start time was queried.
    pub(crate) scrapes: usize,
    pub(crate) slice_generation: u64,
    /// The reports of the servers; `None` if the StorageVersion API is not served.
    pub(crate) reports: Option<Vec<(&'static str, &'static str)>>,
    /// Whether the identity leases have the label of fenced writes.
    pub(crate) is_fenced: bool,
    /// The services to which requests for the group are passed on.
    pub(crate) services: Vec<&'static str>,
    /// The addresses of the servers behind these services.
    pub(crate) backends: Vec<&'static str>,
    pub(crate) backends_generation: u64,
    /// The identity leases of aggregated servers and their holders.
    pub(crate) aggregated: BTreeMap<&'static str, String>,
    /// Whether these leases name the lease in the server's own store.
    pub(crate) name_own_leases: bool,
    /// The servers that have a store of their own, which others do not share.
    pub(crate) apart: Vec<&'static str>,
    /// How often the reports were written.
    pub(crate) reports_revision: u64,
    /// Paths that may not be read.
    pub(crate) forbidden: Vec<&'static str>,
    /// Paths that are not served.
    pub(crate) unserved: Vec<&'static str>,
    pub(crate) at_listing: BTreeMap<u32, Event>,
    pub(crate) listings: u32,
}

pub(crate) struct Crd {
    pub(crate) revision: u64,
    pub(crate) generation: u64,
    pub(crate) stores: &'static str,
    pub(crate) stored_versions: Vec<String>,
    pub(crate) annotations: Value,
}

pub(crate) type Shared = Arc<Mutex<State>>;

/// One server; its CRD has just been changed to store v2, which it shows and writes; the objects are still in v1.
pub(crate) fn state() -> State {
    State {
        revision: 100,
        crd: Some(Crd {
            revision: 50,
            generation: 2,
            stores: "v2",
            stored_versions: vec!["v1".into(), "v2".into()],
            annotations: json!({}),
        }),
        shown: Some("v2"),
        has_hashes: true,
        encoded: "v2",
        objects: (0..30).map(|number| (format!("object-{number:02}"), (number + 1, "v1"))).collect(),
        addresses: vec!["10.0.0.1"],
        leases: BTreeMap::from([("apiserver-a", "apiserver-a_1".to_owned())]),
        started: vec!["10"],
        scrapes: 0,
        slice_generation: 1,
        reports: None,
        is_fenced: false,
        services: Vec::new(),
        backends: Vec::new(),
        backends_generation: 1,
        aggregated: BTreeMap::new(),
        name_own_leases: true,
        apart: Vec::new(),
        reports_revision: 7,
        forbidden: Vec::new(),
        unserved: Vec::new(),
        at_listing: BTreeMap::new(),
        listings: 0,
    }
}

/// A client of the cluster.
pub(crate) fn cluster(state: &Shared) -> Cluster {
    let state = Arc::clone(state);
    let service = tower::service_fn(move |request: Request<Body>| {
        let state = Arc::clone(&state);
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
            let (code, answer) = state.lock().unwrap().answer(&parts.method, parts.uri.path(), &body);
            let response = Response::builder().status(code);
            // Metrics are text, and all else is JSON.
            let answer = answer.as_str().map(str::to_owned).unwrap_or_else(|| answer.to_string());
            Ok::<_, Infallible>(response.body(Body::from(answer.into_bytes())).unwrap())
        }
    });
    Cluster::from_client(Client::new(service, "default"))
}

fn status(code: u16, reason: &str, name: &str) -> (u16, Value) {
    let message = format!("{reason}: {name}");
    let status = json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message,
                        "details": {"name": name}});
    (code, status)
}

fn list(kind: &str, items: Vec<Value>) -> (u16, Value) {
    (200, json!({"kind": kind, "metadata": {"resourceVersion": "7"}, "items": items}))
}

fn endpoint_slices(name: &str, generation: u64, addresses: &[&str]) -> (u16, Value) {
    let endpoints: Vec<Value> = addresses.iter().map(|address| json!({"addresses": [address]})).collect();
    list(
        "EndpointSliceList",
        vec![json!({"metadata": {"name": name, "generation": generation}, "addressType": "IPv4",
                    "ports": [{"name": "https", "port": 6443}], "endpoints": endpoints})],
    )
}

impl State {
    /// How many objects are stored in another version than v2.
    pub(crate) fn old(&self) -> usize {
        self.objects.values().filter(|(_, version)| *version != "v2").count()
    }

    pub(crate) fn stored_versions(&self) -> Vec<String> {
        self.crd.as_ref().map(|crd| crd.stored_versions.clone()).unwrap_or_default()
    }

    fn answer(&mut self, method: &Method, path: &str, body: &Value) -> (u16, Value) {
        let is_at = |part: &&str| path.ends_with(*part) || path.contains(&format!("/{part}/"));
        if self.forbidden.iter().any(is_at) {
            return status(403, "Forbidden", "");
        }
        if self.unserved.iter().any(|unserved| path.ends_with(unserved)) {
            return status(404, "NotFound", "");
        }
        if let Some(rest) = path.strip_prefix(CRDS) {
            return self.crd(method, rest, body);
        }
        if let Some((_, rest)) = path.split_once("/widgets") {
            return match self.shown {
                Some(_) => self.objects(method, rest.trim_start_matches('/'), body),
                None => status(404, "NotFound", ""),
            };
        }
        let missing = || status(404, "NotFound", "");
        match path.rsplit('/').next().unwrap_or_default() {
            "metrics" => {
                let started = self.started[self.scrapes % self.started.len()];
                self.scrapes += 1;
                (200, json!(format!("# TYPE x gauge\nx 1\nprocess_start_time_seconds {started}\ny 2\n")))
            }
            "storageversions" => {
                self.storage_version().map_or_else(missing, |object| list("StorageVersionList", vec![object]))
            }
            "example.com.widgets" => self.storage_version().map_or_else(missing, |object| (200, object)),
            "endpointslices" if path.contains("/backend/") => {
                endpoint_slices("widgets", self.backends_generation, &self.backends)
            }
            "endpointslices" => endpoint_slices("kubernetes", self.slice_generation, &self.addresses),
            "leases" => self.leases(),
            "apiservices" => {
                let local = json!({"metadata": {"name": "v1.apps"}, "spec": {"group": "apps", "service": null}});
                let service = |name: &&str| json!({"metadata": {"name": "v1.example.com"}, "spec": {"group": "example.com", "service": {"namespace": "backend", "name": name}}});
                list("APIServiceList", self.services.iter().map(service).chain([local]).collect())
            }
            "example.com" if self.shown.is_some() => {
                let version = |version| json!({"groupVersion": format!("example.com/{version}"), "version": version});
                (200, json!({"kind": "APIGroup", "name": "example.com", "versions": [version("v2"), version("v1")]}))
            }
            version @ ("v1" | "v2") => (200, self.discovery(version)),
            _ => status(404, "NotFound", ""),
        }
    }

    fn discovery(&self, version: &str) -> Value {
        let hash = restow_api::storage_version_hash("example.com", self.shown.unwrap_or_default(), "Widget");
        let hash = if self.has_hashes { hash } else { String::new() };
        json!({"kind": "APIResourceList", "groupVersion": format!("example.com/{version}"), "resources": [
            {"name": "widgets", "singularName": "", "namespaced": true, "kind": "Widget",
             "verbs": ["get", "list", "patch"], "storageVersionHash": hash},
        ]})
    }

    /// The StorageVersion of widgets.
    fn storage_version(&self) -> Option<Value> {
        let reports = self.reports.as_ref()?;
        let entry = |(id, version): &(&str, &str)| json!({"apiServerID": id, "encodingVersion": format!("example.com/{version}")});
        let common = reports.windows(2).all(|pair| pair[0].1 == pair[1].1).then(|| entry(&reports[0]));
        let status = json!({"storageVersions": reports.iter().map(entry).collect::<Vec<_>>(),
                            "commonEncodingVersion": common.map(|entry| entry["encodingVersion"].clone())});
        Some(
            json!({"metadata": {"name": "example.com.widgets", "resourceVersion": self.reports_revision.to_string()}, "spec": {}, "status": status}),
        )
    }

    fn leases(&self) -> (u16, Value) {
        let identity = |mut labels: Value, annotations: Value| {
            labels["apiserver.kubernetes.io/identity"] = json!("kube-apiserver");
            move |(name, holder): (&&str, &String)| {
                let mut labels = labels.clone();
                labels["restow.dev/own-store"] = json!(if self.apart.contains(name) { name } else { "shared" });
                json!({"metadata": {"name": name, "uid": name, "labels": labels, "annotations": annotations},
                       "spec": {"holderIdentity": holder}})
            }
        };
        let labels = if self.is_fenced { json!({"restow.dev/fenced-writes": "true"}) } else { json!({}) };
        let own = if self.name_own_leases { json!({"restow.dev/own-lease-uid": "1"}) } else { json!({}) };
        let servers = self.leases.iter().map(identity(labels, json!({})));
        let aggregated = self.aggregated.iter().map(identity(json!({"restow.dev/control-plane": "garden"}), own));
        list("LeaseList", servers.chain(aggregated).collect())
    }

    fn crd(&mut self, method: &Method, rest: &str, body: &Value) -> (u16, Value) {
        self.revision += 1;
        let revision = self.revision;
        let Some(crd) = self.crd.as_mut() else { return status(404, "NotFound", NAME) };
        if *method == Method::PATCH {
            if body["metadata"]["resourceVersion"] != json!(crd.revision.to_string()) {
                return status(409, "Conflict", NAME);
            }
            crd.revision = revision;
            for (key, value) in body["metadata"]["annotations"].as_object().into_iter().flatten() {
                crd.annotations[key] = value.clone();
            }
            if rest.ends_with("/status") {
                crd.stored_versions = serde_json::from_value(body["status"]["storedVersions"].clone()).unwrap();
            }
        }
        let version = |name: &str| json!({"name": name, "served": true, "storage": name == crd.stores});
        let annotations: serde_json::Map<String, Value> =
            crd.annotations.as_object().unwrap().clone().into_iter().filter(|(_, value)| !value.is_null()).collect();
        let object = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": NAME, "uid": "crd", "generation": crd.generation, "annotations": annotations,
                         "resourceVersion": crd.revision.to_string()},
            "spec": {"group": "example.com", "names": {"plural": "widgets", "kind": "Widget"},
                     "versions": [version("v1"), version("v2")]},
            "status": {"storedVersions": crd.stored_versions},
        });
        (200, object)
    }

    fn objects(&mut self, method: &Method, name: &str, body: &Value) -> (u16, Value) {
        let name = name.rsplit('/').next().unwrap_or_default();
        if name.is_empty() {
            self.listings += 1;
            if let Some(event) = self.at_listing.remove(&self.listings) {
                event(self);
            }
            if self.shown.is_none() {
                return status(404, "NotFound", "");
            }
            let items =
                self.objects.iter().map(|(name, (revision, _))| json!({ "metadata": metadata(name, *revision) }));
            return list("WidgetList", items.collect());
        }
        let next = self.revision + 1;
        let Some((revision, version)) = self.objects.get_mut(name) else { return status(404, "NotFound", name) };
        if *method == Method::PATCH {
            if body["metadata"]["resourceVersion"] != json!(revision.to_string()) {
                return status(409, "Conflict", name);
            }
            if *version != self.encoded {
                (*revision, *version) = (next, self.encoded);
                self.revision = next;
            }
        }
        (200, json!({ "metadata": metadata(name, *revision) }))
    }
}

fn metadata(name: &str, revision: u64) -> Value {
    json!({"namespace": "n", "name": name, "uid": name, "resourceVersion": revision.to_string()})
}
