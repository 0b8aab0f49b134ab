//! The RBAC objects of Kubernetes' test data. An unknown field is an error.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use serde::Deserialize;

/// The kinds of RBAC.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub(super) enum Kind {
    ClusterRole,
    ClusterRoleBinding,
    Role,
    RoleBinding,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct List {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    kind: String,
    items: Vec<RbacObject>,
    #[serde(rename = "metadata")]
    _metadata: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RbacObject {
    pub(super) api_version: String,
    pub(super) kind: Kind,
    pub(super) metadata: Metadata,
    pub(super) aggregation_rule: Option<AggregationRule>,
    pub(super) rules: Option<Vec<Rule>>,
    pub(super) role_ref: Option<RoleRef>,
    pub(super) subjects: Option<Vec<Subject>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Metadata {
    pub(super) name: String,
    pub(super) namespace: Option<String>,
    #[serde(default)]
    pub(super) labels: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) annotations: BTreeMap<String, String>,
    #[serde(rename = "creationTimestamp")]
    _creation_timestamp: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct AggregationRule {
    pub(super) cluster_role_selectors: Vec<Selector>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Selector {
    pub(super) match_labels: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Rule {
    pub(super) api_groups: Vec<String>,
    pub(super) resources: Vec<String>,
    pub(super) resource_names: Vec<String>,
    #[serde(rename = "nonResourceURLs")]
    pub(super) non_resource_urls: Vec<String>,
    pub(super) verbs: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RoleRef {
    pub(super) api_group: String,
    pub(super) kind: Kind,
    pub(super) name: String,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Subject {
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) namespace: Option<String>,
    pub(super) api_group: Option<String>,
}

/// The items of a `List`.
pub(super) fn parse(text: &str) -> Result<Vec<RbacObject>> {
    let list: List = serde_saphyr::from_str(text)?;
    if list.kind != "List" {
        bail!("a List expected, a {} found", list.kind);
    }
    Ok(list.items)
}
