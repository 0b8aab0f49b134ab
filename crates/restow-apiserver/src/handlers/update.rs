//! Replacing an object, or its status.

use crate::admission::resource_quota::{self, Charge};
use crate::admission::{self, Operation};
use crate::builtin::addresses;
use crate::error::{ApiError, GroupKind};
use crate::field_manager;
use crate::handlers::{Answer, Call, create, list, metadata, subresource};
use crate::request::body;
use crate::resource::object_meta;
use crate::resource::{Origin, Verb};
use crate::storage::deletion;
use crate::storage::object_store::{Change, Changed, Decision, EncodedBy};
use async_trait::async_trait;
use restow_apimachinery::field::{FieldError, FieldRule};
use restow_apimachinery::managed_fields::{Given, Writer};
use restow_apimachinery::object::Object;
use restow_store::{Compare, Mutation};

/// How often it is tried to change or to make an object that others make and remove at the same time.
const ATTEMPTS: usize = 5;

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
    replace_or_create(call, &Whole { call, object: given, entries }).await
}

/// What shall take the place of an object.
#[async_trait]
pub(super) trait Wish: Send + Sync {
    /// The object as it is wished for, given the stored one, and what is said about its managed fields.
    async fn make(&self, old: &Object) -> Result<(Object, Given), ApiError>;

    /// The object to be made where there is none; `None` where nothing is made so.
    fn make_new(&self) -> Result<Option<(Object, Given)>, ApiError> {
        Ok(None)
    }
}

/// An object as it was sent.
struct Whole<'a> {
    call: &'a Call<'a>,
    object: Object,
    entries: Given,
}

#[async_trait]
impl Wish for Whole<'_> {
    async fn make(&self, _old: &Object) -> Result<(Object, Given), ApiError> {
        Ok((self.object.clone(), self.entries.clone()))
    }

    fn make_new(&self) -> Result<Option<(Object, Given)>, ApiError> {
        if !self.call.resource.strategy.create_on_update() {
            return Ok(None);
        }
        match self.object.uid() {
            "" => Ok(Some((self.object.clone(), Given::Object))),
            uid => {
                let message = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: ");
                Err(self.call.conflict(&self.call.target.name, message))
            }
        }
    }
}

/// Replaces the object by what is wished for, or makes one where there is none and that is wished for as well. Making it
/// is creating it: whoever does so must be allowed to, and it goes the way of everything that is created.
pub(super) async fn replace_or_create(call: &Call<'_>, wish: &dyn Wish) -> Result<Answer, ApiError> {
    for _ in 0..ATTEMPTS {
        let absent = match replace(call, wish).await {
            Err(error @ ApiError::NotFound { .. }) if call.target.subresource.is_empty() => error,
            other => return other,
        };
        let (object, entries) = wish.make_new()?.ok_or(absent)?;
        call.authorize_creation()?;
        match create::create_once(call, object, entries).await {
            Err(ApiError::AlreadyExists { .. }) => {}
            other => return other,
        }
    }
    Err(ApiError::Timeout("the object was made and removed by others again and again; try again".into()))
}

/// Replaces the object by what is wished for. Used for patches too.
pub(super) async fn replace(call: &Call<'_>, wish: &dyn Wish) -> Result<Answer, ApiError> {
    let name = &call.target.name;
    let dry_run = call.dry_run()?;
    let charge = Charge::default();
    let mut decision =
        Replacement { call, wish, dry_run, rehearsed: None, last_state: None, claims: Vec::new(), charge };
    let changed = call.handlers.objects().change(call.place(name), &mut decision).await?;
    if let Some(answer) = decision.rehearsed {
        return Ok(answer);
    }
    match changed {
        Changed::Created(written) | Changed::Updated(written) => Ok(call.written(200, written).await),
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
    /// What must hold for addresses and ports that no other service may have.
    claims: Vec<Compare>,
    /// What it takes from quotas.
    charge: Charge,
}

#[async_trait]
impl Decision for Replacement<'_> {
    async fn decide(&mut self, before: Option<&Object>) -> Result<Change, ApiError> {
        let name = &self.call.target.name;
        let old = before.ok_or_else(|| self.call.not_found(name))?;
        // Nobody waits for a turn at the quotas while webhooks are asked.
        (self.claims, self.charge) = (Vec::new(), Charge::default());
        let (object, entries) = self.wish.make(old).await?;
        let object = admission::mutate(&self.call.admission(), Operation::Update, object, before).await?;
        let mut object = replacement(self.call, object, old, entries).await?;
        if is_service(self.call) && old.get("spec") != object.get("spec") {
            self.claims = addresses::assign(&self.call.handlers.core, self.call, &mut object, before).await?;
        }
        self.claims
            .extend(self.call.handlers.agreement.recompute_status(&self.call.resource, &mut object, before).await?);
        self.call.handlers.access().check_grant(&self.call.user, &object, before, name).await?;
        admission::validate(&self.call.admission(), Operation::Update, Some(&object), before).await?;
        self.charge = resource_quota::charge(&self.call.admission(), &object, before, Charge::default()).await?;
        let change = match ends(self.call, &object, old) {
            true => {
                object.set_meta("resourceVersion", old.resource_version());
                self.last_state = Some(object);
                Change::Remove
            }
            false => Change::Write(object),
        };
        if !self.dry_run {
            return Ok(change);
        }
        let rehearsed = match change {
            Change::Write(object) => object,
            _ => self.last_state.take().unwrap_or_else(|| old.clone()),
        };
        self.rehearsed = Some(Answer::Object { code: 200, object: rehearsed });
        Ok(Change::Keep)
    }

    fn conditions(&self) -> Vec<Compare> {
        self.claims.iter().chain(&self.charge.conditions).cloned().collect()
    }

    fn alongside(&self) -> Vec<Mutation> {
        self.charge.mutations.clone()
    }

    fn beside(&self) -> Option<EncodedBy> {
        self.charge.encoded_by.clone()
    }
}

async fn replacement(call: &Call<'_>, mut object: Object, old: &Object, entries: Given) -> Result<Object, ApiError> {
    check_expectations(call, &object, old)?;
    check_condition(call, &object)?;
    subresource::keep_part(call, &mut object, old);
    metadata::prepare_replacement(call, &mut object, old)?;
    call.resource.strategy.default(&mut object);
    call.resource.strategy.prepare_update(&mut object, old);
    metadata::count_change(call, &mut object, old);
    let problems = problems(call, &object, old);
    if !problems.is_empty() {
        return Err(call.invalid(&call.target.name, problems));
    }
    record(call, old, &mut object, entries).await?;
    Ok(object)
}

/// Everything that is wrong with an object that is to take the place of `old`.
pub(super) fn problems(call: &Call<'_>, object: &Object, old: &Object) -> Vec<FieldError> {
    let mut problems = metadata::problems(call, object);
    problems.extend(metadata::change_problems(object, old));
    problems.extend(call.resource.strategy.validate_update(object, old));
    let granted = subresource::granted(call, object, old);
    problems.extend(call.resource.strategy.validate_change(object, &granted));
    problems
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
    let (manager, now, version) = (call.manager(), object_meta::now(), call.version.to_string());
    let subresource = &call.target.subresource;
    let writer = Writer { manager: &manager, subresource, api_version: &version, now: &now };
    field_manager::record_change(&call.resource, &writer, old, object, entries).await
}

/// Refuses to change another object, or another state of it, than the client speaks of.
pub(super) fn check_expectations(call: &Call<'_>, object: &Object, old: &Object) -> Result<(), ApiError> {
    let name = &call.target.name;
    if !object.uid().is_empty() && object.uid() != old.uid() {
        if call.target.verb == Verb::Patch {
            let problem = restow_apimachinery::field::FieldError::immutable("metadata.uid", &object.uid().into());
            return Err(call.invalid(name, vec![problem]));
        }
        return Err(call.conflict(
            name,
            format!("Precondition failed: UID in precondition: {}, UID in object meta: {}", object.uid(), old.uid()),
        ));
    }
    let expected = object.resource_version();
    if !expected.is_empty() && expected != "0" && expected != old.resource_version() {
        // Kubernetes says this too, but calls it a fault of its own.
        list::revision(expected)
            .map_err(|problem| ApiError::BadRequest(format!("metadata.resourceVersion: {problem}")))?;
        return Err(call.conflict(
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        ));
    }
    Ok(())
}

/// Refuses to replace whatever there is by now, where the kind does not allow that: two who replace an object at the same
/// time would not notice each other.
fn check_condition(call: &Call<'_>, object: &Object) -> Result<(), ApiError> {
    if call.resource.strategy.unconditional_update() || !matches!(object.resource_version(), "" | "0") {
        return Ok(());
    }
    let cause = FieldError {
        field: "metadata.resourceVersion".into(),
        rule: FieldRule::Invalid("0x0".into()),
        detail: "must be specified for an update".into(),
    };
    // Kubernetes names the resource here where it names the kind elsewhere.
    let resource = &call.resource.group_resource;
    let kind = GroupKind { group: resource.group().to_string(), kind: resource.resource().to_string() };
    Err(ApiError::Invalid { kind, name: call.target.name.clone(), causes: vec![cause] })
}
