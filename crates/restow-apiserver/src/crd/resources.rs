//! Builds the resources of a CRD: one for each served version, all with the same storage.

use crate::apiextensions::CustomVersion;
use crate::apiextensions::custom_resource_definition::{CrdVersion, CustomResourceDefinition, Scale as ScalePaths};
use crate::apiextensions::printer_columns::columns;
use crate::apiextensions::schemas::VersionSchemas;
use crate::crd::conversion_webhook::ConvertByWebhook;
use crate::resource::conversion::{ConvertWith, Converter, RenameVersion};
use crate::resource::strategy::{ScaleFields, ScaleSelector, Strategy};
use crate::resource::{Names, Origin, Resource, Scope, Storage, Subresource, SubresourceKind, Verb};
use crate::webhook_client::ServiceResolver;
use arc_swap::ArcSwap;
use restow_api::{GroupResource, GroupVersion, InvalidName};
use restow_apimachinery::field::{FieldError, FieldProblem};
use restow_apimachinery::managed_fields::Ownership;
use restow_apimachinery::object::Object;
use std::sync::Arc;

/// The verbs of every custom resource, in the order in which discovery shows them.
const VERBS: [Verb; 8] =
    [Verb::Delete, Verb::DeleteCollection, Verb::Get, Verb::List, Verb::Patch, Verb::Create, Verb::Update, Verb::Watch];

/// What the resources of one CRD share.
pub(crate) struct SharedParts {
    pub(crate) storage: Arc<Storage>,
    pub(crate) schemas: Arc<ArcSwap<VersionSchemas>>,
    pub(crate) converter: Arc<dyn Converter>,
}

/// How objects of a CRD are converted. An invalid webhook configuration fails every conversion.
pub(crate) fn converter(crd: &CustomResourceDefinition, resolver: Arc<dyn ServiceResolver>) -> Arc<dyn Converter> {
    if crd.spec.conversion.strategy != "Webhook" {
        return Arc::new(RenameVersion);
    }
    match ConvertByWebhook::of(crd, resolver) {
        Ok(webhook) => Arc::new(webhook),
        Err(error) => {
            let reason = error.to_string();
            Arc::new(ConvertWith(move |_: &mut Object, _: &str, _: &str| Err(reason.clone())))
        }
    }
}

/// The resources of a CRD, the preferred version first.
pub(crate) fn resources(
    crd: &CustomResourceDefinition,
    shared: &SharedParts,
) -> Result<Vec<Arc<Resource>>, InvalidName> {
    let mut resources = Vec::new();
    for version in crd.spec.versions.iter().filter(|version| version.served) {
        resources.push(Arc::new(resource(crd, version, shared)?));
    }
    resources.sort_by(|one, other| one.served[0].compare_by_priority(&other.served[0]));
    Ok(resources)
}

/// A resource with all versions.
pub(crate) fn all_versions(crd: &CustomResourceDefinition, shared: &SharedParts) -> Result<Resource, InvalidName> {
    let stored = crd.spec.versions.iter().find(|version| version.storage).cloned().unwrap_or_default();
    Ok(Resource { served: served(crd), ..resource(crd, &stored, shared)? })
}

/// The served versions, the preferred one first.
fn served(crd: &CustomResourceDefinition) -> Vec<GroupVersion> {
    let served = crd.spec.versions.iter().filter(|version| version.served);
    let mut served: Vec<GroupVersion> = served.filter_map(|version| crd.group_version(&version.name)).collect();
    served.sort_by(GroupVersion::compare_by_priority);
    served
}

/// The group and plural name of the custom resource.
pub(crate) fn group_resource(crd: &CustomResourceDefinition) -> Result<GroupResource, InvalidName> {
    GroupResource::new(crd.spec.group.as_str(), crd.spec.names.plural.as_str())
}

/// The versions in which stored objects can be decoded.
pub(crate) fn decodable(crd: &CustomResourceDefinition) -> Vec<GroupVersion> {
    let mut versions: Vec<GroupVersion> =
        crd.spec.versions.iter().filter_map(|version| crd.group_version(&version.name)).collect();
    versions.sort_by(GroupVersion::compare_by_priority);
    versions
}

fn resource(
    crd: &CustomResourceDefinition,
    version: &CrdVersion,
    shared: &SharedParts,
) -> Result<Resource, InvalidName> {
    let names = &crd.status.accepted_names;
    let group_version = GroupVersion::new(crd.spec.group.as_str(), version.name.as_str())?;
    let terminating = crd.is_terminating();
    let has_status = version.subresources.status.is_some();
    Ok(Resource {
        group_resource: group_resource(crd)?,
        names: Names {
            singular: names.singular.clone(),
            kind: names.kind.clone(),
            list_kind: names.list_kind.clone(),
            short: names.short_names.clone(),
            categories: names.categories.clone(),
        },
        scope: if crd.spec.scope == "Cluster" { Scope::Cluster } else { Scope::Namespaced },
        verbs: VERBS.into_iter().filter(|verb| !terminating || *verb != Verb::Create).collect(),
        served: vec![group_version],
        subresources: subresources(version)?,
        selectable_fields: selectable_fields(version),
        storage: Some(shared.storage.clone()),
        strategy: Arc::new(CustomStrategy {
            has_status,
            scale: version.subresources.scale.clone(),
            schemas: shared.schemas.clone(),
        }),
        converter: shared.converter.clone(),
        origin: Origin::Custom,
        custom: Some(Arc::new(CustomVersion {
            schemas: shared.schemas.clone(),
            columns: columns(&version.additional_printer_columns),
            warning: warning(crd, version),
            siblings: served(crd),
        })),
    })
}

fn subresources(version: &CrdVersion) -> Result<Vec<Subresource>, InvalidName> {
    let verbs = || vec![Verb::Get, Verb::Patch, Verb::Update];
    let mut found = Vec::new();
    if version.subresources.status.is_some() {
        found.push(Subresource { name: "status".into(), verbs: verbs(), kind: None });
    }
    if version.subresources.scale.is_some() {
        let kind = SubresourceKind { version: Some(GroupVersion::new("autoscaling", "v1")?), kind: "Scale".into() };
        found.push(Subresource { name: "scale".into(), verbs: verbs(), kind: Some(kind) });
    }
    Ok(found)
}

fn selectable_fields(version: &CrdVersion) -> Vec<String> {
    let paths = version.selectable_fields.iter().map(|field| field.json_path.as_str());
    paths.map(|path| path.strip_prefix('.').unwrap_or(path).to_string()).collect()
}

fn warning(crd: &CustomResourceDefinition, version: &CrdVersion) -> Option<String> {
    if !version.deprecated {
        return None;
    }
    let kind = &crd.status.accepted_names.kind;
    let usual = || format!("{}/{} {kind} is deprecated", crd.spec.group, version.name);
    Some(version.deprecation_warning.clone().unwrap_or_else(usual))
}

/// The strategy of a custom resource.
struct CustomStrategy {
    /// Whether the status is a subresource.
    has_status: bool,
    scale: Option<ScalePaths>,
    schemas: Arc<ArcSwap<VersionSchemas>>,
}

impl Strategy for CustomStrategy {
    fn read(&self, object: &mut Object) -> Vec<FieldProblem> {
        self.schemas.load().read(object)
    }

    fn ownership(&self, api_version: &str) -> Option<Arc<Ownership>> {
        self.schemas.load().ownership(api_version)
    }

    fn scale(&self, _api_version: &str) -> Option<ScaleFields> {
        let steps = |path: &str| path.trim_start_matches('.').split('.').map(str::to_string).collect::<Vec<_>>();
        let scale = self.scale.as_ref()?;
        Some(ScaleFields {
            replicas: steps(&scale.spec_replicas_path),
            status_replicas: steps(&scale.status_replicas_path),
            selector: match scale.label_selector_path.as_deref().filter(|path| !path.is_empty()) {
                Some(path) => ScaleSelector::Text(steps(path)),
                None => ScaleSelector::None,
            },
        })
    }

    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        self.schemas.load().problems(object, None)
    }

    fn validate_update(&self, object: &Object, old: &Object) -> Vec<FieldError> {
        self.schemas.load().problems(object, Some(old))
    }

    fn prepare_create(&self, object: &mut Object) {
        if self.has_status {
            object.set("status", None);
        }
    }

    fn status_update_keeps_metadata(&self) -> bool {
        true
    }
}
