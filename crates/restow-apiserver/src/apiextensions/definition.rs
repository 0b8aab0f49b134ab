//! A CustomResourceDefinition as the server needs it: everything but the schemas, which are read where they are needed.

use restow_api::GroupVersion;
use restow_apimachinery::object::Object;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The group of definitions.
pub(crate) const GROUP: &str = "apiextensions.k8s.io";
/// What keeps a deleted definition until all its objects are gone.
pub(crate) const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

/// A definition.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Definition {
    pub(crate) metadata: Metadata,
    pub(crate) spec: Spec,
    pub(crate) status: Status,
}

/// What of a definition's metadata is needed.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Metadata {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) generation: i64,
    pub(crate) deletion_timestamp: Option<String>,
    pub(crate) finalizers: Vec<String>,
    pub(crate) annotations: std::collections::BTreeMap<String, String>,
}

/// What is defined.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Spec {
    pub(crate) group: String,
    pub(crate) names: Names,
    pub(crate) scope: String,
    pub(crate) versions: Vec<Version>,
    pub(crate) conversion: Conversion,
    pub(crate) preserve_unknown_fields: bool,
}

/// What the resource is called.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Names {
    pub(crate) plural: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) singular: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) short_names: Vec<String>,
    pub(crate) kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) list_kind: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) categories: Vec<String>,
}

/// One version of what is defined.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Version {
    pub(crate) name: String,
    pub(crate) served: bool,
    pub(crate) storage: bool,
    pub(crate) deprecated: bool,
    pub(crate) deprecation_warning: Option<String>,
    pub(crate) subresources: Subresources,
    pub(crate) additional_printer_columns: Vec<PrinterColumn>,
    pub(crate) selectable_fields: Vec<SelectableField>,
}

/// What lies beneath the objects of a version.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Subresources {
    pub(crate) status: Option<Value>,
    pub(crate) scale: Option<Scale>,
}

/// Where the numbers of the scale subresource are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Scale {
    pub(crate) spec_replicas_path: String,
    pub(crate) status_replicas_path: String,
    pub(crate) label_selector_path: Option<String>,
}

/// A column of a table for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PrinterColumn {
    pub(crate) name: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) format: String,
    pub(crate) description: String,
    pub(crate) priority: i32,
    pub(crate) json_path: String,
}

/// A field that a field selector may name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SelectableField {
    pub(crate) json_path: String,
}

/// How objects get from one version to another.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Conversion {
    pub(crate) strategy: String,
    pub(crate) webhook: Option<Webhook>,
}

/// A webhook that converts.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Webhook {
    pub(crate) client_config: Option<ClientConfig>,
    pub(crate) conversion_review_versions: Vec<String>,
}

/// Where a webhook is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ClientConfig {
    pub(crate) url: Option<String>,
    pub(crate) service: Option<ServiceReference>,
    pub(crate) ca_bundle: Option<String>,
}

/// A service that a webhook listens at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ServiceReference {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) path: Option<String>,
    pub(crate) port: Option<i64>,
}

/// How a definition is.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Status {
    pub(crate) conditions: Vec<Condition>,
    pub(crate) accepted_names: Names,
    pub(crate) stored_versions: Vec<String>,
}

/// One thing that is known about a definition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Condition {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_transition_time: Option<String>,
    pub(crate) reason: String,
    pub(crate) message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) observed_generation: Option<i64>,
}

impl Definition {
    /// Reads a definition; `None` when it is none.
    pub(crate) fn of(object: &Object) -> Option<Self> {
        Definition::deserialize(object.fields()).ok()
    }

    /// The version that objects are stored in.
    pub(crate) fn storage_version(&self) -> Option<&str> {
        self.spec.versions.iter().find(|version| version.storage).map(|version| version.name.as_str())
    }

    /// Whether the definition is about to go.
    pub(crate) fn is_terminating(&self) -> bool {
        self.metadata.deletion_timestamp.is_some() || self.holds("Terminating")
    }

    /// Whether a condition is true.
    pub(crate) fn holds(&self, condition: &str) -> bool {
        self.condition(condition).is_some_and(|condition| condition.status == "True")
    }

    /// A condition.
    pub(crate) fn condition(&self, kind: &str) -> Option<&Condition> {
        self.status.conditions.iter().find(|condition| condition.kind == kind)
    }

    /// One of the defined versions, with the group.
    pub(crate) fn group_version(&self, version: &str) -> Option<GroupVersion> {
        GroupVersion::new(self.spec.group.as_str(), version).ok()
    }
}
