//! Which objects the controller may read and rewrite: those of the resources that the cluster has, and no others.
//!
//! The controller lists metadata, reads single objects, and sends a patch that changes nothing.

use super::InstallOptions;
use crate::controller::ResourceFilter;
use crate::discovery::{discover, equivalents};
use crate::request::{RequestError, request_json};
use http::Request;
use kube::Client;
use restow_api::GroupResource;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// The controller's own objects have to be migrated too, and may not exist yet.
const OWN: [&str; 2] = ["storagestates.migration.k8s.io", "storageversionmigrations.migration.k8s.io"];
/// The page size.
const AT_ONCE: usize = 500;

/// The role, as YAML with comments that say what is granted and why.
pub(super) async fn objects_role(client: &Client, options: &InstallOptions) -> Result<String, RequestError> {
    let (found, unread) = match options.resources {
        ResourceFilter::All => {
            let found = discover(client).await?;
            (found.resources.into_keys().collect(), found.unread)
        }
        ResourceFilter::Custom => (crds(client).await?, BTreeMap::new()),
    };
    let unread = unread.iter().map(|(version, why)| {
        let why = why.replace('\n', " ");
        format!("# Left out, because its discovery document cannot be read: {version} ({why})\n")
    });
    Ok(unread.collect::<String>() + &role(options, found))
}

fn role(options: &InstallOptions, found: BTreeSet<GroupResource>) -> String {
    let own = OWN.iter().filter_map(|name| name.parse::<GroupResource>().ok());
    let equivalents = equivalents();
    let mut groups: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for resource in found.into_iter().chain(own).filter(|resource| !equivalents.contains(resource)) {
        groups.entry(resource.group().to_owned()).or_default().insert(resource.resource().to_owned());
    }
    for group in &options.groups {
        groups.insert(group.clone(), BTreeSet::from(["*".to_owned()]));
    }
    let which = match options.resources {
        ResourceFilter::All => {
            "every resource that this cluster stores now, Secrets among them (--crds-only leaves out all but custom resources)"
        }
        ResourceFilter::Custom => "the custom resources that this cluster defines now",
    };
    let mut text = format!(
        "# The objects that may be rewritten: {which}. Each is read and sent back as it is, by a patch that changes\n\
         # nothing. Run `restow install` again when resources were added, or name their groups with --group.\n\
         apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata:\n  name: restow-controller-objects\nrules:\n"
    );
    for (group, resources) in groups {
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let resources: Vec<String> = resources.iter().map(|resource| quoted(resource)).collect();
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "- apiGroups: [{}]\n  resources: [{}]\n  verbs: [get, list, patch]",
            quoted(&group),
            resources.join(", ")
        );
    }
    text
}

#[derive(Deserialize)]
struct CrdList {
    metadata: ListMetadata,
    items: Vec<Crd>,
}

#[derive(Deserialize)]
struct ListMetadata {
    #[serde(default, rename = "continue")]
    token: String,
}

#[derive(Deserialize)]
struct Crd {
    metadata: CrdMetadata,
}

#[derive(Deserialize)]
struct CrdMetadata {
    name: String,
}

/// The resources of all CRDs; a CRD has the name of its resource.
async fn crds(client: &Client) -> Result<BTreeSet<GroupResource>, RequestError> {
    let (mut found, mut token) = (BTreeSet::new(), String::new());
    loop {
        let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions?limit={AT_ONCE}&continue={token}");
        let request = Request::get(path)
            .header(http::header::ACCEPT, "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")
            .body(Vec::new())
            .map_err(|error| RequestError { message: error.to_string(), ..RequestError::default() })?;
        let list: CrdList = request_json(client, request).await?;
        found.extend(list.items.iter().filter_map(|item| item.metadata.name.parse().ok()));
        token = list.metadata.token;
        if token.is_empty() {
            return Ok(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn rules(options: &InstallOptions, found: &[&str]) -> Value {
        let found = found.iter().map(|name| name.parse().unwrap()).collect();
        let role: Value = serde_saphyr::from_str(&role(options, found)).unwrap();
        role["rules"].clone()
    }

    #[test]
    fn only_what_is_there_or_named_may_be_rewritten() {
        let rule = |group: &str, resources: &[&str]| json!({"apiGroups": [group], "resources": resources, "verbs": ["get", "list", "patch"]});
        let own = rule("migration.k8s.io", &["storagestates", "storageversionmigrations"]);
        let found = ["configmaps", "secrets", "deployments.apps", "events.events.k8s.io"];
        assert_eq!(
            rules(&InstallOptions::default(), &found),
            json!([rule("", &["configmaps", "secrets"]), rule("apps", &["deployments"]), own])
        );
        let custom = InstallOptions {
            resources: ResourceFilter::Custom,
            groups: vec!["later.example.com".into()],
            ..InstallOptions::default()
        };
        assert_eq!(
            rules(&custom, &["widgets.example.com"]),
            json!([rule("example.com", &["widgets"]), rule("later.example.com", &["*"]), own])
        );
    }
}
