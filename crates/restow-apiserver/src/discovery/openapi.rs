//! The OpenAPI documents: schemas of kinds, and parameters of requests.
//!
//! Version 3 is served one group-version at a time. Its paths have only what clients read: that an object can be
//! created and patched, its kind, and that the server validates fields.

use crate::discovery::aggregation::Aggregation;
use crate::discovery::custom_openapi as custom;
use crate::discovery::tag;
use crate::release::Release;
use crate::resource::registry::Registry;
use crate::resource::{Resource, Scope, Verb};
use restow_api::GroupVersion;
use restow_apimachinery::types;
use serde_json::{Map, Value, json};

/// `/openapi/v3`: the URL of the document of each group-version, also of those that other servers serve.
pub(crate) fn index(registry: &Registry, aggregation: &Aggregation, release: Release) -> Value {
    let mut paths = Map::new();
    for (name, group) in registry.groups() {
        for version in &group.versions {
            let Ok(version) = GroupVersion::new(name.as_str(), version.as_str()) else { continue };
            if aggregation.versions.contains_key(&version) {
                continue;
            }
            let Some(document) = document(registry, &version, release) else { continue };
            let hash = tag(document.to_string().as_bytes());
            let path = path_of(&version);
            let url = format!("/openapi/v3/{path}?hash={hash}");
            paths.insert(path, json!({"serverRelativeURL": url}));
        }
    }
    for (version, aggregated) in &aggregation.versions {
        if let Some(url) = &aggregated.openapi {
            paths.insert(path_of(version), json!({"serverRelativeURL": url}));
        }
    }
    json!({"paths": paths})
}

/// `/openapi/v3/…`: one group-version.
pub fn document(registry: &Registry, version: &GroupVersion, release: Release) -> Option<Value> {
    let resources = registry.in_version(version)?;
    let mut paths = Map::new();
    for (plural, resource) in resources {
        add_paths(&mut paths, plural, resource, version);
    }
    let described = types::openapi_v3(&version.to_string()).unwrap_or_default();
    let schemas = described.get("components").and_then(|components| components.get("schemas")).cloned();
    let mut schemas = schemas.or_else(|| described.get("schemas").cloned()).unwrap_or(described);
    if resources.values().any(|resource| resource.custom.is_some()) {
        let mut roots = types::group_version_roots(version.group(), version.version());
        roots.extend(custom::metadata_types());
        let mut all = types::openapi_v3_schemas(&roots, (version.group(), version.version()));
        resources
            .values()
            .for_each(|resource| custom::describe(&mut all, resource, version, custom::OpenApiVersion::V3));
        schemas = Value::Object(all);
    }
    Some(json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": format!("v{release}.0")},
        "paths": paths,
        "components": {"schemas": schemas},
    }))
}

/// `/openapi/v2`: every kind in one document.
pub fn version_2(registry: &Registry, release: Release) -> Value {
    let mut versions: Vec<(&str, &str)> = Vec::new();
    for (name, group) in registry.groups() {
        versions.extend(group.versions.iter().map(|version| (name.as_str(), version.as_str())));
    }
    let mut roots: Vec<types::TypeId> =
        versions.iter().flat_map(|(group, version)| types::group_version_roots(group, version)).collect();
    roots.extend(custom::metadata_types());
    let mut definitions = types::openapi_v2_definitions(&roots, &versions);
    for (group, version) in &versions {
        let Ok(version) = GroupVersion::new(*group, *version) else { continue };
        for resource in registry.in_version(&version).into_iter().flat_map(|resources| resources.values()) {
            custom::describe(&mut definitions, resource, &version, custom::OpenApiVersion::V2);
        }
    }
    json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": format!("v{release}.0")},
        "paths": {},
        "definitions": definitions,
    })
}

/// The path of a group-version without its leading slash.
pub(crate) fn path_of(version: &GroupVersion) -> String {
    match version.group() {
        "" => format!("api/{}", version.version()),
        group => format!("apis/{group}/{}", version.version()),
    }
}

fn add_paths(paths: &mut Map<String, Value>, plural: &str, resource: &Resource, version: &GroupVersion) {
    let root = path_of(version);
    let collection = match resource.scope {
        Scope::Namespaced => format!("/{root}/namespaces/{{namespace}}/{plural}"),
        Scope::Cluster => format!("/{root}/{plural}"),
    };
    let kind = json!({"group": version.group(), "version": version.version(), "kind": resource.names.kind});
    let mut on_collection = Map::new();
    let mut on_object = Map::new();
    for verb in &resource.verbs {
        let (operations, method, action) = match verb {
            Verb::Create => (&mut on_collection, "post", "post"),
            Verb::List => (&mut on_collection, "get", "list"),
            Verb::DeleteCollection => (&mut on_collection, "delete", "deletecollection"),
            Verb::Get => (&mut on_object, "get", "get"),
            Verb::Update => (&mut on_object, "put", "put"),
            Verb::Patch => (&mut on_object, "patch", "patch"),
            Verb::Delete => (&mut on_object, "delete", "delete"),
            Verb::Watch => continue,
        };
        let options: &[&str] = match verb {
            Verb::Create | Verb::Update => &["dryRun", "fieldManager", "fieldValidation"],
            Verb::Patch => &["dryRun", "fieldManager", "fieldValidation", "force"],
            _ => &[],
        };
        let mut operation = json!({
            "responses": {"200": {"description": "OK"}},
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": kind,
        });
        // Go's clients omit an empty list, and compare.
        if !options.is_empty() {
            operation["parameters"] = options.iter().map(|name| parameter(name)).collect();
        }
        operations.insert(method.into(), operation);
    }
    if !on_object.is_empty() {
        paths.insert(format!("{collection}/{{name}}"), Value::Object(on_object));
    }
    if !on_collection.is_empty() {
        paths.insert(collection, Value::Object(on_collection));
    }
}

fn parameter(name: &str) -> Value {
    let kind = if name == "force" { "boolean" } else { "string" };
    json!({"name": name, "in": "query", "schema": {"type": kind, "uniqueItems": true}})
}
