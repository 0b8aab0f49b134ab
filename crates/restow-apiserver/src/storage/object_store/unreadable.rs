//! Deletes objects that cannot be decoded, where the client has the permission and sets the option. Since their content is
//! unknown, there are no preconditions, no finalizers and no admission, as in Kubernetes.

use super::{ATTEMPTS, Attempt, Extra, ObjectRef, ObjectStore, wait_for_change};
use crate::error::ApiError;
use crate::error::corrupt;
use crate::request::options::DryRun;
use restow_apimachinery::object::Object;
use restow_store::StoreExt;

impl ObjectStore {
    /// Removes an object that cannot be decoded; other objects are refused. Keys that refer to it, for instance the addresses of a
    /// service, stay: they are not known.
    pub(crate) async fn remove_unreadable(&self, place: ObjectRef<'_>, dry_run: DryRun) -> Result<(), ApiError> {
        let key = place.key()?;
        for _ in 0..ATTEMPTS {
            let (resource, name) = (place.resource.group_resource.clone(), place.name.to_string());
            let Some(entry) = self.store.get(&key).await? else { return Err(ApiError::NotFound { resource, name }) };
            match place.resource.decode(&entry, place.version).await {
                Err(ApiError::Corrupt(_)) => {}
                Err(error) => return Err(error),
                Ok(_) => return Err(ApiError::Conflict { resource, name, message: corrupt::is_decodable(&key) }),
            }
            if dry_run == DryRun::Yes {
                return Ok(());
            }
            match self.remove(place, &key, Some(&entry), Object::default(), Extra::default()).await? {
                Attempt::Done(_) => return Ok(()),
                Attempt::Overtaken(_) => {}
                Attempt::Fenced(by) => {
                    self.alarm.ring();
                    wait_for_change(&by.storage, &by.encoding).await?;
                }
                Attempt::Outdated(by) => wait_for_change(&by.storage, &by.encoding).await?,
            }
        }
        Err(ApiError::Timeout(format!("the object was changed by others {ATTEMPTS} times in a row; try again")))
    }
}
