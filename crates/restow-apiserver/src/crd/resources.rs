//! From a definition to the resources that are served: one for each served version, all on the same storage.

use crate::apiextensions::CustomVersion;
use crate::apiextensions::definition::{Definition, Scale as ScalePaths, Version};
use crate::apiextensions::kind::Kind;
use crate::apiextensions::printer_columns::columns;
use crate::crd::convert::ConvertByWebhook;
use crate::resource::conversion::{ConvertWith, Converter, RenameVersion};
use crate::resource::strategy::{ScaleFields, ScaleSelector, Strategy};
use crate::resource::{Names, Origin, Resource, Scope, Storage, Subresource, SubresourceKind, Verb};
use crate::webhook::ServiceResolver;
use arc_swap::ArcSwap;
use restow_api::{GroupResource, GroupVersion, InvalidName};
use restow_apimachinery::field::FieldError;
use restow_apimachinery::managed_fields::Ownership;
use restow_apimachinery::object::Object;
use restow_apimachinery::types::FieldProblem;
use std::sync::Arc;

/// The verbs of every custom resource, in the order in which discovery shows them.
const VERBS: [Verb; 8] =
    [Verb::Delete, Verb::DeleteCollection, Verb::Get, Verb::List, Verb::Patch, Verb::Create, Verb::Update, Verb::Watch];

/// What the resources of one definition share.
pub(crate) struct Making {
    pub(crate) storage: Arc<Storage>,
    pub(crate) kind: Arc<ArcSwap<Kind>>,
    pub(crate) converter: Arc<dyn Converter>,
}

/// How objects of a definition are converted. A webhook that cannot even be called refuses every conversion.
pub(crate) fn converter(definition: &Definition, resolver: Arc<dyn ServiceResolver>) -> Arc<dyn Converter> {
    if definition.spec.conversion.strategy != "Webhook" {
        return Arc::new(RenameVersion);
    }
    match ConvertByWebhook::of(definition, resolver) {
        Ok(webhook) => Arc::new(webhook),
        Err(error) => {
            let reason = error.to_string();
            Arc::new(ConvertWith(move |_: &mut Object, _: &str, _: &str| Err(reason.clone())))
        }
    }
}

/// The resources of a definition, the preferred version first.
pub(crate) fn resources(definition: &Definition, making: &Making) -> Result<Vec<Arc<Resource>>, InvalidName> {
    let mut made = Vec::new();
    for version in definition.spec.versions.iter().filter(|version| version.served) {
        made.push(Arc::new(resource(definition, version, making)?));
    }
    made.sort_by(|one, other| one.served[0].compare_by_priority(&other.served[0]));
    Ok(made)
}

/// A resource that stands for all versions together.
pub(crate) fn whole(definition: &Definition, making: &Making) -> Result<Resource, InvalidName> {
    let stored = definition.spec.versions.iter().find(|version| version.storage).cloned().unwrap_or_default();
    Ok(Resource { served: served(definition), ..resource(definition, &stored, making)? })
}

/// Every version that is served, the preferred one first.
fn served(definition: &Definition) -> Vec<GroupVersion> {
    let served = definition.spec.versions.iter().filter(|version| version.served);
    let mut served: Vec<GroupVersion> = served.filter_map(|version| definition.group_version(&version.name)).collect();
    served.sort_by(GroupVersion::compare_by_priority);
    served
}

/// The group and plural name of what is defined.
pub(crate) fn group_resource(definition: &Definition) -> Result<GroupResource, InvalidName> {
    GroupResource::new(definition.spec.group.as_str(), definition.spec.names.plural.as_str())
}

/// Every version in which objects can be read.
pub(crate) fn decodable(definition: &Definition) -> Vec<GroupVersion> {
    let mut versions: Vec<GroupVersion> =
        definition.spec.versions.iter().filter_map(|version| definition.group_version(&version.name)).collect();
    versions.sort_by(GroupVersion::compare_by_priority);
    versions
}

fn resource(definition: &Definition, version: &Version, making: &Making) -> Result<Resource, InvalidName> {
    let names = &definition.status.accepted_names;
    let group_version = GroupVersion::new(definition.spec.group.as_str(), version.name.as_str())?;
    let terminating = definition.is_terminating();
    let has_status = version.subresources.status.is_some();
    Ok(Resource {
        group_resource: group_resource(definition)?,
        names: Names {
            singular: names.singular.clone(),
            kind: names.kind.clone(),
            list_kind: names.list_kind.clone(),
            short: names.short_names.clone(),
            categories: names.categories.clone(),
        },
        scope: if definition.spec.scope == "Cluster" { Scope::Cluster } else { Scope::Namespaced },
        verbs: VERBS.into_iter().filter(|verb| !terminating || *verb != Verb::Create).collect(),
        served: vec![group_version],
        subresources: subresources(version)?,
        selectable_fields: selectable_fields(version),
        storage: Some(making.storage.clone()),
        strategy: Arc::new(CustomStrategy {
            has_status,
            scale: version.subresources.scale.clone(),
            kind: making.kind.clone(),
        }),
        converter: making.converter.clone(),
        origin: Origin::Custom,
        custom: Some(Arc::new(CustomVersion {
            kind: making.kind.clone(),
            columns: columns(&version.additional_printer_columns),
            warning: warning(definition, version),
            siblings: served(definition),
        })),
    })
}

fn subresources(version: &Version) -> Result<Vec<Subresource>, InvalidName> {
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

fn selectable_fields(version: &Version) -> Vec<String> {
    let paths = version.selectable_fields.iter().map(|field| field.json_path.as_str());
    paths.map(|path| path.strip_prefix('.').unwrap_or(path).to_string()).collect()
}

fn warning(definition: &Definition, version: &Version) -> Option<String> {
    if !version.deprecated {
        return None;
    }
    let kind = &definition.status.accepted_names.kind;
    let usual = || format!("{}/{} {kind} is deprecated", definition.spec.group, version.name);
    Some(version.deprecation_warning.clone().unwrap_or_else(usual))
}

/// The rules of a custom resource.
struct CustomStrategy {
    /// The status is written apart from the rest.
    has_status: bool,
    scale: Option<ScalePaths>,
    kind: Arc<ArcSwap<Kind>>,
}

impl Strategy for CustomStrategy {
    fn read(&self, object: &mut Object) -> Vec<FieldProblem> {
        self.kind.load().read(object)
    }

    fn ownership(&self, api_version: &str) -> Option<Arc<Ownership>> {
        self.kind.load().ownership(api_version)
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
        self.kind.load().problems(object, None)
    }

    fn validate_update(&self, object: &Object, old: &Object) -> Vec<FieldError> {
        self.kind.load().problems(object, Some(old))
    }

    fn prepare_create(&self, object: &mut Object) {
        if self.has_status {
            object.set("status", None);
        }
    }

    fn status_alone(&self) -> bool {
        true
    }
}
