//! Registers the group-versions that this server itself serves as local APIServices: the built-in ones, and those of custom
//! resources.
//!
//! Every server does it; the second one finds nothing to do. Only APIServices with the label of the server are changed: a user
//! who wants to keep a changed one removes the label.

use crate::aggregator::Aggregator;
use crate::aggregator::api_service::{self, ApiService, GROUP, Managed};
use crate::aggregator::priorities;
use crate::apiextensions::custom_resource_definition::{CustomResourceDefinition, GROUP as CRD_GROUP};
use crate::core::Core;
use crate::discovery::aggregation::Priority;
use crate::error::ApiError;
use crate::resource::registry::Registry;
use crate::resource::{ObjectRef, Origin};
use crate::storage::object_store::{ObjectChange, ObjectDecision};
use async_trait::async_trait;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt};
use restow_api::GroupVersion;
use restow_apimachinery::object::Object;
use restow_store::RangeRequest;
use std::collections::BTreeMap;

/// How many APIServices are written at once.
const CONCURRENCY: usize = 32;

/// A local group-version and who manages its APIService.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Local {
    pub(super) priority: Priority,
    pub(super) managed: Managed,
}

/// What to do with one APIService.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Create it, or give it the specification of the server.
    Put(GroupVersion),
    /// Delete it: nothing serves its group-version any more.
    Delete(GroupVersion),
}

/// When APIServices are reconciled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Occasion {
    /// The server has started: APIServices of built-in group-versions that it does not serve are deleted.
    Start,
    /// At all other times another server of the cluster may serve them.
    Later,
}

/// The group-versions that this server serves itself, with their priorities.
pub(super) fn local_versions(registry: &Registry) -> BTreeMap<GroupVersion, Local> {
    let mut found = BTreeMap::new();
    for (group, versions) in registry.groups().iter().filter(|(group, _)| *group != GROUP) {
        for version in &versions.versions {
            let Ok(version) = GroupVersion::new(group, version) else { continue };
            let custom = registry
                .in_version(&version)
                .is_some_and(|resources| resources.values().all(|resource| resource.origin == Origin::Custom));
            let local = match priorities::builtin(&version) {
                Some(priority) if !custom => Local { priority, managed: Managed::OnStart },
                _ => Local { priority: priorities::CUSTOM, managed: Managed::Always },
            };
            found.insert(version, local);
        }
    }
    found
}

/// What has to be done so that the APIServices are those of the served group-versions.
pub(super) fn plan<'a>(
    served: &BTreeMap<GroupVersion, Local>,
    stored: impl Iterator<Item = &'a ApiService>,
    occasion: Occasion,
) -> Vec<Step> {
    let stored: BTreeMap<&GroupVersion, &ApiService> = stored.map(|service| (&service.version, service)).collect();
    let mut steps = Vec::new();
    for (version, local) in served {
        let right = match stored.get(version) {
            None => false,
            Some(service) => match service.managed {
                Managed::ByUser => true,
                // Users may change the priorities of built-in groups until the next start.
                Managed::OnStart if occasion == Occasion::Later => true,
                Managed::OnStart | Managed::Always => service.backend.is_none() && service.priority == local.priority,
            },
        };
        if !right {
            steps.push(Step::Put(version.clone()));
        }
    }
    for (version, service) in stored {
        let spurious = match service.managed {
            Managed::ByUser => false,
            Managed::OnStart => occasion == Occasion::Start,
            Managed::Always => true,
        };
        if spurious && !served.contains_key(version) {
            steps.push(Step::Delete(version.clone()));
        }
    }
    steps
}

impl Aggregator {
    /// Registers the local group-versions.
    pub(super) async fn register_local(&self, occasion: Occasion) -> Result<(), ApiError> {
        let served = local_versions(&self.core.registry());
        let steps = plan(&served, self.known.load().all.iter().map(|known| &known.service), occasion);
        if steps.is_empty() {
            return Ok(());
        }
        let in_crds = match steps.iter().any(|step| matches!(step, Step::Delete(_))) {
            true => versions_of_crds(&self.core).await?,
            false => Vec::new(),
        };
        let steps: Vec<BoxFuture<'_, _>> =
            steps.into_iter().map(|step| self.take(step, &served, &in_crds).boxed()).collect();
        futures::stream::iter(steps).buffer_unordered(CONCURRENCY).try_collect().await
    }

    async fn take(
        &self,
        step: Step,
        served: &BTreeMap<GroupVersion, Local>,
        in_crds: &[GroupVersion],
    ) -> Result<(), ApiError> {
        match step {
            Step::Put(version) => match served.get(&version) {
                Some(local) => self.change(&version, &mut PutLocal { version: &version, local: *local }).await,
                None => Ok(()),
            },
            // This server may not have read a new CRD yet.
            Step::Delete(version) if in_crds.contains(&version) => Ok(()),
            Step::Delete(version) => self.change(&version, &mut DeleteManaged).await,
        }
    }

    /// Changes the APIService of a group-version.
    pub(super) async fn change(
        &self,
        version: &GroupVersion,
        decision: &mut dyn ObjectDecision,
    ) -> Result<(), ApiError> {
        let Some((resource, own_version)) = api_service_resource(&self.core) else { return Ok(()) };
        let name = api_service::name_of(version);
        let object_ref = ObjectRef { resource: &resource, version: &own_version, namespace: "", name: &name };
        self.core.objects().change(object_ref, decision).await.map(|_| ())
    }
}

/// The resource of APIServices, where this server serves it.
pub(super) fn api_service_resource(core: &Core) -> Option<(std::sync::Arc<crate::resource::Resource>, GroupVersion)> {
    let version = GroupVersion::new(GROUP, "v1").ok()?;
    let resource = core.registry().find(&version, "apiservices")?.clone();
    Some((resource, version))
}

/// The group-versions that the stored CRDs serve, read from the store.
async fn versions_of_crds(core: &Core) -> Result<Vec<GroupVersion>, ApiError> {
    let version = GroupVersion::new(CRD_GROUP, "v1").map_err(|error| ApiError::Internal(error.to_string()))?;
    let Some(resource) = core.registry().find(&version, "customresourcedefinitions").cloned() else {
        return Ok(Vec::new());
    };
    let Some(storage) = &resource.storage else { return Ok(Vec::new()) };
    let listed = core.objects().store().range(RangeRequest::new(storage.range(""))).await?;
    let mut found = Vec::new();
    for entry in &listed.entries {
        // A CRD that cannot be read keeps nothing: nothing serves it.
        let Ok(object) = resource.decode(entry, &version).await else { continue };
        let Some(crd) = CustomResourceDefinition::of(&object) else { continue };
        let served = crd.spec.versions.iter().filter(|version| version.served);
        found.extend(served.filter_map(|version| GroupVersion::new(&*crd.spec.group, &*version.name).ok()));
    }
    Ok(found)
}

/// Creates the APIService of a local group-version, or gives a managed one the server's specification.
struct PutLocal<'a> {
    version: &'a GroupVersion,
    local: Local,
}

#[async_trait]
impl ObjectDecision for PutLocal<'_> {
    async fn decide(&mut self, before: Option<&Object>) -> Result<ObjectChange, ApiError> {
        let wanted = api_service::local(self.version, self.local.priority, self.local.managed);
        let Some(before) = before else { return Ok(ObjectChange::Write(wanted)) };
        let managed = ApiService::read(before).is_some_and(|service| service.managed != Managed::ByUser);
        if !managed || before.get("spec") == wanted.get("spec") {
            return Ok(ObjectChange::Keep);
        }
        let mut object = before.clone();
        object.set("spec", wanted.get("spec").cloned());
        api_service::Condition::local().set_in(&mut object);
        Ok(ObjectChange::Write(object))
    }
}

/// Deletes an APIService that the server manages.
struct DeleteManaged;

#[async_trait]
impl ObjectDecision for DeleteManaged {
    async fn decide(&mut self, before: Option<&Object>) -> Result<ObjectChange, ApiError> {
        let managed = before.and_then(ApiService::read).is_some_and(|service| service.managed != Managed::ByUser);
        Ok(if managed { ObjectChange::Remove } else { ObjectChange::Keep })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregator::api_service::{BackendSpec, Verification};

    fn version(text: &str) -> GroupVersion {
        text.parse().unwrap()
    }

    fn stored(text: &str, managed: Managed, priority: Priority) -> ApiService {
        let version = version(text);
        let name = api_service::name_of(&version);
        ApiService { name, version, priority, backend: None, managed, condition: None }
    }

    fn check(stored: &[ApiService], occasion: Occasion, expected: &[Step]) {
        let apps = Local { priority: Priority { group: 17800, version: 15 }, managed: Managed::OnStart };
        let custom = Local { priority: priorities::CUSTOM, managed: Managed::Always };
        let served = BTreeMap::from([(version("apps/v1"), apps), (version("a.example/v1"), custom)]);
        assert_eq!(plan(&served, stored.iter(), occasion), expected, "{stored:?} {occasion:?}");
    }

    #[test]
    fn served_group_versions_are_registered_and_those_of_users_are_left_alone() {
        let right = Priority { group: 17800, version: 15 };
        let other = Priority { group: 5, version: 5 };
        let put = |text: &str| Step::Put(version(text));
        check(&[], Occasion::Later, &[put("a.example/v1"), put("apps/v1")]);
        let custom = stored("a.example/v1", Managed::Always, priorities::CUSTOM);
        check(&[custom.clone(), stored("apps/v1", Managed::OnStart, right)], Occasion::Start, &[]);
        check(&[custom.clone(), stored("apps/v1", Managed::OnStart, other)], Occasion::Later, &[]);
        check(&[custom.clone(), stored("apps/v1", Managed::OnStart, other)], Occasion::Start, &[put("apps/v1")]);
        check(&[custom, stored("apps/v1", Managed::ByUser, other)], Occasion::Start, &[]);
        let mut taken = stored("a.example/v1", Managed::ByUser, other);
        let verification = Verification::Skip;
        taken.backend = Some(BackendSpec { namespace: "n".into(), name: "s".into(), port: 443, verification });
        let apps = stored("apps/v1", Managed::OnStart, right);
        check(&[taken.clone(), apps.clone()], Occasion::Start, &[]);
        taken.managed = Managed::Always;
        taken.priority = priorities::CUSTOM;
        check(&[taken, apps], Occasion::Later, &[put("a.example/v1")]);
    }

    #[test]
    fn what_is_not_served_any_more_is_deleted_if_the_server_manages_it() {
        let right = [
            stored("a.example/v1", Managed::Always, priorities::CUSTOM),
            stored("apps/v1", Managed::OnStart, Priority { group: 17800, version: 15 }),
        ];
        let with = |text: &str, managed| [right.to_vec(), vec![stored(text, managed, priorities::CUSTOM)]].concat();
        let delete = |text: &str| [Step::Delete(version(text))];
        check(&with("b.example/v1", Managed::Always), Occasion::Later, &delete("b.example/v1"));
        check(&with("b.example/v1", Managed::ByUser), Occasion::Start, &[]);
        check(&with("apps/v1beta1", Managed::OnStart), Occasion::Later, &[]);
        check(&with("apps/v1beta1", Managed::OnStart), Occasion::Start, &delete("apps/v1beta1"));
    }
}
