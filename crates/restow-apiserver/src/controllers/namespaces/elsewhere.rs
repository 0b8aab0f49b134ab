//! Empties a terminating namespace on the API servers behind this one.
//!
//! Every API server runs this controller, so another one may have finished, and the namespace may have been created again. What
//! is deleted was listed before it was checked that the namespace is still the terminating one, and nothing is created in that.

use crate::aggregator::{AggregatedObject, AggregatedResource, AggregatedResources};
use crate::controllers::namespaces::conditions::AggregatedContents;
use crate::controllers::namespaces::{ACCOUNT, NamespaceInstance};
use crate::error::ApiError;
use crate::handlers::Handlers;
use futures::StreamExt;
use futures::stream;
use restow_auth::User;
use restow_store::StoreExt;

/// How many objects are deleted at once.
const CONCURRENT: usize = 8;
/// How many pages of a resource are deleted in a pass: no server can make a pass endless.
const PAGES: usize = 200;

/// What was found of a namespace on other servers.
pub(super) enum Elsewhere {
    /// This is left in it.
    Left(AggregatedContents),
    /// It is not the same namespace any more.
    Replaced,
}

/// How much is left of a resource.
enum Remaining {
    Objects(usize),
    /// The namespace is not the same any more.
    Unknown,
}

/// Deletes what other API servers have in a namespace. A server that cannot be asked may have objects in it.
pub(super) async fn delete_elsewhere(
    handlers: &Handlers,
    namespace: &str,
    instance: &NamespaceInstance,
) -> Result<Elsewhere, ApiError> {
    let known = handlers.aggregator.namespaced_resources();
    let AggregatedResources { resources, unknown } = known.map_err(|error| ApiError::Internal(error.to_string()))?;
    let emptying = Emptying {
        handlers,
        instance,
        namespace,
        user: User::service_account("kube-system", ACCOUNT, "").authenticated(),
    };
    let mut found = AggregatedContents { unknown, ..AggregatedContents::default() };
    for resource in resources {
        match emptying.delete_all(&resource).await {
            Ok(Remaining::Objects(0)) => {}
            Ok(Remaining::Objects(left)) => found.left.push((resource.name(), left)),
            Ok(Remaining::Unknown) => return Ok(Elsewhere::Replaced),
            Err(failure) => found.failures.push(failure),
        }
    }
    Ok(Elsewhere::Left(found))
}

/// A pass over a namespace on other servers.
struct Emptying<'a> {
    handlers: &'a Handlers,
    instance: &'a NamespaceInstance,
    namespace: &'a str,
    user: User,
}

impl Emptying<'_> {
    async fn delete_all(&self, resource: &AggregatedResource) -> Result<Remaining, String> {
        let (mut from, mut failure) = (String::new(), None);
        for _ in 0..PAGES {
            let page = resource.list(self.namespace, &self.user, &from).await?;
            // Only now: what was listed before is in this namespace, and not in the next one of its name.
            if !self.is_same().await? {
                return Ok(Remaining::Unknown);
            }
            failure = self.delete(resource, page.objects).await.err().or(failure);
            from = page.next;
            if from.is_empty() {
                break;
            }
        }
        match failure {
            Some(failure) => Err(failure),
            None => Ok(Remaining::Objects(resource.list(self.namespace, &self.user, "").await?.count)),
        }
    }

    /// Deletes these objects. One failure does not stop the others.
    async fn delete(&self, resource: &AggregatedResource, objects: Vec<AggregatedObject>) -> Result<(), String> {
        let deletions = objects.into_iter().map(|object| self.delete_one(resource, object));
        let outcomes: Vec<Result<(), String>> = stream::iter(deletions).buffer_unordered(CONCURRENT).collect().await;
        outcomes.into_iter().collect()
    }

    async fn delete_one(&self, resource: &AggregatedResource, object: AggregatedObject) -> Result<(), String> {
        resource.delete(self.namespace, &object, &self.user).await
    }

    /// Whether the namespace is still the terminating one.
    async fn is_same(&self) -> Result<bool, String> {
        let found = self.handlers.objects().store().get(&self.instance.entry.key).await;
        Ok(self.instance.still_exists().holds(found.map_err(|error| error.to_string())?.as_ref()))
    }
}
