//! Builders of the objects that many tests create, and kube-rs clients for kinds without a Rust type.

use kube::api::{Api, ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};

/// A CustomResourceDefinition. By default it is namespaced, has one version, `v1`, and preserves unknown fields.
#[derive(Clone)]
pub struct Crd {
    group: String,
    plural: String,
    kind: String,
    scope: &'static str,
    versions: Vec<String>,
    storage_version: String,
    schema: Value,
}

impl Crd {
    /// A CRD named `<plural>.<group>`.
    pub fn new(name: &str, kind: &str) -> Self {
        let (plural, group) = name.split_once('.').unwrap();
        Crd {
            group: group.into(),
            plural: plural.into(),
            kind: kind.into(),
            scope: "Namespaced",
            versions: vec!["v1".into()],
            storage_version: "v1".into(),
            schema: preserve_unknown_fields(),
        }
    }

    /// Makes it cluster-scoped.
    pub fn cluster_scoped(self) -> Self {
        Crd { scope: "Cluster", ..self }
    }

    /// Serves these versions and stores the first.
    pub fn versions(self, versions: &[&str]) -> Self {
        let versions: Vec<String> = versions.iter().map(|version| version.to_string()).collect();
        Crd { storage_version: versions[0].clone(), versions, ..self }
    }

    /// Stores this version.
    pub fn stored_in(self, version: &str) -> Self {
        Crd { storage_version: version.into(), ..self }
    }

    /// Sets the `openAPIV3Schema` of all versions.
    pub fn schema(self, schema: Value) -> Self {
        Crd { schema, ..self }
    }

    /// Its `spec.versions`.
    pub fn spec_versions(&self) -> Value {
        let version = |name: &String| {
            let schema = json!({"openAPIV3Schema": self.schema});
            json!({"name": name, "served": true, "storage": *name == self.storage_version, "schema": schema})
        };
        self.versions.iter().map(version).collect()
    }

    /// The object to create.
    pub fn manifest(&self) -> Value {
        let name = format!("{}.{}", self.plural, self.group);
        let mut crd = object("apiextensions.k8s.io/v1", "CustomResourceDefinition", &name);
        let (kind, list_kind) = (&self.kind, format!("{}List", self.kind));
        crd["spec"] = json!({
            "group": self.group, "scope": self.scope, "versions": self.spec_versions(),
            "names": {"plural": self.plural, "singular": kind.to_lowercase(), "kind": kind, "listKind": list_kind},
        });
        crd
    }

    /// The path of all its objects in its first version.
    pub fn path(&self) -> String {
        format!("/apis/{}/{}/{}", self.group, self.versions[0], self.plural)
    }

    /// A client for its objects in this version, in the namespace `default` if they are namespaced.
    pub fn api(&self, client: &kube::Client, version: &str) -> Api<DynamicObject> {
        match self.scope {
            "Cluster" => api(client, &self.group, version, &self.kind, &self.plural),
            _ => namespaced_api(client, &self.group, version, &self.kind, &self.plural),
        }
    }

    /// An object of it in this version.
    pub fn object(&self, version: &str, name: &str, spec: Value) -> DynamicObject {
        let mut object = object(&format!("{}/{version}", self.group), &self.kind, name);
        object["spec"] = spec;
        serde_json::from_value(object).unwrap()
    }
}

/// An object with only a name.
pub fn object(api_version: &str, kind: &str, name: &str) -> Value {
    json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}})
}

/// A schema that preserves unknown fields.
pub fn preserve_unknown_fields() -> Value {
    json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// A client for all objects of a kind, in all namespaces.
pub fn api(client: &kube::Client, group: &str, version: &str, kind: &str, plural: &str) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &api_resource(group, version, kind, plural))
}

/// A client for the objects of a kind in the namespace `default`.
pub fn namespaced_api(
    client: &kube::Client,
    group: &str,
    version: &str,
    kind: &str,
    plural: &str,
) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), "default", &api_resource(group, version, kind, plural))
}

/// A client for CustomResourceDefinitions.
pub fn crds(client: &kube::Client) -> Api<DynamicObject> {
    api(client, "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions")
}

fn api_resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}
