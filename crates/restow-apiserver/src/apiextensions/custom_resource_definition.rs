//! The type CustomResourceDefinition (CRD), without the schemas, which are decoded where they are needed.

use restow_api::GroupVersion;
use restow_apimachinery::object::Object;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The API group of CRDs.
pub(crate) const GROUP: &str = "apiextensions.k8s.io";
/// The finalizer that keeps a deleted CRD until all its objects are deleted.
pub(crate) const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

/// A CRD.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct CustomResourceDefinition {
    pub(crate) metadata: CrdMetadata,
    pub(crate) spec: CrdSpec,
    pub(crate) status: CrdStatus,
}

/// The metadata of a CRD that is used.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct CrdMetadata {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) generation: i64,
    pub(crate) deletion_timestamp: Option<String>,
    pub(crate) finalizers: Vec<String>,
    pub(crate) annotations: std::collections::BTreeMap<String, String>,
}

/// The spec of a CRD.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct CrdSpec {
    pub(crate) group: String,
    pub(crate) names: CrdNames,
    pub(crate) scope: String,
    pub(crate) versions: Vec<CrdVersion>,
    pub(crate) conversion: Conversion,
    pub(crate) preserve_unknown_fields: bool,
}

/// The names of a custom resource.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct CrdNames {
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

/// A version of a custom resource.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct CrdVersion {
    pub(crate) name: String,
    pub(crate) served: bool,
    pub(crate) storage: bool,
    pub(crate) deprecated: bool,
    pub(crate) deprecation_warning: Option<String>,
    pub(crate) subresources: Subresources,
    pub(crate) additional_printer_columns: Vec<PrinterColumn>,
    pub(crate) selectable_fields: Vec<SelectableField>,
}

/// The subresources of a version.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Subresources {
    pub(crate) status: Option<Value>,
    pub(crate) scale: Option<Scale>,
}

/// The JSON paths of the scale subresource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Scale {
    pub(crate) spec_replicas_path: String,
    pub(crate) status_replicas_path: String,
    pub(crate) label_selector_path: Option<String>,
}

/// A printer column.
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

/// A selectable field.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SelectableField {
    pub(crate) json_path: String,
}

/// How objects are converted between versions.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Conversion {
    pub(crate) strategy: String,
    pub(crate) webhook: Option<WebhookConversion>,
}

/// A conversion webhook.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct WebhookConversion {
    pub(crate) client_config: Option<ClientConfig>,
    pub(crate) conversion_review_versions: Vec<String>,
}

/// How to reach a webhook.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ClientConfig {
    pub(crate) url: Option<String>,
    pub(crate) service: Option<ServiceReference>,
    pub(crate) ca_bundle: Option<String>,
}

/// The service of a webhook.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ServiceReference {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) path: Option<String>,
    pub(crate) port: Option<i64>,
}

/// The status of a CRD.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct CrdStatus {
    pub(crate) conditions: Vec<CrdCondition>,
    pub(crate) accepted_names: CrdNames,
    pub(crate) stored_versions: Vec<String>,
}

/// A condition of a CRD.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct CrdCondition {
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

impl CustomResourceDefinition {
    /// Decodes a CRD; `None` when it is none.
    pub(crate) fn of(object: &Object) -> Option<Self> {
        CustomResourceDefinition::deserialize(object.fields()).ok()
    }

    /// The version that objects are stored in.
    pub(crate) fn storage_version(&self) -> Option<&str> {
        self.spec.versions.iter().find(|version| version.storage).map(|version| version.name.as_str())
    }

    /// Whether the CRD is being deleted.
    pub(crate) fn is_terminating(&self) -> bool {
        self.metadata.deletion_timestamp.is_some() || self.holds("Terminating")
    }

    /// Whether a condition has the status "True".
    pub(crate) fn holds(&self, condition: &str) -> bool {
        self.condition(condition).is_some_and(|condition| condition.status == "True")
    }

    /// The condition of this type.
    pub(crate) fn condition(&self, kind: &str) -> Option<&CrdCondition> {
        self.status.conditions.iter().find(|condition| condition.kind == kind)
    }

    /// The group and version of one of its versions.
    pub(crate) fn group_version(&self, version: &str) -> Option<GroupVersion> {
        GroupVersion::new(self.spec.group.as_str(), version).ok()
    }
}
