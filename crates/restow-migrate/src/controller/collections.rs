//! Reads collections in small pages, and keeps of each object only what is looked at.
//!
//! Definitions of custom resources can be a hundred kilobytes each, most of it schemas, owners of fields and what was last
//! applied. So that the memory of a controller does not grow with that, no answer holds more than a few of them.

use super::Context;
use crate::definition::{self, Definition};
use crate::exchange::Failure;
use kube::api::{Api, ApiResource, ListParams};
use kube::core::GroupVersionKind;
use kube::runtime::watcher;
use restow_api::GroupResource;
use restow_rules::migrate::marks::{HOLDER_ANNOTATION, REFUSALS_ANNOTATION};
use restow_rules::migrate::stored_versions::MIGRATING_ANNOTATION;
use restow_rules::trigger::PAUSED_ANNOTATION;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::fmt::Debug;

/// How many definitions one answer may hold.
const DEFINITIONS_AT_ONCE: u32 = 4;
/// How many other objects one answer may hold; they are small.
const OBJECTS_AT_ONCE: u32 = 100;
/// Up to so many definitions are read one by one, rather than all of them.
const READ_ONE_BY_ONE: usize = 8;
/// How often a listing whose token has expired is begun anew.
const MOST_RESTARTS: u32 = 5;

/// Definitions, in a form of which the schemas are not kept.
pub(super) fn definitions(context: &Context) -> Api<Definition> {
    let kind = GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let api = ApiResource::from_gvk_with_plural(&kind, "customresourcedefinitions");
    Api::all_with(context.cluster.client().clone(), &api)
}

/// How definitions are watched.
pub(super) fn definitions_watch() -> watcher::Config {
    watcher::Config::default().page_size(DEFINITIONS_AT_ONCE)
}

/// How other objects are watched.
pub(super) fn objects_watch() -> watcher::Config {
    watcher::Config::default().page_size(OBJECTS_AT_ONCE)
}

/// All definitions.
pub(super) async fn all_definitions(context: &Context) -> Result<Vec<Definition>, Failure> {
    all(&definitions(context), DEFINITIONS_AT_ONCE, slim).await
}

/// The definitions of these resources, as far as they have one; all of them where that takes less.
pub(super) async fn definitions_of(
    context: &Context,
    resources: &BTreeSet<GroupResource>,
) -> Result<Vec<Definition>, Failure> {
    if resources.len() > READ_ONE_BY_ONE {
        return all_definitions(context).await;
    }
    let mut found = Vec::new();
    for resource in resources {
        if let Some(mut definition) = definition::read(context.cluster.client(), resource).await? {
            slim(&mut definition);
            found.push(definition);
        }
    }
    Ok(found)
}

/// All objects of a collection whose objects are small.
pub(super) async fn all_objects<K>(api: &Api<K>) -> Result<Vec<K>, Failure>
where
    K: kube::Resource + Clone + DeserializeOwned + Debug,
{
    all(api, OBJECTS_AT_ONCE, |object: &mut K| object.meta_mut().managed_fields = None).await
}

async fn all<K>(api: &Api<K>, at_once: u32, slim: fn(&mut K)) -> Result<Vec<K>, Failure>
where
    K: Clone + DeserializeOwned + Debug,
{
    let (mut found, mut restarts) = (Vec::new(), 0);
    let mut page = ListParams::default().limit(at_once);
    loop {
        let list = match api.list(&page).await.map_err(Failure::from) {
            Ok(list) => list,
            Err(failure) if failure.code == 410 && page.continue_token.is_some() && restarts < MOST_RESTARTS => {
                restarts += 1;
                found.clear();
                page.continue_token = None;
                continue;
            }
            Err(failure) => return Err(failure),
        };
        found.extend(list.items.into_iter().map(|mut object| {
            slim(&mut object);
            object
        }));
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page.continue_token = Some(token),
            None => return Ok(found),
        }
    }
}

fn slim(definition: &mut Definition) {
    const KEPT: [&str; 4] = [MIGRATING_ANNOTATION, HOLDER_ANNOTATION, REFUSALS_ANNOTATION, PAUSED_ANNOTATION];
    definition.metadata.managed_fields = None;
    if let Some(annotations) = &mut definition.metadata.annotations {
        annotations.retain(|key, _| KEPT.contains(&key.as_str()));
    }
}
