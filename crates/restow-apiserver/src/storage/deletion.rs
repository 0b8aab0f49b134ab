//! Graceful deletion: an object is removed at once, or marked while a grace period or finalizers hold it. Pure; time is an
//! argument.

use crate::error::ApiError;
use crate::request::options::DryRun;
use crate::resource::strategy::Strategy;
use crate::storage::object_store::{ObjectChange, ObjectDecision};
use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use restow_apimachinery::field::{FieldError, FieldRule};
use restow_apimachinery::object::Object;
use serde_json::{Value, json};

/// The finalizer of an object whose dependents are orphaned.
pub(crate) const ORPHAN: &str = "orphan";
/// The finalizer of an object whose dependents are deleted first.
pub(crate) const FOREGROUND: &str = "foregroundDeletion";

/// The option to delete an object that cannot be decoded.
pub(crate) const IGNORE_READ_ERROR: &str = "ignoreStoreReadErrorWithClusterBreakingPotential";

/// The propagation policy: what happens to an object's dependents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Propagation {
    /// They stay, without this owner reference.
    Orphan,
    /// They are deleted afterwards.
    Background,
    /// They are deleted first.
    Foreground,
}

/// How to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeleteOptions {
    pub(crate) dry_run: DryRun,
    /// The object must have this unique id, unless it is empty.
    pub(crate) uid: String,
    /// The object must have this resource version, unless it is empty.
    pub(crate) resource_version: String,
    /// The grace period in seconds.
    pub(crate) grace_period: Option<i64>,
    pub(crate) propagation: Option<Propagation>,
    /// Delete an object that cannot be decoded, and only such an object.
    pub(crate) ignore_read_error: bool,
}

impl Propagation {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "Orphan" => Some(Propagation::Orphan),
            "Background" => Some(Propagation::Background),
            "Foreground" => Some(Propagation::Foreground),
            _ => None,
        }
    }
}

impl Default for DeleteOptions {
    fn default() -> Self {
        DeleteOptions {
            dry_run: DryRun::No,
            uid: String::new(),
            resource_version: String::new(),
            grace_period: None,
            propagation: None,
            ignore_read_error: false,
        }
    }
}

impl DeleteOptions {
    /// Decodes the options in a request body.
    pub(crate) fn from_value(body: &Value) -> Result<Self, Vec<FieldError>> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
        let mut problems = Vec::new();
        let policy = body["propagationPolicy"].as_str().filter(|policy| !policy.is_empty());
        let orphan = body["orphanDependents"].as_bool();
        let mut propagation = orphan.map(|orphan| if orphan { Propagation::Orphan } else { Propagation::Background });
        if let Some(policy) = policy {
            match Propagation::parse(policy) {
                Some(parsed) => propagation = Some(parsed),
                None => problems.push(FieldError {
                    field: "propagationPolicy".into(),
                    rule: FieldRule::NotSupported(Value::from(policy).to_string()),
                    detail: "supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\"".into(),
                }),
            }
            if orphan.is_some() {
                problems.push(FieldError::invalid(
                    "propagationPolicy",
                    &policy.into(),
                    "orphanDependents and deletionPropagation cannot be both set",
                ));
            }
        }
        let dry_run = body["dryRun"].as_array().cloned().unwrap_or_default();
        if dry_run.iter().any(|item| item != "All") {
            problems.push(FieldError {
                field: "dryRun".into(),
                rule: FieldRule::NotSupported(Value::from(dry_run.clone()).to_string()),
                detail: "supported values: \"All\"".into(),
            });
        }
        let ignore_read_error = body[IGNORE_READ_ERROR].as_bool().unwrap_or(false);
        if ignore_read_error {
            for field in ["propagationPolicy", "orphanDependents", "gracePeriodSeconds", "preconditions"] {
                if !body[field].is_null() {
                    let detail = format!("cannot be set together with .{field}");
                    problems.push(FieldError::invalid(IGNORE_READ_ERROR, &true.into(), detail));
                }
            }
        }
        match problems.is_empty() {
            false => Err(problems),
            true => Ok(DeleteOptions {
                dry_run: DryRun::from(!dry_run.is_empty()),
                uid: text(&body["preconditions"]["uid"]),
                resource_version: text(&body["preconditions"]["resourceVersion"]),
                grace_period: body["gracePeriodSeconds"].as_i64(),
                propagation,
                ignore_read_error,
            }),
        }
    }

    /// The first of the preconditions that an object does not meet.
    pub(crate) fn unmet(&self, object: &Object) -> Option<String> {
        if !self.uid.is_empty() && self.uid != object.uid() {
            return Some(format!(
                "the UID in the precondition ({}) does not match the UID in record ({}). The object might have been deleted \
                 and then recreated",
                self.uid,
                object.uid()
            ));
        }
        (!self.resource_version.is_empty() && self.resource_version != object.resource_version()).then(|| {
            format!(
                "the ResourceVersion in the precondition ({}) does not match the ResourceVersion in record ({}). The object \
                 might have been modified",
                self.resource_version,
                object.resource_version()
            )
        })
    }
}

/// Decides whether the object is removed, marked or kept.
pub(crate) fn decide(
    strategy: &dyn Strategy,
    object: &Object,
    options: &DeleteOptions,
    now: Timestamp,
) -> ObjectChange {
    let mut marked = object.clone();
    if !object.is_being_deleted() {
        strategy.prepare_deletion(&mut marked);
    }
    let finalizers: Vec<String> = finalizers(strategy, &marked, options.propagation);
    let grace = strategy.grace_period(object, options.grace_period).max(0);
    if grace == 0 && finalizers.is_empty() && !strategy.is_occupied(object) {
        return ObjectChange::Remove;
    }
    set_finalizers(&mut marked, &finalizers);
    if object.is_being_deleted() {
        shorten(&mut marked, grace);
        return if marked == *object { ObjectChange::Keep } else { ObjectChange::Write(marked) };
    }
    mark(&mut marked, grace, now);
    if strategy.is_occupied(object) {
        // A namespace that is not empty waits, without a grace period.
        marked.metadata_mut().remove("deletionGracePeriodSeconds");
    }
    ObjectChange::Write(marked)
}

/// Marks an object as being deleted.
pub(crate) fn mark(object: &mut Object, grace: i64, now: Timestamp) {
    let generation = object.at(&["metadata", "generation"]).is_some().then(|| object.generation() + 1);
    let fields = object.metadata_mut();
    fields.insert("deletionTimestamp".into(), written(later(now, grace)).into());
    fields.insert("deletionGracePeriodSeconds".into(), grace.into());
    if let Some(generation) = generation {
        fields.insert("generation".into(), generation.into());
    }
}

/// Removes a finalizer; removes the object when nothing else holds it.
pub(crate) fn without_finalizer(strategy: &dyn Strategy, object: &Object, finalizer: &str) -> ObjectChange {
    let kept: Vec<String> =
        object.finalizers().into_iter().filter(|name| *name != finalizer).map(str::to_string).collect();
    if kept.len() == object.finalizers().len() {
        return ObjectChange::Keep;
    }
    if kept.is_empty() && object.is_being_deleted() && grace_left(object) == 0 && !strategy.is_occupied(object) {
        return ObjectChange::Remove;
    }
    let mut released = object.clone();
    set_finalizers(&mut released, &kept);
    ObjectChange::Write(released)
}

/// The grace period of an object that is being deleted.
pub(crate) fn grace_left(object: &Object) -> i64 {
    object.at(&["metadata", "deletionGracePeriodSeconds"]).and_then(Value::as_i64).unwrap_or_default()
}

/// Sets the grace period of a removed object to zero, for the response.
pub(crate) fn end_grace(object: &mut Object, now: Timestamp) {
    match object.is_being_deleted() {
        true => shorten(object, 0),
        false => mark(object, 0, now),
    }
}

/// A grace period can be made shorter, never longer.
fn shorten(object: &mut Object, grace: i64) {
    let before = grace_left(object);
    let end = object.meta("deletionTimestamp").parse::<Timestamp>();
    if let Ok(end) = end
        && grace < before
    {
        let end = later(end, grace.saturating_sub(before));
        object.metadata_mut().insert("deletionTimestamp".into(), written(end).into());
        object.metadata_mut().insert("deletionGracePeriodSeconds".into(), grace.into());
    }
}

/// Adds seconds to a time, saturating: a client may request any number.
fn later(time: Timestamp, seconds: i64) -> Timestamp {
    let bound = if seconds < 0 { Timestamp::MIN } else { Timestamp::MAX };
    time.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(bound)
}

/// The finalizers of the object, given the propagation policy.
fn finalizers(strategy: &dyn Strategy, object: &Object, propagation: Option<Propagation>) -> Vec<String> {
    let present = object.finalizers();
    let propagation = propagation.unwrap_or_else(|| match () {
        () if present.contains(&ORPHAN) => Propagation::Orphan,
        () if present.contains(&FOREGROUND) => Propagation::Foreground,
        () if strategy.orphans_dependents() => Propagation::Orphan,
        () => Propagation::Background,
    });
    let mut kept: Vec<&str> = present.into_iter().filter(|name| !matches!(*name, ORPHAN | FOREGROUND)).collect();
    match propagation {
        Propagation::Orphan => kept.push(ORPHAN),
        Propagation::Foreground => kept.push(FOREGROUND),
        Propagation::Background => {}
    }
    kept.into_iter().map(str::to_string).collect()
}

fn set_finalizers(object: &mut Object, finalizers: &[String]) {
    match finalizers.is_empty() {
        true => drop(object.metadata_mut().remove("finalizers")),
        false => drop(object.metadata_mut().insert("finalizers".into(), json!(finalizers))),
    }
}

fn written(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Deletes an object, or marks it where finalizers hold it.
pub(crate) struct DeleteOrMark;

#[async_trait]
impl ObjectDecision for DeleteOrMark {
    async fn decide(&mut self, before: Option<&Object>) -> Result<ObjectChange, ApiError> {
        let Some(object) = before else { return Ok(ObjectChange::Keep) };
        if object.finalizers().is_empty() {
            return Ok(ObjectChange::Remove);
        }
        if object.is_being_deleted() {
            return Ok(ObjectChange::Keep);
        }
        let mut marked = object.clone();
        mark(&mut marked, 0, restow_host::now());
        Ok(ObjectChange::Write(marked))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::strategy::Plain;

    struct Graceful;

    impl Strategy for Graceful {
        fn grace_period(&self, _object: &Object, requested: Option<i64>) -> i64 {
            requested.unwrap_or(30)
        }
    }

    fn object(metadata: Value) -> Object {
        Object::from_value(json!({"apiVersion": "v1", "kind": "X", "metadata": metadata})).unwrap()
    }

    fn options(body: Value) -> DeleteOptions {
        DeleteOptions::from_value(&body).unwrap()
    }

    fn check(strategy: &dyn Strategy, metadata: Value, body: Value, expected: Result<Value, ObjectChange>) {
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let found = decide(strategy, &object(metadata), &options(body), now);
        assert_eq!(found, expected.map_or_else(|change| change, |metadata| ObjectChange::Write(object(metadata))));
    }

    #[test]
    fn an_object_without_finalizers_and_grace_is_removed_at_once() {
        check(&Plain, json!({}), json!({}), Err(ObjectChange::Remove));
        check(&Plain, json!({}), json!({"propagationPolicy": "Background"}), Err(ObjectChange::Remove));
        check(&Graceful, json!({}), json!({"gracePeriodSeconds": 0}), Err(ObjectChange::Remove));
        let marked = json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0});
        check(&Plain, marked, json!({}), Err(ObjectChange::Remove));
    }

    #[test]
    fn the_propagation_policy_becomes_a_finalizer() {
        for (policy, finalizer) in [("Orphan", "orphan"), ("Foreground", "foregroundDeletion")] {
            check(
                &Plain,
                json!({"generation": 1, "finalizers": ["a/b"]}),
                json!({"propagationPolicy": policy}),
                Ok(json!({"generation": 2, "finalizers": ["a/b", finalizer],
                    "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0})),
            );
        }
    }

    #[test]
    fn grace_can_only_become_shorter() {
        let marked = json!({"deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30});
        check(&Graceful, json!({}), json!({}), Ok(marked.clone()));
        check(&Graceful, marked.clone(), json!({"gracePeriodSeconds": 60}), Err(ObjectChange::Keep));
        let shorter = json!({"deletionTimestamp": "2026-01-01T00:00:05Z", "deletionGracePeriodSeconds": 5});
        check(&Graceful, marked.clone(), json!({"gracePeriodSeconds": 5}), Ok(shorter));
        check(&Graceful, marked, json!({"gracePeriodSeconds": 0}), Err(ObjectChange::Remove));
    }

    #[test]
    fn an_object_is_removed_with_its_last_finalizer() {
        let held = object(json!({"finalizers": ["orphan"], "deletionTimestamp": "2026-01-01T00:00:00Z"}));
        assert_eq!(without_finalizer(&Plain, &held, ORPHAN), ObjectChange::Remove);
        assert_eq!(without_finalizer(&Plain, &held, FOREGROUND), ObjectChange::Keep);
        let two = object(json!({"finalizers": ["orphan", "a/b"], "deletionTimestamp": "2026-01-01T00:00:00Z"}));
        let one = object(json!({"finalizers": ["a/b"], "deletionTimestamp": "2026-01-01T00:00:00Z"}));
        assert_eq!(without_finalizer(&Plain, &two, ORPHAN), ObjectChange::Write(one));
    }

    #[test]
    fn invalid_options_are_refused() {
        let refused = DeleteOptions::from_value(&json!({"propagationPolicy": "Later"})).unwrap_err();
        assert!(refused[0].to_string().starts_with("propagationPolicy: Unsupported value: \"Later\""), "{refused:?}");
        let both = json!({"propagationPolicy": "Orphan", "orphanDependents": true});
        let refused = DeleteOptions::from_value(&both).unwrap_err();
        assert!(refused[0].to_string().contains("cannot be both set"), "{refused:?}");
        assert!(DeleteOptions::from_value(&json!({"dryRun": ["Some"]})).is_err());
        assert!(DeleteOptions::from_value(&json!({IGNORE_READ_ERROR: true, "dryRun": ["All"]})).is_ok());
        for (field, value) in [
            ("propagationPolicy", json!("Background")),
            ("orphanDependents", json!(false)),
            ("gracePeriodSeconds", json!(0)),
            ("preconditions", json!({})),
        ] {
            let refused = DeleteOptions::from_value(&json!({IGNORE_READ_ERROR: true, field: value})).unwrap_err();
            let expected = format!("{IGNORE_READ_ERROR}: Invalid value: true: cannot be set together with .{field}");
            assert_eq!(refused[0].to_string(), expected);
        }
    }
}
