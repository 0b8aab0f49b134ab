//! The write pipeline. Create, update, patch, apply and the subresources that write (`status`, `scale` and others) all pass through
//! it; a verb only defines the object to write. The stages, in order:
//!
//! | stage | what happens |
//! |---|---|
//! | decode | the verb decodes the object to write ([`DesiredObject`]) |
//! | default | metadata, defaults and the managed fields of a new object |
//! | mutate | mutating admission: built-in plugins, policies, webhooks |
//! | validate | fields that the strategy sets; validation; `metadata.managedFields` |
//! | claim | values that must be unique, such as cluster IPs ([`WriteHook`](crate::core::WriteHook)) |
//! | authorize | RBAC escalation checks |
//! | admit | validating admission: built-in plugins, policies, webhooks |
//! | charge | checks that the namespace exists, and charges quotas |
//! | commit | one transaction; a dry run writes nothing |

use crate::admission::resource_quota::{self, Charge};
use crate::admission::{self, Operation};
use crate::error::ApiError;
use crate::handlers::{Call, create, update};
use crate::namespaces::Freshness;
use crate::resource::Verb;
use crate::storage::object_store::{Begin, Changed, EncodedBy, ObjectChange, ObjectDecision, Written};
use async_trait::async_trait;
use restow_apimachinery::managed_fields::Given;
use restow_apimachinery::object::Object;
use restow_store::{Compare, Mutation};
use std::borrow::Cow;

/// The object that a verb wants to write.
#[async_trait]
pub(super) trait DesiredObject: Send + Sync {
    /// The object to create if it does not exist, with the managed fields in the request; `None` if the verb does not
    /// create.
    fn create(&self) -> Result<Option<(Object, Given)>, ApiError>;

    /// The object that replaces `old`.
    async fn replace(&self, old: &Object) -> Result<(Object, Given), ApiError>;

    /// The stages decode and mutate of a replacement. A subresource with a kind of its own is admitted as that kind.
    async fn mutated(&self, call: &Call<'_>, old: &Object) -> Result<(Object, Given), ApiError> {
        let (object, given) = self.replace(old).await?;
        let object = admission::mutate(&call.admission(), Operation::Update, object, Some(old)).await?;
        Ok((object, given))
    }

    /// The object as validating admission sees it.
    fn admitted<'a>(&self, object: &'a Object) -> Cow<'a, Object> {
        Cow::Borrowed(object)
    }
}

/// Runs the write pipeline. Returns the status code and the written object.
pub(super) async fn write(call: &Call<'_>, desired: &dyn DesiredObject) -> Result<(u16, Written), ApiError> {
    let mut write = Write::new(call, desired);
    // Admission can set the name of a new object.
    let name = match call.target.verb {
        Verb::Create => write.prepare_new().await?,
        _ => call.target.name.clone(),
    };
    let objects = call.handlers.objects();
    match objects.commit(call.object_ref(&name), &mut write, call.dry_run()?).await? {
        Changed::Created(written) => Ok((201, written)),
        Changed::Updated(written) => Ok((200, written)),
        Changed::Removed(object) => Ok((200, Written::not_stored(write.last_state.unwrap_or(object)))),
        Changed::Absent => Err(call.not_found(&name)),
    }
}

/// A write in the pipeline. It runs again when another write changed an object that it depends on.
struct Write<'a> {
    call: &'a Call<'a>,
    desired: &'a dyn DesiredObject,
    /// A new object that has passed admission. A retry does not call webhooks again.
    new: Option<NewObject>,
    /// How the namespace is read: from the cache first, from the store in a retry.
    freshness: Freshness,
    /// The condition on the namespace in the transaction.
    namespace: Option<Compare>,
    /// The conditions for the claimed values, such as cluster IPs.
    claims: Vec<Compare>,
    /// The charge to resource quotas.
    charge: Charge,
    /// The object as the update left it, if the update removed it because its last finalizer is gone.
    last_state: Option<Object>,
}

/// A new object after admission.
struct NewObject {
    object: Object,
    /// The object before the claim stage, for a retry; `None` if its kind claims nothing.
    unclaimed: Option<Object>,
}

impl<'a> Write<'a> {
    fn new(call: &'a Call<'a>, desired: &'a dyn DesiredObject) -> Self {
        Write {
            call,
            desired,
            new: None,
            freshness: Freshness::Cached,
            namespace: None,
            claims: Vec::new(),
            charge: Charge::default(),
            last_state: None,
        }
    }

    /// The stages of a new object from decode to admit. Returns its name.
    async fn prepare_new(&mut self) -> Result<String, ApiError> {
        let call = self.call;
        let (object, given) = self.desired.create()?.ok_or_else(|| call.not_found(&call.target.name))?;
        let object = create::defaulted(call, object, given).await?;
        let object = admission::mutate(&call.admission(), Operation::Create, object, None).await?;
        let mut object = create::validated(call, object)?;
        let unclaimed = call.handlers.write_hook(&call.resource).map(|_| object.clone());
        self.claim(&mut object, None).await?;
        self.authorize(&object, None).await?;
        admission::validate(&call.admission(), Operation::Create, Some(&object), None).await?;
        let name = object.name().to_string();
        self.new = Some(NewObject { object, unclaimed });
        Ok(name)
    }

    /// All stages of an object that does not exist yet.
    async fn create(&mut self) -> Result<Object, ApiError> {
        let call = self.call;
        if self.new.is_none() {
            // An update or apply that creates the object needs permission to create.
            if self.desired.create()?.is_some() {
                call.authorize_creation()?;
            }
            let name = self.prepare_new().await?;
            if name != call.target.name {
                return Err(update::name_mismatch(&name, &call.target.name));
            }
        } else if self.freshness == Freshness::Live {
            // Another object may have claimed the same values since the first attempt.
            if let Some(mut object) = self.new.as_ref().and_then(|new| new.unclaimed.clone()) {
                self.claim(&mut object, None).await?;
                self.new = self.new.take().map(|new| NewObject { object, ..new });
            }
        }
        let prepared = self.new.as_ref().map(|new| new.object.clone());
        let object = prepared.ok_or_else(|| ApiError::Internal("a new object was not prepared".into()))?;
        self.namespace = call.check_namespace(object.name(), self.freshness).await?;
        self.freshness = Freshness::Live;
        let before = std::mem::take(&mut self.charge);
        self.charge = resource_quota::charge(&call.admission(), &object, None, before).await?;
        Ok(object)
    }

    /// All stages of an object that replaces `old`.
    async fn replace(&mut self, old: &Object) -> Result<Object, ApiError> {
        let call = self.call;
        // Do not hold the lock on the namespace's quotas while webhooks are called.
        (self.namespace, self.charge) = (None, Charge::default());
        let (object, given) = self.desired.mutated(call, old).await?;
        let mut object = update::validated(call, object, old, given).await?;
        self.claim(&mut object, Some(old)).await?;
        self.authorize(&object, Some(old)).await?;
        let (new, before) = (self.desired.admitted(&object), self.desired.admitted(old));
        admission::validate(&call.admission(), Operation::Update, Some(&new), Some(&before)).await?;
        self.charge = resource_quota::charge(&call.admission(), &object, Some(old), Charge::default()).await?;
        Ok(object)
    }

    async fn claim(&mut self, object: &mut Object, old: Option<&Object>) -> Result<(), ApiError> {
        let hook = self.call.handlers.write_hook(&self.call.resource);
        self.claims = match hook {
            Some(hook) => hook.claim(self.call, object, old).await?,
            None => Vec::new(),
        };
        Ok(())
    }

    async fn authorize(&self, object: &Object, old: Option<&Object>) -> Result<(), ApiError> {
        self.call.handlers.access().check_grant(&self.call.user, object, old, &self.call.target.name).await
    }
}

#[async_trait]
impl ObjectDecision for Write<'_> {
    fn begin(&self) -> Begin {
        if self.new.is_some() { Begin::Absent } else { Begin::Read }
    }

    async fn decide(&mut self, before: Option<&Object>) -> Result<ObjectChange, ApiError> {
        let Some(old) = before else { return self.create().await.map(ObjectChange::Write) };
        let mut object = self.replace(old).await?;
        if !update::completes_deletion(self.call, &object, old) {
            return Ok(ObjectChange::Write(object));
        }
        object.set_meta("resourceVersion", old.resource_version());
        self.last_state = Some(object);
        Ok(ObjectChange::Remove)
    }

    fn conditions(&self) -> Vec<Compare> {
        self.namespace.iter().chain(&self.claims).chain(&self.charge.conditions).cloned().collect()
    }

    fn additional_mutations(&self) -> Vec<Mutation> {
        self.charge.mutations.clone()
    }

    fn mutations_encoded_by(&self) -> Option<EncodedBy> {
        self.charge.encoded_by.clone()
    }
}
