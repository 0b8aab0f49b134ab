//! Replacing an object, or its status.

use crate::admission::quota::{self, Charge};
use crate::admission::{self, Operation};
use crate::builtin::addresses;
use crate::deletion;
use crate::error::ApiError;
use crate::managed_fields::{self, Given, Writer};
use crate::namespaces::Sight;
use crate::object::Object;
use crate::object_store::{Change, Changed, Decision, EncodedBy};
use crate::resource::{Origin, Verb};
use crate::verbs::{Answer, Call, body, create, metadata, subresource};
use async_trait::async_trait;
use restow_store::{Compare, Mutation};

pub(super) async fn update(call: &Call<'_>) -> Result<Answer, ApiError> {
    let given = body::object(call)?;
    let name = &call.target.name;
    if given.name().is_empty() {
        return Err(ApiError::BadRequest(format!(
            "the name of the object ({name} based on URL) was undeterminable: name must be provided"
        )));
    }
    if given.name() != name {
        return Err(ApiError::BadRequest(format!(
            "the name of the object ({}) does not match the name on the URL ({name})",
            given.name()
        )));
    }
    let entries = body::given_entries(call)?;
    replace(call, &Whole { object: given, entries }).await
}

/// What shall take the place of an object.
#[async_trait]
pub(super) trait Wish: Send + Sync {
    /// The object as it is wished for, given the stored one, and what is said about its managed fields.
    async fn make(&self, before: Option<&Object>) -> Result<(Object, Given), ApiError>;
}

/// An object as it was sent.
struct Whole {
    object: Object,
    entries: Given,
}

#[async_trait]
impl Wish for Whole {
    async fn make(&self, _before: Option<&Object>) -> Result<(Object, Given), ApiError> {
        Ok((self.object.clone(), self.entries.clone()))
    }
}

/// Replaces the object by what is wished for. Used for patches too.
pub(super) async fn replace(call: &Call<'_>, wish: &dyn Wish) -> Result<Answer, ApiError> {
    let name = &call.target.name;
    let dry_run = call.dry_run()?;
    let charge = Charge::default();
    let mut decision = Replacement {
        call,
        wish,
        dry_run,
        rehearsed: None,
        last_state: None,
        namespace: None,
        claims: Vec::new(),
        charge,
    };
    let changed = call.server.objects().change(call.place(name), &mut decision).await?;
    if let Some(answer) = decision.rehearsed {
        return Ok(answer);
    }
    match changed {
        Changed::Created(written) => Ok(call.written(201, written)),
        Changed::Updated(written) => Ok(call.written(200, written)),
        Changed::Removed(object) => Ok(Answer::Object { code: 200, object: decision.last_state.unwrap_or(object) }),
        Changed::Absent => Err(call.not_found(name)),
    }
}

/// Puts another object in the place of the stored one.
struct Replacement<'a> {
    call: &'a Call<'a>,
    wish: &'a dyn Wish,
    dry_run: bool,
    /// What a dry run would have answered.
    rehearsed: Option<Answer>,
    /// What the object would have become, had the change not removed it.
    last_state: Option<Object>,
    /// What must hold of the namespace for a new object.
    namespace: Option<Compare>,
    /// What must hold for addresses and ports that no other service may have.
    claims: Vec<Compare>,
    /// What it takes from quotas.
    charge: Charge,
}

#[async_trait]
impl Decision for Replacement<'_> {
    async fn decide(&mut self, before: Option<&Object>) -> Result<Change, ApiError> {
        // Nobody waits for a turn at the quotas while webhooks are asked.
        (self.namespace, self.claims, self.charge) = (None, Vec::new(), Charge::default());
        let (object, entries) = self.wish.make(before).await?;
        let operation = if before.is_some() { Operation::Update } else { Operation::Create };
        let object = admission::mutate(self.call, operation, object, before).await?;
        let mut object = match before {
            Some(old) => replacement(self.call, object, old, entries).await?,
            None => {
                let object = substitute(self.call, object)?;
                self.namespace = self.call.check_namespace(object.name(), Sight::Stored).await?;
                object
            }
        };
        if is_service(self.call) && before.is_none_or(|old| old.get("spec") != object.get("spec")) {
            self.claims = addresses::assign(self.call, &mut object, before).await?;
        }
        self.call.server.access().check_grant(&self.call.user, &object, before, &self.call.target.name)?;
        admission::validate(self.call, operation, Some(&object), before).await?;
        self.charge = quota::charge(self.call, &object, before, Charge::default()).await?;
        let change = match before {
            Some(old) if ends(self.call, &object, old) => {
                object.set_meta("resourceVersion", old.resource_version());
                self.last_state = Some(object);
                Change::Remove
            }
            _ => Change::Write(object),
        };
        if !self.dry_run {
            return Ok(change);
        }
        self.rehearsed = match (change, before) {
            (Change::Write(object), None) => Some(Answer::Object { code: 201, object }),
            (Change::Write(object), Some(_)) => Some(Answer::Object { code: 200, object }),
            (_, old) => self.last_state.take().or(old.cloned()).map(|object| Answer::Object { code: 200, object }),
        };
        Ok(Change::Keep)
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

/// The object that takes the place of one that does not exist, where its kind allows that.
fn substitute(call: &Call<'_>, mut object: Object) -> Result<Object, ApiError> {
    let allowed = call.resource.strategy.create_on_update() && call.target.subresource.is_empty();
    if !allowed || !object.uid().is_empty() || !object.resource_version().is_empty() {
        return Err(call.not_found(&call.target.name));
    }
    metadata::prepare_new(call, &mut object)?;
    create::record(call, &mut object, Given::Object);
    create::checked(call, object)
}

async fn replacement(call: &Call<'_>, mut object: Object, old: &Object, entries: Given) -> Result<Object, ApiError> {
    check_expectations(call, &object, old)?;
    subresource::keep_part(call, &mut object, old);
    metadata::prepare_replacement(call, &mut object, old)?;
    call.resource.strategy.default(&mut object);
    call.resource.strategy.prepare_update(&mut object, old);
    metadata::count_change(call, &mut object, old);
    let mut problems = metadata::problems(call, &object);
    problems.extend(metadata::change_problems(&object, old));
    let before = subresource::granted(call, &object, old);
    problems.extend(call.resource.strategy.validate_update(&object, &before));
    if !problems.is_empty() {
        return Err(call.invalid(&call.target.name, problems));
    }
    record(call, old, &mut object, entries).await?;
    Ok(object)
}

/// Whether the call is about a service, which has addresses and ports that no other one has.
pub(super) fn is_service(call: &Call<'_>) -> bool {
    call.resource.names.kind == "Service" && call.resource.origin == Origin::Builtin
}

/// Whether nothing holds a deleted object any more: its last finalizer takes the object with it.
fn ends(call: &Call<'_>, object: &Object, old: &Object) -> bool {
    let held = deletion::grace_left(object) > 0 || call.resource.strategy.is_occupied(object);
    old.is_being_deleted() && object.finalizers().is_empty() && !held
}

/// Notes who set what.
pub(super) async fn record(call: &Call<'_>, old: &Object, object: &mut Object, entries: Given) -> Result<(), ApiError> {
    let (manager, now, version) = (call.manager(), metadata::now(), call.version.to_string());
    let subresource = &call.target.subresource;
    let writer = Writer { manager: &manager, subresource, api_version: &version, now: &now };
    managed_fields::record_change(&call.resource, &writer, old, object, entries).await
}

/// Refuses to change another object, or another state of it, than the client speaks of.
pub(super) fn check_expectations(call: &Call<'_>, object: &Object, old: &Object) -> Result<(), ApiError> {
    let name = &call.target.name;
    if !object.uid().is_empty() && object.uid() != old.uid() {
        if call.target.verb == Verb::Patch {
            let problem = crate::field::FieldError::immutable("metadata.uid", &object.uid().into());
            return Err(call.invalid(name, vec![problem]));
        }
        return Err(call.conflict(
            name,
            format!("Precondition failed: UID in precondition: {}, UID in object meta: {}", object.uid(), old.uid()),
        ));
    }
    let expected = object.resource_version();
    if !expected.is_empty() && expected != "0" && expected != old.resource_version() {
        if expected.parse::<u64>().is_err() {
            return Err(ApiError::Unexplained(format!("strconv.ParseUint: parsing {expected:?}: invalid syntax")));
        }
        return Err(call.conflict(
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        ));
    }
    Ok(())
}
