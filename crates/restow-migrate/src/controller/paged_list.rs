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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::fake_api::{ApiRequest, FakeApi};
    use serde_json::{Value, json};

    const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

    fn crd(name: &str) -> Value {
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": name, "managedFields": [{"manager": "m"}], "annotations": {
                PAUSED_ANNOTATION: "true", MIGRATING_ANNOTATION: "x", "kubectl.kubernetes.io/last-applied": "large"}},
            "spec": {"group": "example.com", "names": {"plural": "widgets", "kind": "Widget"}, "versions": []},
        })
    }

    fn list(names: &[&str], token: &str) -> Value {
        let items: Vec<Value> = names.iter().map(|name| crd(name)).collect();
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinitionList",
            "metadata": {"resourceVersion": "5", "continue": token}, "items": items})
    }

    fn names(found: &[Crd]) -> Vec<&str> {
        found.iter().filter_map(|crd| crd.metadata.name.as_deref()).collect()
    }

    fn token(request: &ApiRequest) -> Option<&str> {
        request.path.split_once("continue=").map(|(_, token)| token)
    }

    #[tokio::test]
    async fn crds_are_listed_in_pages_without_what_is_large() {
        let api = FakeApi::new(|request| match token(request) {
            None => (200, list(&["a", "b"], "next")),
            Some(_) => (200, list(&["c"], "")),
        });
        let found = all_crds(&api.context()).await.unwrap();
        assert_eq!(names(&found), ["a", "b", "c"]);
        let calls = api.calls();
        assert!(calls.len() == 2 && calls.iter().all(|call| call.contains("limit=4")), "{calls:?}");
        let metadata = &found[2].metadata;
        assert_eq!(metadata.managed_fields, None);
        let annotations: Vec<&String> = metadata.annotations.as_ref().unwrap().keys().collect();
        assert_eq!(annotations, [MIGRATING_ANNOTATION, PAUSED_ANNOTATION]);
    }

    #[tokio::test]
    async fn a_list_begins_again_if_its_continue_token_expires_but_not_forever() {
        let expired = std::sync::atomic::AtomicU32::new(0);
        let api = FakeApi::new(move |request| match token(request) {
            None => (200, list(&["a"], "next")),
            Some(_) if expired.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0 => (410, json!("expired")),
            Some(_) => (200, list(&["b"], "")),
        });
        let found = all_crds(&api.context()).await.unwrap();
        assert_eq!(names(&found), ["a", "b"], "the first page counts once");
        let always = FakeApi::new(|request| match token(request) {
            None => (200, list(&["a"], "next")),
            Some(_) => (410, json!("expired")),
        });
        assert_eq!(all_crds(&always.context()).await.unwrap_err().code, 410);
        assert_eq!(always.calls().len(), 2 * (1 + MOST_RESTARTS as usize));
        let unavailable = FakeApi::new(|_| (410, json!("the first page cannot expire")));
        assert_eq!(all_crds(&unavailable.context()).await.unwrap_err().code, 410);
        assert_eq!(unavailable.calls().len(), 1);
    }

    #[tokio::test]
    async fn few_crds_are_read_one_by_one_and_many_are_listed() {
        let api = FakeApi::new(|request| match request.path.strip_prefix(CRDS) {
            Some(path) if path.starts_with('?') => (200, list(&["a"], "")),
            Some(path) => (200, crd(&path[1..])),
            None => (500, json!("unexpected")),
        });
        let resources = |count: usize| -> BTreeSet<GroupResource> {
            (0..count).map(|number| format!("w{number}.example.com").parse().unwrap()).collect()
        };
        let found = crds_of(&api.context(), &resources(READ_ONE_BY_ONE)).await.unwrap();
        assert_eq!((api.calls().len(), found.len()), (READ_ONE_BY_ONE, READ_ONE_BY_ONE));
        assert!(found.iter().all(|crd| crd.metadata.managed_fields.is_none()));
        let found = crds_of(&api.context(), &resources(READ_ONE_BY_ONE + 1)).await.unwrap();
        assert_eq!((api.calls().len(), found.len()), (READ_ONE_BY_ONE + 1, 1));
    }
}
