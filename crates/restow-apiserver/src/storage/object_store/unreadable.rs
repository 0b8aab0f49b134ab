//! Deletes objects that cannot be decoded, if the client has the permission and sets the option. Their content is
//! unknown, so there are no preconditions, no finalizers and no admission, as in Kubernetes.

use super::{ATTEMPTS, Attempt, Extra, ObjectRef, ObjectStore, wait_for_change};
use crate::error::ApiError;
use crate::error::corrupt;
use crate::request::options::DryRun;
use restow_apimachinery::object::Object;
use restow_store::StoreExt;

impl ObjectStore {
    /// Removes an object that cannot be decoded; refuses other objects. Keys that belong to it, such as the addresses
    /// of a service, stay, because they are not known.
    pub(crate) async fn remove_unreadable(&self, object_ref: ObjectRef<'_>, dry_run: DryRun) -> Result<(), ApiError> {
        let key = object_ref.key()?;
        for _ in 0..ATTEMPTS {
            let (resource, name) = (object_ref.resource.group_resource.clone(), object_ref.name.to_string());
            let Some(entry) = self.store.get(&key).await? else { return Err(ApiError::NotFound { resource, name }) };
            match object_ref.resource.decode(&entry, object_ref.version).await {
                Err(ApiError::Corrupt(_)) => {}
                Err(error) => return Err(error),
                Ok(_) => return Err(ApiError::Conflict { resource, name, message: corrupt::is_decodable(&key) }),
            }
            if dry_run == DryRun::Yes {
                return Ok(());
            }
            match self.remove(object_ref, &key, Some(&entry), Object::default(), Extra::default()).await? {
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
