//! The write pipeline. Create, update, patch, apply and the subresources that write (`status`, `scale` and others) all pass through
//! it; a verb only says which object it wants. The stages, in order:
//!
//! | stage | what happens |
//! |---|---|
//! | decode | the verb reads the object that it wants ([`DesiredObject`]) |
//! | default | metadata, defaults and the managed fields of a new object |
//! | mutate | mutating admission: built-in plugins, policies, webhooks |
//! | validate | what the kind sets and checks; `metadata.managedFields` |
//! | claim | what no other object may have, such as cluster IPs ([`WriteHook`](crate::core::WriteHook)) |
//! | authorize | RBAC escalation checks |
//! | admit | validating admission: built-in plugins, policies, webhooks |
//! | charge | the namespace exists, and quotas allow it |
//! | commit | one transaction, or nothing in a dry run |

use crate::admission::resource_quota::{self, Charge};
use crate::admission::{self, Operation};
use crate::error::ApiError;
use crate::handlers::{Call, create, update};
use crate::namespaces::Freshness;
use crate::resource::Verb;
use crate::storage::object_store::{Begin, Change, Changed, Decision, EncodedBy, Written};
use async_trait::async_trait;
use restow_apimachinery::managed_fields::Given;
use restow_apimachinery::object::Object;
use restow_store::{Compare, Mutation};
use std::borrow::Cow;

/// The object that a verb wants to be written.
#[async_trait]
pub(super) trait DesiredObject: Send + Sync {
    /// The object to create where there is none, and what the request says of its managed fields; `None` where the verb creates
    /// nothing.
    fn create(&self) -> Result<Option<(Object, Given)>, ApiError>;

    /// The object to put in the place of `old`.
    async fn replace(&self, old: &Object) -> Result<(Object, Given), ApiError>;

    /// The stages decode and mutate of a replacement. A subresource with a kind of its own is admitted as that kind.
    async fn mutated(&self, call: &Call<'_>, old: &Object) -> Result<(Object, Given), ApiError> {
        let (object, given) = self.replace(old).await?;
        let object = admission::mutate(&call.admission(), Operation::Update, object, Some(old)).await?;
        Ok((object, given))
    }

    /// What validating admission sees of an object.
    fn admitted<'a>(&self, object: &'a Object) -> Cow<'a, Object> {
        Cow::Borrowed(object)
    }
}

/// Writes what a verb wants. Returns the code of the answer, and the object as it is then.
pub(super) async fn write(call: &Call<'_>, desired: &dyn DesiredObject) -> Result<(u16, Written), ApiError> {
    let mut write = Write::new(call, desired);
    // The name of a new object is known when admission has had its say.
    let name = match call.target.verb {
        Verb::Create => write.prepare_new().await?,
        _ => call.target.name.clone(),
    };
    let objects = call.handlers.objects();
    match objects.commit(call.place(&name), &mut write, call.dry_run()?).await? {
        Changed::Created(written) => Ok((201, written)),
        Changed::Updated(written) => Ok((200, written)),
        Changed::Removed(object) => Ok((200, Written::not_stored(write.last_state.unwrap_or(object)))),
        Changed::Absent => Err(call.not_found(&name)),
    }
}

/// A write on its way through the stages. It is tried again when others changed what it depends on.
struct Write<'a> {
    call: &'a Call<'a>,
    desired: &'a dyn DesiredObject,
    /// A new object that is admitted already, so that no webhook is called twice for it.
    new: Option<NewObject>,
    /// How the namespace is looked at: first as cached, then as stored.
    freshness: Freshness,
    /// What must hold of the namespace.
    namespace: Option<Compare>,
    /// What must hold for what the object claims.
    claims: Vec<Compare>,
    /// What it takes from quotas.
    charge: Charge,
    /// What the object would have become, had the write not removed it.
    last_state: Option<Object>,
}

/// A new object after admission.
struct NewObject {
    object: Object,
    /// The same without what it claims.
    unclaimed: Object,
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

    /// The stages of a new object up to admit. Returns its name.
    async fn prepare_new(&mut self) -> Result<String, ApiError> {
        let call = self.call;
        let (object, given) = self.desired.create()?.ok_or_else(|| call.not_found(&call.target.name))?;
        let object = create::defaulted(call, object, given).await?;
        let object = admission::mutate(&call.admission(), Operation::Create, object, None).await?;
        let unclaimed = create::validated(call, object)?;
        let mut object = unclaimed.clone();
        self.claim(&mut object, None).await?;
        self.authorize(&object, None).await?;
        admission::validate(&call.admission(), Operation::Create, Some(&object), None).await?;
        let name = object.name().to_string();
        self.new = Some(NewObject { object, unclaimed });
        Ok(name)
    }

    /// The object where there is none yet.
    async fn create(&mut self) -> Result<Object, ApiError> {
        let call = self.call;
        if self.new.is_none() {
            // Creating by update or apply is creating: whoever does so must be allowed to.
            if self.desired.create()?.is_some() {
                call.authorize_creation()?;
            }
            let name = self.prepare_new().await?;
            if name != call.target.name {
                return Err(update::name_mismatch(&name, &call.target.name));
            }
        } else if self.freshness == Freshness::Live {
            // What was claimed at first may have been taken meanwhile.
            if let Some(mut object) = self.new.as_ref().map(|new| new.unclaimed.clone()) {
                self.claim(&mut object, None).await?;
                self.new = self.new.take().map(|new| NewObject { object, ..new });
            }
        }
        let object = self.new.as_ref().map(|new| new.object.clone()).unwrap_or_default();
        self.namespace = call.check_namespace(object.name(), self.freshness).await?;
        self.freshness = Freshness::Live;
        let before = std::mem::take(&mut self.charge);
        self.charge = resource_quota::charge(&call.admission(), &object, None, before).await?;
        Ok(object)
    }

    /// The object in the place of `old`.
    async fn replace(&mut self, old: &Object) -> Result<Object, ApiError> {
        let call = self.call;
        // Nobody waits for the quotas of a namespace while webhooks are called.
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
impl Decision for Write<'_> {
    fn begin(&self) -> Begin {
        if self.new.is_some() { Begin::Absent } else { Begin::Read }
    }

    async fn decide(&mut self, before: Option<&Object>) -> Result<Change, ApiError> {
        let Some(old) = before else { return self.create().await.map(Change::Write) };
        let mut object = self.replace(old).await?;
        if !update::ends(self.call, &object, old) {
            return Ok(Change::Write(object));
        }
        object.set_meta("resourceVersion", old.resource_version());
        self.last_state = Some(object);
        Ok(Change::Remove)
    }

    fn conditions(&self) -> Vec<Compare> {
        self.namespace.iter().chain(&self.claims).chain(&self.charge.conditions).cloned().collect()
    }

    fn alongside(&self) -> Vec<Mutation> {
        self.charge.mutations.clone()
    }

    fn beside(&self) -> Option<EncodedBy> {
        self.charge.encoded_by.clone()
    }
}
