//! Lists collections in small pages, and keeps only the fields that are needed.
//!
//! A CRD can have a hundred kilobytes, most of it schemas, managedFields and the last applied configuration. Small pages
//! keep the memory of the controller independent of that.

use super::Context;
use crate::crd::{self, Crd};
use crate::request::RequestError;
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

/// The page size of CRDs.
const CRDS_AT_ONCE: u32 = 4;
/// The page size of other objects, which are small.
const OBJECTS_AT_ONCE: u32 = 100;
/// Up to this number, CRDs are read one by one instead of listed.
const READ_ONE_BY_ONE: usize = 8;
/// How often a list is restarted because its continue token expired.
const MOST_RESTARTS: u32 = 5;

/// The API of CRDs, with a type that drops the schemas.
pub(super) fn crds(context: &Context) -> Api<Crd> {
    let kind = GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let api = ApiResource::from_gvk_with_plural(&kind, "customresourcedefinitions");
    Api::all_with(context.cluster.client().clone(), &api)
}

/// The watcher configuration for CRDs.
pub(super) fn crds_watch() -> watcher::Config {
    watcher::Config::default().page_size(CRDS_AT_ONCE)
}

/// The watcher configuration for other objects.
pub(super) fn objects_watch() -> watcher::Config {
    watcher::Config::default().page_size(OBJECTS_AT_ONCE)
}

/// All CRDs.
pub(super) async fn all_crds(context: &Context) -> Result<Vec<Crd>, RequestError> {
    all(&crds(context), CRDS_AT_ONCE, slim).await
}

/// The CRDs of these resources, as far as they have one. Lists all CRDs if there are many resources.
pub(super) async fn crds_of(context: &Context, resources: &BTreeSet<GroupResource>) -> Result<Vec<Crd>, RequestError> {
    if resources.len() > READ_ONE_BY_ONE {
        return all_crds(context).await;
    }
    let mut found = Vec::new();
    for resource in resources {
        if let Some(mut crd) = crd::read(context.cluster.client(), resource).await? {
            slim(&mut crd);
            found.push(crd);
        }
    }
    Ok(found)
}

/// All objects of a collection of small objects.
pub(super) async fn all_objects<K>(api: &Api<K>) -> Result<Vec<K>, RequestError>
where
    K: kube::Resource + Clone + DeserializeOwned + Debug,
{
    all(api, OBJECTS_AT_ONCE, |object: &mut K| object.meta_mut().managed_fields = None).await
}

async fn all<K>(api: &Api<K>, at_once: u32, slim: fn(&mut K)) -> Result<Vec<K>, RequestError>
where
    K: Clone + DeserializeOwned + Debug,
{
    let (mut found, mut restarts) = (Vec::new(), 0);
    let mut page = ListParams::default().limit(at_once);
    loop {
        let list = match api.list(&page).await.map_err(RequestError::from) {
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

fn slim(crd: &mut Crd) {
    const KEPT: [&str; 4] = [MIGRATING_ANNOTATION, HOLDER_ANNOTATION, REFUSALS_ANNOTATION, PAUSED_ANNOTATION];
    crd.metadata.managed_fields = None;
    if let Some(annotations) = &mut crd.metadata.annotations {
        annotations.retain(|key, _| KEPT.contains(&key.as_str()));
    }
}
